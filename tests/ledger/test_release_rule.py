"""The release rule, and four answers of kubelet that look like a release and are none."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from drabridge.ledger import release_rule
from drabridge.ledger.apply_event import step
from drabridge.ledger.codec import decode, encode, entry_from_json, entry_to_json
from drabridge.ledger.effects import Released
from drabridge.ledger.entries import (
    NEVER_KNOWN,
    ClaimRef,
    Entry,
    HeldBecause,
    Hold,
    Lane,
    Ledger,
    LedgerDevice,
    NodeState,
    Owner,
    PodRef,
)
from drabridge.ledger.events import (
    AgentStarted,
    Allocate,
    CheckpointRead,
    ClaimDeallocated,
    ClaimDevices,
    DeviceUse,
    Event,
    KubeletStarted,
    NodeBooted,
    Observed,
    Prepare,
    RecordLost,
    SetLane,
)
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.proofs import End
from drabridge.ledger.release_rule import DeviceEvidence, HoldEnded

POLICY = LedgerPolicy()
POD = PodRef("team-a", "train", "main", "uid-1")
CLAIM = ClaimRef("5bd47ba5-dc39-4e01-b577-25147473f530", "team-a", "c")
UNIT = ("r", "GPU-0")
NOBODY = DeviceEvidence(listed=(), checkpointed=(), barrier=True, unaccounted=())
OLD = Hold(("GPU-0",), 0.0, True, 10.0, known=True, grace=0.0)
GRACEFUL = replace(OLD, grace=30.0, unseen_since=500.0)


def judge(
    hold: Hold = OLD, evidence: DeviceEvidence = NOBODY, at: float = 1000.0, *, quarantined: bool = False
) -> Hold | HoldEnded:
    return release_rule.judge(hold, evidence, at=at, suspended_until=0.0, policy=POLICY, quarantined=quarantined)


def test_two_observations_ten_seconds_apart_release() -> None:
    once = judge(at=1000.0)
    assert isinstance(once, Hold)
    assert (once.absences, once.because) == (1, HeldBecause.ONCE_ABSENT)
    assert isinstance(judge(once, at=1005.0), Hold)
    assert isinstance(judge(once, at=1010.0), HoldEnded)


@pytest.mark.parametrize(
    ("evidence", "because"),
    [
        (replace(NOBODY, listed=None), HeldBecause.NO_LIST),
        (replace(NOBODY, checkpointed=(POD,)), HeldBecause.IN_CHECKPOINT),
        (replace(NOBODY, checkpointed=(POD,), barrier=False), HeldBecause.IN_CHECKPOINT),
        (replace(NOBODY, opened=True), HeldBecause.STILL_OPEN),
        (replace(NOBODY, unaccounted=("team-a/other",)), HeldBecause.POD_UNACCOUNTED),
        (replace(NOBODY, checkpointed=None, unaccounted=None), HeldBecause.NO_SECOND_WITNESS),
        (replace(NOBODY, barrier=False, unaccounted=None), HeldBecause.NO_SECOND_WITNESS),
    ],
)
def test_one_source_that_shows_the_pod_is_enough_to_hold_and_restarts_the_count(
    evidence: DeviceEvidence, because: HeldBecause
) -> None:
    verdict = judge(replace(OLD, absences=1, absent_since=900.0), evidence)
    assert isinstance(verdict, Hold)
    assert (verdict.because, verdict.absences) == (because, 0)


@pytest.mark.parametrize(
    "evidence",
    [
        replace(NOBODY, unaccounted=None),  # the API server is down
        replace(NOBODY, checkpointed=None),  # the checkpoint cannot be read
        replace(NOBODY, opened=False),
    ],
)
def test_two_kinds_of_source_are_enough_to_release(evidence: DeviceEvidence) -> None:
    assert isinstance(judge(replace(GRACEFUL, absences=1, absent_since=900.0), evidence), HoldEnded)


@pytest.mark.parametrize(
    ("evidence", "free"),
    [
        (
            replace(NOBODY, unaccounted=None),
            False,
        ),  # a kubelet that lost its checkpoint says the same of a pod that runs
        (replace(NOBODY, unaccounted=None, opened=False), True),
        (replace(NOBODY, unaccounted=None, alone=True), True),  # then no claim gets the device
        (NOBODY, True),
    ],
)
def test_a_hold_that_this_kubelet_never_showed_ends_by_another_source(evidence: DeviceEvidence, free: bool) -> None:
    hold = replace(GRACEFUL, absences=1, absent_since=900.0, known=False)
    assert isinstance(judge(hold, evidence), HoldEnded) is free


def test_a_pod_that_was_not_seen_to_end_has_its_grace_period() -> None:
    hold = replace(OLD, grace=30.0)
    for at in 1000.0, 1010.0, 1039.0:
        verdict = judge(hold, at=at)
        assert isinstance(verdict, Hold)
        hold = verdict
    assert hold.because is HeldBecause.GRACE_PERIOD
    assert isinstance(judge(hold, at=1040.0), HoldEnded)
    assert isinstance(judge(hold, replace(NOBODY, ended=True), at=1010.0), HoldEnded)
    shown = judge(hold, replace(NOBODY, checkpointed=(POD,)), at=1020.0)
    assert isinstance(shown, Hold)
    assert not shown.unseen_since, "it begins anew"


@pytest.mark.parametrize(
    ("hold", "evidence", "waits"),
    [
        (replace(OLD, grace=0.0), NOBODY, 10),
        (replace(OLD, grace=None), NOBODY, 40),  # Kubernetes' own default
        (replace(OLD, grace=None), replace(NOBODY, alone=True), 10),  # kubelet alone gives it out again
        (replace(OLD, grace=None, confirmed=False), NOBODY, 10),  # and some 120 s since Allocate
    ],
)
def test_a_pod_without_a_known_grace_period_has_the_default(hold: Hold, evidence: DeviceEvidence, waits: int) -> None:
    for at in 1000, 1010, 1000 + waits - 1, 1000 + waits:
        verdict = judge(hold, evidence, at=float(at))
        assert isinstance(verdict, HoldEnded) is (at >= 1000 + waits)
        if isinstance(verdict, HoldEnded):
            break
        hold = verdict


def test_a_device_that_kubelet_gives_out_again_may_still_be_used_by_a_pod_that_it_skips() -> None:
    ledger = step(held(), KubeletStarted(100.0), POLICY).applied_to(held())
    ledger = step(ledger, Allocate({"gpu-0": ("GPU-0",)}, 101.0), POLICY).applied_to(ledger)
    ledger = look(ledger, 110.0, listed=True)
    hold = ledger.entries["gpu-0"].hold
    assert hold
    assert (hold.confirmed, hold.known) == (True, False)
    again = entry_from_json(decode(encode(entry_to_json(ledger.entries["gpu-0"])).rstrip())).hold
    assert again
    assert again.retaken, "an agent that starts has to know it, too"


@pytest.mark.parametrize(("after", "earlier"), [(0.0, ()), (0.9, ()), (60.0, (NEVER_KNOWN,))])
def test_a_device_that_is_allocated_again_after_its_pod_s_admission_may_have_two_holders(
    after: float, earlier: tuple[PodRef, ...]
) -> None:
    ledger = held()
    first = ledger.entries["gpu-0"].hold
    assert first
    for at in first.allocated_at + after, first.allocated_at + after + 0.5:
        ledger = step(ledger, Allocate({"gpu-0": ("GPU-0",)}, at), POLICY).applied_to(ledger)
    hold = entry_from_json(decode(encode(entry_to_json(ledger.entries["gpu-0"])).rstrip())).hold
    assert hold
    assert hold.earlier == earlier


def test_the_grace_period_runs_while_kubelet_settles() -> None:
    early = release_rule.judge(replace(OLD, grace=30.0), NOBODY, at=1000.0, suspended_until=1045.0, policy=POLICY)
    assert isinstance(early, Hold)
    assert early.because is HeldBecause.KUBELET_UNSETTLED
    once = judge(early, at=1045.0)
    assert isinstance(once, Hold)
    assert isinstance(judge(once, at=1055.0), HoldEnded)


def test_quarantine_wants_the_api_server_as_well() -> None:
    once = replace(OLD, absences=1, absent_since=900.0)
    assert isinstance(judge(once, replace(NOBODY, unaccounted=None), quarantined=True), Hold)
    assert isinstance(judge(once, replace(NOBODY, barrier=False), quarantined=True), Hold)
    assert isinstance(judge(once, NOBODY, quarantined=True), HoldEnded)


def test_quarantine_does_not_end_for_a_claim_either() -> None:
    once = replace(OLD, absences=1, absent_since=900.0)
    shown = judge(once, replace(NOBODY, claimed=(CLAIM,)), quarantined=True)
    assert isinstance(shown, Hold)
    assert (shown.because, shown.absences) == (HeldBecause.RUNNING, 0)
    unasked = judge(once, replace(NOBODY, allocated=None), quarantined=True)
    assert isinstance(unasked, Hold)
    assert unasked.because is HeldBecause.NO_SECOND_WITNESS
    assert isinstance(
        judge(once, replace(NOBODY, claimed=(CLAIM,), allocated=None)), HoldEnded
    )  # a pod's hold is its own


def test_the_reason_after_a_quarantine_says_that_no_pod_was_seen() -> None:
    verdict = judge(Hold(absences=1, absent_since=900.0), NOBODY, quarantined=True)
    assert isinstance(verdict, HoldEnded)
    assert verdict.because.startswith("no pod was seen on it: ")


def test_the_reason_names_the_sources_that_agreed() -> None:
    verdict = judge(replace(OLD, absences=1, absent_since=900.0), replace(NOBODY, opened=False))
    assert isinstance(verdict, HoldEnded)
    assert verdict.because == (
        "no pod was seen on it: PodResources and kubelet's checkpoint and the API server and the physical probe "
        "agreed 2 times over 100 s"
    )


# --- through the real step ---


def held(at: float = 0.0) -> Ledger:
    ledger = Ledger.of([Entry(LedgerDevice("gpu-0", "r", ("GPU-0",)))], NodeState(merged=True))
    return step(ledger, Allocate({"gpu-0": ("GPU-0",)}, at), POLICY).applied_to(ledger)


def look(
    ledger: Ledger, at: float, *, listed: bool = False, checkpoint: bool | None = False, api: bool = True
) -> Ledger:
    pods = {("r", "GPU-0"): (POD,)}
    event = Observed(
        at,
        ledger.seq,
        pods if listed else {},
        None if checkpoint is None else CheckpointRead(pods if checkpoint else {}),
        {} if api else None,
    )
    return step(ledger, event, POLICY).applied_to(ledger)


def owner(ledger: Ledger) -> Owner:
    return ledger.entries["gpu-0"].owner


def because(ledger: Ledger) -> HeldBecause | None:
    hold = ledger.entries["gpu-0"].hold
    return hold.because if hold else None


def test_a_plain_init_container_is_not_listed_and_holds() -> None:
    ledger = held()
    for at in range(40, 400, 10):
        ledger = look(ledger, float(at), checkpoint=True)
    assert owner(ledger) is Owner.LEGACY
    assert because(ledger) is HeldBecause.RUNNING  # the barrier checkpoint is as good as the list


def test_a_force_deleted_pod_holds_until_its_processes_are_gone() -> None:
    ledger = look(held(), 100.0, listed=True)
    ledger = look(ledger, 110.0)
    ledger = look(ledger, 112.0)  # 2 s: as long as such processes were seen to live
    assert owner(ledger) is Owner.LEGACY
    ledger = look(look(ledger, 121.0), 149.0)  # nor is it known how long they may
    assert owner(ledger) is Owner.LEGACY
    ledger = look(ledger, 150.0)
    assert owner(ledger) is Owner.NONE


def test_a_new_kubelet_does_not_know_its_pods_yet() -> None:
    ledger = look(held(), 100.0, listed=True)
    ledger = look(ledger, 110.0)
    ledger = step(ledger, KubeletStarted(111.0), POLICY).applied_to(ledger)
    for at in (112.0, 125.0, 140.0, 170.0):
        ledger = look(ledger, at)
        assert owner(ledger) is Owner.LEGACY
        assert because(ledger) is HeldBecause.KUBELET_UNSETTLED
    ledger = look(look(ledger, 172.0), 183.0)
    assert owner(ledger) is Owner.NONE


KUBELET = "7:8:9"


def started(*events: Event) -> Ledger:
    """A pod that kubelet showed at 100 s, and what happened then."""
    ledger = look(step(held(), KubeletStarted(0.0, KUBELET), POLICY).applied_to(held()), 100.0, listed=True)
    for event in events:
        ledger = step(ledger, event, POLICY).applied_to(ledger)
    return ledger


@pytest.mark.parametrize(
    "event",
    [
        KubeletStarted(111.0, KUBELET),  # it opened the list of devices anew
        AgentStarted(111.0, kubelet=KUBELET),  # another agent met it
    ],
)
def test_a_kubelet_that_the_agent_knew_before_still_knows_its_pods(event: Event) -> None:
    ledger = started(event)
    assert ledger.node.releases_suspended_until == 60.0
    assert owner(look(look(ledger, 112.0), 155.0)) is Owner.NONE


@pytest.mark.parametrize("kind", [KubeletStarted, AgentStarted])
@pytest.mark.parametrize("kubelet", ["", "7:8:10"])
def test_a_kubelet_that_may_be_another_one_is_waited_for_again(
    kind: type[KubeletStarted | AgentStarted], kubelet: str
) -> None:
    ledger = started(kind(111.0, kubelet=kubelet))
    for at in (112.0, 155.0, 170.0):
        ledger = look(ledger, at)
        assert owner(ledger) is Owner.LEGACY
    assert owner(look(look(ledger, 172.0), 183.0)) is Owner.NONE


@pytest.mark.parametrize(
    "between",
    [
        (NodeBooted("another boot", 110.0),),  # a file that was left, and another process behind it
        (RecordLost(110.0),),  # it is not known which kubelet the lost ledger had met
        (AgentStarted(105.0), RecordLost(110.0)),
    ],
)
def test_an_agent_that_cannot_prove_it_met_the_same_kubelet_waits(between: tuple[Event, ...]) -> None:
    ledger = started(*between, AgentStarted(111.0, kubelet=KUBELET))
    assert ledger.node.releases_suspended_until == 171.0


def test_a_proven_start_does_not_cut_the_wait_for_a_new_kubelet_short() -> None:
    for crash in range(4):  # every 15 s
        ledger = started(
            KubeletStarted(111.0, "9:9:9"), *[AgentStarted(115.0 + 15 * n, kubelet="9:9:9") for n in range(crash)]
        )
        assert ledger.node.releases_suspended_until == 171.0


def test_a_clock_that_was_set_back_does_not_make_a_proven_start_wait_for_longer() -> None:
    ledger = started(KubeletStarted(10_000.0, "9:9:9"), AgentStarted(111.0, kubelet="9:9:9"))
    assert ledger.node.releases_suspended_until == 171.0


def test_a_device_is_held_in_the_first_moments_after_allocate() -> None:
    ledger = look(held(), 5.0)
    ledger = look(ledger, 29.0)
    assert because(ledger) is HeldBecause.TOO_YOUNG
    assert owner(ledger) is Owner.LEGACY


def test_a_pod_that_never_appears_is_let_go_after_two_minutes() -> None:
    ledger = held()
    for at in (40.0, 60.0, 119.0):
        ledger = look(ledger, at)
    assert owner(ledger) is Owner.LEGACY
    ledger = look(look(ledger, 121.0), 132.0)
    assert owner(ledger) is Owner.NONE
    assert "never appeared" in ledger.entries["gpu-0"].released_because


def test_evidence_from_before_the_allocation_says_nothing() -> None:
    ledger = Ledger.of([Entry(LedgerDevice("gpu-0", "r", ("GPU-0",)))], NodeState(merged=True))
    before = ledger.seq
    ledger = step(ledger, Allocate({"gpu-0": ("GPU-0",)}, 0.0), POLICY).applied_to(ledger)
    for at in (1000.0, 2000.0):
        done = step(ledger, Observed(at, before, {}, CheckpointRead({}), {}), POLICY)
        assert not done.changes
    assert owner(ledger) is Owner.LEGACY


def test_evidence_from_before_a_kubelet_restart_says_nothing() -> None:
    ledger = look(held(), 100.0, listed=True)
    before = ledger.seq
    ledger = step(ledger, KubeletStarted(101.0), POLICY).applied_to(ledger)
    assert not step(ledger, Observed(900.0, before, {}, CheckpointRead({}), {}), POLICY)


def test_the_grace_period_and_the_uid_of_a_pod_are_saved() -> None:
    ledger = held()
    known = PodRef("team-a", "train", "main", "uid-1")
    shown = Observed(1.0, ledger.seq, {UNIT: (known,)}, None, {}, grace={"uid-1": 60.0})
    done = step(ledger, shown, POLICY)
    assert done.durable
    (entry,) = done.changes
    again = entry_from_json(decode(encode(entry_to_json(entry)).rstrip()))
    assert again.hold
    assert (again.hold.grace, again.hold.pods) == (60.0, (known,))
    ledger = Ledger.of([again], NodeState(merged=True), seq=9)
    ledger = step(ledger, AgentStarted(2.0), POLICY).applied_to(ledger)
    nameless = Observed(3.0, ledger.seq, {UNIT: (replace(known, uid=""),)}, None)
    (entry,) = step(ledger, nameless, POLICY).changes
    assert entry.hold
    assert (entry.hold.grace, entry.hold.pods) == (60.0, (known,)), "the API server is not needed for that"


def test_a_pod_that_was_seen_to_end_is_told_by_its_uid() -> None:
    """A StatefulSet's next pod has the same name."""
    ledger = held()
    known = PodRef("team-a", "train", "main", "uid-1")
    ledger = step(ledger, Observed(100.0, ledger.seq, {UNIT: (known,)}, grace={"uid-1": 60.0}), POLICY).applied_to(
        ledger
    )
    for ended in "uid-2", "uid-1":
        after = ledger
        for at in (110.0, 121.0):
            seen = Observed(at, after.seq, {}, CheckpointRead({}), unaccounted={}, ends={ended: End.PHASE_ONLY})
            after = step(after, seen, POLICY).applied_to(after)
        assert (owner(after) is Owner.NONE) is (ended == "uid-1")


