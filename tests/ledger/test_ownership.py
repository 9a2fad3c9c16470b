"""What follows when a holder comes or leaves: the lane, who is said to have left, and what is forgotten."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from drabridge.ledger.effects import Released
from drabridge.ledger.entries import ClaimShare, Lane, Owner
from drabridge.ledger.events import (
    AgentStarted,
    CheckpointRead,
    ClaimAllocated,
    ClaimDeallocated,
    ClaimDevices,
    DeviceUse,
    Observed,
)
from tests.support.ledger_node import CLAIM, NOON, OTHER, Node, allocate, device


def test_a_device_that_goes_to_the_next_container_was_not_released() -> None:
    node = Node(device())
    node.yes(allocate(0))
    assert not [one for one in node.yes(allocate(0, at=NOON + 5)).effects if isinstance(one, Released)]


def test_of_two_claims_the_one_that_left_is_named() -> None:
    node = Node(device(lane=Lane.DRA, shareable=True))
    for claim in (CLAIM, OTHER):
        use = DeviceUse("gpu-0", share=ClaimShare(f"share-{claim.uid}", (("memory", 1),)))
        node.yes(ClaimAllocated(claim, (use,), NOON))
    [released] = [one for one in node.yes(ClaimDeallocated(CLAIM.uid, NOON)).effects if isinstance(one, Released)]
    assert str(CLAIM.name) in released.holder
    assert str(OTHER.name) not in released.holder


def test_nodes_that_a_device_had_before_are_its_holders_as_long_as_it_has_one() -> None:
    """Else no other device gets such a number again."""
    node = Node(device())
    node.yes(allocate(0))
    node.ledger = node.ledger.replace([replace(node["gpu-0"], was_at=("c188:0",))])
    node.yes(allocate(0, at=NOON + 5))
    assert node["gpu-0"].was_at == ("c188:0",)
    for at in (NOON + 500, NOON + 600):
        node.yes(Observed(at, node.ledger.seq, {}, CheckpointRead({}), {}))
    assert node.owner("gpu-0") is Owner.NONE
    assert not node["gpu-0"].was_at


@pytest.mark.parametrize("lane", [Lane.LEGACY, Lane.DRA, Lane.SHARED])
def test_a_claim_that_is_found_on_a_device_has_it_in_the_dra_lane(lane: Lane) -> None:
    node = Node(device(lane=lane))
    node.ledger = node.ledger.replace([], node=replace(node.ledger.node, merged=False))
    node.yes(AgentStarted(NOON, listed={}, prepared=(ClaimDevices(CLAIM, (DeviceUse("gpu-0"),)),)))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED
    assert node["gpu-0"].lane is (Lane.SHARED if lane is Lane.SHARED else Lane.DRA)
