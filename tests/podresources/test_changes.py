"""Changes from a sequence of snapshots: assignments at once, releases only after a confirmation."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from podresources.changes import (
    ABSENCES_BELIEVED,
    CapacityChanged,
    Change,
    ChangeTracker,
    DeviceAssigned,
    DeviceReleased,
)
from podresources.errors import KubeletTimeout, KubeletUnavailable
from podresources.model import Allocatable, AllocatableDevice, Api, NodeSnapshot, PodAllocation, SocketIdentity

OLD, NEW = SocketIdentity(1, 1, 1), SocketIdentity(1, 1, 2)
SETTLE = 30.0


def holding(*ids: str, socket: SocketIdentity = OLD) -> NodeSnapshot:
    held = (
        PodAllocation("ns", f"pod-{id_}", "c", Api.DEVICE_PLUGIN, resource="e.com/x", device_ids=(id_,)) for id_ in ids
    )
    return NodeSnapshot((), tuple(held), socket)


def capacity(*ids: str, socket: SocketIdentity = OLD) -> Allocatable:
    return Allocatable(tuple(AllocatableDevice("e.com/x", id_) for id_ in ids), (), (), socket)


def said(changes: Iterable[Change]) -> list[tuple[str, str]]:
    """``(kind, device id or resource)`` in order."""
    found = []
    for change in changes:
        match change:
            case DeviceAssigned(held):
                found.append(("assigned", held.device_ids[0]))
            case DeviceReleased(held):
                found.append(("released", held.device_ids[0]))
            case CapacityChanged(_, before, after):
                found.append(("capacity", f"{before}->{after}"))
    return found


def test_an_assignment_is_believed_at_once() -> None:
    tracker = ChangeTracker(holding("a"), None, SETTLE)
    assert said(tracker.step(holding("a", "b"), None, 1)) == [("assigned", "b")]
    assert said(tracker.step(holding("a", "b"), None, 2)) == []


def test_one_absence_is_not_a_release_and_two_are_one() -> None:
    tracker = ChangeTracker(holding("a", "b"), None, SETTLE)
    assert said(tracker.step(holding("b"), None, 1)) == []
    assert said(tracker.step(holding("b"), None, 2)) == [("released", "a")]
    assert said(tracker.step(holding("b"), None, 3)) == []


def test_a_device_that_comes_back_was_never_gone_and_starts_counting_anew() -> None:
    tracker = ChangeTracker(holding("a"), None, SETTLE)
    assert said(tracker.step(holding(), None, 1)) == []
    assert said(tracker.step(holding("a"), None, 2)) == []
    assert said(tracker.step(holding(), None, 3)) == []
    assert said(tracker.step(holding(), None, 4)) == [("released", "a")]


def test_a_failed_poll_between_two_absences_breaks_the_row() -> None:
    tracker = ChangeTracker(holding("a"), None, SETTLE)
    tracker.step(holding(), None, 1)
    tracker.failed(KubeletTimeout("slow"), 2)
    assert said(tracker.step(holding(), None, 3)) == []
    assert said(tracker.step(holding(), None, 4)) == [("released", "a")]


def test_a_restarted_kubelet_releases_nothing_until_it_settled_and_twice_agreed() -> None:
    tracker = ChangeTracker(holding("a", "b"), capacity("a", "b", "c"), SETTLE)
    empty, none = holding(socket=NEW), capacity(socket=NEW)
    assert said(tracker.step(empty, none, 100)) == []
    assert said(tracker.step(empty, none, 129.9)) == []
    back = holding("a", socket=NEW)
    assert said(tracker.step(back, capacity("a", "b", socket=NEW), 130)) == [("capacity", "3->2")]
    assert said(tracker.step(back, capacity("a", "b", socket=NEW), 135)) == [("released", "b")]


def test_a_restarted_kubelet_may_assign_at_once() -> None:
    tracker = ChangeTracker(holding("a"), capacity("a"), SETTLE)
    changes = tracker.step(holding("b", socket=NEW), capacity("a", "b", socket=NEW), 1)
    assert said(changes) == [("assigned", "b"), ("capacity", "1->2")]


def test_a_lost_connection_counts_as_a_restart_even_when_the_socket_is_the_same() -> None:
    tracker = ChangeTracker(holding("a"), None, SETTLE)
    tracker.failed(KubeletUnavailable("gone"), 10)
    for now in (11.0, 20.0, 39.0):
        assert said(tracker.step(holding(), None, now)) == []
    assert said(tracker.step(holding(), None, 40)) == []
    assert said(tracker.step(holding(), None, 41)) == [("released", "a")]


def test_capacity_shrinks_at_once_on_a_settled_kubelet_and_names_the_ids() -> None:
    tracker = ChangeTracker(holding(), capacity("a", "b"), SETTLE)
    assert tracker.step(holding(), capacity("b", "c", "d"), 1) == [
        CapacityChanged("e.com/x", 2, 3, added=("c", "d"), removed=("a",))
    ]
    assert said(tracker.step(holding(), capacity(), 2)) == [("capacity", "3->0")]
    assert said(tracker.step(holding(), capacity("b"), 3)) == [("capacity", "0->1")]


def test_capacity_of_another_kubelet_than_the_snapshots_is_not_believed() -> None:
    tracker = ChangeTracker(holding(), capacity("a"), SETTLE)
    assert said(tracker.step(holding(), capacity(socket=NEW), 1)) == []


@given(st.lists(st.one_of(st.none(), st.booleans(), st.sets(st.sampled_from("abcd"))), max_size=30))
def test_any_history_is_told_without_contradiction(history: list[set[str] | bool | None]) -> None:
    """None is a failed poll, a boolean a restart, a set a snapshot. One that follows the changes knows ``held``."""
    tracker = ChangeTracker(holding(), None, 3.0)
    follower: set[str] = set()
    socket = OLD
    absent_in_a_row = dict.fromkeys("abcd", 0)
    for now, step in enumerate(history):
        if step is None or isinstance(step, bool):
            absent_in_a_row = dict.fromkeys("abcd", 0)
            if step is None:
                tracker.failed(KubeletTimeout("slow"), now)
            else:
                socket = SocketIdentity(1, 1, socket.ctime_ns + 1)
            continue
        for kind, id_ in said(tracker.step(holding(*sorted(step), socket=socket), None, now)):
            if kind == "assigned":
                assert id_ in step
                assert id_ not in follower
                follower.add(id_)
            else:
                assert id_ not in step
                follower.remove(id_)
                assert absent_in_a_row[id_] + 1 >= ABSENCES_BELIEVED
        for id_ in "abcd":
            absent_in_a_row[id_] = 0 if id_ in step else absent_in_a_row[id_] + 1
        assert step <= follower
        assert follower == {held.device_ids[0] for held in tracker.held.values()}
