"""Count the devices of each node: how many each lane offers, and how many are held there. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from drabridge.migrate.report.build import Facts
from drabridge.migrate.report.facts import NodeFacts, PodFacts, SliceFacts
from drabridge.migrate.report.names import ResourceNames


class NodeDevices(Struct, frozen=True):
    """The devices of one node. One that is on its way between the lanes is in neither for a moment."""

    facts: NodeFacts
    for_limits: int
    for_claims: int
    held_by_limits: int
    held_by_claims: int


def devices_by_node(facts: Facts, resource: str, device_class: str) -> Iterator[NodeDevices]:
    """Yield the nodes that have devices of a resource in either lane, or pods with limits for it."""
    names = ResourceNames({resource}, facts.classes, {device_class: resource})
    by_limits: Counter[str] = Counter()
    for pod in facts.pods:
        by_limits[pod.node] += kubelet_devices(pod, resource)
    by_node: dict[str, list[SliceFacts]] = {}
    node_of_pool: dict[tuple[str, str], str] = {}
    for one in facts.slices:
        by_node.setdefault(one.node, []).append(one)
        node_of_pool[one.driver, one.pool] = one.node
    by_claims: Counter[str] = Counter()
    for claim in facts.claims:
        for (driver, pool, claimed), count in claim.held:
            if names.of_class(claimed) == resource:
                by_claims[node_of_pool.get((driver, pool), pool)] += count
    for node in facts.nodes:
        for_limits = dict(node.allocatable).get(resource, 0)
        for_claims = names.devices(by_node.get(node.name, ()))[resource]
        if for_limits or for_claims or by_limits[node.name]:
            yield NodeDevices(node, for_limits, for_claims, by_limits[node.name], by_claims[node.name])


def kubelet_devices(pod: PodFacts, resource: str) -> int:
    """Return how many devices kubelet gives, or will give, to a pod."""
    return 0 if resource in pod.by_dra else dict(pod.limits).get(resource, 0)
