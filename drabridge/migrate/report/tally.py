"""Count pods and devices by resource, namespace and workload, and collect what was seen in pods. Pure.

A pod belongs to what a person wrote, at the end of its chain of owners: Pod, ReplicaSet, Deployment, custom resource.
A DeviceClass belongs to a resource by the first that applies: what the caller says, its ``extendedResourceName``, the
same name written the other way round (``gpu.nvidia.com`` for ``nvidia.com/gpu``, as drivers are named). Else the class
has a row of its own, under the name that Kubernetes has for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from msgspec import Struct, field

from drabridge.migrate.report.codes import Code
from drabridge.migrate.report.document import Ways
from drabridge.migrate.report.readers import (
    CLASS_RESOURCE,
    ClaimFacts,
    ClassFacts,
    PodFacts,
    PodOwner,
    SliceFacts,
    WorkloadFacts,
)

# --- which resource -------------------------------------------------------------------------------------------------


class ResourceNames:
    """Resources by class and by driver. ``known``: resources in limits and on nodes; ``said``: class -> resource."""

    def __init__(self, known: Set[str], classes: Sequence[ClassFacts], said: Mapping[str, str]) -> None:
        self._turned = {turned(name): name for name in sorted(known)}
        self._said = dict(said)
        self._extended = {one.name: one.extended for one in classes if one.extended}
        self._by_driver: dict[str, set[str]] = {}
        self.classes: dict[str, list[str]] = {}
        for one in sorted(classes, key=lambda one: one.name):
            resource = self.of_class(one.name)
            self.classes.setdefault(resource, []).append(one.name)
            for driver in one.drivers:
                self._by_driver.setdefault(driver, set()).add(resource)
        self._known = {*known, *self.classes}

    def of_class(self, name: str) -> str:
        return self._said.get(name) or self._extended.get(name) or self._turned.get(name) or f"{CLASS_RESOURCE}{name}"

    def of_limit(self, name: str) -> str:
        """Return the row of a resource in limits: those that name a class are the class's."""
        return self.of_class(name.removeprefix(CLASS_RESOURCE)) if name.startswith(CLASS_RESOURCE) else name

    def devices(self, slices: Iterable[SliceFacts]) -> Counter[str]:
        """Count devices in slices by resource; slices of an older generation of a pool are no longer offered."""
        newest: dict[tuple[str, str], int] = {}
        slices = list(slices)
        for one in slices:
            key = one.driver, one.pool
            newest[key] = max(newest.get(key, 0), one.generation)
        count: Counter[str] = Counter()
        for one in slices:
            if one.generation == newest[one.driver, one.pool]:
                for attribute, devices in one.devices:
                    if resource := self._of_device(one.driver, attribute):
                        count[resource] += devices
        return count

    def _of_device(self, driver: str, attribute: str) -> str:
        """Return the resource of a device; "" where nobody can say, because its driver has several."""
        if attribute in self._known:
            return attribute
        resources = self._by_driver.get(driver, set())
        if len(resources) == 1:
            return next(iter(resources))
        return self._turned.get(driver, "")


def turned(resource: str) -> str:
    """Return ``gpu.nvidia.com`` for ``nvidia.com/gpu``."""
    domain, _, name = resource.partition("/")
    return f"{name}.{domain}"


# --- whose pods -----------------------------------------------------------------------------------------------------

MOST_OWNERS = 8  # a longer chain must be circular
_BUILT_IN = ("", "apps", "batch")


