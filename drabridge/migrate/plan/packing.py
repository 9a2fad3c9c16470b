"""Simulate the steps of a plan with counts: how many devices are free in each lane before and after each pod. Pure.

All devices of a node count as equal. A device that a pod releases goes to the dra lane if the step gives that node one
more, as with the agent; a free device goes there at once. Labels and taints decide where a pod may run; CPU and memory
do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field

from drabridge.migrate.installers import Installer
from drabridge.migrate.plan.document import How
from drabridge.migrate.report.document import number
from drabridge.migrate.report.readers import NodeFacts, Placement, Requirement, Toleration

# --- where a pod may run --------------------------------------------------------------------------------------------

_REPELS = ("NoSchedule", "NoExecute")


def may_run(place: Placement, node: NodeFacts) -> bool:
    """Whether the scheduler would put new pods with this placement on the node."""
    if node.cordoned or any(node.labels.get(key) != value for key, value in place.labels):
        return False
    if place.terms and not any(term and all(_met(one, node.labels) for one in term) for term in place.terms):
        return False
    return all(
        effect not in _REPELS or any(_bears(one, key, value, effect) for one in place.tolerations)
        for key, value, effect in node.taints
    )


def _met(one: Requirement, labels: Mapping[str, str]) -> bool:
    """Whether labels are as required (k8s.io/apimachinery/pkg/labels, Requirement.Matches)."""
    found = labels.get(one.key)
    match one.operator:
        case "In":
            return found in one.values
        case "NotIn":
            return found not in one.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            try:
                left, right = int(found or ""), int(one.values[0])
            except (ValueError, IndexError):
                return False
            return left > right if one.operator == "Gt" else left < right
        case _:
            return False


def _bears(one: Toleration, key: str, value: str, effect: str) -> bool:
    if one.effect and one.effect != effect:
        return False
    if not one.key:
        return one.exists
    return one.key == key and (one.exists or one.value == value)


# --- how many devices -----------------------------------------------------------------------------------------------


class NodeState(Struct):
    """How many devices of one node are in the lane for claims, and how many are free in each lane."""

    facts: NodeFacts
    total: int
    claims: int
    free_limits: int
    free_claims: int


class Demand(Struct):
    """A workload on limits. ``on``: (node, devices) of each pod. ``waiting``: number of its pods without a node."""

    namespace: str
    kind: str
    name: str
    how: How
    devices: int
    on: list[tuple[str, int]] = field(default_factory=list)
    waiting: int = 0
    surge: int = 0
    unavailable: int = 1
    place: Placement = Placement()
    installer: Installer | None = None

    @property
    def object(self) -> str:
        return f"{self.kind}/{self.name}"


class Packing:
    """The nodes of a cluster during a plan."""

    def __init__(self, nodes: Iterable[NodeState], keep: int) -> None:
        """``keep``: the number of devices of each node that stay in the lane for limits."""
        self.nodes = {node.facts.name: node for node in nodes}
        self._keep = keep
        # number of devices -> nodes with so many free for claims; the same, with those that can move at once
        self._by_free: dict[int, dict[str, NodeState]] = {}
        self._by_room: dict[int, dict[str, NodeState]] = {}
        for node in self.nodes.values():
            self._enter(node)

    def move(self, demand: Demand) -> Iterator[tuple[str, bool]]:
        """Move all pods of a workload to claims; yield each obstacle, and whether it makes the step impossible."""
        yield from self._start_waiting(demand)
        if demand.how is not How.ROLLOUT:
            for name, devices in demand.on:
                self._released(name, devices)
            return
        surge_first = bool(demand.on) and not demand.unavailable
        if surge_first and self._hole(demand) is None:
            surge_first = False
            yield self._lacks(demand), True
        near = ""
        for name, devices in demand.on:
            if not surge_first:
                self._released(near := name, devices)
            hole = self._hole(demand, near)
            if hole is None:
                yield f"{demand.object}: a pod that leaves {name} finds no node that it may run on", True
                return
            self._take(hole, demand.devices)
            if surge_first:
                self._released(near := name, devices)

    def take_the_rest(self, name: str) -> int:
        """Give claims every free device of a node, except those that ``keep`` keeps; return how many claims have."""
        node = self.nodes[name]
        self._leave(node)
        self._shift(node, node.free_limits)
        self._enter(node)
        return node.claims

    def _start_waiting(self, demand: Demand) -> Iterator[tuple[str, bool]]:
        """Find room for pods without a node. For a workload's next run, room is only checked and not reserved."""
        found: list[NodeState] = []
        for started in range(demand.waiting):
            hole = self._hole(demand)
            if hole is None:
                what = "its next run" if demand.how is How.NEXT else number(demand.waiting - started, "more pod")
                free = number(demand.devices, "free device")
                yield f"{demand.object}: {what} would wait for {free} on one node", False
                break
            self._take(hole, demand.devices)
            found.append(hole)
        for hole in found if demand.how is How.NEXT else ():
            self._take(hole, -demand.devices)

    def _lacks(self, demand: Demand) -> str:
        able = sorted(node.facts.name for node in self.nodes.values() if may_run(demand.place, node.facts))
        where = ", ".join(able[:3]) + (f" or {len(able) - 3} more" if len(able) > 3 else "")
        free = number(demand.devices, "free device")
        return (
            f"{demand.object}: {free} on one of {where or 'no node'}: its rollout makes a new pod "
            "before it ends an old one. Free one, or let the rollout lack a pod: maxSurge: 0, maxUnavailable: 1"
        )

    def _hole(self, demand: Demand, near: str = "") -> NodeState | None:
        """Return a node with free devices in the dra lane for a pod; moves free ones there if necessary.

        ``near``: the node to look at first.
        """
        found = next(self._holes(demand, near), None)
        if found is not None:
            self._leave(found)
            self._shift(found, demand.devices - found.free_claims)
            self._enter(found)
        return found

    def _holes(self, demand: Demand, near: str) -> Iterator[NodeState]:
        first = self.nodes.get(near)
        if first is not None and first.free_claims >= demand.devices and may_run(demand.place, first.facts):
            yield first
        for by_number in (self._by_free, self._by_room):
            for free in sorted(one for one in by_number if one >= max(demand.devices, 1)):
                yield from (node for node in by_number[free].values() if may_run(demand.place, node.facts))

    def _take(self, node: NodeState, devices: int) -> None:
        self._leave(node)
        node.free_claims -= devices
        self._enter(node)

    def _released(self, name: str, devices: int) -> None:
        """Give claims the devices of a pod with limits that ended."""
        node = self.nodes.get(name)
        if node is not None:
            self._leave(node)
            node.free_limits += devices
            self._shift(node, devices)
            self._enter(node)

    def _shift(self, node: NodeState, wanted: int) -> None:
        count = max(0, min(wanted, node.free_limits, node.total - self._keep - node.claims))
        node.claims += count
        node.free_limits -= count
        node.free_claims += count

    def _enter(self, node: NodeState) -> None:
        self._by_free.setdefault(node.free_claims, {})[node.facts.name] = node
        self._by_room.setdefault(self._room(node), {})[node.facts.name] = node

    def _leave(self, node: NodeState) -> None:
        del self._by_free[node.free_claims][node.facts.name]
        del self._by_room[self._room(node)][node.facts.name]

    def _room(self, node: NodeState) -> int:
        movable = max(0, min(node.free_limits, node.total - self._keep - node.claims))
        return node.free_claims + movable
