"""Make a plan from a cluster's facts: which workloads need devices, how many nodes have, and the order of moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Literal

from msgspec import Struct, structs

from drabridge.errors import ClusterError, ConfigError
from drabridge.kube.api import Cluster, DeniedError, NotFoundError
from drabridge.kube.versions import RESOURCE_GROUP
from drabridge.migrate.convert.default_classes import of_classes
from drabridge.migrate.installers import IN_FOLDER, IN_GIT, Key, operator_of
from drabridge.migrate.plan.document import How, Left, Move, Plan, Step, Way
from drabridge.migrate.plan.packing import Demand, NodeState, Packing
from drabridge.migrate.report.build import Facts, build
from drabridge.migrate.report.codes import LEFT_ALONE, Severity
from drabridge.migrate.report.document import Obstacle
from drabridge.migrate.report.readers import NAMESPACES, NodeFacts, PodFacts, SliceFacts, is_built_in
from drabridge.migrate.report.tally import OwnerChain, OwnerChains, ResourceNames

# --- the cluster and its devices ------------------------------------------------------------------------------------

_EVERYWHERE = "kube-system"  # every cluster has this namespace; by convention its UID identifies the cluster


async def cluster_id(cluster: Cluster) -> str:
    """Return the UID of the namespace kube-system. Raises ClusterError."""
    try:
        return str((await cluster.get(NAMESPACES, _EVERYWHERE))["metadata"]["uid"])
    except (DeniedError, NotFoundError) as error:
        hint = f"A plan says by its UID which cluster it is for: allow `get` of namespace {_EVERYWHERE}"
        raise ClusterError(error.message, hint=hint) from error


class NodeDevices(Struct, frozen=True):
    """The devices of one node. A moving device is in neither lane for a moment."""

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
    """Return how many devices kubelet has given, or will give, to a pod."""
    return 0 if resource in pod.by_dra else dict(pod.limits).get(resource, 0)


REST = "rest/lanes"
"""Name of the last step. No other step has it: namespaces have no slash, and kinds begin with a capital."""
_RANKS = ("idle", "single", "rolling", "last")


def require_whole(facts: Facts) -> None:
    """Raise ClusterError if nodes, pods or workloads could not be read: the numbers would be too small.

    Namespaces may be missing: they only tell what is switched already, and pods with claims tell that, too.
    """
    for one in facts.unread:
        if one.verb and one.resource != NAMESPACES.plural and not one.resource.endswith(RESOURCE_GROUP):
            raise ClusterError(
                f"no plan without the right to {one.verb} {one.resource}: {one.reason}",
                hint="Bind the role that `drabridge migrate report --rbac` prints to your user",
            )


def choose(facts: Facts, resource: str, said: Mapping[str, str], driver: str) -> tuple[str, str, str]:
    """Return (resource, DeviceClass, driver): the given ones, or the only possible ones. Raises ConfigError.

    ``said``: resource -> DeviceClass.
    """
    used = sorted(
        {name for pod in facts.pods for name, _ in pod.limits} | {n for w in facts.workloads for n, _ in w.limits}
    )
    if not resource:
        if len(said or used) != 1:
            raise ConfigError(
                f"a plan is for one resource, and pods have limits for {', '.join(used) or 'none'}",
                hint="Name one: --resource nvidia.com/gpu",
            )
        resource = next(iter(said or used))
    device_class = said.get(resource, "")
    if not device_class:
        found = of_classes({one.name: one.extended for one in facts.classes}, [resource])[0].get(resource)
        if found is None or found.selectors or found.claims_share:
            raise ConfigError(
                f"no DeviceClass has extendedResourceName {resource}, and it is no vendor's that the cluster has",
                hint=f"Say which claims are to name: --class {resource}=gpu.example.com",
            )
        device_class = found.device_class
    if not driver:
        drivers = [one.drivers for one in facts.classes if one.name == device_class]
        if not drivers or len(drivers[0]) != 1:
            raise ConfigError(
                f"which driver serves DeviceClass {device_class} cannot be seen",
                hint="It is `driver` in the agent's configuration: --driver gpu.example.com",
            )
        driver = drivers[0][0]
    return resource, device_class, driver


def plan(facts: Facts, head: Plan, given: Set[Key] = frozenset(), namespaces: Set[str] = frozenset()) -> Plan:
    """Return a plan: first workloads without pods, then those with one device, then others, at the end gangs.

    ``head``: the plan without steps. ``given``: the convertible objects of its manifests. ``namespaces``: plan these
    alone; empty: all.
    """
    packing = Packing(map(_state, devices_by_node(facts, head.resource, head.device_class)), head.keep_for_limits)
    stays = dict(_stays(facts, head))
    demands: list[Demand] = []
    left: list[Left] = []
    for demand in demands_of(facts, head.resource):
        if namespaces and demand.namespace not in namespaces:
            continue
        if why := _why_left(demand, stays, given):
            left.append(Left(object=f"{demand.namespace}/{demand.object}", why=why))
        else:
            demands.append(demand)
    steps = [_step(group, way, packing, facts.serves_policies, given) for way, group in _groups(demands, given)]
    return structs.replace(
        head,
        devices={name: node.total for name, node in sorted(packing.nodes.items())},
        steps=(*steps, _rest(packing, head)),
        left=tuple(sorted(left, key=lambda one: one.object)),
    )


# --- demand ---------------------------------------------------------------------------------------------------------


def demands_of(facts: Facts, resource: str) -> Iterator[Demand]:
    """Yield every workload that has, or would make, pods with limits for a resource; sorted."""
    owners = OwnerChains(facts.workloads)
    found: dict[tuple[str, str, str], Demand] = {}
    pods: Counter[tuple[str, str, str]] = Counter()

    def of(chain: OwnerChain) -> Demand:
        if chain.key not in found:
            found[chain.key] = Demand(chain.namespace, chain.kind, chain.name, How.BY_HAND, 0)
        return found[chain.key]

    for pod in facts.pods:
        if devices := kubelet_devices(pod, resource):
            chain = owners.of_pod(pod)
            demand = of(chain)
            demand.devices = max(demand.devices, devices)
            pods[chain.key] += 1
            if pod.node:
                demand.on.append((pod.node, devices))
    for workload in facts.workloads:
        chain = owners.of_workload(workload)
        devices = dict(workload.limits).get(resource, 0)
        if not devices or (workload.kind == "ReplicaSet" and chain.kind != "ReplicaSet"):
            continue
        if chain.key != (workload.namespace, workload.kind, workload.name):
            of(chain).devices = max(of(chain).devices, devices)
            continue
        demand = of(chain)
        demand.devices = max(demand.devices, devices)
        demand.surge, demand.unavailable, demand.place = workload.surge, workload.unavailable, workload.place
        demand.installer = workload.installer
        demand.how = _how(workload.kind, workload.strategy, bool(pods[chain.key]))
        demand.waiting = max(0, workload.replicas - len(demand.on)) if demand.how is not How.ENDS else 0
    for key in sorted(found):
        found[key].on.sort()
        yield found[key]


def _how(kind: str, strategy: str, has_pods: bool) -> How:
    if kind in ("Deployment", "StatefulSet") and strategy != "OnDelete":
        return How.ROLLOUT if has_pods else How.NEXT
    if kind in ("Job", "CronJob"):
        return How.ENDS if has_pods else How.NEXT
    return How.BY_HAND


def _state(node: NodeDevices) -> NodeState:
    return NodeState(
        node.facts,
        node.for_limits + node.for_claims,
        node.for_claims,
        max(node.for_limits - node.held_by_limits, 0),
        max(node.for_claims - node.held_by_claims, 0),
    )


# --- what stays -----------------------------------------------------------------------------------------------------


def _stays(facts: Facts, head: Plan) -> Iterator[tuple[tuple[str, str], Obstacle]]:
    """Yield ((namespace, object), obstacle) for workloads that cannot use claims, by the report."""
    for one in build(facts, {head.device_class: head.resource}).obstacles:
        if one.severity is Severity.BLOCKER and one.namespace and one.resource in ("", head.resource):
            yield (one.namespace, one.object), one


def _why_left(demand: Demand, stays: Mapping[tuple[str, str], Obstacle], given: Set[Key]) -> str:
    """Return why a workload stays on limits; "" if it moves."""
    own = stays.get((demand.namespace, demand.object))
    if own is not None:
        return f"{own.code.value}: {own.why}"
    if _in_manifests(demand, given):
        return ""
    if any(namespace == demand.namespace for namespace, _, _ in given):
        return (
            "no manifest of it was given that can be converted, and a switch of its namespace would change the others"
        )
    if demand.kind == "DaemonSet":
        return "a switch leaves the pods of DaemonSets alone: convert its manifest"
    for (namespace, name), one in stays.items():
        if namespace == demand.namespace and one.code not in LEFT_ALONE:
            return f"its namespace cannot be switched because of {name} ({one.code.value}): convert its manifest"
    return ""


# --- steps ----------------------------------------------------------------------------------------------------------


def _groups(demands: Iterable[Demand], given: Set[Key]) -> list[tuple[Way, list[Demand]]]:
    """Return the workloads that move together, in the plan's order.

    A workload whose manifest was given moves alone; the others of a namespace move together. Workloads of one Helm
    release in a namespace move together, because the release's values, or its patch, are one change.
    """
    groups: dict[str, tuple[Way, list[Demand]]] = {}
    for demand in demands:
        if _in_manifests(demand, given):
            owner = demand.installer
            own = f"{demand.namespace}/{demand.object}"
            key = f"{demand.namespace}/{owner.words}" if owner is not None and not owner.from_git else own
            groups.setdefault(key, (Way.MANIFESTS, []))[1].append(demand)
        else:
            groups.setdefault(demand.namespace, (Way.SWITCH, []))[1].append(demand)
    for _, group in groups.values():
        group.sort(key=_rank)
    return sorted(groups.values(), key=lambda one: (_rank(one[1][-1])[0], one[1][0].namespace, one[1][0].object))


def _in_manifests(demand: Demand, given: Set[Key]) -> bool:
    """Whether the manifest of a workload was given, or that of what makes it."""
    if (demand.namespace, demand.kind, demand.name) in given:
        return True
    return demand.installer is not None and demand.installer.manifest_in(given) is not None


def _rank(demand: Demand) -> tuple[int, int, str]:
    """Return the sort key: idle workloads, those with one device, rollouts, then those with an order and gangs."""
    if demand.how is How.NEXT or not (demand.on or demand.waiting):
        rank = "idle"
    elif demand.kind == "StatefulSet" or demand.how is How.BY_HAND:
        rank = "last"
    else:
        rank = "single" if demand.devices == 1 else "rolling"
    return _RANKS.index(rank), len(demand.on), demand.object


def _step(group: list[Demand], way: Way, packing: Packing, serves_policies: bool, given: Set[Key]) -> Step:
    before = {name: node.claims for name, node in packing.nodes.items()}
    missing: list[str] = []
    notes: list[str] = []
    if way is Way.SWITCH and not serves_policies:
        missing.append("the API server serves no MutatingAdmissionPolicy (Kubernetes 1.36 does): plan with --manifests")
    for demand in group:
        owner = demand.installer if is_built_in(demand.kind) else operator_of(demand.kind)
        if way is Way.MANIFESTS and owner is not None:
            verb = "was installed by" if demand.installer is not None else "belongs to"
            who = f"{demand.object} {verb} {owner.words}, which would undo a change in the cluster"
            in_git = owner.from_git or owner.manifest_in(given) is not None
            notes.append(f"{who}: {IN_GIT if in_git else IN_FOLDER}")
        for words, lacks in packing.move(demand):
            (missing if lacks else notes).append(words)
    first = group[0]
    lanes = {name: node.claims for name, node in packing.nodes.items() if node.claims != before[name]}
    moves = [Move(object=one.object, pods=len(one.on), devices=one.devices, how=one.how) for one in group]
    name = first.namespace if way is Way.SWITCH else f"{first.namespace}/{first.object}"
    return Step(
        name=name,
        way=way,
        namespace=first.namespace,
        lanes=dict(sorted(lanes.items())),
        moves=tuple(moves),
        missing=tuple(missing),
        notes=tuple(notes),
    )


def _rest(packing: Packing, head: Plan) -> Step:
    """Return the last step: claims get every device that no pod with limits holds."""
    lanes: dict[str, int | Literal["all"]] = {}
    for name, node in sorted(packing.nodes.items()):
        before, claims = node.claims, packing.take_the_rest(name)
        if claims == node.total - head.keep_for_limits:
            lanes[name] = "all"
        elif claims != before:
            lanes[name] = claims
    note = (
        f"when no pod with limits is left: set extendedResourceName: {head.resource} on DeviceClass "
        f"{head.device_class}, and unmodified pods get claims, too"
    )
    return Step(name=REST, way=Way.LANES, lanes=lanes, notes=(note,))
