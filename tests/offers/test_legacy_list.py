"""What ListAndWatch says of a resource, device by device and as a whole."""

from __future__ import annotations

from drabridge.inventory.model import Device
from drabridge.ledger import Entry, Facts, Lane, SetLane, Withdrawn
from drabridge.offers.legacy import Listed, legacy_list
from tests.ledger.node import NOON, Node, allocate

DEVICES = {f"gpu-{n}": Device(f"gpu-{n}", f"GPU-{n}", "r", numa_nodes=(n,)) for n in range(2)}
TOMBSTONE = 60.0


def node_of(*lanes: Lane) -> Node:
    return Node(*(Entry(Facts.of(DEVICES[f"gpu-{n}"]), lane=lane) for n, lane in enumerate(lanes)))


def listed(node: Node, at: float) -> tuple[Listed, ...]:
    return legacy_list(node.ledger, DEVICES, "r", at=at, policy=node.policy)


def to_claims(node: Node, name: str, at: float) -> None:
    node.yes(SetLane(name, Lane.DRA, at))
    node.yes(Withdrawn(name, node.ledger.seq, at))


def test_a_list_has_numa_nodes_only_while_something_is_left_for_limits() -> None:
    """Kubelet aligns pods that DRA serves with this list: Unhealthy devices with nodes would have them rejected."""
    node = node_of(Lane.LEGACY, Lane.DRA)
    assert listed(node, NOON) == (Listed("GPU-0", True, (0,)), Listed("GPU-1", False, (1,)))
    node.yes(allocate(0))
    assert listed(node, NOON) == (Listed("GPU-0", True, (0,)), Listed("GPU-1", False, (1,)))
    free = node_of(Lane.LEGACY, Lane.DRA)
    to_claims(free, "gpu-0", NOON)
    assert listed(free, NOON) == (Listed("GPU-0", False), Listed("GPU-1", False))
    assert listed(free, NOON + TOMBSTONE) == ()
    free.yes(SetLane("gpu-0", Lane.LEGACY, NOON + TOMBSTONE))  # not yet: schedulers may still choose it
    assert listed(free, NOON + TOMBSTONE) == (Listed("GPU-0", False), Listed("GPU-1", False))
