"""Rows about lanes, and about the lease of the shared one: revoke, acknowledge, grant, and what aborts it."""

from __future__ import annotations

import pytest

from drabridge.ledger.effects import ConfirmClaim, DenyClaim, LaneMoveAborted, LaneMoved, RefusalCode
from drabridge.ledger.eligibility import needs_lease_conditions
from drabridge.ledger.events import (
    AgentStarted,
    ClaimDeallocated,
    LeaseDenied,
    LeaseGranted,
    ManualRelease,
    NoClaimListed,
    Observed,
    RecordLost,
    SetLane,
    WithdrawnFromKubelet,
    WithdrawnFromSlices,
)
from drabridge.ledger.model import ClaimPhase, Lane, MoveStep, Owner
from drabridge.ledger.policy import LedgerPolicy
from tests.support.ledger_node import NOON, PODS, Node, allocate, allocated, device, prepare

# --- lanes ---


def test_legacy_to_dra_waits_for_kubelet() -> None:
    node = Node(device(0))
    assert node.offers("gpu-0") == (True, False)
    before = node.ledger.seq
    node.yes(SetLane("gpu-0", Lane.DRA, NOON))
    assert node["gpu-0"].lane is Lane.LEGACY_TO_DRA
    assert node.offers("gpu-0") == (False, False)
    assert node.no(WithdrawnFromKubelet("gpu-0", before, NOON))[0] is RefusalCode.STALE
    done = node.yes(WithdrawnFromKubelet("gpu-0", node.ledger.seq, NOON + 0.5))
    assert done.effects == (LaneMoved("gpu-0", Lane.LEGACY, Lane.DRA, 0.5),)
    assert node.offers("gpu-0") == (False, True)


def test_legacy_to_dra_is_aborted_by_an_allocate_and_goes_on_later() -> None:
    node = Node(device(0))
    node.yes(SetLane("gpu-0", Lane.DRA, NOON))
    done = node.yes(allocate(0))
    assert any(isinstance(effect, LaneMoveAborted) for effect in done.effects)
    assert node["gpu-0"].lane is Lane.LEGACY
    assert node["gpu-0"].move
    assert node["gpu-0"].move.step is MoveStep.WAITING
    assert node.offers("gpu-0") == (True, False)  # what a pod holds stays Healthy


def test_dra_to_legacy_waits_for_the_slice_the_quiet_time_and_the_claims() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(SetLane("gpu-0", Lane.LEGACY, NOON))
    assert node.offers("gpu-0") == (False, False)
    assert node.no(NoClaimListed("gpu-0", node.ledger.seq, NOON))[0] is RefusalCode.STALE
    before = node.ledger.seq
    node.yes(WithdrawnFromSlices("gpu-0", before, NOON + 1))
    assert (move := node["gpu-0"].move)
    assert "then for the API server's list of claims" in move.reason
    assert "for 30 s" in node.no(NoClaimListed("gpu-0", node.ledger.seq, NOON + 1))[1]
    assert node.no(NoClaimListed("gpu-0", before, NOON + 40))[0] is RefusalCode.STALE  # listed before the withdrawal
    node.yes(NoClaimListed("gpu-0", node.ledger.seq, NOON + 40))
    assert node.offers("gpu-0") == (True, False)


def test_dra_to_legacy_is_aborted_by_a_claim() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(SetLane("gpu-0", Lane.LEGACY, NOON))
    node.yes(allocated(0))
    assert (node["gpu-0"].lane, node.owner("gpu-0")) == (Lane.DRA, Owner.DRA_GRANTED)
    node.yes(ClaimDeallocated("uid-1", NOON))
    assert node["gpu-0"].lane is Lane.DRA_TO_LEGACY  # and goes on


def test_a_move_can_be_told_what_it_waits_for() -> None:
    node = Node(device(0, Lane.DRA))
    node.yes(SetLane("gpu-0", Lane.LEGACY, NOON))
    node.yes(WithdrawnFromSlices("gpu-0", node.ledger.seq, NOON))
    before = node.ledger.seq
    assert not node.yes(SetLane("gpu-0", Lane.LEGACY, NOON + 1)).changes
    node.yes(SetLane("gpu-0", Lane.LEGACY, NOON + 1, "a claim has it"))
    move = node["gpu-0"].move
    assert move
    assert (move.step, move.step_since, move.reason) == (MoveStep.QUIESCING, NOON, "a claim has it")
    node.yes(NoClaimListed("gpu-0", before, NOON + 40))  # nothing has happened to it


@pytest.mark.parametrize("lane", [Lane.LEGACY, Lane.DRA])
def test_a_move_can_be_taken_back(lane: Lane) -> None:
    node = Node(device(0, lane))
    node.yes(SetLane("gpu-0", Lane.DRA if lane is Lane.LEGACY else Lane.LEGACY, NOON))
    node.yes(SetLane("gpu-0", lane, NOON))
    assert (node["gpu-0"].lane, node["gpu-0"].move) == (lane, None)


