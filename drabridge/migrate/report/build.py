"""Make the report from the facts that were read, limited to some namespaces and resources. Pure.

Counts of nodes and of devices in slices stay those of the whole cluster, because all namespaces share them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec import Struct, field

from drabridge.config.problems import did_you_mean
from drabridge.errors import ConfigError
from drabridge.kube.features import POLICIES, FeatureState, feature_rows
from drabridge.migrate.report.codes import LEFT_ALONE, Code, Severity
from drabridge.migrate.report.document import (
    Filter,
    Namespace,
    NamespaceSwitch,
    NamespaceUse,
    Obstacle,
    Report,
    ResourceUse,
    Unread,
    Workload,
    number,
)
from drabridge.migrate.report.obstacles import (
    class_obstacles,
    limited,
    node_obstacles,
    obstacle,
    quota_obstacles,
    workload_obstacles,
)
from drabridge.migrate.report.readers import (
    ClaimFacts,
    ClassFacts,
    NodeFacts,
    PodFacts,
    QuotaFacts,
    SliceFacts,
    WorkloadFacts,
)
from drabridge.migrate.report.tally import OwnerChains, ResourceNames, Tally, Use, WorkloadTally
from drabridge.migrate.switch import marks

# --- what is shown --------------------------------------------------------------------------------------------------


class Shown:
    """Applies a filter. ``row_of`` returns the row of a resource; ``workloads`` are all workloads of the cluster."""

    def __init__(
        self, wanted: Filter, row_of: Callable[[str], str], workloads: Mapping[tuple[str, str, str], WorkloadTally]
    ) -> None:
        self._namespaces = wanted.namespaces
        self._resources = frozenset(map(row_of, wanted.resources))
        self._row_of = row_of
        self._of_others = {
            (namespace, f"{kind}/{name}")
            for (namespace, kind, name), one in workloads.items()
            if one.uses and not any(map(self.resource, one.uses))
        }

    def namespace(self, name: str) -> bool:
        return not self._namespaces or name in self._namespaces

    def resource(self, name: str) -> bool:
        return not self._resources or self._row_of(name) in self._resources

    def workload(self, one: WorkloadTally) -> bool:
        return self.namespace(one.chain.namespace) and any(map(self.resource, one.uses))

    def is_left(self, one: WorkloadTally) -> bool:
        """Return whether a workload has limits of a resource that is shown."""
        return one.has_limits and any(map(self.resource, one.per_pod))

    def obstacle(self, one: Obstacle) -> bool:
        """Return whether an obstacle is shown; one without a namespace or a resource is about all of them."""
        if one.namespace and not self.namespace(one.namespace):
            return False
        return self.resource(one.resource) if one.resource else (one.namespace, one.object) not in self._of_others


def check_classes(said: Collection[str], known: Collection[str]) -> None:
    """Raise ConfigError for a DeviceClass that does not exist and that no claim names: it may be a typing error."""
    names = sorted(known)
    are = f"is {names[0]}" if len(names) == 1 else f"are {', '.join(names)}" if names else "is none"
    hint = f"There {are}; kubectl get deviceclasses lists them"
    _check("there is no DeviceClass {}", {*said} - {*known}, known, hint)


def _check(said: str, unknown: Collection[str], known: Collection[str], hint: str) -> None:
    """Raise ConfigError for an unknown name: a typing error would look like a resource that nobody uses."""
    for name in sorted(unknown):
        raise ConfigError(said.format(name), hint=did_you_mean(name, sorted(known)) or hint)


# --- the report -----------------------------------------------------------------------------------------------------

ALL = Filter()
_STAY = (Code.STATIC_POD, Code.FIXED_NODE_NAME)


class Facts(Struct):
    """Everything that was read of a cluster.

    ``templates``: (namespace, name). ``namespaces``: name -> its switch, None if it has none. Both are None if they
    could not be read.
    """

    server_version: str = ""
    serves_dra: bool = True
    features: dict[str, FeatureState] = field(default_factory=dict)
    pods_read: int = 0
    nodes: list[NodeFacts] = field(default_factory=list)
    slices: list[SliceFacts] = field(default_factory=list)
    classes: list[ClassFacts] = field(default_factory=list)
    claims: list[ClaimFacts] = field(default_factory=list)
    templates: set[tuple[str, str]] | None = None
    namespaces: dict[str, NamespaceSwitch | None] | None = None
    quotas: list[QuotaFacts] = field(default_factory=list)
    workloads: list[WorkloadFacts] = field(default_factory=list)
    pods: list[PodFacts] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)

    @property
    def named_classes(self) -> set[str]:
        """The DeviceClasses that exist, or that a claim names."""
        return {one.name for one in self.classes} | {name for claim in self.claims for name, _ in claim.classes}

    @property
    def serves_policies(self) -> bool:
        """Whether new pods can be rewritten at creation."""
        return self.features.get(POLICIES) is FeatureState.THERE


def build(facts: Facts, said_classes: Mapping[str, str], wanted: Filter = ALL) -> Report:
    """Return the report. ``said_classes``: DeviceClass -> resource, as the caller says.

    Raises ConfigError for a wanted namespace or resource that is not there.
    """
    allocatable = Counter[str]()
    nodes = Counter[str]()
    for node in facts.nodes:
        for name, count in node.allocatable:
            allocatable[name] += count
            nodes[name] += 1
    known = {*allocatable, *said_classes.values()}
    known |= {name for pod in facts.pods for name, _ in pod.limits}
    known |= {name for workload in facts.workloads for name, _ in workload.limits}
    known |= {name for quota in facts.quotas for name in limited(quota)}
    names = ResourceNames(known, facts.classes, said_classes)
    owners = OwnerChains(facts.workloads)
    tally = Tally(names, owners, facts.claims)
    for pod in facts.pods:
        tally.add_pod(pod)
    for workload in facts.workloads:
        tally.add_workload(workload)
    in_slices = names.devices(facts.slices)
    free = Counter(in_slices)
    for claim in facts.claims:
        for device_class, count in claim.classes if claim.allocated else ():
            free[names.of_class(device_class)] -= count
    rows = sorted({*allocatable, *in_slices, *tally.resources} - {""})
    if not facts.unread:
        spaces = {*(facts.namespaces or ()), *(namespace for namespace, _, _ in tally.workloads)}
        _check("there is no namespace {}", {*wanted.namespaces} - spaces, spaces, "kubectl get namespaces lists them")
        resources_there = {*known, *rows, *names.classes}
        unknown = [name for name in wanted.resources if names.of_limit(name) not in resources_there]
        hint = "`drabridge migrate report` without --resource shows all"
        _check("nothing in the cluster has or asks for {}", unknown, resources_there, hint)
    shown = Shown(wanted, names.of_limit, tally.workloads)

    obstacles = [
        *_unread_obstacles(facts),
        *node_obstacles(facts.nodes, facts.classes),
        *class_obstacles(facts.classes),
        *quota_obstacles(facts.quotas, facts.classes, names, frozenset(allocatable)),
        *(one for workload in tally.workloads.values() for one in workload_obstacles(workload, free, facts.templates)),
    ]
    obstacles = sorted(filter(shown.obstacle, obstacles), key=_order)
    resources = []
    for name in filter(shown.resource, rows):
        use = tally.resources.get(name) or Use()
        counts = nodes[name], allocatable[name], in_slices[name], max(free[name], 0)
        kinds = names.classes.get(name, [])
        resources.append(ResourceUse(name, kinds, *counts, use.pods, use.devices, use.pods.done_percent))
    return Report(
        server_version=facts.server_version,
        nodes=len(facts.nodes),
        pods=facts.pods_read,
        resources=resources,
        namespaces=list(_namespaces(tally, shown, obstacles, facts)),
        workloads=list(_workloads(tally, shown)),
        obstacles=obstacles,
        unread=facts.unread,
        features=feature_rows(facts.features),
        filter=wanted,
    )


def _workloads(tally: Tally, shown: Shown) -> Iterator[Workload]:
    for key in sorted(tally.workloads):
        one = tally.workloads[key]
        if not shown.workload(one):
            continue
        for resource, use in sorted(one.uses.items()):
            if not shown.resource(resource):
                continue
            per_pod = one.per_pod.get(resource, 0)
            chain = list(one.chain.kinds)
            namespace, kind, name = key
            yield Workload(namespace, kind, name, chain, resource, per_pod, use.pods, use.devices)


def _namespaces(tally: Tally, shown: Shown, obstacles: Sequence[Obstacle], facts: Facts) -> Iterator[Namespace]:
    by_namespace: dict[str, list[WorkloadTally]] = {}
    for (namespace, _, _), one in tally.workloads.items():
        if shown.workload(one):
            by_namespace.setdefault(namespace, []).append(one)
    operators = {one.namespace for one in obstacles if one.code is Code.OPERATOR_COUNTS_LIMITS}
    for name in sorted(by_namespace):
        uses = [
            NamespaceUse(resource, use.pods, use.devices, use.pods.done_percent)
            for resource, use in sorted(tally.namespaces.get(name, {}).items())
            if shown.resource(resource)
        ]
        left = list(filter(shown.is_left, by_namespace[name]))
        switch = (facts.namespaces or {}).get(name)
        if switch is not None and facts.serves_policies:
            fits = "switched", switched_words(switch, left)
        else:
            fits = _fits(left, name in operators, facts.serves_policies)
        yield Namespace(name, uses, *fits, switch)


def _fits(left: Sequence[WorkloadTally], operators: bool, serves_policies: bool) -> tuple[str, str]:
    """Return (how the pods of a namespace can move to DRA, why). ``left``: its workloads with limits."""
    if not left:
        return "done", "no workload is left with limits that kubelet serves"
    if operators:
        return "limits", "an operator here counts limits: keep them, and let DRA serve them by extendedResourceName"
    movable = [one for one in left if not any(code in _STAY for code, _ in one.signs)]
    if not movable:
        return "limits", "its pods bypass the scheduler, and cannot use claims as they are: see the blockers"
    made = [one for one in movable if one.chain.is_custom or one.chain.kind in ("Pod", "Job")]
    if not made:
        return "convert", f"built-in controllers make its pods: rewrite {number(len(movable), 'manifest')}"
    words = f"Jobs, custom resources or people make pods of {len(made)} of {number(len(movable), 'workload')}"
    if serves_policies:
        return "switch", f"{words}: a MutatingAdmissionPolicy can rewrite pods at creation"
    return "convert", f"{words}; the API server serves no MutatingAdmissionPolicy: rewrite what makes them"


def _unread_obstacles(facts: Facts) -> Iterator[Obstacle]:
    if not facts.serves_dra:
        yield obstacle(Code.DRA_NOT_SERVED, "APIService/resource.k8s.io", seen=f"server {facts.server_version}")
    for one in facts.unread:
        code = Code.PODS_NOT_READ if one.resource == "pods" and one.verb else Code.NOT_READ
        yield obstacle(code, f"{one.verb} {one.resource}".strip(), seen=one.reason)


def _order(one: Obstacle) -> tuple[bool, int, str, str, str]:
    codes = list(Code)
    return one.severity is not Severity.BLOCKER, codes.index(one.code), one.namespace, one.object, one.resource


# --- what a switch means --------------------------------------------------------------------------------------------

_WHAT_STAYS = "of DaemonSets, static, with nodeName, or with more than 32 devices"


def switched_words(switch: NamespaceSwitch, left: Sequence[WorkloadTally]) -> str:
    """Return what new pods get, and how many old pods need a rollout, in words. ``left``: workloads with limits."""
    stay = sum(one.limit_pods for one in left if _stays(one))
    old = sum(one.limit_pods for one in left) - stay
    words = [f"{_new_pods(switch)} get claims"]
    if old:
        still = f"{number(old, 'pod')} still {'has' if old == 1 else 'have'} limits"
        part = switch.percent < marks.ALL_OWNERS or switch.selector
        out = "roll out those that it is for" if part else f"roll {'it' if old == 1 else 'them'} out"
        words.append(f"{still}: {out}")
    if stay:
        words.append(f"the switch leaves {number(stay, 'pod')} alone: {_WHAT_STAYS}")
    if not old and not stay:
        words.append("no pod has limits any more")
    return "; ".join(words)


def _stays(one: WorkloadTally) -> bool:
    """Return whether the switch's policy leaves the pods of a workload unchanged."""
    return one.chain.kinds[1:2] == ("DaemonSet",) or any(code in LEFT_ALONE for code, _ in one.signs)


def _new_pods(switch: NamespaceSwitch) -> str:
    words = f"new pods with {switch.selector}" if switch.selector else "new pods"
    return words if switch.percent >= marks.ALL_OWNERS else f"{words} of {switch.percent} % of the owners"
