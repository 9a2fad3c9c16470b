"""The planner of lanes: it reaches the numbers, packs from both ends, keeps groups whole, never oscillates."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from drabridge.inventory.devices import Device, Presence
from drabridge.lanes.plan import (
    LaneTarget,
    Urgency,
    counted_devices,
    from_selection,
    packing_order,
    plan,
    starting_lanes,
)
from drabridge.ledger.apply_event import step
from drabridge.ledger.entries import Entry, Lane, Ledger, LedgerDevice, NodeState, Owner, PodRef
from drabridge.ledger.events import (
    Discovered,
    Observed,
    SetLane,
)
from tests.lanes.planned_ledger import POLICY, acknowledge, carry_out, devices, lanes_of, ledger_of


def test_claims_get_the_front_and_pods_the_end() -> None:
    found = devices(8)
    ledger = carry_out(ledger_of(found), found, LaneTarget(3))
    assert lanes_of(ledger) == "DDDLLLLL"
    assert lanes_of(carry_out(ledger, found, LaneTarget(6))) == "DDDDDDLL"
    assert lanes_of(carry_out(ledger, found, LaneTarget(1))) == "DLLLLLLL"  # back from the end of the dra part


def test_free_devices_move_before_held_ones() -> None:
    found = devices(4)
    changes = plan(ledger_of(found, held={0, 1}), found, LaneTarget(3), 1000.0)
    assert [(change.device, change.urgency) for change in changes] == [
        ("gpu-02", Urgency.FREE),
        ("gpu-03", Urgency.FREE),
        ("gpu-00", Urgency.HELD),
    ]


def all_held_but(ledger: Ledger, found: list[Device], free: Collection[int]) -> Ledger:
    """Pods on everything that is held, but for these: theirs have ended."""
    shown = {("r", device.id): (PodRef("ns", "p", "c"),) for n, device in enumerate(found) if n not in free}
    for at in (500.0, 600.0):
        ledger = step(ledger, Observed(at, ledger.seq, shown, None, {}), POLICY).applied_to(ledger)
    assert [entry.owner is Owner.NONE for entry in ledger.entries.values()] == [n in free for n in range(len(found))]
    return ledger


def test_a_held_device_is_overtaken_by_one_that_becomes_free() -> None:
    found = devices(2)
    ledger = carry_out(ledger_of(found, held={0, 1}), found, LaneTarget(1))
    assert ledger.entries["gpu-00"].move is not None
    ledger = carry_out(all_held_but(ledger, found, {1}), found, LaneTarget(1))
    assert ledger.entries["gpu-00"].move is None
    assert ledger.entries["gpu-01"].lane is Lane.DRA


def test_each_held_device_is_overtaken_by_another() -> None:
    found = devices(5)
    marked = carry_out(ledger_of(found, held=range(5)), found, LaneTarget(3))
    assert lanes_of(marked) == "DDDLL"
    ledger = carry_out(all_held_but(marked, found, {3, 4}), found, LaneTarget(3))
    assert lanes_of(ledger) == "LLDDD"
    assert [name for name, entry in ledger.entries.items() if entry.move] == ["gpu-02"]


def test_a_mark_that_nobody_wants_any_more_is_taken_back_and_moves_no_other() -> None:
    found = devices(2)
    marked = carry_out(ledger_of(found, held={0, 1}), found, LaneTarget(1))
    changes = plan(all_held_but(marked, found, {1}), found, LaneTarget(0), 1000.0)
    assert [(change.device, change.lane, change.urgency) for change in changes] == [
        ("gpu-00", Lane.LEGACY, Urgency.TAKE_BACK)
    ]


def test_a_pcie_root_is_kept_whole() -> None:
    found = devices(8, per_root=4)
    ledger = ledger_of(found, held={0})
    assert (
        lanes_of(carry_out(ledger, found, LaneTarget(4))) == "LLLLDDDD"
    )  # the second root can go whole, the first not
    assert lanes_of(carry_out(ledger_of(found), found, LaneTarget(4))) == "DDDDLLLL"
    split = ledger_of(found, {4: Lane.DRA})
    assert lanes_of(carry_out(split, found, LaneTarget(3))) == "LLLLDDDL"  # completes the root that is split already


def test_parts_of_one_device_move_together() -> None:
    found = [Device(f"mig-{n}", f"M-{n}", "r", root=f"gpu-{n // 3}") for n in range(6)]
    assert lanes_of(carry_out(ledger_of(found), found, LaneTarget(4))) == "DDDLLL"  # four is not to be had; three is


def parts(count: int, whole: str = "pf0") -> list[Device]:
    return [Device(f"{whole}-vf{n}", f"{whole}-VF{n}", "r", root=whole) for n in range(count)]


def test_parts_go_with_their_whole_and_a_whole_with_a_held_part_moves_last() -> None:
    wholes = [Device(name, name, "whole") for name in ("pf0", "pf1")]
    found = wholes + parts(2, "pf0") + parts(2, "pf1")
    ledger = ledger_of(found, held={2})  # pf0-vf0
    for group, number in ((wholes, 1), (found[2:], 4)):
        ledger = carry_out(ledger, group, LaneTarget(number).beside_wholes(ledger, group, {}))
    assert lanes_of(ledger) == "LLLDDD"  # pf0 and its two, pf1 and its two
    new = parts(3, "pf1")
    first = starting_lanes(ledger, new, LaneTarget(0).beside_wholes(ledger, new, {}))
    assert first == {"pf1-vf2": Lane.DRA}
    none = Ledger.of([], NodeState(merged=True))
    assert set(starting_lanes(none, new, LaneTarget(0).beside_wholes(none, new, {"pf1": Lane.DRA})).values()) == {
        Lane.DRA
    }


def come(ledger: Ledger, found: list[Device], wanted: LaneTarget, at: float) -> Ledger:
    """What is new is discovered, and starts where the plan says; then the plan is carried out."""
    first = starting_lanes(ledger, found, wanted)
    ledger = step(ledger, Discovered(tuple(map(LedgerDevice.of, found)), at, first), POLICY).applied_to(ledger)
    return carry_out(ledger, found, wanted, at)


def test_parts_that_come_one_after_the_other_stay_together_and_still_move() -> None:
    found = parts(4)
    ledger = Ledger.of([], NodeState(merged=True))
    for count in (1, 2, 3, 4):
        ledger = come(ledger, found[:count], LaneTarget(count), float(count))
        assert lanes_of(ledger) == "D" * count
    ledger = Ledger.of([], NodeState(merged=True))
    for count in (1, 2, 3, 4):
        ledger = come(ledger, found[:count], LaneTarget(min(2, count)), float(count))
    assert lanes_of(ledger) == "LLLL"  # two of four are not to be had, and never more than that
    assert lanes_of(carry_out(ledger, found, LaneTarget(4))) == "DDDD"


def test_parts_that_were_divided_come_together_where_one_is_held() -> None:
    found = parts(3)
    divided = ledger_of(found, {0: Lane.DRA, 1: Lane.DRA}, held={2})
    assert lanes_of(carry_out(divided, found, LaneTarget(2))) == "LLL"
    assert lanes_of(carry_out(divided, found, LaneTarget(3))) == "DDD"  # the held one is marked
    assert lanes_of(carry_out(ledger_of(found, {2: Lane.DRA}), found, LaneTarget(0))) == "LLL"


def test_more_go_back_to_pods_than_were_asked_for_where_parts_leave_no_other_way() -> None:
    found = parts(4, "pf0") + parts(4, "pf1")
    ledger = ledger_of(found, dict.fromkeys(range(8), Lane.DRA))
    assert lanes_of(carry_out(ledger, found, LaneTarget(6))) == "DDDDLLLL"


def test_any_part_that_is_pinned_takes_the_others_along() -> None:
    found = parts(3)
    assert lanes_of(carry_out(ledger_of(found), found, LaneTarget(3, {"pf0-vf2": Lane.DRA}))) == "DDD"


def test_pinned_devices_stay_where_the_operator_says() -> None:
    found = devices(4)
    wanted = LaneTarget(2, {"gpu-03": Lane.DRA, "gpu-00": Lane.LEGACY})
    assert lanes_of(carry_out(ledger_of(found), found, wanted)) == "LDLD"


def test_floors_hold_whatever_is_chosen() -> None:
    found = devices(4)
    everything = {device.name: Lane.DRA for device in found}
    wanted = from_selection(found, everything, rest=Lane.LEGACY, min_legacy=2, min_dra=0)
    assert lanes_of(carry_out(ledger_of(found), found, wanted)) == "DDLL"
    nothing = {device.name: Lane.LEGACY for device in found}
    wanted = from_selection(found, nothing, rest=Lane.DRA, min_legacy=0, min_dra=1)
    assert lanes_of(carry_out(ledger_of(found), found, wanted)) == "DLLL"
    wanted = from_selection(found, {"gpu-02": Lane.LEGACY}, rest=Lane.DRA, min_legacy=0, min_dra=0)
    assert lanes_of(carry_out(ledger_of(found), found, wanted)) == "DDLD"


def test_a_chosen_part_counts_with_its_siblings() -> None:
    found = parts(2, "pf0") + parts(2, "pf1") + parts(2, "pf2")
    wanted = from_selection(found, {"pf1-vf1": Lane.DRA}, rest=Lane.LEGACY, min_legacy=0, min_dra=0)
    assert wanted.dra == 2
    assert lanes_of(carry_out(ledger_of(found, {0: Lane.DRA, 1: Lane.DRA}), found, wanted)) == "LLDDLL"


def test_where_both_floors_do_not_fit_the_one_of_pods_holds() -> None:
    found = devices(2)
    everything = {device.name: Lane.DRA for device in found}
    for min_legacy, min_dra, in_dra in ((2, 2, 0), (1, 2, 1), (3, 0, 0), (0, 3, 2)):
        wanted = from_selection(found, everything, rest=Lane.LEGACY, min_legacy=min_legacy, min_dra=min_dra)
        assert wanted.dra == in_dra


def test_a_chosen_device_whose_parts_have_no_room_together_is_left_out() -> None:
    found = parts(2, "pf0") + parts(2, "pf1") + parts(2, "pf2")
    pins = {"pf0-vf0": Lane.DRA, "pf1-vf0": Lane.DRA}
    wanted = from_selection(found, pins, rest=Lane.LEGACY, min_legacy=3, min_dra=0)
    assert [wanted.lane_of(name) for name in pins] == [Lane.DRA, None]


def test_new_devices_start_where_some_are_missing() -> None:
    found = devices(4)
    assert starting_lanes(Ledger(), found, LaneTarget(1)) == {
        "gpu-00": Lane.DRA,
        "gpu-01": Lane.LEGACY,
        "gpu-02": Lane.LEGACY,
        "gpu-03": Lane.LEGACY,
    }
    known = ledger_of(found[:3], {0: Lane.DRA})
    assert starting_lanes(known, found, LaneTarget(1)) == {"gpu-03": Lane.LEGACY}
    assert starting_lanes(known, found, LaneTarget(2)) == {"gpu-03": Lane.DRA}
    assert starting_lanes(known, found[:3], LaneTarget(2)) == {}
    pinned = starting_lanes(Ledger(), found, LaneTarget(1, {"gpu-03": Lane.DRA}))
    assert [name for name, lane in pinned.items() if lane is Lane.DRA] == ["gpu-03"]  # it counts


def test_a_device_that_flaps_is_still_counted() -> None:
    found = devices(3)
    ledger = ledger_of(found)
    ledger = step(ledger, Discovered(tuple(map(LedgerDevice.of, found[:2])), 1000.0), POLICY).applied_to(ledger)
    assert counted_devices(ledger, "r", 1030.0) == ("gpu-00", "gpu-01", "gpu-02")
    assert counted_devices(ledger, "r", 1060.0) == ("gpu-00", "gpu-01")


def test_a_device_that_was_gone_for_long_does_not_count_again_when_its_pod_ends() -> None:
    found = devices(3)
    ledger = ledger_of(found, held={2})
    ledger = step(ledger, Discovered(tuple(map(LedgerDevice.of, found[:2])), 100.0), POLICY).applied_to(ledger)
    ledger = all_held_but(ledger, found, {0, 1, 2})
    assert ledger.entries["gpu-02"].since == 600.0
    assert counted_devices(ledger, "r", 601.0) == ("gpu-00", "gpu-01")


def test_the_order_does_not_depend_on_the_input() -> None:
    found = devices(6, per_root=2)
    assert packing_order(reversed(found)) == found


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Device], Ledger]:
    count = draw(st.integers(1, 12))
    found = devices(count, draw(st.sampled_from([1, 2, 4, 1000])))
    lanes = {n: draw(st.sampled_from([Lane.LEGACY, Lane.DRA])) for n in range(count)}
    held = {n for n in range(count) if lanes[n] is Lane.LEGACY and draw(st.booleans())}
    return found, ledger_of(found, lanes, held)


@given(situations(), st.data())
def test_any_numbers_are_reached_and_left_alone(situation: tuple[list[Device], Ledger], data: st.DataObject) -> None:
    found, ledger = situation
    for _ in range(3):
        dra = data.draw(st.integers(0, len(found)))
        before = ledger
        changes = plan(ledger, found, LaneTarget(dra), 1000.0)
        assert changes == plan(ledger, list(reversed(found)), LaneTarget(dra), 1000.0)
        had = lanes_of(before).count("D")
        for change in changes:
            ledger = step(ledger, SetLane(change.device, change.lane, 1.0), POLICY).applied_to(ledger)
            now = lanes_of(ledger).count("D")
            assert min(had, dra) - 1 <= now <= max(had, dra) + 1  # a floor that both numbers keep is kept on the way
        assert lanes_of(ledger).count("D") == dra
        for name, entry in before.entries.items():
            if entry.owner is not Owner.NONE:
                assert ledger.entries[name].lane is entry.lane  # held devices are marked, not moved
        assert plan(ledger, found, LaneTarget(dra), 1000.0) == ()
        ledger = acknowledge(ledger, 2.0)
        assert plan(ledger, found, LaneTarget(dra), 1000.0) == ()


def test_a_renamed_device_counts_once() -> None:
    starting_lanes = "/sys/devices/a"
    gone = Entry(
        LedgerDevice("old", "r", ("old",), presence=Presence.GONE, syspath=starting_lanes), presence_since=100.0
    )
    away = Entry(LedgerDevice("away", "r", ("away",), presence=Presence.GONE), presence_since=100.0)
    new = Entry(LedgerDevice("new", "r", ("new",), syspath=starting_lanes))
    assert set(counted_devices(Ledger.of([gone, away]), "r", 110.0)) == {"old", "away"}
    assert set(counted_devices(Ledger.of([gone, away, new]), "r", 110.0)) == {"away", "new"}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_parts_end_in_one_lane_however_they_came(sizes: list[int], data: st.DataObject) -> None:
    found = [part for n, size in enumerate(sizes) for part in parts(size, f"pf{n}")]
    ledger = Ledger.of([], NodeState(merged=True))
    here: list[Device] = []
    for device in data.draw(st.permutations(found)):
        here.append(device)
        ledger = come(ledger, here, LaneTarget(data.draw(st.integers(0, len(here)))), 1.0)
    wanted = LaneTarget(data.draw(st.integers(0, len(found))))
    for _ in range(2 * len(sizes)):
        ledger = carry_out(ledger, found, wanted)
    assert plan(ledger, found, wanted, 1000.0) == ()
    lanes = lanes_of(ledger)
    assert lanes.count("D") <= wanted.dra
    left = [lanes[n : n + 1] * size for n, size in zip(_starts(sizes), sizes, strict=True)]
    assert lanes == "".join(left)
    smallest = min((size for size, lane in zip(sizes, left, strict=True) if lane[0] == "L"), default=0)
    assert not smallest or lanes.count("D") + smallest > wanted.dra  # nothing more would have fitted


def _starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:n]) for n in range(len(sizes))]
