"""The planner where devices do not work: they fill a lane last, and a flapping one causes no oscillation."""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from drabridge.inventory.devices import Device, Presence
from drabridge.lanes.plan import (
    LaneTarget,
    destination_lane,
    plan,
    seconds_until_replan,
    startable_without_slices,
    starting_lanes,
)
from drabridge.ledger.apply_event import step
from drabridge.ledger.entries import Lane, Ledger, LedgerDevice, Owner
from drabridge.ledger.events import Discovered, SetLane
from tests.lanes.planned_ledger import POLICY, carry_out, devices, lanes_of, ledger_of

BROKE = 100.0
LATER = BROKE + 60.0


def faulty(found: list[Device], which: Collection[int]) -> list[Device]:
    return [replace(d, presence=Presence.FAULTY) if n in which else d for n, d in enumerate(found)]


def seen(ledger: Ledger, found: list[Device], at: float) -> Ledger:
    return step(ledger, Discovered(tuple(map(LedgerDevice.of, found)), at), POLICY).applied_to(ledger)


def test_devices_that_do_not_work_move_last() -> None:
    found = faulty(devices(4), {0})
    assert lanes_of(carry_out(ledger_of(found), found, LaneTarget(1))) == "LDLL"
    assert lanes_of(carry_out(ledger_of(found), found, LaneTarget(2))) == "LDDL"
    back = faulty(devices(4), {3})
    everything = dict.fromkeys(range(4), Lane.DRA)
    assert lanes_of(carry_out(ledger_of(back, everything), back, LaneTarget(3))) == "DDLD"
    assert lanes_of(carry_out(ledger_of(back, everything), back, LaneTarget(0))) == "LLLL"


def test_a_lane_that_is_nearly_emptied_keeps_one_that_works() -> None:
    found = faulty(devices(4), {0})
    assert lanes_of(carry_out(ledger_of(found), found, LaneTarget(3))) == "DDDL"


def test_a_held_one_that_works_is_marked_and_overtaken_by_a_free_one_once_it_works() -> None:
    found = faulty(devices(2), {0})
    ledger = carry_out(seen(ledger_of(devices(2), held={1}), found, BROKE), found, LaneTarget(1))
    assert lanes_of(ledger) == "LD"
    assert ledger.entries["gpu-01"].leaves_when_released
    ledger = carry_out(seen(ledger, devices(2), LATER), devices(2), LaneTarget(1))
    assert lanes_of(ledger) == "DL"
    assert not ledger.entries["gpu-01"].leaves_when_released


def test_at_first_each_lane_gets_what_works() -> None:
    found = faulty(devices(4), {0})
    assert [name for name, lane in starting_lanes(Ledger(), found, LaneTarget(1)).items() if lane is Lane.DRA] == [
        "gpu-01"
    ]
    assert [name for name, lane in starting_lanes(Ledger(), found, LaneTarget(3)).items() if lane is Lane.LEGACY] == [
        "gpu-03"
    ]


def test_a_lane_whose_only_device_breaks_gets_another_after_a_while_and_keeps_it() -> None:
    well = devices(4)
    found = faulty(well, {0})
    ledger = seen(ledger_of(well, {0: Lane.DRA}), found, BROKE)
    assert seconds_until_replan(ledger, BROKE + 20.0) == 40.0
    assert plan(ledger, found, LaneTarget(1), LATER - 1.0) == ()
    ledger = carry_out(ledger, found, LaneTarget(1), LATER)
    assert lanes_of(ledger) == "LDLL"
    assert seconds_until_replan(ledger, LATER) is None
    for again in (well, found, faulty(well, {2}), faulty(well, {0, 3}), well):
        ledger = seen(ledger, again, LATER)
        assert plan(ledger, again, LaneTarget(1), 10 * LATER) == ()


def test_nothing_moves_where_the_other_lane_would_lack_as_much() -> None:
    well = devices(4)
    found = faulty(well, {0})
    ledger = seen(ledger_of(well, {0: Lane.DRA, 1: Lane.DRA}), found, BROKE)
    assert plan(ledger, found, LaneTarget(2), LATER) == ()
    assert plan(seen(ledger_of(well, {0: Lane.DRA}, held={1, 2, 3}), found, BROKE), found, LaneTarget(1), LATER) == ()


@pytest.mark.parametrize("root", ["", "whole"])
def test_while_no_slice_can_be_published_nothing_goes_to_and_fro(root: str) -> None:
    """Every way in which three devices may be, the first two of them parts of one or not."""
    well = [replace(d, root=root if n < 2 else "") for n, d in enumerate(devices(3))]
    for lanes, broken, wanted in product(product("LHD", repeat=3), product((False, True), repeat=3), range(4)):
        found = faulty(well, {n for n in range(3) if broken[n]})
        held = {n for n in range(3) if lanes[n] == "H"}
        ledger = seen(ledger_of(well, {n: Lane.DRA for n in range(3) if lanes[n] == "D"}, held), found, BROKE)
        for _ in range(3):
            changes = startable_without_slices(ledger, plan(ledger, found, LaneTarget(wanted), LATER))
            for change in changes:
                ledger = step(ledger, SetLane(change.device, change.lane, LATER, change.reason), POLICY).applied_to(
                    ledger
                )
        assert changes == (), (lanes, broken, wanted)


@given(st.integers(1, 8), st.data())
def test_free_devices_that_work_go_where_more_of_them_are_missing(count: int, data: st.DataObject) -> None:
    well = devices(count)
    some = st.sets(st.integers(0, count - 1))
    held, broken, in_dra = data.draw(some), data.draw(some), data.draw(some)
    found = faulty(well, broken)
    ledger = seen(ledger_of(well, dict.fromkeys(in_dra - held, Lane.DRA), held), found, BROKE)
    wanted = LaneTarget(data.draw(st.integers(0, count)))
    for _ in range(count + 2):
        if not (changes := plan(ledger, found, wanted, LATER)):
            break
        ledger = carry_out(ledger, found, wanted, LATER)
    assert changes == ()
    assert lanes_of(ledger).count("D") == wanted.dra
    entries = ledger.entries.values()
    number = {lane: sum(destination_lane(e) is lane for e in entries) for lane in (Lane.DRA, Lane.LEGACY)}
    lack = {
        lane: sum(destination_lane(e) is lane and e.device.presence is not Presence.PRESENT for e in entries)
        for lane in number
    }
    free = {
        (destination_lane(e), e.device.presence is Presence.PRESENT)
        for e in entries
        if e.owner is Owner.NONE and e.move is None
    }
    for short, rich in ((Lane.DRA, Lane.LEGACY), (Lane.LEGACY, Lane.DRA)):
        if {(short, False), (rich, True)} <= free:
            assert lack[short] / number[short] <= (lack[rich] + 1) / number[rich]
