"""Choose which devices kubelet should prefer for one container: near to each other, sparing free groups. Pure.

The order of what is compared is ``cost``. What is guaranteed:

* The answer has exactly ``size`` ids, all of ``must_include``, none outside ``available``; or it is empty.
* It is deterministic, whatever the order of the input.
* Devices that the comparison can only tell apart by rank count as one kind. As long as comparing every mix of kinds
  one by one stays within ``EXACT_WORK`` (any request on ten devices, most on real servers, thousands of replicas of one
  device), the answer is the cheapest there is.
* Beyond that, and without ``DISTRIBUTED`` replicas, the number of NUMA nodes is the least possible (of up to
  ``NODES_EXACT`` nodes), and with it the number of PCIe roots; the rest is a good choice, not a proven one.
* Beyond that, ``DISTRIBUTED`` loads the devices as evenly as possible; locality breaks ties as well as it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import combinations, islice

from msgspec import Struct

EXACT_WORK = 10_000
"""Candidate answers times (their size + the number of kinds): 1 to 2 us each on a slow core. Ten devices need at most
C(10, 5) * (5 + 10) = 3780."""

KINDS_EXACT = 200
"""With more kinds, no mixes are tried: the enumeration recurses once per kind."""

NODES_EXACT = 8
"""All sets of NUMA nodes are tried for at most so many nodes (2^8 sets). Kubelet's Topology Manager also stops at 8
nodes (topologymanager ``maxAllowableNUMANodes``)."""


class ReplicaPolicy(StrEnum):
    """How to choose among ids that share a device (replicas)."""

    DISTRIBUTED = "distributed"  # load the devices evenly
    PACKED = "packed"  # fill devices that are in use already


class Unit(Struct, frozen=True):
    """One id, with what the choice knows about it.

    ``numa``: nodes near it, empty for unknown. ``root``: its PCIe root, empty for none. ``group``: devices that are
    worth keeping free together (one board, one NVLink island), empty for none. ``rank``: lower is taken first.
    ``device``: the device that several ids (replicas) share; empty when the id is the device.
    """

    id: str
    numa: tuple[int, ...] = ()
    root: str = ""
    group: str = ""
    rank: int = 0
    device: str = ""


Cost = tuple[object, ...]
_UNKNOWN_NODE = -1


def prefer(
    units: Iterable[Unit],
    available: Iterable[str],
    must_include: Iterable[str],
    size: int,
    policy: ReplicaPolicy = ReplicaPolicy.DISTRIBUTED,
) -> list[str]:
    """Choose ``size`` of the ``available`` ids, in the order of rank.

    Empty when the request makes no sense.

    ``units`` describes all ids of the resource, held ones too: they tell how loaded a device or group is. An available
    id that ``units`` does not know is taken last.
    """
    world = _World(units, frozenset(available), policy)
    must = frozenset(must_include)
    if size <= 0 or len(must) > size or len(world.available) < size or not must <= world.available:
        return []
    free = [unit for unit in world.ordered if unit.id not in must]
    fixed = [unit for unit in world.ordered if unit.id in must]
    wanted = size - len(fixed)
    exact = _few_mixes(world.kinds(free), wanted, size)
    if exact is not None:
        candidates: Iterable[list[Unit]] = ([*fixed, *chosen] for chosen in exact)
    elif world.replicated and policy is ReplicaPolicy.DISTRIBUTED:
        candidates = [_spread(world, fixed, free, wanted)]
    else:
        candidates = _localised(world, fixed, free, wanted)
    best = min(candidates, key=world.cost)
    return [unit.id for unit in sorted(best, key=_order)]


def cost(
    units: Iterable[Unit],
    available: Iterable[str],
    chosen: Iterable[str],
    policy: ReplicaPolicy = ReplicaPolicy.DISTRIBUTED,
) -> Cost:
    """Return what ``prefer`` minimises, compared left to right.

    With ``DISTRIBUTED`` replicas how uneven the load gets; NUMA nodes; PCIe roots; with ``PACKED`` replicas the free
    devices touched, then all touched; wholly free groups broken; groups touched; ranks.
    """
    world = _World(units, frozenset(available), policy)
    return world.cost([world.units[device_id] for device_id in chosen])


def _order(unit: Unit) -> tuple[int, str]:
    return (unit.rank, unit.id)


class _World:
    """What a choice is compared against."""

    def __init__(self, units: Iterable[Unit], available: frozenset[str], policy: ReplicaPolicy) -> None:
        known = {unit.id: unit for unit in units}
        last = max((unit.rank for unit in known.values()), default=0) + 1
        self.units: Mapping[str, Unit] = {i: Unit(i, rank=last) for i in available - known.keys()} | known
        self.available = available
        self.policy = policy
        self.ordered = sorted((self.units[i] for i in available), key=_order)
        self.position = {unit.id: index for index, unit in enumerate(self.ordered)}
        self.load = Counter(u.device or u.id for u in self.units.values() if u.id not in available)
        self.replicated = len({u.device or u.id for u in self.units.values()}) < len(self.units)
        held = {u.group for u in self.units.values() if u.id not in available}
        self.free_groups = {u.group for u in self.ordered if u.group} - held

    def kinds(self, units: Iterable[Unit]) -> list[list[Unit]]:
        """Group ``units`` into lists of equal cost, each in the order of rank."""
        kinds: dict[tuple[object, ...], list[Unit]] = {}
        for unit in units:
            device = (unit.device or unit.id) if self.replicated else ""
            kinds.setdefault((unit.numa, unit.root, unit.group, device), []).append(unit)
        return list(kinds.values())

    def cost(self, chosen: Sequence[Unit]) -> Cost:
        uneven, touched = 0, (0, 0)
        if self.replicated:
            taken = Counter(unit.device or unit.id for unit in chosen)
            if self.policy is ReplicaPolicy.DISTRIBUTED:
                uneven = sum((self.load[d] + n) ** 2 - self.load[d] ** 2 for d, n in taken.items())
            else:
                touched = (sum(not self.load[device] for device in taken), len(taken))
        groups = {unit.group for unit in chosen if unit.group}
        return (
            uneven,
            _fewest_nodes([unit.numa for unit in chosen]),
            len({unit.root for unit in chosen}),
            touched,
            len(groups & self.free_groups),
            len(groups),
            sorted(self.position[unit.id] for unit in chosen),
        )


def _few_mixes(kinds: list[list[Unit]], wanted: int, size: int) -> list[list[Unit]] | None:
    """List every way to take ``wanted`` units, each kind in its order.

    None if there are too many to compare.
    """
    if wanted == 0:
        return [[]]
    if wanted == sum(map(len, kinds)):
        return [[unit for kind in kinds for unit in kind]]
    if wanted == 1:
        return [[kind[0]] for kind in kinds] if len(kinds) * (size + 4) <= EXACT_WORK else None
    limit = EXACT_WORK // (size + len(kinds))
    if len(kinds) > KINDS_EXACT:
        return None
    mixes = list(islice(_mixes(kinds, wanted), max(limit, 0) + 1))
    return mixes if len(mixes) <= limit else None


def _mixes(kinds: Sequence[list[Unit]], wanted: int) -> Iterator[list[Unit]]:
    rooms = [sum(map(len, kinds[index + 1 :])) for index in range(len(kinds))]

    def mix(index: int, missing: int) -> Iterator[list[Unit]]:
        if missing == 0:
            yield []
            return
        kind = kinds[index]
        for count in range(max(0, missing - rooms[index]), min(len(kind), missing) + 1):
            for rest in mix(index + 1, missing - count):
                yield kind[:count] + rest

    return mix(0, wanted)


def _fewest_nodes(numa: Iterable[tuple[int, ...]]) -> int:
    """Count the fewest nodes such that each device is near one of them; unknown nodes count as one."""
    sets = {frozenset(nodes or (_UNKNOWN_NODE,)) for nodes in numa}
    needed = {node for nodes in sets if len(nodes) == 1 for node in nodes}
    rest = [nodes for nodes in sets if not nodes & needed]
    if not rest:
        return len(needed)
    others = sorted(frozenset().union(*rest))
    if len(others) > NODES_EXACT:
        return len(needed) + len(others)  # an upper bound: every node that could be meant
    for count in range(1, len(others)):
        if any(all(nodes & set(chosen) for nodes in rest) for chosen in combinations(others, count)):
            return len(needed) + count
    return len(needed) + len(others)


def _spread(world: _World, fixed: list[Unit], free: list[Unit], wanted: int) -> list[Unit]:
    """Take the least loaded device again and again; of equally loaded ones, a near one."""
    load = Counter(world.load)
    load.update(unit.device or unit.id for unit in fixed)
    replicas: dict[str, list[Unit]] = {}
    for unit in reversed(free):
        replicas.setdefault(unit.device or unit.id, []).append(unit)
    # Devices with the same load stand in one bucket, so that each pick looks only at candidates for the next level.
    buckets: dict[int, list[str]] = {}
    for device in replicas:
        buckets.setdefault(load[device], []).append(device)
    nodes = Counter(node for unit in fixed for node in unit.numa)
    roots = Counter(unit.root for unit in fixed)

    def nearness(device: str) -> tuple[object, ...]:
        unit = replicas[device][-1]
        return (-max((nodes[node] for node in unit.numa), default=0), -roots[unit.root], _order(unit))

    chosen = list(fixed)
    missing = wanted
    level = min(buckets, default=0)
    while missing:
        for device in sorted(buckets.get(level, ()), key=nearness)[:missing]:
            unit = replicas[device].pop()
            chosen.append(unit)
            nodes.update(unit.numa)
            roots[unit.root] += 1
            if replicas[device]:
                buckets.setdefault(level + 1, []).append(device)
        missing = wanted + len(fixed) - len(chosen)
        level += 1
    return chosen


def _localised(world: _World, fixed: list[Unit], free: list[Unit], wanted: int) -> Iterator[list[Unit]]:
    """Yield a good answer for the smallest set of NUMA nodes.

    For several sets if they tie and there is time.
    """
    places = Counter((frozenset(unit.numa or (_UNKNOWN_NODE,)), unit.root) for unit in free)
    used = {unit.root for unit in fixed}
    node_sets = list(_node_sets(fixed, free, wanted))
    roots = [_count_roots(places, used, nodes, wanted) for nodes in node_sets]
    ties = [nodes for nodes, count in zip(node_sets, roots, strict=True) if count == min(roots)]
    for nodes in ties[: max(1, EXACT_WORK // (4 * wanted))]:
        near = [unit for unit in free if nodes.intersection(unit.numa or (_UNKNOWN_NODE,))]
        yield [*fixed, *_fill_roots(world, fixed, near, wanted)]


def _count_roots(
    places: Counter[tuple[frozenset[int], str]], used: set[str], nodes: frozenset[int], wanted: int
) -> int:
    """Count the fewest further roots that ``wanted`` units near ``nodes`` need."""
    sizes: Counter[str] = Counter()
    for (numa, root), count in places.items():
        if numa & nodes:
            sizes[root] += count
    missing = wanted - sum(sizes.pop(root, 0) for root in used)
    further = 0
    for _, count in sizes.most_common():
        if missing <= 0:
            break
        missing -= count
        further += 1
    return further


def _node_sets(fixed: list[Unit], free: list[Unit], wanted: int) -> Iterator[frozenset[int]]:
    """Yield the smallest sets of nodes that are near all of ``fixed`` and ``wanted`` of ``free``."""
    kinds = Counter(frozenset(unit.numa or (_UNKNOWN_NODE,)) for unit in free)
    must = {frozenset(unit.numa or (_UNKNOWN_NODE,)) for unit in fixed}
    nodes = sorted(frozenset().union(*kinds, *must))
    if len(nodes) <= NODES_EXACT:
        for count in range(1, len(nodes)):
            found = [
                chosen
                for chosen in map(frozenset, combinations(nodes, count))
                if all(chosen & kind for kind in must)
                and sum(n for kind, n in kinds.items() if chosen & kind) >= wanted
            ]
            if found:
                yield from found
                return
        yield frozenset(nodes)
        return
    # Too many nodes to try all sets: those of the fixed ones, then always the node with the most devices.
    taken = {node for kind in must for node in kind}
    missing = wanted
    while True:
        missing -= sum(count for kind, count in kinds.items() if taken & kind)
        kinds = Counter({kind: count for kind, count in kinds.items() if not taken & kind})
        if missing <= 0:
            break
        reach: Counter[int] = Counter()
        for kind, count in kinds.items():
            for node in kind:
                reach[node] += count
        taken.add(min(reach, key=lambda node: (-reach[node], node)))
    yield frozenset(taken)


def _fill_roots(world: _World, fixed: list[Unit], near: list[Unit], wanted: int) -> list[Unit]:
    """Take units from the fewest roots: from roots in use, then the largest; the last root is as small as suffices."""
    by_root: dict[str, list[Unit]] = {}
    for unit in near:
        by_root.setdefault(unit.root, []).append(unit)
    pool: list[Unit] = []
    for root in sorted({unit.root for unit in fixed}):
        pool += by_root.pop(root, [])
    for members in _fewest(list(by_root.values()), wanted - len(pool)):
        pool += members
    return _fill_groups(world, fixed, pool, wanted)


def _fewest(buckets: list[list[Unit]], missing: int) -> list[list[Unit]]:
    """Return the fewest buckets that hold ``missing`` units: the largest, the last as small as suffices."""
    chosen: list[list[Unit]] = []
    left = sorted(buckets, key=lambda bucket: (-len(bucket), _order(bucket[0])))
    for index, bucket in enumerate(left):
        if missing <= 0:
            break
        if len(bucket) >= missing:
            bucket = min(
                (b for b in left[index:] if len(b) >= missing), key=lambda bucket: (len(bucket), _order(bucket[0]))
            )
        chosen.append(bucket)
        missing -= len(bucket)
    return chosen


def _fill_groups(world: _World, fixed: list[Unit], pool: list[Unit], wanted: int) -> list[Unit]:
    """Take units of devices and groups in use first, then break as few whole groups as possible."""
    used_groups = {unit.group for unit in fixed if unit.group}
    used_devices = Counter(world.load)
    used_devices.update(unit.device or unit.id for unit in fixed)
    by_group: dict[str, list[Unit]] = {}
    for unit in pool:
        # Without a group a unit breaks nothing. It stands alone, or with the replicas of its device.
        by_group.setdefault(unit.group or f"\0{unit.device or unit.id}", []).append(unit)
    for members in by_group.values():
        members.sort(key=lambda unit: (-used_devices[unit.device or unit.id], unit.device, _order(unit)))

    def harm(group: str) -> tuple[bool, bool]:
        """Return (whether taking from the bucket breaks a free group, whether it breaks a free shared device)."""
        first = by_group[group][0]
        breaks = group in world.free_groups and group not in used_groups
        return breaks, world.replicated and not used_devices[first.device or first.id]

    by_harm: dict[tuple[bool, bool], list[list[Unit]]] = {}
    for group, members in by_group.items():
        by_harm.setdefault(harm(group), []).append(members)
    chosen: list[Unit] = []
    for key in sorted(by_harm):
        buckets = by_harm[key]
        if key == (False, False):  # groups that are broken already, the smallest first
            buckets = sorted(buckets, key=lambda bucket: (len(bucket), _order(bucket[0])))
        else:
            buckets = _fewest(buckets, wanted - len(chosen))
        for members in buckets:
            chosen += members[: wanted - len(chosen)]
    return chosen
