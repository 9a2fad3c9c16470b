"""Follow owners from a pod to what a person wrote: Pod, ReplicaSet, Deployment, custom resource. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from drabridge.migrate.report.facts import PodFacts, PodOwner, WorkloadFacts

MOST_OWNERS = 8  # a chain that is longer goes round in a circle
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
