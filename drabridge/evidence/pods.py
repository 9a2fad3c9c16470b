"""What the API server knows of this node's pods: who asks for devices that kubelet does not show.

A pod that is bound here, has not ended, and asks for more of a resource than kubelet shows it with, may hold any device
of the resource: a new kubelet has not re-admitted it yet, or it was admitted a moment ago.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from drabridge.clusterapi import PODS, Cluster
from drabridge.clusterjson import Identity, Json, PodFields, View
from drabridge.clusterwatch import follow
from drabridge.errors import ClusterError
from drabridge.inventory.model import device_id_of
from drabridge.ledger import events
from drabridge.ledger.model import Ledger, PodRef

_ENDED = frozenset({"Succeeded", "Failed"})
_NOT_ENDED = "".join(f",status.phase!={phase}" for phase in sorted(_ENDED))  # a watch tells of their end as DELETED
MOST_RESOURCES = 64  # of one pod: 1.5 MB hold thirty thousand names


class Demand(Struct, frozen=True):
    """A pod that has not ended, and how many devices of each extended resource its containers take together."""

    namespace: str
    name: str
    uid: str
    asked: Mapping[str, int]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Seen(Struct, frozen=True):
    """All that is kept of a pod. ``uid`` is the one that kubelet knows it by."""

    uid: str
    demand: Demand | None


def seen(pod: Json) -> Seen:
    """A pod that the API server shows."""
    return Seen(_uid(pod.get("metadata") or {}), demand_of(pod))


class PodWatch:
    """Follows the pods of one node. ``ended`` is called when one of them with devices is gone or has ended."""

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        ended: Callable[[], None],
        ours: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """``ours``: the resources that matter, asked from another thread."""
        self._cluster = cluster
        self._ours = ours
        self._selector = f"spec.nodeName={node}{_NOT_ENDED}"
        self._ended = ended
        self._pods: dict[str, Demand] | None = None  # by uid; None: not known now
        self._before: dict[str, Demand] = {}  # as they were when they were known last: for their names
        self._strange: set[str] = set()  # those that could not be read: they may ask for anything
        self.view = View(self._seen, PodFields)

    def _seen(self, pod: Json) -> Seen:
        """Who asks for more kinds of devices than a node has is remembered for those of this node alone."""
        one = seen(pod)
        if one.demand is None or len(one.demand.asked) <= MOST_RESOURCES:
            return one
        ours = self._ours()
        asked = {resource: count for resource, count in one.demand.asked.items() if resource in ours}
        return Seen(one.uid, replace(one.demand, asked=asked) if asked else None)

    async def run(self) -> None:
        """Until cancelled."""
        await follow(self._cluster, PODS, self._selector, self)

    def unaccounted(self, ledger: Ledger, observed: events.Observed) -> dict[str, tuple[str, ...]] | None:
        """Resource -> pods that ask for more of it than ``observed`` shows. None: nobody can say."""
        if self._pods is None or self._strange or observed.listed is None:
            return None
        shown = _shown(ledger, observed)
        found: dict[str, list[str]] = {}
        for pod in self._pods.values():
            for resource, count in pod.asked.items():
                if count > max(shown[resource, pod.uid], shown[resource, str(pod)]):
                    found.setdefault(resource, []).append(str(pod))
        return {resource: tuple(sorted(pods)) for resource, pods in found.items()}

    def named(self, shown: events.Pods) -> events.Pods:
        """The same with the names of pods that kubelet's checkpoint knows by their UIDs alone."""
        known = self._before if self._pods is None else self._pods
        return {unit: tuple(_named(pod, known.get(pod.uid)) for pod in pods) for unit, pods in shown.items()}

    # clusterwatch.Follower

    def listed(self, objects: tuple[Seen, ...]) -> None:
        before, self._strange = set(self._pods or ()), set()
        self._pods = {one.uid: one.demand for one in objects if one.demand is not None}
        if before - self._pods.keys():
            self._ended()

    def changed(self, kind: str, obj: Seen) -> None:
        assert self._pods is not None
        self._strange.discard(obj.uid)
        if obj.demand is not None and kind != "DELETED":
            self._pods[obj.uid] = obj.demand
        elif self._pods.pop(obj.uid, None) is not None:
            self._ended()

    def unreadable(self, kind: str, identity: Identity) -> None:
        uid = identity.uid or str(identity)
        if kind == "DELETED":
            self.changed(kind, Seen(uid, None))
        else:
            self._strange.add(uid)

    def lost(self, error: ClusterError) -> None:
        self._before, self._pods = self._pods or self._before, None


