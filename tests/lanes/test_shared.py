"""Which devices both sides are offered: of those that pods may have, the ones that can be leased, from the front."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from drabridge.inventory.devices import Presence
from drabridge.lanes.plan import LaneTarget, plan
from drabridge.lanes.shared import lent_as_shared, shared_now, with_shared
from drabridge.ledger.apply_event import step
from drabridge.ledger.entries import Lane, Ledger
from drabridge.ledger.events import SetLane
from tests.lanes.planned_ledger import POLICY, devices, ledger_of

FOUND = devices(4)


def changes(ledger: Ledger, count: int, dra: int = 0, lent: Collection[str] = ()) -> Mapping[str, Lane]:
    planned = plan(lent_as_shared(ledger, lent), FOUND, LaneTarget(dra), 1000.0)
    return {change.device: change.lane for change in with_shared(ledger, FOUND, planned, count, lent)}


def after(ledger: Ledger, count: int) -> Ledger:
    for name, lane in changes(ledger, count).items():
        ledger = step(ledger, SetLane(name, lane, 1000.0), POLICY).applied_to(ledger)
    return ledger


def broken(ledger: Ledger, name: str) -> Ledger:
    entry = ledger.entries[name]
    return ledger.replace([replace(entry, device=replace(entry.device, presence=Presence.FAULTY))])


def test_the_first_devices_are_shared() -> None:
    assert changes(ledger_of(FOUND), 2) == {"gpu-00": Lane.SHARED, "gpu-01": Lane.SHARED}


def test_those_that_claims_alone_are_to_have_are_not() -> None:
    lanes = changes(ledger_of(FOUND), 2, dra=1)
    assert lanes == {"gpu-00": Lane.DRA, "gpu-01": Lane.SHARED, "gpu-02": Lane.SHARED}


def test_a_device_that_claims_give_back_is_shared_at_once() -> None:
    ledger = ledger_of(FOUND, dict.fromkeys(range(4), Lane.DRA))
    assert changes(ledger, 3) == dict.fromkeys(("gpu-00", "gpu-01", "gpu-02"), Lane.SHARED) | {"gpu-03": Lane.LEGACY}


def test_fewer_are_shared_when_fewer_are_wanted() -> None:
    ledger = after(ledger_of(FOUND), 3)
    assert not changes(ledger, 3)
    assert changes(ledger, 1) == {"gpu-01": Lane.LEGACY, "gpu-02": Lane.LEGACY}
    assert changes(ledger, 0) == dict.fromkeys(("gpu-00", "gpu-01", "gpu-02"), Lane.LEGACY)
    assert not changes(ledger_of(FOUND), 0)


def test_what_is_shared_stays_so_when_a_device_in_front_of_it_is_free() -> None:
    assert not changes(ledger_of(FOUND, {2: Lane.SHARED}), 1)


def test_a_device_that_does_not_work_is_shared_last() -> None:
    assert changes(broken(ledger_of(FOUND), "gpu-00"), 1) == {"gpu-01": Lane.SHARED}
    exchanged = {"gpu-00": Lane.LEGACY, "gpu-01": Lane.SHARED}
    assert changes(broken(ledger_of(FOUND, {0: Lane.SHARED}), "gpu-00"), 1) == exchanged


def test_a_device_that_is_to_be_shared_when_it_is_released_counts_as_shared() -> None:
    """Claims give it back first: until the scheduler knows that, it moves."""
    ledger = after(ledger_of(FOUND, {0: Lane.DRA}), 1)
    assert (ledger.entries["gpu-00"].lane, shared_now(ledger, FOUND)) == (Lane.DRA_TO_LEGACY, 1)
    assert not changes(ledger, 1)
    assert shared_now(ledger_of(FOUND[1:], {0: Lane.SHARED}), FOUND) == 1


def test_a_device_that_overlaps_with_another_one_is_not_shared() -> None:
    """A virtual function and its physical function are two resources, and nobody says ``partition``."""
    ledger = ledger_of(FOUND)
    first = ledger.entries["gpu-00"]
    part = replace(first, device=replace(first.device, name="vf", resource="other", units=("VF",), root="gpu-00"))
    assert changes(ledger.replace([part]), 2) == {"gpu-01": Lane.SHARED, "gpu-02": Lane.SHARED}
    gone = replace(part, device=replace(part.device, presence=Presence.GONE))
    assert changes(ledger.replace([gone]), 2) == {"gpu-00": Lane.SHARED, "gpu-01": Lane.SHARED}


def test_a_shared_device_is_lent_to_the_dra_lane_and_moves_no_other() -> None:
    ledger = ledger_of(FOUND, {0: Lane.DRA, 1: Lane.SHARED, 2: Lane.SHARED})
    assert changes(ledger, 2, dra=1, lent={"gpu-01"}) == {"gpu-01": Lane.DRA}
    lent = ledger_of(FOUND, {0: Lane.DRA, 1: Lane.DRA, 2: Lane.SHARED})
    assert not changes(lent, 2, dra=1, lent={"gpu-01"})
    assert changes(lent, 2, dra=1) == {"gpu-01": Lane.SHARED}
    assert changes(lent, 0, dra=1, lent={"gpu-01"}) == {"gpu-01": Lane.LEGACY, "gpu-02": Lane.LEGACY}
