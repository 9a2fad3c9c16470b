"""The table of proofs, row by row, through the real step: what is proven acts at once, doubt waits."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from drabridge.ledger import proofs
from drabridge.ledger.apply_event import step
from drabridge.ledger.codec import entry_from_json, entry_to_json
from drabridge.ledger.entries import NEVER_KNOWN, Entry, Hold, Ledger, LedgerDevice, NodeState, Owner, PodRef
from drabridge.ledger.events import AgentStarted, Allocate, CheckpointRead, Event, KubeletStarted, Observed, Pods
from drabridge.ledger.proofs import End
from drabridge.ledger.release_rule import MOST_EARLIER

UNIT = ("r", "GPU-0")
FIRST, SECOND = (PodRef(container="main", uid=f"uid-{n}") for n in (1, 2))
REPORTED = {pod.uid: End.REPORTED for pod in (FIRST, SECOND)}


class Node:
    """A ledger with one device, and what it is told, a second after the other."""

    def __init__(self, *units: str) -> None:
        self.at = 1000.0
        device = LedgerDevice("gpu-0", "r", units or ("GPU-0",))
        self.disk = Entry(device)  # as the next agent will read it
        self.ledger = Ledger.of([self.disk], NodeState(merged=True))
        self.allocate(device.units[0])

    def tell(self, event: Event) -> Node:
        self.ledger = step(self.ledger, event).applied_to(self.ledger)
        entry = self.ledger.entries["gpu-0"]
        self.disk = self.disk if entry.seq == self.disk.seq else entry
        self.at += 1.0
        return self

    def allocate(self, unit: str = "GPU-0") -> Node:
        return self.tell(Allocate({"gpu-0": (unit,)}, self.at))

    def look(
        self,
        recorded: Pods | None = None,
        ends: dict[str, End] | None = None,
        *,
        listed: Pods | None = None,
        checkpoint: CheckpointRead | None = None,
        **more: object,
    ) -> Node:
        """Look once. Kubelet shows nobody unless the test says otherwise."""
        look = Observed(
            self.at,
            self.ledger.seq,
            listed if listed is not None else {},
            checkpoint if checkpoint is not None else CheckpointRead({}),
            {},
            ends=ends or {},
            recorded=recorded or {},
        )
        return self.tell(replace(look, **more))

    @property
    def owner(self) -> Owner:
        return self.ledger.entries["gpu-0"].owner

    @property
    def hold(self) -> Hold:
        hold = self.ledger.entries["gpu-0"].hold
        assert hold
        return hold


def _seen(node: Node) -> Observed:
    return Observed(node.at, node.ledger.seq, {}, CheckpointRead({}), {}, ends=REPORTED, recorded={UNIT: (FIRST,)})


def test_a_pod_that_nobody_saw_running_has_ended_once_kubelet_reported_it() -> None:
    """Two seconds after its Allocate: neither minHoldSeconds nor unconfirmedSeconds is waited for."""
    node = Node().look({UNIT: (FIRST,)})
    assert node.owner is Owner.LEGACY
    assert node.look({UNIT: (FIRST,)}, REPORTED).owner is Owner.NONE


def test_one_look_is_enough_for_a_pod_that_was_quicker_than_it() -> None:
    assert Node().look({UNIT: (FIRST,)}, REPORTED).owner is Owner.NONE


@pytest.mark.parametrize("end", [end for end in End if not end.proves])
def test_what_proves_nothing_waits(end: End) -> None:
    node = Node()
    for _ in range(20):
        node.look({UNIT: (FIRST,)}, {FIRST.uid: end})
    assert node.owner is Owner.LEGACY


@pytest.mark.parametrize(
    "shown",
    [
        {"listed": {UNIT: (PodRef("default", "other", "main"),)}},  # whoever that is
        {"checkpoint": CheckpointRead({UNIT: (FIRST,)})},
        {"checkpoint": CheckpointRead({UNIT: (FIRST,)}, barrier=False)},
        {"listed": None},
        {"checkpoint": None},  # deleted, or unreadable
        {"opened": {"gpu-0": True}},
    ],
)
def test_kubelet_must_show_nobody_and_no_process_may_have_it_open(shown: dict[str, object]) -> None:
    node = Node().look({UNIT: (FIRST,)})
    look = _seen(node)
    assert node.tell(replace(look, **shown)).owner is Owner.LEGACY
    assert node.look(ends=REPORTED).owner is Owner.NONE


def test_a_later_pod_is_not_taken_for_the_one_before() -> None:
    """Kubelet has not written its file since the Allocate: it names the pod of before, which has ended."""
    node = Node().look({UNIT: (FIRST,)}).allocate()
    assert node.hold.pods == ()
    for _ in range(20):
        node.look({UNIT: (FIRST,)}, {FIRST.uid: End.REPORTED})
    assert node.owner is Owner.LEGACY
    assert node.hold.pods == (), "nor is it shown as the holder"
    assert node.look({UNIT: (SECOND,)}, {FIRST.uid: End.REPORTED}).hold.pods == (SECOND,)
    assert node.owner is Owner.LEGACY
    assert node.look({UNIT: (SECOND,)}, REPORTED).owner is Owner.NONE


@pytest.mark.parametrize("barrier", [False, True])
def test_a_file_that_may_name_a_pod_that_was_never_known_is_read_behind_the_barrier(barrier: bool) -> None:
    """Nobody looked between two Allocates, so the file may name the pod of the first one."""
    node = Node().allocate()
    both = {"checkpoint": CheckpointRead({UNIT: (SECOND,)}, barrier=barrier)}
    node.look({UNIT: (FIRST,)}, {FIRST.uid: End.REPORTED}, **both)  # type: ignore[arg-type]
    assert node.hold.recorded == ((SECOND,) if barrier else ())
    assert node.look({}, REPORTED).owner is (Owner.NONE if barrier else Owner.LEGACY)


def test_an_allocate_between_the_look_and_its_use_is_not_overlooked() -> None:
    node = Node().look({UNIT: (FIRST,)})
    seen = _seen(node)
    assert node.allocate().tell(seen).owner is Owner.LEGACY


def test_every_pod_of_a_device_with_shares_must_have_ended() -> None:
    one, two = ("r", "GPU-0::0"), ("r", "GPU-0::1")
    node = Node("GPU-0::0", "GPU-0::1").look({one: (FIRST,)}).allocate("GPU-0::1")
    assert node.hold.pods == (FIRST,), "it has its share still"
    node.look({one: (FIRST,), two: (SECOND,)})
    assert node.look({}, {FIRST.uid: End.REPORTED}).owner is Owner.LEGACY
    assert node.look({}, REPORTED).owner is Owner.NONE


def test_a_name_proves_nothing() -> None:
    """PodResources knows no UIDs: what the API server knows by that name may be another pod."""
    named = PodRef("default", "db-0", "main", FIRST.uid)
    node = Node().look(listed={UNIT: (named,)})
    assert node.hold.pods == (named,)
    for _ in range(5):
        node.look(ends=REPORTED)
    assert node.owner is Owner.LEGACY


def test_a_pod_that_kubelet_forgot_may_run_beside_the_one_that_ended() -> None:
    """Kubelet's checkpoint was deleted: the device is given out again while the former pod runs on."""
    node = Node().look({UNIT: (FIRST,)}).tell(KubeletStarted(1010.0, "other")).allocate()
    node.look({UNIT: (SECOND,)})
    assert node.look({UNIT: (SECOND,)}, REPORTED).owner is Owner.LEGACY


