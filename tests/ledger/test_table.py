"""The transition table, row by row: what is granted, what is refused with which words, and what follows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from msgspec.structs import replace

from drabridge import ledger as ledger_package
from drabridge.inventory.devices import Presence
from drabridge.ledger.apply_event import refusal_effects
from drabridge.ledger.codec import entry_from_json, entry_to_json
from drabridge.ledger.effects import Notify, Readvertise, RefusalCode, Refused, Released, Side, Subject
from drabridge.ledger.entries import ClaimRef, ClaimShare, Entry, Lane, Ledger, LedgerDevice, Owner, PodRef
from drabridge.ledger.events import (
    AgentStarted,
    Allocate,
    CheckpointRead,
    ClaimAllocated,
    ClaimDeallocated,
    ClaimDevices,
    DeviceUse,
    Discovered,
    ManualRelease,
    NoClaimListed,
    NodeBooted,
    Observed,
    Prepare,
    RecordLost,
    SetLane,
    Unprepare,
    WithdrawnFromSlices,
)
from drabridge.ledger.table import ROWS, compile_rows
from tests.support.ledger_node import CLAIM, NOON, OTHER, POD, PODS, Node, allocate, allocated, device, prepare

# --- the table ---


def test_every_combination_has_exactly_one_row() -> None:
    with pytest.raises(ValueError, match="two rows for"):
        compile_rows((*ROWS, ROWS[0]))
    with pytest.raises(ValueError, match="no row for allocate"):
        compile_rows(ROWS[1:])


LEDGER = Path(ledger_package.__file__).parent
WITH_FILES = {"service", "store", "lock"}  # the edge: the disk, and the thread that waits for it
CORE = sorted(path for path in LEDGER.rglob("*.py") if path.stem not in WITH_FILES)


@pytest.mark.parametrize("module", [*CORE, LEDGER.parent / "lanes" / "plan.py"], ids=lambda path: path.stem)
def test_the_core_has_no_clock_no_socket_and_no_file(module: Path) -> None:
    source = module.read_text()
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    outside = {name.split(".")[0] for name in imported if not name.startswith("drabridge.")}
    assert outside <= {
        "__future__",
        "collections",
        "datetime",
        "enum",
        "itertools",
        "json",
        "msgspec",
        "typing",
        "zlib",
    }
    assert not any(word in source for word in (".now(", "utcnow", "open("))


# --- legacy ---


def test_allocate_is_all_or_nothing() -> None:
    node = Node(device(0), device(1), device(2, Lane.DRA))
    node.yes(allocate(0, 1))
    assert node.owner("gpu-0") is node.owner("gpu-1") is Owner.LEGACY
    node = Node(device(0), device(1), device(2, Lane.DRA))
    code, text = node.no(allocate(0, 2))
    assert code is RefusalCode.OTHER_LANE
    assert "gpu-2 is offered to claims, not to pods with resource limits" in text


def test_a_refused_allocate_names_the_holder_and_marks_the_device_unhealthy_for_kubelet() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    done = node.do(allocate(0))
    (refusal,) = done.decision.refusals
    assert str(refusal) == (
        "gpu-0 is held by claim team-a/train (uid uid-1), prepared 22:13 UTC; "
        "the pod that replaces this one gets another device"
    )
    assert node.no(Prepare(OTHER, (DeviceUse("gpu-0"),), NOON))[1].endswith(
        "wait until it is released, or delete the pod, and the claim unless it is of a template, for another device"
    )
    assert Readvertise(("gpu-0",), Side.LEGACY) in done.effects
    assert Refused(Side.LEGACY, RefusalCode.CLAIM_HELD, "gpu-0") in done.effects
    assert any(isinstance(effect, Notify) and effect.subject is Subject.NODE for effect in done.effects)
    assert "held by claim team-a/train" in str(done.decision)


def test_a_refusal_for_an_old_hold_names_its_date() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    assert "prepared 2023-11-14 22:13 UTC" in node.no(allocate(0, at=NOON + 90_000))[1]


def test_a_repeated_allocate_is_accepted_and_renews_the_hold() -> None:
    node = Node(device(0))
    node.yes(allocate(0))
    node.yes(Observed(NOON + 50, node.ledger.seq, PODS, CheckpointRead(PODS), {}))
    done = node.yes(allocate(0, at=NOON + 60))
    assert done.durable
    hold = node["gpu-0"].hold
    assert hold
    assert (hold.allocated_at, hold.confirmed, hold.pods) == (NOON + 60, False, ()), "whose it is now is not known yet"


def test_replicas_of_one_device_add_up() -> None:
    node = Node(Entry(LedgerDevice("gpu-0", "r", ("G::0", "G::1"))))
    node.yes(Allocate({"gpu-0": ("G::0",)}, NOON))
    node.yes(Allocate({"gpu-0": ("G::1",)}, NOON))
    assert node["gpu-0"].hold
    assert node["gpu-0"].hold.units == ("G::0", "G::1")
    done = node.yes(Observed(NOON + 500, node.ledger.seq, {("r", "G::1"): (POD,)}, CheckpointRead({}), {}))
    assert done.changes[0].hold.confirmed  # type: ignore[union-attr]


def test_a_device_that_is_gone_or_faulty_or_unknown_is_refused() -> None:
    node = Node(Entry(LedgerDevice("gpu-0", "r", ("GPU-0",), presence=Presence.FAULTY)))
    assert node.no(allocate(0))[0] is RefusalCode.NOT_PRESENT
    assert "'drabridge devices'" in node.no(allocate(0))[1]
    assert node.no(allocate(7))[0] is RefusalCode.UNKNOWN


def test_a_faulty_device_of_a_pod_is_not_given_to_its_next_container() -> None:
    node = Node(device(0))
    node.yes(allocate(0))
    node.yes(Discovered((replace(device(0).device, presence=Presence.FAULTY),), NOON))
    assert node.no(allocate(0))[0] is RefusalCode.NOT_PRESENT


# --- claims ---


def test_a_claim_is_granted_prepared_unprepared_and_ends() -> None:
    node = Node(device(0, Lane.DRA), device(1, Lane.DRA))
    assert node.yes(allocated(0, 1)).durable
    assert node.owner("gpu-0") is Owner.DRA_GRANTED
    assert node.yes(prepare(0, 1)).durable
    assert node.owner("gpu-1") is Owner.DRA_PREPARED
    assert not node.yes(prepare(0, 1))  # again: nothing changes
    node.yes(Unprepare("uid-1", NOON + 7))
    assert node.owner("gpu-0") is Owner.DRA_GRANTED  # the API server still has it allocated
    done = node.yes(ClaimDeallocated("uid-1", NOON + 8))
    assert node.owner("gpu-0") is node.owner("gpu-1") is Owner.NONE
    assert node["gpu-0"].released_because == "no container uses the claim and it is deallocated"
    assert [effect.held_seconds for effect in done.effects if isinstance(effect, Released)] == [8, 8]
    assert node.ledger.by_claim.get("uid-1") is None


def test_a_claim_that_was_bound_after_the_quiet_time_is_refused_and_takes_nothing() -> None:
    """PreBind of another plugin may take longer (VolumeBinding: 600 s), and the scheduler chose the device before."""
    node = Node(device(0, Lane.DRA))
    node.yes(SetLane("gpu-0", Lane.LEGACY, NOON))
    node.yes(WithdrawnFromSlices("gpu-0", node.ledger.seq, NOON + 1))
    node.yes(NoClaimListed("gpu-0", node.ledger.seq, NOON + 32))
    node.yes(allocate(0, at=NOON + 33))
    assert node.no(allocated(0))[0] is RefusalCode.LEGACY_HELD
    assert node.no(prepare(0, at=NOON + 600))[0] is RefusalCode.LEGACY_HELD
    assert node.owner("gpu-0") is Owner.LEGACY


def test_processes_that_linger_keep_an_unprepared_device_held() -> None:
    node = Node(device(0, Lane.DRA), device(1, Lane.DRA))
    node.yes(prepare(0, 1))
    node.yes(Unprepare("uid-1", NOON + 5, lingers=40.0))
    node.yes(ClaimDeallocated("uid-1", NOON + 6))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED
    assert node.offers("gpu-0") == (False, False)
    code, text = node.no(prepare(0, claim=OTHER, at=NOON + 7))
    assert code is RefusalCode.CLAIM_HELD
    assert "unprepared 22:13 UTC; processes of its pod, which nobody saw end, may use it until 22:14:05 UTC" in text
    node.yes(Unprepare("uid-1", NOON + 30))  # kubelet says it again: a wait is not cut short
    assert node["gpu-0"].claims[0].lingers_until == NOON + 45
    node.ledger = Ledger.of(
        [entry_from_json(entry_to_json(entry)) for entry in node.ledger.entries.values()], node.ledger.node
    )
    node.yes(Unprepare("uid-1", NOON + 44.9))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED
    node.yes(Unprepare("uid-1", NOON + 45))
    assert (node.owner("gpu-0"), node.owner("gpu-1")) == (Owner.NONE, Owner.NONE)


def test_processes_that_linger_have_ended_when_their_pod_is_seen_to() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    node.yes(Unprepare("uid-1", NOON, lingers=40.0))
    node.yes(Unprepare("uid-1", NOON + 1, ended=True))
    assert node.owner("gpu-0") is Owner.DRA_GRANTED


def test_a_claim_that_lingers_may_be_prepared_for_its_next_pod() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    node.yes(Unprepare("uid-1", NOON, lingers=40.0))
    node.yes(prepare(0, at=NOON + 10))
    assert not node["gpu-0"].claims[0].lingers
    assert node.offers("gpu-0") == (False, True), "as any prepared device: the scheduler counts it"


def test_no_lingering_process_survives_a_reboot() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    node.yes(Unprepare("uid-1", NOON, lingers=4000.0))
    node.yes(NodeBooted("another", NOON + 1))
    assert node.owner("gpu-0") is Owner.DRA_GRANTED
    assert not node["gpu-0"].claims[0].lingers


def test_a_prepared_claim_ends_only_when_deallocated_and_unprepared() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    node.yes(ClaimDeallocated("uid-1", NOON))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED
    node.yes(Unprepare("uid-1", NOON))
    assert node.owner("gpu-0") is Owner.NONE


def test_a_second_claim_is_refused_with_the_holder_named() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    code, text = node.no(prepare(0, claim=OTHER))
    assert code is RefusalCode.CLAIM_HELD
    assert "claim team-a/train (uid uid-1)" in text
    done = node.do(allocated(0, claim=OTHER))
    assert not [effect for effect in done.effects if isinstance(effect, Notify)]  # the caller learns it from the answer
    *_, told = refusal_effects(Side.DRA, done.decision.refusals, OTHER)
    assert isinstance(told, Notify)
    assert (told.subject, told.name, told.uid) == (Subject.CLAIM, "serve", "uid-2")


def test_a_claim_that_is_allocated_anew_elsewhere_leaves_its_old_device() -> None:
    node = Node(device(0, Lane.DRA), device(1, Lane.DRA))
    node.yes(allocated(0))
    node.yes(allocated(1))
    assert (node.owner("gpu-0"), node.owner("gpu-1")) == (Owner.NONE, Owner.DRA_GRANTED)


def test_shares_add_up_to_the_capacity_and_no_further() -> None:
    node = Node(device(0, Lane.DRA, shareable=True))

    def part(claim: ClaimRef, share: str, amount: int) -> Prepare:
        return Prepare(claim, (DeviceUse("gpu-0", ClaimShare(share, (("memory", amount),))),), NOON)

    node.yes(part(CLAIM, "s1", 6))
    node.yes(part(OTHER, "s2", 4))
    code, text = node.no(part(ClaimRef("uid-3"), "s3", 1))
    assert code is RefusalCode.OVERCOMMITTED
    assert "gpu-0 has 0 of memory left and 1 is asked for" in text
    assert node.no(Prepare(ClaimRef("uid-4"), (DeviceUse("gpu-0"),), NOON))[0] is RefusalCode.CLAIM_HELD
    assert node.offers("gpu-0") == (False, True)
    node.yes(SetLane("gpu-0", Lane.LEGACY, NOON))
    assert node.offers("gpu-0") == (False, False)  # or others would join for ever


def shares_of_one_claim() -> ClaimDevices:
    return ClaimDevices(CLAIM, tuple(DeviceUse("gpu-0", ClaimShare(name, (("memory", 5),))) for name in ("s1", "s2")))


@pytest.mark.parametrize("before", ["nothing", "one", "without amounts", "allocated"])
def test_a_start_finds_every_share_of_a_claim(before: str) -> None:
    node = Node(device(0, Lane.DRA, shareable=True))
    if before == "one":
        node.yes(Prepare(CLAIM, shares_of_one_claim().uses[:1], NOON))
    elif before == "without amounts":  # as a record of an older agent has them
        bare = ClaimDevices(CLAIM, (DeviceUse("gpu-0", ClaimShare("s1")), DeviceUse("gpu-0", ClaimShare("s2"))))
        node.yes(AgentStarted(NOON, (bare,)))
    elif before == "allocated":
        node.yes(ClaimAllocated(CLAIM, shares_of_one_claim().uses, NOON))
    node.yes(AgentStarted(NOON, (shares_of_one_claim(),)))
    assert [share.id for held in node["gpu-0"].claims for share in held.shares] == ["s1", "s2"]
    code, text = node.no(Prepare(OTHER, (DeviceUse("gpu-0", ClaimShare("x", (("memory", 5),))),), NOON))
    assert code is RefusalCode.OVERCOMMITTED
    assert "gpu-0 has 0 of memory left and 5 is asked for" in text


def test_every_share_of_a_claim_is_known_when_quarantine_ends() -> None:
    node = Node(device(0, Lane.DRA, shareable=True))
    node.yes(RecordLost(NOON, reason="rotten"))
    node.yes(AgentStarted(NOON))
    for at in (NOON + 500, NOON + 520):
        allocations = (shares_of_one_claim(),)
        node.yes(Observed(at, node.ledger.seq, {}, CheckpointRead({}), {}, allocated=allocations))
    node.yes(Prepare(CLAIM, shares_of_one_claim().uses, NOON))
    assert [share.id for held in node["gpu-0"].claims for share in held.shares] == ["s1", "s2"]


def test_a_claim_that_is_known_to_have_all_of_a_device_is_not_found_to_have_a_share_alone() -> None:
    node = Node(device(0, Lane.DRA, shareable=True))
    node.yes(prepare(0))
    node.yes(AgentStarted(NOON, (shares_of_one_claim(),)))
    assert node.no(Prepare(OTHER, (DeviceUse("gpu-0", ClaimShare("x")),), NOON))[0] is RefusalCode.CLAIM_HELD


def test_nobody_shares_a_device_with_a_claim_that_has_all_of_it() -> None:
    node = Node(device(0, Lane.DRA, shareable=True))
    node.yes(prepare(0))
    share = DeviceUse("gpu-0", ClaimShare("s1", (("memory", 1),)))
    assert node.no(Prepare(OTHER, (share,), NOON))[0] is RefusalCode.CLAIM_HELD


def test_a_claims_device_that_is_to_leave_is_not_offered_to_the_next() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    assert node.offers("gpu-0") == (False, True)
    node.yes(SetLane("gpu-0", Lane.LEGACY, NOON))
    assert node.offers("gpu-0") == (False, False)
    node.yes(SetLane("gpu-0", Lane.DRA, NOON))
    assert node.offers("gpu-0") == (False, True)


@pytest.mark.parametrize("share", [None, ClaimShare("s1", (("memory", 1),))])
def test_a_device_held_whole_is_not_offered_in_shares_and_a_shared_one_not_as_a_whole(share: ClaimShare | None) -> None:
    """The scheduler counts whole devices and shares apart: a device taken in one way is free for it in the other."""
    node = Node(device(0, Lane.DRA, shareable=share is not None))
    node.yes(Prepare(CLAIM, (DeviceUse("gpu-0", share),), NOON))
    assert node.offers("gpu-0") == (False, True)
    facts = node["gpu-0"].device
    node.yes(Discovered((replace(facts, shareable=not facts.shareable),), NOON))
    assert node.offers("gpu-0") == (False, False)
    node.yes(ClaimDeallocated("uid-1", NOON))
    node.yes(Unprepare("uid-1", NOON))
    assert node.offers("gpu-0") == (False, True)


def test_a_device_that_a_claim_left_prepared_is_not_offered_and_the_refusal_says_what_to_do() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    assert "lanes release" not in node.no(prepare(0, claim=OTHER))[1]
    node.yes(ClaimDeallocated("uid-1", NOON))
    assert node.offers("gpu-0") == (False, False)  # free to the scheduler
    text = node.no(prepare(0, claim=OTHER))[1]
    assert "gpu-0 is held by claim team-a/train (uid uid-1), prepared 22:13 UTC and not unprepared since" in text
    assert "for another device; if nothing uses it any more, 'drabridge lanes release gpu-0' ends that" in text
    node.yes(prepare(0))
    assert node.offers("gpu-0") == (False, True)  # allocated to it again


def test_the_capacity_that_a_claim_left_prepared_counts_and_a_device_without_capacity_stays_offered() -> None:
    for capacity, offered in ((("memory", 10),), False), ((), True):
        facts = replace(device(0, Lane.DRA, shareable=True).device, capacity=capacity)
        node = Node(Entry(facts, lane=Lane.DRA))
        node.yes(Prepare(CLAIM, (DeviceUse("gpu-0", ClaimShare("s1", (("memory", 6),))),), NOON))
        assert node.offers("gpu-0") == (False, True)
        node.yes(ClaimDeallocated("uid-1", NOON))
        assert node.offers("gpu-0") == (False, offered)


def test_admin_access_holds_nothing() -> None:
    node = Node(device(0))
    node.yes(allocate(0))
    node.yes(prepare(0, admin=True))
    assert node.owner("gpu-0") is Owner.LEGACY
    node.yes(Unprepare("uid-1", NOON))
    assert node["gpu-0"].claims == ()


def test_overlapping_devices_exclude_each_other_and_separate_parts_do_not() -> None:
    whole, one, two = device(0), device(1, root="gpu-0"), device(2, root="gpu-0")
    node = Node(whole, one, two)
    node.yes(allocate(1))
    node.yes(allocate(2))
    assert "gpu-0 shares its hardware with gpu-1: gpu-1 is held by" in node.no(allocate(0))[1]
    assert node.offers("gpu-0") == (False, False)
    node = Node(whole, one, two)
    assert node.no(allocate(0, 1))[0] is RefusalCode.LEGACY_HELD  # within one request as well


def test_overlapping_hardware_in_two_lanes_is_offered_in_none() -> None:
    node = Node(device(0), device(1, Lane.DRA, root="gpu-0"))
    assert node.offers("gpu-0") == node.offers("gpu-1") == (False, False)
    node.yes(Discovered((device(1, root="gpu-0").device,), NOON))
    assert node.offers("gpu-1") == (False, False), "a whole that is away may come back, and its lane gives it out"


# --- conflicts ---


def test_a_pod_on_a_claimed_device_is_a_conflict_until_one_of_them_is_gone() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    done = node.yes(Observed(NOON, node.ledger.seq, PODS, CheckpointRead(PODS), {}))
    assert node.owner("gpu-0") is Owner.CONFLICT
    assert {effect.subject for effect in done.effects if isinstance(effect, Notify)} == set(Subject)
    assert node.offers("gpu-0") == (False, False)
    assert node.no(allocate(0))[0] is node.no(prepare(0))[0] is RefusalCode.CONFLICT
    code, text = node.no(ManualRelease("gpu-0", NOON))
    assert code is RefusalCode.IN_USE
    assert "kubelet does not say that no pod uses it" in text
    node.yes(Unprepare("uid-1", NOON))
    assert node.owner("gpu-0") is Owner.CONFLICT  # the API server still has it allocated
    node.yes(ClaimDeallocated("uid-1", NOON))
    assert node.owner("gpu-0") is Owner.LEGACY


def test_no_event_is_about_a_pod_or_claim_whose_name_nobody_knows() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0, claim=ClaimRef("uid-9")))
    pods = {("r", "GPU-0"): (PodRef(container="init", uid="uid-8"),)}
    done = node.yes(Observed(NOON, node.ledger.seq, {}, CheckpointRead(pods), {}))
    assert node.owner("gpu-0") is Owner.CONFLICT
    assert {effect.subject for effect in done.effects if isinstance(effect, Notify)} == {Subject.NODE}


def test_a_conflict_is_ended_by_hand_on_the_side_that_has_ended() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    node.yes(Observed(NOON, node.ledger.seq, PODS, CheckpointRead(PODS), {}))
    conflict = node.ledger
    node.yes(ClaimDeallocated("uid-1", NOON))
    node.yes(ManualRelease("gpu-0", NOON, frozenset({"uid-1"})))  # the pod runs, the claim is gone
    assert node.owner("gpu-0") is Owner.LEGACY

    node.ledger = conflict
    node.yes(Observed(NOON + 500, node.ledger.seq, {}, None, None))  # no source shows the pod, the claim is allocated
    node.yes(ManualRelease("gpu-0", NOON + 501))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED


def test_evidence_from_before_the_claim_is_no_conflict() -> None:
    node = Node(device(0, Lane.DRA))
    before = node.ledger.seq
    node.yes(prepare(0))
    assert not node.yes(Observed(NOON, before, PODS, CheckpointRead(PODS), {}))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED


def test_a_checkpoint_without_barrier_makes_no_conflict() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    node.yes(Observed(NOON, node.ledger.seq, {}, CheckpointRead(PODS, barrier=False), {}))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED


def test_quarantine_can_be_ended_by_hand() -> None:
    node = Node(device(0))
    node.yes(RecordLost(NOON, reason="rotten"))
    assert node.owner("gpu-0") is Owner.QUARANTINE
    assert node.no(ManualRelease("gpu-0", NOON))[0] is RefusalCode.IN_USE
    node.yes(AgentStarted(NOON))
    node.yes(Observed(NOON + 500, node.ledger.seq, {}, None, None))  # kubelet shows nobody; the API server is down
    node.yes(ManualRelease("gpu-0", NOON + 501))
    assert node.owner("gpu-0") is Owner.NONE


def test_a_claim_that_is_known_is_not_prepared_beside_another() -> None:
    node = Node(device(0))
    node.yes(RecordLost(NOON, reason="rotten"))
    node.yes(AgentStarted(NOON))
    both = tuple(ClaimDevices(claim, (DeviceUse("gpu-0"),)) for claim in (CLAIM, OTHER))  # as in kubernetes#136269
    for at in (NOON + 500, NOON + 520):
        node.yes(Observed(at, node.ledger.seq, {}, CheckpointRead({}), {}, allocated=both))
    assert [held.claim for held in node["gpu-0"].holders] == [CLAIM, OTHER]
    for uid in ("uid-1", "uid-2"):
        assert node.no(Prepare(ClaimRef(uid), (DeviceUse("gpu-0"),), NOON))[0] is RefusalCode.CLAIM_HELD
    node.yes(ClaimDeallocated("uid-2", NOON))
    node.yes(prepare(0))
    node.yes(prepare(0))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED


def test_a_claim_that_has_a_device_and_monitors_it_still_holds_it_after_a_quarantine() -> None:
    node = Node(device(0))
    node.yes(RecordLost(NOON, reason="rotten"))
    monitor = DeviceUse("gpu-0", admin=True)
    node.yes(AgentStarted(NOON, (ClaimDevices(CLAIM, (monitor,)),)))
    for at in (NOON + 500, NOON + 520):
        shown = (ClaimDevices(CLAIM, (DeviceUse("gpu-0"), monitor)),)
        node.yes(Observed(at, node.ledger.seq, {}, CheckpointRead({}), {}, allocated=shown))
    assert node.owner("gpu-0") is Owner.DRA_GRANTED


def test_the_share_of_a_dead_claim_can_be_ended_beside_a_living_one() -> None:
    node = Node(
        replace(
            device(0, Lane.DRA), device=LedgerDevice("gpu-0", "r", ("GPU-0",), shareable=True, capacity=(("mem", 10),))
        )
    )
    for claim, uid, amount in ((CLAIM, "s1", 6), (OTHER, "s2", 4)):
        node.yes(Prepare(claim, (DeviceUse("gpu-0", ClaimShare(uid, (("mem", amount),))),), NOON))
    node.yes(ClaimDeallocated("uid-1", NOON))
    assert "may still use it" in node.no(ManualRelease("gpu-0", NOON, frozenset({"uid-2"})))[1]
    node.yes(ManualRelease("gpu-0", NOON, frozenset({"uid-1"})))
    assert [held.claim for held in node["gpu-0"].holders] == [OTHER]


def test_a_prepared_claim_that_kubelet_forgot_can_be_ended_by_hand() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    ended = frozenset({"uid-1"})
    assert "the API server shows it allocated" in node.no(ManualRelease("gpu-0", NOON, ended))[1]
    node.yes(ClaimDeallocated("uid-1", NOON))
    node.yes(Prepare(OTHER, (DeviceUse("gpu-0", admin=True),), NOON))
    assert node.no(ManualRelease("gpu-0", NOON))[0] is RefusalCode.IN_USE  # kubelet was not asked about it
    node.yes(ManualRelease("gpu-0", NOON, ended))
    assert node.owner("gpu-0") is Owner.NONE
    assert [held.claim for held in node["gpu-0"].claims] == [OTHER]  # it has admin access, and its end was not reported