def test_a_release_tells_who_left_and_begins_a_waiting_move() -> None:
    ledger = look(held(), 100.0, listed=True)
    ledger = step(ledger, SetLane("gpu-0", Lane.DRA, 101.0), POLICY).applied_to(ledger)
    assert ledger.entries["gpu-0"].lane is Lane.LEGACY
    ledger = look(ledger, 110.0)
    done = step(ledger, Observed(150.0, ledger.seq, {}, CheckpointRead({}), {}), POLICY)
    (released,) = [effect for effect in done.effects if isinstance(effect, Released)]
    assert released.holder == "pod team-a/train (container main)"
    assert released.held_seconds == 150.0
    entry = done.applied_to(ledger).entries["gpu-0"]
    assert (entry.owner, entry.lane) == (Owner.NONE, Lane.LEGACY_TO_DRA)
    assert done.durable


@pytest.mark.parametrize("admin", [False, True])
def test_a_device_that_leaves_quarantine_goes_to_the_claim_that_the_api_server_shows(admin: bool) -> None:
    ledger = Ledger.of([Entry(LedgerDevice("gpu-0", "r", ("GPU-0",)))], NodeState(merged=True))
    ledger = step(ledger, RecordLost(0.0), POLICY).applied_to(ledger)
    ledger = step(ledger, AgentStarted(0.0), POLICY).applied_to(ledger)
    allocated = (ClaimDevices(CLAIM, (DeviceUse("gpu-0", admin=admin), DeviceUse("gpu-9"))),)
    for at in (200.0, 220.0):
        seen = Observed(at, ledger.seq, {}, CheckpointRead({}), {}, allocated=allocated)
        ledger = step(ledger, seen, POLICY).applied_to(ledger)
    assert owner(ledger) is (Owner.NONE if admin else Owner.DRA_GRANTED)
    assert [held.claim for held in ledger.entries["gpu-0"].claims] == ([] if admin else [CLAIM])