class OwnerChain(Struct, frozen=True):
    """The end of a chain of owners, the kinds from Pod to there, and those of its workloads that were read."""

    namespace: str
    kind: str
    name: str
    group: str
    kinds: tuple[str, ...]
    read: tuple[WorkloadFacts, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.namespace, self.kind, self.name

    @property
    def is_custom(self) -> bool:
        return self.group not in _BUILT_IN


class OwnerChains:
    """Workloads by UID."""

    def __init__(self, workloads: Iterable[WorkloadFacts]) -> None:
        self._by_uid = {one.uid: one for one in workloads}

    def of_pod(self, pod: PodFacts) -> OwnerChain:
        """Return a pod's chain. A mirror pod belongs to its Node, but nobody can change it there: it has no owner."""
        owner = pod.owner if pod.owner is None or pod.owner.kind != "Node" else None
        return self._follow(pod.namespace, PodOwner("v1", "Pod", pod.name, pod.uid), owner)

    def of_workload(self, workload: WorkloadFacts) -> OwnerChain:
        """Return the chain of the pods that a workload makes."""
        group = "batch/v1" if workload.kind in ("Job", "CronJob") else "apps/v1"
        own = PodOwner(group, workload.kind, workload.name, workload.uid)
        return self._follow(workload.namespace, PodOwner("v1", "Pod", "", ""), own)

    def _follow(self, namespace: str, last: PodOwner, owner: PodOwner | None) -> OwnerChain:
        kinds, read = [last.kind], []
        while owner is not None and len(kinds) < MOST_OWNERS:
            last = owner
            kinds.append(last.kind)
            found = self._by_uid.get(last.uid)
            if found is not None:
                read.append(found)
            owner = found.owner if found is not None else None
        group = last.api_version.rpartition("/")[0]
        return OwnerChain(namespace, last.kind, last.name, group, tuple(kinds), tuple(read))


# --- how many -------------------------------------------------------------------------------------------------------

_ORDER = ("kubelet", "dra", "claims", "pending")  # a pod that has a resource in two ways counts as the first


class Use(Struct):
    """Pods and devices of one resource."""

    pods: Ways = field(default_factory=Ways)
    devices: Ways = field(default_factory=Ways)

    def add(self, way: str, devices: int, *, pods: int) -> None:
        self.pods.add(way, pods)
        self.devices.add(way, devices)


class SeenSign(Struct):
    """A thing that was seen in pods of one workload, and the number of these pods."""

    seen: str
    pods: int = 0


class WorkloadTally(Struct):
    """One end of a chain of owners, with all of its pods."""

    chain: OwnerChain
    uses: dict[str, Use] = field(default_factory=dict)
    per_pod: dict[str, int] = field(default_factory=dict)
    signs: dict[tuple[Code, str], SeenSign] = field(default_factory=dict)
    templates: set[str] = field(default_factory=set)
    limit_pods: int = 0
    """Pods with limits that DRA does not serve."""
    total_pods: int = 0

    @property
    def has_limits(self) -> bool:
        """Whether something is left to convert. A workload without pods, a CronJob say, has what its template has."""
        return self.limit_pods > 0 or (self.total_pods == 0 and bool(self.per_pod))


class Tally:
    """All counts. Feed it with pods, then with workloads."""

    def __init__(self, names: ResourceNames, owners: OwnerChains, claims: Iterable[ClaimFacts]) -> None:
        self._names = names
        self._owners = owners
        self._claims: Mapping[tuple[str, str], ClaimFacts] = {(one.namespace, one.name): one for one in claims}
        self._counted_claims: set[tuple[str, str]] = set()
        self.workloads: dict[tuple[str, str, str], WorkloadTally] = {}
        self.resources: dict[str, Use] = {}
        self.namespaces: dict[str, dict[str, Use]] = {}

    def add_pod(self, pod: PodFacts) -> None:
        """Count one pod. A claim that several pods share counts its devices once, but each of the pods."""
        workload = self._workload(self._owners.of_pod(pod))
        workload.total_pods += 1
        workload.templates.update(pod.templates)
        devices: dict[str, dict[str, int]] = {}
        for resource, way, count in self._uses(pod):
            ways = devices.setdefault(resource, {})
            ways[way] = ways.get(way, 0) + count
        with_limits = any(name not in pod.by_dra for name, _ in pod.limits)
        workload.limit_pods += with_limits
        for resource, ways in devices.items():
            first = min(ways, key=_ORDER.index)
            places = (
                self.resources.setdefault(resource, Use()),
                self.namespaces.setdefault(pod.namespace, {}).setdefault(resource, Use()),
                workload.uses.setdefault(resource, Use()),
            )
            for way, count in ways.items():
                for use in places:
                    use.add(way, count, pods=way == first)
        for name, count in pod.limits:
            workload.per_pod[self._names.of_limit(name)] = count
        if with_limits or not pod.limits:
            for sign in pod.signs:
                found = workload.signs.setdefault((sign.code, sign.resource), SeenSign(sign.seen))
                found.pods += 1

    def add_workload(self, workload: WorkloadFacts) -> None:
        """Add what a workload's template says: the devices of a pod, also while there is none, and its signs."""
        if not workload.limits and not workload.templates and not workload.signs:
            return
        found = self._workload(self._owners.of_workload(workload))
        found.templates.update(workload.templates)
        for name, count in workload.limits:
            resource = self._names.of_limit(name)
            found.per_pod.setdefault(resource, count)
            found.uses.setdefault(resource, Use())
        if found.total_pods == 0 or found.limit_pods or not workload.limits:
            for sign in workload.signs:
                found.signs.setdefault((sign.code, sign.resource), SeenSign(sign.seen))

    def _workload(self, chain: OwnerChain) -> WorkloadTally:
        found = self.workloads.get(chain.key)
        if found is None:
            found = self.workloads[chain.key] = WorkloadTally(chain)
        return found

    def _uses(self, pod: PodFacts) -> Iterator[tuple[str, str, int]]:
        """Yield (resource, way, devices) of a pod."""
        for name, count in pod.limits:
            served = "dra" if name in pod.by_dra else "kubelet"
            yield self._names.of_limit(name), served if pod.node else "pending", count
        for claim in pod.claims:
            key = pod.namespace, claim
            facts = self._claims.get(key)
            counted = key in self._counted_claims
            self._counted_claims.add(key)
            for device_class, count in facts.classes if facts else ():
                way = "claims" if pod.node else "pending"
                yield self._names.of_class(device_class), way, 0 if counted else count
