"""Rows about lanes, and about the lease of the shared one: revoke, acknowledge, grant, and what aborts it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from drabridge.inventory.devices import Presence
from drabridge.ledger.effects import LaneMoveAborted, LaneMoved, Notify, RefusalCode, Released
from drabridge.ledger.entries import ClaimPhase, ClaimRef, ClaimShare, Lane, MoveStep, Owner
from drabridge.ledger.events import (
    AgentStarted,
    ClaimAllocated,
    ClaimDeallocated,
    DeviceUse,
    Discovered,
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
from tests.support.ledger_node import CLAIM, NOON, OTHER, PODS, Node, allocate, allocated, device, prepare, uses

# --- lanes ---


def test_legacy_to_dra_waits_for_kubelet() -> None:
    node = Node(device(0))
    assert node.offers("gpu-0") == (True, False)
    before = node.ledger.seq
    node.yes(SetLane("gpu-0", Lane.DRA, NOON))
    assert node["gpu-0"].lane is Lane.LEGACY_TO_DRA
    assert (move := node["gpu-0"].move)
    assert move.reason == "waits for kubelet to confirm"
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
    assert (move := node["gpu-0"].move)
    assert move.reason == "waits for the API server to confirm"
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

SHARED, SHARED_TOO = device(0, Lane.SHARED), device(1, Lane.SHARED)


def withdrawn(node: Node, *numbers: int) -> None:
    for number in numbers:
        node.yes(WithdrawnFromKubelet(f"gpu-{number}", node.ledger.seq, NOON))


def grant(claim: ClaimRef = CLAIM) -> LeaseGranted:
    return LeaseGranted(claim, NOON)


def deny(*numbers: int, claim: ClaimRef = CLAIM) -> LeaseDenied:
    return LeaseDenied(claim, uses(*numbers), NOON, "30 s have passed")


def phases(node: Node, number: int) -> list[tuple[str, ClaimPhase]]:
    return [(held.claim.uid, held.phase) for held in node[f"gpu-{number}"].claims]


def test_a_claim_whose_device_was_unplugged_while_it_waited_is_refused_at_its_next_look() -> None:
    node = Node(device(0, Lane.SHARED))
    node.yes(allocated(0, lease=True))
    node.yes(Discovered((), NOON))
    assert node.no(allocated(0, lease=True))[0] is RefusalCode.NOT_PRESENT
    node.yes(deny(0))
    assert phases(node, 0) == [(CLAIM.uid, ClaimPhase.DENIED)]


def test_a_claim_that_waits_beside_a_granted_one_is_refused_when_the_device_was_unplugged() -> None:
    def one(claim: ClaimRef) -> ClaimAllocated:
        return ClaimAllocated(claim, (DeviceUse("gpu-0", ClaimShare(claim.uid), lease=True),), NOON)

    node = Node(device(0, Lane.SHARED, shareable=True))
    node.yes(one(CLAIM))
    node.yes(one(OTHER))
    withdrawn(node, 0)
    node.yes(grant())
    node.yes(Discovered((), NOON))
    assert node.no(grant(OTHER))[0] is RefusalCode.NOT_PRESENT
    assert node.no(one(OTHER))[0] is RefusalCode.NOT_PRESENT
    node.yes(one(CLAIM))  # what is granted stays


def test_a_shared_device_is_for_both_sides_and_moves_to_the_legacy_lane_and_back_at_once() -> None:
    node = Node(device(0))
    node.yes(SetLane("gpu-0", Lane.SHARED, NOON))
    assert node.offers("gpu-0") == (True, True)
    node.yes(allocate(0))
    assert node.offers("gpu-0") == (True, False)
    node.yes(SetLane("gpu-0", Lane.LEGACY, NOON))
    node.yes(SetLane("gpu-0", Lane.SHARED, NOON))
    assert (node["gpu-0"].lane, node["gpu-0"].move) == (Lane.SHARED, None)


def test_a_shared_device_goes_to_the_dra_lane_and_back_through_acknowledgements() -> None:
    node = Node(SHARED)
    node.yes(SetLane("gpu-0", Lane.DRA, NOON))
    assert (node["gpu-0"].lane, node.offers("gpu-0")) == (Lane.LEGACY_TO_DRA, (False, False))
    withdrawn(node, 0)
    assert node["gpu-0"].lane is Lane.DRA
    node.yes(SetLane("gpu-0", Lane.SHARED, NOON))
    assert (node["gpu-0"].lane, node.offers("gpu-0")) == (Lane.DRA_TO_LEGACY, (False, False))


def test_what_a_claim_has_leased_is_in_the_dra_lane_at_once_and_comes_back_through_acknowledgements() -> None:
    """The next claim needs no lease for it: kubelet gave it up for the first one."""
    node = Node(SHARED)
    node.yes(allocated(0, lease=True))
    node.yes(SetLane("gpu-0", Lane.DRA, NOON))
    assert node["gpu-0"].lane is Lane.SHARED  # kubelet may give it out until it says no
    node.yes(SetLane("gpu-0", Lane.SHARED, NOON))
    withdrawn(node, 0)
    node.yes(grant())
    node.yes(SetLane("gpu-0", Lane.DRA, NOON))
    assert (node["gpu-0"].lane, node["gpu-0"].move, node.offers("gpu-0")) == (Lane.DRA, None, (False, True))
    node.yes(ClaimDeallocated(CLAIM.uid, NOON))
    assert node.owner("gpu-0") is Owner.NONE
    assert node.no(allocate(0))[0] is RefusalCode.OTHER_LANE
    node.yes(prepare(0, claim=OTHER))
    node.yes(SetLane("gpu-0", Lane.SHARED, NOON))
    assert (node["gpu-0"].lane, node.offers("gpu-0")) == (Lane.DRA, (False, False))  # no next claim gets it


def test_a_lease_is_granted_after_kubelet_gave_all_devices_up() -> None:
    node = Node(SHARED, SHARED_TOO)
    node.yes(allocated(0, 1, lease=True))
    assert node.owner("gpu-0") is Owner.DRA_PENDING
    assert node.offers("gpu-0") == (False, True)
    assert node.no(prepare(0))[0] is RefusalCode.PENDING
    assert node.no(WithdrawnFromKubelet("gpu-0", node.ledger.seq - 1, NOON))[0] is RefusalCode.STALE
    withdrawn(node, 0)
    assert node.no(grant())[0] is RefusalCode.STALE
    assert node.no(prepare(0))[0] is RefusalCode.PENDING
    withdrawn(node, 1)
    node.yes(grant())
    assert not node.yes(grant()).changes  # the condition may have to be sent again
    assert node.no(allocate(0))[0] is RefusalCode.CLAIM_HELD
    node.yes(prepare(0, 1))
    assert node["gpu-0"].holders[0].phase is ClaimPhase.PREPARED


def test_a_claim_gets_a_shared_device_by_a_lease_only() -> None:
    node = Node(SHARED)
    assert node.no(allocated(0))[0] is RefusalCode.NO_LEASE
    assert node.no(prepare(0))[0] is RefusalCode.OTHER_LANE
    assert node.no(grant())[0] is RefusalCode.STALE
    node.yes(allocated(0, lease=True))
    assert node.no(allocated(0, claim=OTHER))[0] is RefusalCode.NO_LEASE


def test_a_device_that_broke_meanwhile_is_not_leased() -> None:
    node = Node(SHARED)
    node.yes(allocated(0, lease=True))
    withdrawn(node, 0)
    node.yes(Discovered((replace(SHARED.device, presence=Presence.FAULTY),), NOON))
    assert node.no(grant())[0] is RefusalCode.NOT_PRESENT


def test_a_pod_wins_until_the_lease_is_granted_and_the_claim_loses_all_of_its_devices() -> None:
    for given_up in ((), (0,), (0, 1)):
        node = Node(SHARED, SHARED_TOO)
        node.yes(allocated(0, 1, lease=True))
        withdrawn(node, *given_up)
        done = node.yes(allocate(0))
        assert [one.reason for one in done.effects if isinstance(one, Notify)] == ["LeaseDenied"]
        assert (node.owner("gpu-0"), node.owner("gpu-1")) == (Owner.LEGACY, Owner.NONE)
        assert phases(node, 0) == phases(node, 1) == [("uid-1", ClaimPhase.DENIED)]
        assert node.no(grant())[0] is RefusalCode.STALE


def test_a_pod_that_kubelet_shows_wins_as_well() -> None:
    node = Node(SHARED)
    node.yes(allocated(0, lease=True))
    node.yes(Observed(NOON, node.ledger.seq, PODS))
    assert (node.owner("gpu-0"), phases(node, 0)) == (Owner.LEGACY, [("uid-1", ClaimPhase.DENIED)])


def test_a_denied_device_is_for_no_claim_until_the_claim_has_let_go_and_for_pods_at_once() -> None:
    node = Node(SHARED, SHARED_TOO)
    node.yes(allocated(0, lease=True))
    node.yes(prepare(0, admin=True))
    node.yes(deny(0))
    assert node.owner("gpu-0") is Owner.NONE
    assert node.offers("gpu-0") == (True, False)
    assert [held.admin for held in node["gpu-0"].claims] == [True, False], "admin access needs no lease"
    assert not node.yes(deny(0)).changes
    assert node.no(allocated(0, lease=True))[0] is RefusalCode.DENIED
    assert node.no(prepare(0))[0] is RefusalCode.OTHER_LANE
    done = node.yes(ClaimDeallocated("uid-1", NOON))
    assert not [effect for effect in done.effects if isinstance(effect, Released)]
    assert node.offers("gpu-0") == (True, True)


def test_a_claim_that_was_never_recorded_is_denied_and_a_leased_one_is_not() -> None:
    node = Node(SHARED, SHARED_TOO)
    node.yes(allocate(0))
    assert node.no(allocated(0, 1, lease=True))[0] is RefusalCode.LEGACY_HELD
    node.yes(LeaseDenied(CLAIM, (*uses(0, 1), DeviceUse("gpu-9", lease=True)), NOON, "gpu-0 is held"))
    assert (node.owner("gpu-0"), node.offers("gpu-1")) == (Owner.LEGACY, (True, False))
    node.yes(ClaimDeallocated("uid-1", NOON))
    node.yes(allocated(1, lease=True))
    withdrawn(node, 1)
    node.yes(grant())
    assert node.no(deny(1))[0] is RefusalCode.STALE


def test_a_lease_of_an_earlier_allocation_does_not_hinder_the_denial_of_a_new_one() -> None:
    node = Node(SHARED, SHARED_TOO)
    node.yes(allocated(0, lease=True))
    withdrawn(node, 0)
    node.yes(grant())
    node.yes(allocate(1))
    assert node.no(allocated(1, lease=True))[0] is RefusalCode.LEGACY_HELD
    node.yes(deny(1))
    assert phases(node, 0) == phases(node, 1) == [("uid-1", ClaimPhase.DENIED)]
    node.yes(ClaimDeallocated("uid-1", NOON))
    assert (node.offers("gpu-0"), node.owner("gpu-1")) == ((True, True), Owner.LEGACY)


def test_a_denial_leaves_what_is_prepared_of_an_earlier_allocation() -> None:
    node = Node(SHARED, SHARED_TOO)
    node.yes(allocated(0, lease=True))
    withdrawn(node, 0)
    node.yes(grant())
    node.yes(prepare(0))
    node.yes(allocated(1, lease=True))
    node.yes(deny(1))
    assert phases(node, 0) == [("uid-1", ClaimPhase.PREPARED)]
    assert phases(node, 1) == [("uid-1", ClaimPhase.DENIED)]


@pytest.mark.parametrize("by_pod", [False, True])
def test_a_claim_with_a_device_of_the_dra_lane_loses_that_too_when_it_is_denied_the_lease(by_pod: bool) -> None:
    node = Node(SHARED, device(1, Lane.DRA))
    both = (DeviceUse("gpu-0", lease=True), DeviceUse("gpu-1"))
    node.yes(ClaimAllocated(CLAIM, both, NOON))
    assert phases(node, 1) == [("uid-1", ClaimPhase.GRANTED)]
    node.yes(allocate(0) if by_pod else LeaseDenied(CLAIM, both, NOON, "30 s have passed"))
    assert phases(node, 0) == phases(node, 1) == [("uid-1", ClaimPhase.DENIED)]
    assert node.owner("gpu-0") is (Owner.LEGACY if by_pod else Owner.NONE)


def test_a_denied_claim_that_was_allocated_elsewhere_frees_its_devices() -> None:
    node = Node(SHARED, SHARED_TOO)
    node.yes(deny(0))
    node.yes(allocated(1, lease=True))
    assert (phases(node, 0), phases(node, 1)) == ([], [("uid-1", ClaimPhase.PENDING)])


def test_a_lease_does_not_outlive_another_allocation() -> None:
    node = Node(SHARED, SHARED_TOO)
    node.yes(allocated(0, lease=True))
    withdrawn(node, 0)
    node.yes(grant())
    node.yes(allocated(1, lease=True))
    assert node.offers("gpu-0") == (True, True)
    assert node.no(grant())[0] is RefusalCode.STALE


def test_several_claims_share_a_leased_device_and_a_newcomer_waits_for_kubelet_as_well() -> None:
    def one(claim: ClaimRef) -> ClaimAllocated:
        return ClaimAllocated(claim, (DeviceUse("gpu-0", ClaimShare(claim.uid), lease=True),), NOON)

    node = Node(device(0, Lane.SHARED, shareable=True))
    node.yes(one(CLAIM))
    node.yes(one(OTHER))
    assert phases(node, 0) == [("uid-1", ClaimPhase.PENDING), ("uid-2", ClaimPhase.PENDING)]
    withdrawn(node, 0)
    node.yes(grant())
    node.yes(grant(OTHER))
    third = ClaimRef("uid-3")
    node.yes(one(third))
    node.yes(grant(third))  # kubelet has given it up