def test_a_claim_with_admin_access_to_a_device_in_quarantine_may_also_hold_it() -> None:
    ledger = Ledger.of([Entry(LedgerDevice("gpu-0", "r", ("GPU-0",)))], NodeState(merged=True))
    uses = (DeviceUse("gpu-0", admin=True), DeviceUse("gpu-0"))
    for event in (RecordLost(0.0), AgentStarted(0.0, (ClaimDevices(CLAIM, uses[:1]),))):
        ledger = step(ledger, event, POLICY).applied_to(ledger)
    assert owner(ledger) is Owner.QUARANTINE
    for at in (200.0, 220.0):
        seen = Observed(at, ledger.seq, {}, CheckpointRead({}), {}, allocated=(ClaimDevices(CLAIM, uses),))
        ledger = step(ledger, seen, POLICY).applied_to(ledger)
    assert owner(ledger) is Owner.DRA_GRANTED
    assert [held.admin for held in ledger.entries["gpu-0"].claims] == [True, False]


def test_nothing_leaves_quarantine_before_the_node_s_claims_are_known() -> None:
    """Evidence may come before the merge, which waits while the disk is full."""
    ledger = Ledger.of([Entry(LedgerDevice("gpu-0", "r", ("GPU-0",)))], NodeState(merged=True))
    ledger = step(ledger, RecordLost(0.0), POLICY).applied_to(ledger)
    for at in (200.0, 220.0):
        seen = Observed(at, ledger.seq, {}, CheckpointRead({}), {}, allocated=())
        ledger = step(ledger, seen, POLICY).applied_to(ledger)
    assert owner(ledger) is Owner.QUARANTINE


def test_a_claim_known_by_its_uid_alone_gets_its_name_from_a_later_event() -> None:
    ledger = Ledger.of([Entry(LedgerDevice("gpu-0", "r", ("GPU-0",)))])
    found = ClaimDevices(ClaimRef(CLAIM.uid), (DeviceUse("gpu-0"),))
    ledger = step(ledger, AgentStarted(0.0, (found,)), POLICY).applied_to(ledger)
    ledger = step(ledger, ClaimDeallocated(CLAIM.uid, 0.0), POLICY).applied_to(ledger)  # no other source knows it
    assert owner(ledger) is Owner.DRA_PREPARED
    ledger = step(ledger, Prepare(CLAIM, (DeviceUse("gpu-0"),), 1.0), POLICY).applied_to(ledger)
    (held,) = ledger.entries["gpu-0"].claims
    assert (held.claim, held.api_allocated) == (CLAIM, True)
    ledger = step(ledger, AgentStarted(2.0, (found,)), POLICY).applied_to(ledger)
    assert ledger.entries["gpu-0"].claims[0].claim == CLAIM
