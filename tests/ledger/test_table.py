"""The table and the step, row by row: what is granted, what is refused in which words, and what follows."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from drabridge.inventory.model import Device, Presence
from drabridge.ledger import (
    Allocate,
    Allocation,
    Booted,
    Checkpoint,
    ClaimAllocated,
    ClaimDeallocated,
    ClaimRef,
    Discovered,
    Drain,
    Entry,
    Event,
    Facts,
    Forgotten,
    Lane,
    LeaseDenied,
    LeaseGranted,
    Ledger,
    Lost,
    MoveStep,
    NodeState,
    Notify,
    Observed,
    Owner,
    Phase,
    PodRef,
    Policy,
    Prepare,
    PrepareFailed,
    QuorumClear,
    Readvertise,
    RefusalCode,
    Refused,
    Resolve,
    Restarted,
    SetLane,
    Share,
    Side,
    SliceWithdrawn,
    Step,
    Subject,
    TransferAborted,
    Transferred,
    Unprepare,
    Use,
    Withdrawn,
    step,
)
from drabridge.ledger.advertise import dra_schedulable, guarded, legacy_healthy, must_list, tombstones
from drabridge.ledger.outcome import ConfirmClaim, DenyClaim
from drabridge.ledger.table import ROWS, compile_rows

NOON = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC
CLAIM, OTHER = ClaimRef("uid-1", "team-a", "train"), ClaimRef("uid-2", "team-b", "serve")
POD = PodRef("team-a", "notebook", "main", "pod-uid")
PODS = {"GPU-0": (POD,)}


class Node:
    """A ledger with its policy; ``do`` applies an event and returns the step."""

    def __init__(self, *entries: Entry, g2: bool = False) -> None:
        self.policy = Policy(g2=g2)
        self.ledger = Ledger.of(entries, NodeState("boot", merged=True))

    def do(self, event: Event) -> Step:
        done = step(self.ledger, event, self.policy)
        self.ledger = done.of(self.ledger)
        return done

    def yes(self, event: Event) -> Step:
        done = self.do(event)
        assert done.decision.accepted, done.decision
        return done

    def no(self, event: Event) -> tuple[RefusalCode, str]:
        before = self.ledger
        done = self.do(event)
        assert not done.decision.accepted
        assert self.ledger is before
        return done.decision.refusals[0].code, str(done.decision)

    def __getitem__(self, name: str) -> Entry:
        return self.ledger.entries[name]

    def owner(self, name: str) -> Owner:
        return self[name].owner

    def offers(self, name: str) -> tuple[bool, bool]:
        return (
            legacy_healthy(self.ledger, self[name], self.policy),
            dra_schedulable(self.ledger, self[name], self.policy),
        )


def device(n: int = 0, lane: Lane = Lane.LEGACY, *, root: str = "", shareable: bool = False) -> Entry:
    capacity = (("memory", 10),) if shareable else ()
    return Entry(Facts(f"gpu-{n}", "r", (f"GPU-{n}",), root, shareable=shareable, capacity=capacity), lane=lane)


def allocate(*numbers: int, at: float = NOON) -> Allocate:
    return Allocate({f"gpu-{n}": (f"GPU-{n}",) for n in numbers}, at)


def prepare(*numbers: int, claim: ClaimRef = CLAIM, at: float = NOON, admin: bool = False) -> Prepare:
    return Prepare(claim, tuple(Use(f"gpu-{n}", admin=admin) for n in numbers), at)


def allocated(*numbers: int, claim: ClaimRef = CLAIM, guarded: bool = False) -> ClaimAllocated:
    return ClaimAllocated(claim, tuple(Use(f"gpu-{n}") for n in numbers), NOON, guarded)


# --- the table ---


def test_every_combination_has_exactly_one_row() -> None:
    with pytest.raises(ValueError, match="two rows for"):
        compile_rows((*ROWS, ROWS[0]))
    with pytest.raises(ValueError, match="no row for allocate"):
        compile_rows(ROWS[1:])


PURE = ("model", "events", "outcome", "draft", "settle", "table", "machine", "release", "refusal", "advertise", "lanes")
ROW_FILES = ("common_rows", "pod_rows", "claim_rows", "lane_rows", "loss_rows", "stamps")


@pytest.mark.parametrize("name", [*PURE, *ROW_FILES, "invariants", "shards", "codec"])
def test_the_core_has_no_clock_no_socket_and_no_file(name: str) -> None:
    source = Path(importlib.import_module(f"drabridge.ledger.{name}").__file__ or "").read_text()
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    outside = {module.split(".")[0] for module in imported if not module.startswith("drabridge.")}
    assert outside <= {"__future__", "collections", "datetime", "enum", "itertools", "msgspec", "typing"}
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


def test_the_loser_is_told_who_has_the_device_and_kubelet_that_it_is_not_free() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    done = node.do(allocate(0))
    (refusal,) = done.decision.refusals
    assert str(refusal) == (
        "gpu-0 is held by claim team-a/train (uid uid-1), prepared 22:13 UTC; wait for it or ask for fewer devices"
    )
    assert Readvertise(("gpu-0",), Side.LEGACY) in done.effects
    assert Refused(Side.LEGACY, RefusalCode.CLAIM_HELD, "gpu-0") in done.effects
    assert any(isinstance(effect, Notify) and effect.subject is Subject.NODE for effect in done.effects)
    with pytest.raises(Exception, match="held by claim team-a/train"):
        done.decision.raise_if_refused()


def test_an_old_hold_is_told_with_its_date() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    assert "prepared 2023-11-14 22:13 UTC" in node.no(allocate(0, at=NOON + 90_000))[1]


def test_allocate_of_what_a_pod_has_is_accepted_and_renews_the_hold() -> None:
    node = Node(device(0))
    node.yes(allocate(0))
    node.yes(Observed(NOON + 50, node.ledger.seq, PODS, Checkpoint(PODS), {}))
    done = node.yes(allocate(0, at=NOON + 60))
    assert done.durable
    hold = node["gpu-0"].hold
    assert hold
    assert (hold.allocated_at, hold.confirmed, hold.pods) == (NOON + 60, False, (POD,))


def test_replicas_of_one_device_add_up() -> None:
    node = Node(Entry(Facts("gpu-0", "r", ("G::0", "G::1"))))
    node.yes(Allocate({"gpu-0": ("G::0",)}, NOON))
    node.yes(Allocate({"gpu-0": ("G::1",)}, NOON))
    assert node["gpu-0"].hold
    assert node["gpu-0"].hold.units == ("G::0", "G::1")
    done = node.yes(Observed(NOON + 500, node.ledger.seq, {"G::1": (POD,)}, Checkpoint({}), {}))
    assert done.changes[0].hold.confirmed  # type: ignore[union-attr]


def test_what_is_gone_faulty_or_unknown_is_refused() -> None:
    node = Node(Entry(Facts("gpu-0", "r", ("GPU-0",), presence=Presence.FAULTY)))
    assert node.no(allocate(0))[0] is RefusalCode.NOT_PRESENT
    assert "'drabridge devices'" in node.no(allocate(0))[1]
    assert node.no(allocate(7))[0] is RefusalCode.UNKNOWN


# --- claims ---


def test_a_claim_is_granted_prepared_unprepared_and_ends() -> None:
    node = Node(device(0, Lane.DRA), device(1, Lane.DRA))
    assert node.yes(allocated(0, 1)).durable
    assert node.owner("gpu-0") is Owner.DRA_GRANTED
    assert node.yes(prepare(0, 1)).durable
    assert node.owner("gpu-1") is Owner.DRA_PREPARED
    assert not node.yes(prepare(0, 1))  # again: nothing changes
    node.yes(Unprepare("uid-1", NOON))
    assert node.owner("gpu-0") is Owner.DRA_GRANTED  # the API server still has it allocated
    node.yes(ClaimDeallocated("uid-1", NOON))
    assert node.owner("gpu-0") is node.owner("gpu-1") is Owner.NONE
    assert node["gpu-0"].released_because == "the claim was deallocated before it was prepared"
    assert node.ledger.by_claim.get("uid-1") is None


@pytest.mark.parametrize("end", [Unprepare, PrepareFailed])
def test_a_prepared_claim_ends_only_when_deallocated_and_unprepared(end: type[Unprepare | PrepareFailed]) -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    node.yes(ClaimDeallocated("uid-1", NOON))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED
    node.yes(end("uid-1", NOON))
    assert node.owner("gpu-0") is Owner.NONE


def test_a_second_claim_is_refused_and_told_who_has_it() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    code, text = node.no(prepare(0, claim=OTHER))
    assert code is RefusalCode.CLAIM_HELD
    assert "claim team-a/train (uid uid-1)" in text
    done = node.do(allocated(0, claim=OTHER))
    told = [effect for effect in done.effects if isinstance(effect, Notify)]
    assert (told[0].subject, told[0].name, told[0].uid) == (Subject.CLAIM, "serve", "uid-2")


def test_a_claim_that_is_allocated_anew_elsewhere_leaves_its_old_device() -> None:
    node = Node(device(0, Lane.DRA), device(1, Lane.DRA))
    node.yes(allocated(0))
    node.yes(allocated(1))
    assert (node.owner("gpu-0"), node.owner("gpu-1")) == (Owner.NONE, Owner.DRA_GRANTED)


def test_shares_add_up_to_the_capacity_and_no_further() -> None:
    node = Node(device(0, Lane.DRA, shareable=True))

    def part(claim: ClaimRef, share: str, amount: int) -> Prepare:
        return Prepare(claim, (Use("gpu-0", Share(share, (("memory", amount),))),), NOON)

    node.yes(part(CLAIM, "s1", 6))
    node.yes(part(OTHER, "s2", 4))
    code, text = node.no(part(ClaimRef("uid-3"), "s3", 1))
    assert code is RefusalCode.OVERCOMMITTED
    assert "gpu-0 has 0 of memory left and 1 is asked for" in text
    assert node.no(Prepare(ClaimRef("uid-4"), (Use("gpu-0"),), NOON))[0] is RefusalCode.CLAIM_HELD
    assert node.offers("gpu-0") == (False, True)
    node.yes(SetLane("gpu-0", Lane.LEGACY, NOON))
    assert node.offers("gpu-0") == (False, False)  # or others would join for ever


def test_admin_access_holds_nothing() -> None:
    node = Node(device(0))
    node.yes(allocate(0))
    node.yes(prepare(0, admin=True))
    assert node.owner("gpu-0") is Owner.LEGACY
    node.yes(Unprepare("uid-1", NOON))
    assert node["gpu-0"].claims == ()


def test_overlapping_hardware_excludes_itself_and_parts_do_not() -> None:
    whole, one, two = device(0), device(1, root="gpu-0"), device(2, root="gpu-0")
    node = Node(whole, one, two)
    node.yes(allocate(1))
    node.yes(allocate(2))
    assert "gpu-0 shares its hardware with gpu-1 is held by" in node.no(allocate(0))[1]
    assert node.offers("gpu-0") == (False, False)
    node = Node(whole, one, two)
    assert node.no(allocate(0, 1))[0] is RefusalCode.LEGACY_HELD  # within one request as well


def test_overlapping_hardware_in_two_lanes_is_offered_in_none() -> None:
    node = Node(device(0), device(1, Lane.DRA, root="gpu-0"))
    assert node.offers("gpu-0") == node.offers("gpu-1") == (False, False)


# --- conflicts ---


def test_a_pod_on_a_claimed_device_is_a_conflict_until_one_of_them_is_gone() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    done = node.yes(Observed(NOON, node.ledger.seq, PODS, Checkpoint(PODS), {}))
    assert node.owner("gpu-0") is Owner.CONFLICT
    assert {effect.subject for effect in done.effects if isinstance(effect, Notify)} == set(Subject)
    assert node.offers("gpu-0") == (False, False)
    assert node.no(allocate(0))[0] is node.no(prepare(0))[0] is RefusalCode.CONFLICT
    code, text = node.no(Resolve("gpu-0", NOON))
    assert code is RefusalCode.IN_USE
    assert "kubelet does not say that no pod uses it" in text
    node.yes(Unprepare("uid-1", NOON))
    assert node.owner("gpu-0") is Owner.CONFLICT  # the API server still has it allocated
    node.yes(ClaimDeallocated("uid-1", NOON))
    assert node.owner("gpu-0") is Owner.LEGACY


def test_evidence_from_before_the_claim_is_no_conflict() -> None:
    node = Node(device(0, Lane.DRA))
    before = node.ledger.seq
    node.yes(prepare(0))
    assert not node.yes(Observed(NOON, before, PODS, Checkpoint(PODS), {}))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED


def test_a_checkpoint_without_barrier_makes_no_conflict() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    node.yes(Observed(NOON, node.ledger.seq, {}, Checkpoint(PODS, barrier=False), {}))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED


def test_quarantine_has_a_way_out_by_hand() -> None:
    node = Node(device(0))
    node.yes(Lost(NOON, reason="rotten"))
    assert node.owner("gpu-0") is Owner.QUARANTINE
    assert node.no(Resolve("gpu-0", NOON))[0] is RefusalCode.IN_USE
    node.yes(Restarted(NOON))
    node.yes(Observed(NOON + 500, node.ledger.seq, {}, None, None))  # kubelet shows nobody; the API server is down
    node.yes(Resolve("gpu-0", NOON + 501))
    assert node.owner("gpu-0") is Owner.NONE


def test_a_prepared_claim_that_kubelet_forgot_can_be_ended_by_hand() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    assert "the API server shows it allocated" in node.no(Resolve("gpu-0", NOON))[1]
    node.yes(ClaimDeallocated("uid-1", NOON))
    node.yes(Resolve("gpu-0", NOON))
    assert node.owner("gpu-0") is Owner.NONE


# --- lanes ---


def test_legacy_to_dra_waits_for_kubelet() -> None:
    node = Node(device(0))
    assert node.offers("gpu-0") == (True, False)
    before = node.ledger.seq
    node.yes(SetLane("gpu-0", Lane.DRA, NOON))
    assert node["gpu-0"].lane is Lane.LEGACY_TO_DRA
    assert node.offers("gpu-0") == (False, False)
    assert node.no(Withdrawn("gpu-0", before, NOON))[0] is RefusalCode.STALE
    done = node.yes(Withdrawn("gpu-0", node.ledger.seq, NOON + 0.5))
    assert done.effects == (Transferred("gpu-0", Lane.LEGACY, Lane.DRA, 0.5),)
    assert node.offers("gpu-0") == (False, True)


def test_legacy_to_dra_is_aborted_by_an_allocate_and_goes_on_later() -> None:
    node = Node(device(0))
    node.yes(SetLane("gpu-0", Lane.DRA, NOON))
    done = node.yes(allocate(0))
    assert any(isinstance(effect, TransferAborted) for effect in done.effects)
    assert node["gpu-0"].lane is Lane.LEGACY
    assert node["gpu-0"].move
    assert node["gpu-0"].move.step is MoveStep.WAITING
    assert node.offers("gpu-0") == (True, False)  # what a pod holds stays Healthy


def test_dra_to_legacy_waits_for_the_slice_the_quiet_time_and_the_claims() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(SetLane("gpu-0", Lane.LEGACY, NOON))
    assert node.offers("gpu-0") == (False, False)
    assert node.no(QuorumClear("gpu-0", node.ledger.seq, NOON))[0] is RefusalCode.STALE
    before = node.ledger.seq
    node.yes(SliceWithdrawn("gpu-0", before, NOON + 1))
    assert "for 30 s" in node.no(QuorumClear("gpu-0", node.ledger.seq, NOON + 1))[1]
    assert node.no(QuorumClear("gpu-0", before, NOON + 40))[0] is RefusalCode.STALE  # listed before the withdrawal
    node.yes(QuorumClear("gpu-0", node.ledger.seq, NOON + 40))
    assert node.offers("gpu-0") == (True, False)


def test_dra_to_legacy_is_aborted_by_a_claim() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(SetLane("gpu-0", Lane.LEGACY, NOON))
    node.yes(allocated(0))
    assert (node["gpu-0"].lane, node.owner("gpu-0")) == (Lane.DRA, Owner.DRA_GRANTED)
    node.yes(ClaimDeallocated("uid-1", NOON))
    assert node["gpu-0"].lane is Lane.DRA_TO_LEGACY  # and goes on


@pytest.mark.parametrize("lane", [Lane.LEGACY, Lane.DRA])
def test_a_move_can_be_taken_back(lane: Lane) -> None:
    node = Node(device(0, lane))
    node.yes(SetLane("gpu-0", Lane.DRA if lane is Lane.LEGACY else Lane.LEGACY, NOON))
    node.yes(SetLane("gpu-0", lane, NOON))
    assert (node["gpu-0"].lane, node["gpu-0"].move) == (lane, None)


def test_drained_devices_are_offered_no_more_once_free() -> None:
    node = Node(device(0), device(1, Lane.DRA))
    for name in ("gpu-0", "gpu-1"):
        node.yes(Drain(name, True, NOON))
        assert node.offers(name) == (False, False)
    node.yes(allocate(0))  # it was on its way
    assert node.offers("gpu-0") == (True, False)
    node.yes(Drain("gpu-1", False, NOON))
    assert node.offers("gpu-1") == (False, True)


# --- inventory ---


def test_a_device_that_is_gone_stays_listed_until_it_is_free_and_quiet() -> None:
    node = Node(device(0), device(1))
    node.yes(allocate(0))
    done = node.yes(Discovered((), NOON + 10))
    assert any(isinstance(effect, Notify) and effect.reason == "HeldDeviceUnavailable" for effect in done.effects)
    assert tombstones(node.ledger, NOON + 20, node.policy) == ("gpu-0", "gpu-1")
    assert tombstones(node.ledger, NOON + 80, node.policy) == ("gpu-0",)
    assert node.no(Forgotten(("gpu-0",), NOON + 80))[0] is RefusalCode.IN_USE
    assert node.yes(Forgotten(("gpu-1",), NOON + 80)).removed == ("gpu-1",)
    assert "gpu-1" not in node.ledger.entries
    assert must_list(node["gpu-0"], NOON + 999, node.policy)


def test_a_device_that_comes_back_resumes() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0))
    node.yes(Discovered((), NOON))
    assert node.offers("gpu-0") == (False, False)
    node.yes(Discovered((device(0).device,), NOON))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED
    assert not node.yes(Discovered((device(0).device,), NOON))


def test_new_devices_start_where_the_plan_says_and_in_quarantine_after_a_loss() -> None:
    node = Node()
    node.yes(Discovered((device(0).device, device(1).device), NOON, {"gpu-1": Lane.DRA}))
    assert (node["gpu-0"].lane, node["gpu-1"].lane) == (Lane.LEGACY, Lane.DRA)
    node = Node()
    node.yes(Lost(NOON, reason="rotten"))
    node.yes(Discovered((device(0).device,), NOON))
    assert node.owner("gpu-0") is Owner.QUARANTINE


def test_facts_come_from_the_inventory() -> None:
    found = Device("gpu-0", "GPU-0", "r", replicas=2, capacity={"memory": 5}, root="w")
    assert Facts.of(found) == Facts("gpu-0", "r", ("GPU-0::0", "GPU-0::1"), "w")
    assert Facts.of(found, shareable=True).capacity == (("memory", 5),)


# --- starts ---


def test_a_take_over_recognises_the_pods_of_another_plugin() -> None:
    node = Node(device(0), device(1, Lane.DRA))
    node.yes(Restarted(NOON, (), {}, Checkpoint({"GPU-1": (PodRef(uid="u"),)} | PODS)))
    assert node.owner("gpu-0") is node.owner("gpu-1") is Owner.LEGACY
    assert node["gpu-1"].move  # it goes to its lane when the pod is gone


def test_a_start_believes_cdi_files_and_the_api_server() -> None:
    node = Node(device(0), device(1, Lane.DRA), device(2, Lane.DRA))
    node.yes(allocated(2, claim=OTHER))
    mine = Allocation(CLAIM, (Use("gpu-0"),))
    granted = Allocation(ClaimRef("uid-3"), (Use("gpu-1"),))
    node.yes(Restarted(NOON, (mine,), allocated=(mine, granted)))
    assert [node.owner(f"gpu-{n}") for n in range(3)] == [Owner.DRA_PREPARED, Owner.DRA_GRANTED, Owner.NONE]
    assert node["gpu-0"].lane is Lane.DRA


def test_a_claim_that_was_deallocated_meanwhile_is_noticed_even_if_only_its_cdi_file_knows_it() -> None:
    node = Node(device(0))
    node.yes(Restarted(NOON, (Allocation(CLAIM, (Use("gpu-0"),)),), allocated=()))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED
    node.yes(Unprepare("uid-1", NOON))
    assert node.owner("gpu-0") is Owner.NONE


def test_a_start_without_the_api_server_keeps_every_claim() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(allocated(0))
    node.yes(Restarted(NOON, allocated=None))
    assert node.owner("gpu-0") is Owner.DRA_GRANTED


def test_a_start_that_finds_a_pod_and_a_claim_is_a_conflict() -> None:
    node = Node(device(0))
    node.yes(Restarted(NOON, (Allocation(CLAIM, (Use("gpu-0"),)),), PODS))
    assert node.owner("gpu-0") is Owner.CONFLICT


def test_a_reboot_unprepares_and_keeps_what_pods_hold() -> None:
    node = Node(device(0), device(1, Lane.DRA), device(2, Lane.DRA))
    node.yes(allocate(0))
    node.yes(prepare(1))
    node.yes(prepare(2, claim=OTHER))
    node.yes(ClaimDeallocated("uid-2", NOON))
    assert node.yes(Booted("another", NOON)).durable
    assert [node.owner(f"gpu-{n}") for n in range(3)] == [Owner.LEGACY, Owner.DRA_GRANTED, Owner.NONE]
    assert not node.yes(Booted("another", NOON))


# --- the lease of level G2 ---


def test_the_shared_lane_is_off_without_g2() -> None:
    node = Node(device(0, Lane.SHARED), device(1))
    assert node.offers("gpu-0") == (False, False)
    assert not guarded(node["gpu-0"], node.policy)
    for event in (allocate(0), allocated(0, guarded=True), SetLane("gpu-1", Lane.SHARED, NOON)):
        assert node.no(event)[0] is RefusalCode.DISABLED


def test_a_lease_is_granted_after_kubelet_gave_the_device_up() -> None:
    node = Node(device(0, Lane.SHARED), g2=True)
    assert node.offers("gpu-0") == (True, True)
    node.yes(allocated(0, guarded=True))
    assert node.owner("gpu-0") is Owner.DRA_PENDING
    assert node.offers("gpu-0") == (False, True)
    assert node.no(prepare(0))[0] is RefusalCode.PENDING
    assert node.no(LeaseGranted("uid-1", NOON))[0] is RefusalCode.STALE
    node.yes(Withdrawn("gpu-0", node.ledger.seq, NOON))
    assert node.yes(LeaseGranted("uid-1", NOON)).effects == (ConfirmClaim("uid-1"),)
    node.yes(prepare(0))
    assert node["gpu-0"].holders[0].phase is Phase.PREPARED


def test_a_pod_wins_until_the_lease_is_granted_and_the_claim_loses_all_of_its_devices() -> None:
    node = Node(device(0, Lane.SHARED), device(1, Lane.SHARED), g2=True)
    node.yes(allocated(0, 1, guarded=True))
    done = node.yes(allocate(0))
    assert any(isinstance(effect, DenyClaim) for effect in done.effects)
    assert (node.owner("gpu-0"), node.owner("gpu-1")) == (Owner.LEGACY, Owner.NONE)
    assert node.ledger.node.denied == {"uid-1"}


def test_a_lease_can_be_denied() -> None:
    node = Node(device(0, Lane.SHARED), g2=True)
    node.yes(allocated(0, guarded=True))
    node.yes(LeaseDenied("uid-1", NOON, "30 s have passed"))
    assert node.owner("gpu-0") is Owner.NONE