def demand_of(pod: Json) -> Demand | None:
    """What a pod takes from the DevicePlugin side; None if nothing, or nothing any more.

    App containers and sidecars hold theirs together; plain init containers run before, one after the other, beside the
    sidecars that began earlier, and what they had is taken over (kubelet pkg/kubelet/cm/devicemanager/manager.go,
    devicesToReuse). What DRA serves instead (KEP-5004) is not counted.
    """
    status, spec, metadata = pod.get("status") or {}, pod.get("spec") or {}, pod.get("metadata") or {}
    if status.get("phase") in _ENDED:
        return None
    together: Counter[str] = Counter()
    most: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        limits = _extended(container)
        if container.get("restartPolicy") == "Always":
            together.update(limits)
        else:
            for resource, count in limits.items():
                most[resource] = max(most.get(resource, 0), together[resource] + count)
    for container in spec.get("containers") or ():
        together.update(_extended(container))
    mappings = (status.get("extendedResourceClaimStatus") or {}).get("requestMappings") or ()
    by_claim = {mapping.get("resourceName") for mapping in mappings}
    asked = {
        resource: max(together[resource], most.get(resource, 0))
        for resource in {*together, *most}
        if resource not in by_claim and (together[resource] or most.get(resource))
    }
    if not asked:
        return None
    return Demand(str(metadata.get("namespace")), str(metadata.get("name")), _uid(metadata), asked)


def _named(pod: PodRef, known: Demand | None) -> PodRef:
    return pod if known is None or pod.name else replace(pod, namespace=known.namespace, name=known.name)


def _uid(metadata: Json) -> str:
    """The UID that kubelet knows the pod by. A static pod's is in its mirror's annotation; the mirror has another
    (kubelet pkg/kubelet/types/pod_update.go, ConfigMirrorAnnotationKey).
    """
    annotations = metadata.get("annotations") or {}
    return str(annotations.get("kubernetes.io/config.mirror") or metadata.get("uid") or "")


def _extended(container: Json) -> dict[str, int]:
    """Extended resources among the limits: whole numbers, with a domain that is not Kubernetes' own."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return {name: int(amount) for name, amount in limits.items() if "/" in name and str(amount).isdecimal() and amount}


def _shown(ledger: Ledger, observed: events.Observed) -> Counter[tuple[str, str]]:
    """How many units of a resource kubelet shows with a pod, by its UID (fresh checkpoint) and by its name (List).

    Of the node's own resources those of known devices: by an unknown id a pod may have any of them.
    """
    ids = {entry.device.id for entry in ledger.entries.values()}
    ours = {entry.device.resource for entry in ledger.entries.values()}
    fresh = observed.checkpoint is not None and observed.checkpoint.barrier
    by_uid = observed.checkpoint.pods.items() if observed.checkpoint and fresh else ()
    by_name = (observed.listed or {}).items()
    return Counter(
        (resource, pod)
        for shown, key in ((by_uid, _uid_of), (by_name, _name_of))
        for (resource, unit), refs in shown
        if resource not in ours or device_id_of(unit) in ids
        for pod in set(map(key, refs))
    )


def _uid_of(pod: PodRef) -> str:
    return pod.uid


def _name_of(pod: PodRef) -> str:
    return f"{pod.namespace}/{pod.name}"
