"""Which devices both sides are offered: of those that pods may have, the ones that can be leased, from the front."""

from __future__ import annotations

from msgspec.structs import replace

from drabridge.inventory.model import Presence
from drabridge.lanes.shared import with_shared
from drabridge.ledger.model import Ledger
from tests.lanes.planned_ledger import devices, ledger_of


def shared_of(ledger: Ledger, count: int) -> list[str]:
    return [change.device for change in with_shared(ledger, devices(4), (), count)]


def test_the_first_devices_are_shared() -> None:
    assert shared_of(ledger_of(devices(4)), 2) == ["gpu-00", "gpu-01"]


def test_a_device_that_overlaps_with_another_one_is_not_shared() -> None:
    """A virtual function and its physical function are two resources, and nobody says ``partition``."""
    ledger = ledger_of(devices(4))
    first = ledger.entries["gpu-00"]
    part = replace(first, device=replace(first.device, name="vf", resource="other", units=("VF",), root="gpu-00"))
    assert shared_of(ledger.replace([part]), 2) == ["gpu-01", "gpu-02"]
    gone = replace(part, device=replace(part.device, presence=Presence.GONE))
    assert shared_of(ledger.replace([gone]), 2) == ["gpu-00", "gpu-01"]


def test_a_device_for_many_claims_is_not_shared() -> None:
    ledger = ledger_of(devices(4))
    first = ledger.entries["gpu-00"]
    assert shared_of(ledger.replace([replace(first, device=replace(first.device, shareable=True))]), 4) == [
        "gpu-01",
        "gpu-02",
        "gpu-03",
    ]