@pytest.mark.parametrize("event", [KubeletStarted(1010.0, "other"), AgentStarted(1010.0)])
def test_the_end_of_a_known_pod_is_believed_after_a_start(event: Event) -> None:
    node = Node().look({UNIT: (FIRST,)}).tell(event)
    assert node.look(ends=REPORTED).owner is Owner.NONE


def test_a_quarantine_is_not_ended_by_the_end_of_one_pod() -> None:
    entry = Entry(LedgerDevice("gpu-0", "r", ("GPU-0",)), Owner.QUARANTINE, hold=Hold(recorded=(FIRST,)))
    node = Node()
    node.ledger = Ledger.of([entry], NodeState(merged=True))
    assert node.look({UNIT: (FIRST,)}, REPORTED).owner is Owner.QUARANTINE


def test_the_record_survives_the_agent() -> None:
    node = Node().look({UNIT: (FIRST,)}).allocate()
    for _ in range(2):
        entry = node.ledger.entries["gpu-0"]
        again = entry_from_json(entry_to_json(entry)).hold
        assert again
        assert (again.recorded, again.former) == (node.hold.recorded, node.hold.former)
        node.look({UNIT: (SECOND,)})


def test_of_several_ends_the_one_that_proves_least_counts() -> None:
    ends = {"a": End.REPORTED, "b": End.PHASE_ONLY}
    assert proofs.end_of(["a"], ends, retaken=False) is End.REPORTED
    assert proofs.end_of(["a", "b"], ends, retaken=False) is End.PHASE_ONLY
    assert proofs.end_of(["a", "unknown"], ends, retaken=False) is End.NOT_SEEN
    assert proofs.end_of([], ends, retaken=False) is End.UNIDENTIFIED
    assert proofs.end_of(["a"], ends, retaken=True) is End.FORGOTTEN
    assert {end for end in End if end.proves} == {End.REPORTED}


