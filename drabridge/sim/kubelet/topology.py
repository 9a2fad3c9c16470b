"""Topology Manager for devices: policies ``none`` and ``single-numa-node``, container scope.

Sources: ``pkg/kubelet/cm/devicemanager/topology_hints.go``, ``cm/topologymanager/policy_single_numa_node.go``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from drabridge.sim.kubelet.admission import RejectedError
from drabridge.sim.kubelet.device_accounting import DeviceState

NONE = "none"
SINGLE_NUMA_NODE = "single-numa-node"
POLICIES = (NONE, SINGLE_NUMA_NODE)


class TopologyAffinityError(RejectedError):
    """No NUMA node has all of a container's devices (cm/topologymanager/topology_manager.go)."""

    def __init__(self) -> None:
        super().__init__("TopologyAffinityError", "Resources cannot be allocated with Topology locality")


@dataclass(frozen=True, slots=True)
class Demand:
    """What one resource of one container needs: ``nodes`` are the single NUMA nodes that could serve it all.

    ``preferred``: a single node is the smallest set that could ever serve so many; otherwise every hint is refused.
    """

    nodes: frozenset[int]
    preferred: bool


def demand(
    state: DeviceState, resource: str, needed: int, *, held: Collection[str] | None, reusable: Collection[str]
) -> Demand:
    """Return the hints for one aligned resource (GetTopologyHints).

    Raises KubeletPanicError for an id that is held but no longer listed. A device whose only NUMA node is -1 matches no
    real node: such a resource is aligned, and no pod that wants it is admitted (1.35 and later log the node and go on
    with the machine's nodes).
    """
    function = "generateDeviceTopologyHints"
    if held:
        if len(held) != needed:
            return Demand(frozenset(), False)
        available: Collection[str] = ()
        reusable = held
    else:
        available = state.available(resource) - set(reusable)
        if len(available) + len(reusable) < needed:
            return Demand(frozenset(), False)
    must = [frozenset(numa) for id_ in reusable if (numa := state.numa_nodes(resource, id_, function))]
    free = [frozenset(state.numa_nodes(resource, id_, function)) for id_ in available]
    listed = [frozenset(device.numa or ()) for device in state.all.get(resource, {}).values()]
    bearing = {node for numa in listed for node in numa}
    nodes = frozenset(
        node
        for node in bearing
        if all(node in numa for numa in must) and len(must) + sum(node in numa for numa in free) >= needed
    )
    return Demand(nodes, any(sum(node in numa for numa in listed) >= needed for node in bearing))


def single_numa_node(demands: Mapping[str, Demand], numa_nodes: Collection[int]) -> frozenset[int] | None:
    """Return the affinity for a container: one node, or None where no resource has a preference.

    Raises TopologyAffinityError when no single node of the machine serves every resource.
    """
    if not demands:
        return None
    common = set(numa_nodes)
    for each in demands.values():
        common &= each.nodes if each.preferred else frozenset()
    if not common:
        raise TopologyAffinityError
    return frozenset({min(common)})


def split_by_affinity(
    state: DeviceState, resource: str, available: Collection[str], affinity: Collection[int]
) -> tuple[set[str], tuple[set[str], ...]]:
    """filterByAffinity: (aligned, (others with a node, those without))."""
    aligned: set[str] = set()
    elsewhere: set[str] = set()
    without: set[str] = set()
    for id_ in available:
        nodes = state.numa_nodes(resource, id_, "filterByAffinity")
        group = without if not nodes else aligned if set(nodes) & set(affinity) else elsewhere
        group.add(id_)
    return aligned, (elsewhere, without)