@pytest.mark.parametrize("conflict", [False, True])
def test_a_device_in_doubt_goes_back_to_claims_when_kubelet_confirms_it(conflict: bool) -> None:
    node = Node(device(0, Lane.DRA))
    if conflict:
        node.yes(prepare(0))
        node.yes(Observed(NOON, node.ledger.seq, PODS))
        node.yes(ClaimDeallocated("uid-1", NOON))
    else:
        node.yes(RecordLost(NOON))
        node.yes(AgentStarted(NOON))
    assert node.owner("gpu-0") is (Owner.CONFLICT if conflict else Owner.QUARANTINE)
    node.yes(Observed(NOON + 500, node.ledger.seq, {}))
    node.yes(ManualRelease("gpu-0", NOON + 501, frozenset({"uid-1"})))
    assert (node.owner("gpu-0"), node["gpu-0"].lane) == (Owner.NONE, Lane.LEGACY_TO_DRA)
    node.yes(WithdrawnFromKubelet("gpu-0", node.ledger.seq, NOON + 502))
    assert node.offers("gpu-0") == (False, True)


@pytest.mark.parametrize("lane", [Lane.LEGACY, Lane.DRA])
def test_a_busy_device_with_a_move_requested_is_marked_until_it_moves_or_the_request_is_withdrawn(lane: Lane) -> None:
    other = Lane.DRA if lane is Lane.LEGACY else Lane.LEGACY
    node = Node(device(0, lane), device(1, lane))

    def marked() -> list[str]:
        return [entry.name for entry in node.ledger.entries.values() if entry.leaves_when_released]

    node.yes(SetLane("gpu-1", other, NOON))  # nobody has it: it moves
    node.yes(allocate(0) if lane is Lane.LEGACY else allocated(0))
    assert marked() == []
    node.yes(SetLane("gpu-0", other, NOON))
    assert marked() == ["gpu-0"]
    node.yes(SetLane("gpu-0", lane, NOON))  # withdrawn
    assert marked() == []
    node.yes(SetLane("gpu-0", other, NOON))
    assert marked() == ["gpu-0"]
    if lane is Lane.DRA:
        node.yes(ClaimDeallocated("uid-1", NOON))
        assert (marked(), node["gpu-0"].lane) == ([], Lane.DRA_TO_LEGACY)


# --- the lease ---


def test_the_shared_lane_is_off_without_g2() -> None:
    node = Node(device(0, Lane.SHARED), device(1))
    assert node.offers("gpu-0") == (False, False)
    assert not needs_lease_conditions(node["gpu-0"], node.policy)
    for event in (allocate(0), allocated(0, guarded=True), SetLane("gpu-1", Lane.SHARED, NOON)):
        assert node.no(event)[0] is RefusalCode.DISABLED


def test_a_lease_is_granted_after_kubelet_gave_the_device_up() -> None:
    node = Node(device(0, Lane.SHARED), leases=True)
    assert node.offers("gpu-0") == (True, True)
    node.yes(allocated(0, guarded=True))
    assert node.owner("gpu-0") is Owner.DRA_PENDING
    assert node.offers("gpu-0") == (False, True)
    assert node.no(prepare(0))[0] is RefusalCode.PENDING
    assert node.no(LeaseGranted("uid-1", NOON))[0] is RefusalCode.STALE
    node.yes(WithdrawnFromKubelet("gpu-0", node.ledger.seq, NOON))
    assert node.yes(LeaseGranted("uid-1", NOON)).effects == (ConfirmClaim("uid-1"),)
    node.yes(prepare(0))
    assert node["gpu-0"].holders[0].phase is ClaimPhase.PREPARED


def test_a_pod_wins_until_the_lease_is_granted_and_the_claim_loses_all_of_its_devices() -> None:
    node = Node(device(0, Lane.SHARED), device(1, Lane.SHARED), leases=True)
    node.yes(allocated(0, 1, guarded=True))
    done = node.yes(allocate(0))
    assert any(isinstance(effect, DenyClaim) for effect in done.effects)
    assert (node.owner("gpu-0"), node.owner("gpu-1")) == (Owner.LEGACY, Owner.NONE)
    assert node.ledger.node.denied == {"uid-1"}


def test_a_lease_can_be_denied() -> None:
    node = Node(device(0, Lane.SHARED), leases=True)
    node.yes(allocated(0, guarded=True))
    node.yes(prepare(0, admin=True))
    node.yes(LeaseDenied("uid-1", NOON, "30 s have passed"))
    assert node.owner("gpu-0") is Owner.NONE
    assert [held.admin for held in node["gpu-0"].claims] == [True], "admin access needs no lease"


def test_no_pod_gets_a_leased_device_after_leases_are_switched_off() -> None:
    node = Node(device(0, Lane.SHARED), leases=True)
    node.yes(allocated(0, guarded=True))
    node.policy = LedgerPolicy(leases=False)
    assert node.no(allocate(0))[0] is RefusalCode.CLAIM_HELD