def test_a_device_that_was_free_meanwhile_is_not_of_its_last_pod() -> None:
    """Kubelet does not write its file when a pod ends."""
    node = Node().look({UNIT: (FIRST,)}, REPORTED).allocate()
    for _ in range(5):
        node.look({UNIT: (FIRST,)}, REPORTED)
    assert (node.owner, node.hold.pods) == (Owner.LEGACY, ())


def test_a_pod_between_two_others_that_nobody_saw_is_not_taken_for_the_last() -> None:
    third = PodRef(container="main", uid="uid-3")
    node = Node().look({UNIT: (FIRST,)}).allocate().allocate()
    assert node.look({UNIT: (SECOND,)}, REPORTED).owner is Owner.LEGACY
    assert node.hold.recorded == ()
    assert node.look(checkpoint=CheckpointRead({UNIT: (third,)})).hold.recorded == (third,)


LATER = {UNIT: (SECOND,)}


def _handed_over(**ends: End) -> Node:
    """A node whose kubelet gave the device of the first pod to the second, which has ended."""
    node = (
        Node()
        .look({UNIT: (FIRST,)}, listed={UNIT: (FIRST,)}, grace={FIRST.uid: 40.0})
        .look({UNIT: (FIRST,)})
        .allocate()
    )
    return node.look(LATER, listed=LATER).look(LATER, {SECOND.uid: End.REPORTED, **ends})


def test_the_next_pods_end_proves_nothing_of_a_force_deleted_one_whose_device_it_got() -> None:
    """Kubelet forgets a pod that is deleted by force, and gives its device away while its processes run."""
    node = _handed_over()
    assert (node.owner, node.hold.earlier) == (Owner.LEGACY, (FIRST,))
    node.at += 30.0
    for _ in range(3):
        assert node.look(LATER, {SECOND.uid: End.REPORTED}).owner is Owner.LEGACY
    node.at += 15.0
    assert node.look(LATER, {SECOND.uid: End.REPORTED}).owner is Owner.NONE


def test_a_pod_whose_end_is_known_delays_no_pod_that_had_its_device_next() -> None:
    assert _handed_over(**{FIRST.uid: End.REPORTED}).owner is Owner.NONE


def test_that_an_earlier_pod_may_run_survives_a_restart_of_the_agent() -> None:
    entry = _handed_over().ledger.entries["gpu-0"]
    hold = entry_from_json(entry_to_json(entry)).hold
    assert hold
    assert entry.hold
    assert (hold.earlier, hold.earlier_until) == (entry.hold.earlier, entry.hold.earlier_until)


def _restarted(node: Node, later: float) -> Node:
    entry = entry_from_json(entry_to_json(node.disk))
    node.ledger = Ledger.of([entry], NodeState(merged=True), node.ledger.seq)
    node.at += later
    return node.tell(AgentStarted(node.at))


