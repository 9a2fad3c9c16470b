"""Count pods and devices by resource, namespace and workload, and collect what was seen in pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field

from drabridge.migrate.report.codes import Code
from drabridge.migrate.report.facts import ClaimFacts, PodFacts, WorkloadFacts
from drabridge.migrate.report.model import Ways
from drabridge.migrate.report.names import ResourceNames
from drabridge.migrate.report.owners import OwnerChain, OwnerChains

_ORDER = ("kubelet", "dra", "claims", "pending")  # a pod that has a resource in two ways counts as the first


class Use(Struct):
    """Pods and devices of one resource."""

    pods: Ways = field(default_factory=Ways)
    devices: Ways = field(default_factory=Ways)

    def add(self, way: str, devices: int, *, pods: int) -> None:
        self.pods.add(way, pods)
        self.devices.add(way, devices)


class SeenSign(Struct):
    """What was seen in pods of one workload, and in how many."""

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
        self.pods = 0
        self.workloads: dict[tuple[str, str, str], WorkloadTally] = {}
        self.resources: dict[str, Use] = {}
        self.namespaces: dict[str, dict[str, Use]] = {}

    def add_pod(self, pod: PodFacts) -> None:
        """Count one pod. A claim that several pods share counts its devices once, but each of the pods."""
        self.pods += 1
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
        """Add a workload's template: it counts where the workload has no pods now, and says what pods cannot."""
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
