"""Make the report of the facts that were read. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

from drabridge.kube.features import POLICIES, FeatureState, feature_rows
from drabridge.migrate.report.cluster_obstacles import class_obstacles, limited, node_obstacles, quota_obstacles
from drabridge.migrate.report.codes import Code, Severity
from drabridge.migrate.report.facts import (
    ClaimFacts,
    ClassFacts,
    NodeFacts,
    PodFacts,
    QuotaFacts,
    SliceFacts,
    WorkloadFacts,
)
from drabridge.migrate.report.filters import Filter, Shown, check_namespaces, check_resources
from drabridge.migrate.report.model import (
    Namespace,
    NamespaceSwitch,
    NamespaceUse,
    Obstacle,
    Report,
    ReportFilter,
    ResourceUse,
    Unread,
    Workload,
    number,
)
from drabridge.migrate.report.names import ResourceNames
from drabridge.migrate.report.namespaces import switched_words
from drabridge.migrate.report.owners import OwnerChains
from drabridge.migrate.report.tally import Tally, Use, WorkloadTally
from drabridge.migrate.report.workload_obstacles import obstacle, workload_obstacles

ALL = Filter()
_STAY = (Code.STATIC_POD, Code.FIXED_NODE_NAME)


class Facts(Struct):
    """Everything that was read of a cluster.

    ``templates``: (namespace, name). ``namespaces``: name -> its switch, None where it has none. Both are None where
    they could not be read.
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
        """The DeviceClasses that are there, or that a claim names."""
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
        check_namespaces(wanted, {*(facts.namespaces or ()), *(namespace for namespace, _, _ in tally.workloads)})
        check_resources(wanted, names.of_limit, {*known, *rows, *names.classes})
    shown = Shown(wanted, names.of_limit, tally.workloads)

    obstacles = [
        *_unread_obstacles(facts),
        *node_obstacles(facts.nodes, facts.classes),
        *class_obstacles(facts.classes),
        *quota_obstacles(facts.quotas, facts.classes, names, frozenset(allocatable)),
        *(one for workload in tally.workloads.values() for one in workload_obstacles(workload, free, facts.templates)),
    ]
    obstacles = sorted(filter(shown.obstacle, obstacles), key=_order)
    return Report(
        server_version=facts.server_version,
        nodes=len(facts.nodes),
        pods=facts.pods_read,
        resources=[
            _resource(name, names, nodes, allocatable, in_slices, free, tally.resources.get(name) or Use())
            for name in filter(shown.resource, rows)
        ],
        namespaces=list(_namespaces(tally, shown, obstacles, facts)),
        workloads=list(_workloads(tally, shown)),
        obstacles=obstacles,
        unread=facts.unread,
        features=feature_rows(facts.features),
        filter=ReportFilter(sorted(wanted.namespaces), sorted(wanted.resources)),
    )


def _resource(
    name: str,
    names: ResourceNames,
    nodes: Mapping[str, int],
    allocatable: Mapping[str, int],
    in_slices: Mapping[str, int],
    free: Mapping[str, int],
    use: Use,
) -> ResourceUse:
    return ResourceUse(
        name=name,
        classes=names.classes.get(name, []),
        nodes=nodes[name],
        allocatable=allocatable[name],
        in_slices=in_slices[name],
        free_in_slices=max(free[name], 0),
        pods=use.pods,
        devices=use.devices,
        done_percent=use.pods.done_percent,
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
    """Return (how the pods of a namespace come to DRA, why). ``left``: its workloads that have limits."""
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