@pytest.mark.parametrize("later", [3600.0, -3600.0])
def test_a_clock_that_was_set_meanwhile_ends_no_wait_for_an_earlier_pod(later: float) -> None:
    node = _restarted(_handed_over(), later)
    node.at += 20.0
    for _ in range(3):
        assert node.look(LATER, {SECOND.uid: End.REPORTED}).owner is Owner.LEGACY
    node.at += 40.0
    assert node.look(LATER, {SECOND.uid: End.REPORTED}).owner is Owner.NONE


def test_a_device_that_passes_through_many_pods_waits_for_none_that_has_ended() -> None:
    """Their ends are heard while the next one runs; later they are forgotten."""
    node = Node()
    for number in range(1, 40):
        here = {UNIT: (PodRef(container="main", uid=f"uid-{number}"),)}
        node.look(here, {f"uid-{number - 1}": End.REPORTED}, listed=here).allocate()
        node.at += 2.0
    assert len(node.hold.earlier) == 1
    last = {UNIT: (PodRef(container="main", uid="uid-40"),)}
    node.look(last, {"uid-39": End.REPORTED}, listed=last)
    node = _restarted(node, 0.0)
    assert node.look(last, {"uid-40": End.REPORTED}).owner is Owner.NONE


def test_who_deletes_many_pods_by_force_does_not_fill_the_record() -> None:
    node = Node()
    for number in range(100):
        here = {UNIT: (PodRef(container="main", uid=f"uid-{number}"),)}
        node.look(here, listed=here).allocate()
        node.at += 2.0
    assert len(node.hold.earlier) == MOST_EARLIER
    assert NEVER_KNOWN in node.hold.earlier


SHARES = ("GPU-0::0", "GPU-0::1")
MINE, THEIRS = {("r", "GPU-0::0"): (FIRST,)}, {("r", "GPU-0::1"): (SECOND,)}


BOTH = MINE | THEIRS


def _shared(grace: float = 40.0) -> Node:
    """A node whose device two pods have shared for long. The second may run on for ``grace`` seconds when deleted."""
    graces = {FIRST.uid: grace, SECOND.uid: grace}
    node = Node(*SHARES).look(MINE, listed=MINE, grace=graces).allocate(SHARES[1])
    node.look(BOTH, listed=BOTH, grace=graces)
    assert node.disk.hold == node.hold, "a new agent would not know the second"
    node.at += 2 * grace
    node.look(BOTH, listed=BOTH, grace=graces)
    assert node.hold.earlier == ()
    return node


def _alone(node: Node, **ends: End) -> Node:
    """Kubelet shows the first pod alone."""
    return node.look(MINE, ends, listed=MINE, checkpoint=CheckpointRead(MINE), grace={FIRST.uid: 5.0})


@pytest.mark.parametrize("restart", ["none", "before", "after"])
def test_a_pod_that_ends_does_not_end_the_wait_for_one_that_shared_its_device(restart: str) -> None:
    """The other was deleted by force and may run on: by its own grace period, though the one that is left has less."""
    node = _shared()
    node = _restarted(node, 0.0) if restart == "before" else node
    _alone(_alone(node))
    node = _restarted(node, 0.0) if restart == "after" else node
    for _ in range(3):
        assert node.look(ends={FIRST.uid: End.REPORTED}).owner is Owner.LEGACY
        node.at += 10.0
    node.at += 20.0
    assert node.look(ends={FIRST.uid: End.REPORTED}).owner is Owner.NONE


@pytest.mark.parametrize("late", [False, True])
def test_a_pod_that_ended_as_usual_delays_no_one_that_shared_its_device(late: bool) -> None:
    node = _shared(3600.0)
    node = _alone(node) if late else node
    assert (_alone(node, **REPORTED).hold.earlier, node.hold.earlier_until) == ((), 0.0)
    assert node.look(ends=REPORTED).owner is Owner.NONE


def test_a_pod_that_was_not_known_and_that_both_answers_show_is_named_once() -> None:
    node = Node()
    node.ledger = Ledger.of([Entry(node.disk.device)], NodeState(merged=True))
    shown = {UNIT: (FIRST,)}
    assert node.look(listed=shown, checkpoint=CheckpointRead(shown)).hold.pods == (FIRST,)
