"""What the API server knows of this node's pods: who asks for devices that kubelet does not show, and who has ended.

A pod that is bound here, has not ended, and asks for more of a resource than kubelet shows it with, may hold any device
of the resource: a new kubelet has not re-admitted it yet, or it was admitted a moment ago. One that is gone and was not
seen to end (a force delete, a node that was cut off) counts as running for its grace period. Kubelet reports the end of
a pod before it lets go of the object (pkg/kubelet/status/status_manager.go, syncPod), so what ends as usual costs no
wait.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from drabridge.errors import ClusterError
from drabridge.inventory.model import device_id_of
from drabridge.kube.api import PODS, Cluster
from drabridge.kube.json_reader import Json, ObjectIdentity, PodFields, View
from drabridge.kube.watch import follow
from drabridge.ledger import events
from drabridge.ledger.model import ClaimRef, Ledger, PodRef

DEFAULT_GRACE_SECONDS = 30.0  # the API server's own default (pkg/apis/core/v1/defaults.go)
MOST_GRACE_SECONDS = 3600.0  # a pod that is deleted by force with a longer one would cost others the device for ever
REMEMBERED = 1024  # pods that have ended: each may name claims in 20 KB; who is forgotten is waited for, no more
_TERMINAL = frozenset({"Succeeded", "Failed"})
_NOT_ENDED = "".join(f",status.phase!={phase}" for phase in sorted(_TERMINAL))
MOST_NAMES = 64  # of resources, or claims, of one pod: 1.5 MB hold thirty thousand
ANY_CLAIM = "*"  # of its namespace
_BY_KUBELET = "TerminationByKubelet"  # the node lacks something, or is shut down; it says so when no container runs
_MIRROR = "kubernetes.io/config.mirror"  # kubelet pkg/kubelet/types/pod_update.go, ConfigMirrorAnnotationKey


class PodDemand(Struct, frozen=True):
    """A pod with devices: how many of each extended resource its containers take together, and by which claims.

    ``uid`` is what kubelet knows it by. ``ended``: none of its containers runs or will run.
    """

    namespace: str
    name: str
    uid: str
    asked: Mapping[str, int]
    claims: frozenset[str] = frozenset()
    grace: float = DEFAULT_GRACE_SECONDS
    ended: bool = False
    mirror: bool = False
    created: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class WatchedPod(Struct, frozen=True):
    """All that is kept of a pod. ``uid`` is the object's: of a static pod's mirror not what kubelet knows it by."""

    uid: str
    demand: PodDemand | None


def watched_pod(pod: Json, node: str = "") -> WatchedPod:
    """A pod that the API server shows."""
    return WatchedPod(str((pod.get("metadata") or {}).get("uid") or ""), demand_of(pod, node))


class PodWatch:
    """Follows the pods of one node. ``ended`` is called when one of them with devices is gone or has ended."""

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        ended: Callable[[], None],
        ours: Callable[[], Collection[str]] = frozenset,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ours``: the resources that matter, asked from another thread."""
        self._cluster = cluster
        self._node = node
        self._selector = f"spec.nodeName={node}"
        self._ours = ours
        self._told = ended
        self._now = now
        self.slack: Callable[[], float] = float  # seconds from the end of a grace period until the last process is dead
        self._pods: dict[str, PodDemand] | None = None  # that have not ended, by the object's uid; None: not known now
        self._before: dict[str, PodDemand] = {}  # as they were when they were known last: for their names
        self._gone: dict[str, tuple[PodDemand, float]] = {}  # not seen to end; until when they may run
        self._ended: dict[str, PodDemand] = {}  # the oldest first
        self._since = 0.0  # when all of them were listed; a pod that was gone before then was never known
        self._strange: set[str] = set()  # those that could not be read: they may ask for anything
        self.view = View(self._seen, PodFields)

    def _seen(self, pod: Json) -> WatchedPod:
        """Who asks for more kinds of devices than a node has is remembered for those of this node alone."""
        one = watched_pod(pod, self._node)
        if one.demand is None or len(one.demand.asked) <= MOST_NAMES:
            return one
        ours = self._ours()
        asked = {resource: count for resource, count in one.demand.asked.items() if resource in ours}
        return WatchedPod(one.uid, replace(one.demand, asked=asked) if asked or one.demand.claims else None)

    async def run(self) -> None:
        """Until cancelled."""
        # Who has ended is not asked for; but of a pod that leaves the selection a watch shows what it was before.
        await follow(self._cluster, PODS, self._selector + _NOT_ENDED, self, watched=self._selector)

    def unaccounted(self, ledger: Ledger, observed: events.Observed) -> dict[str, tuple[str, ...]] | None:
        """Resource -> pods that ask for more of it than ``observed`` shows. None: nobody can say."""
        if self._pods is None or self._strange or observed.listed is None:
            return None
        shown = _shown(ledger, observed)
        found: dict[str, list[str]] = {}
        for pod in (*self._living(), *self._nowhere(ledger)):
            for resource, count in pod.asked.items():
                if count > max(shown[resource, pod.uid], shown[resource, str(pod)]):
                    found.setdefault(resource, []).append(str(pod))
        return {resource: tuple(sorted(pods)) for resource, pods in found.items()}

    def claims_linger(self, ledger: Ledger) -> bool:
        """Whether a pod with claims is gone that was not seen to end and may run yet."""
        return any(pod.claims for pod in self._nowhere(ledger))

    def enrich(self, observed: events.Observed) -> events.Observed:
        """``observed`` with the names and UIDs of pods, their grace periods, and who has ended."""
        pods = [*self._living()]
        by_uid, by_name = {pod.uid: pod for pod in pods}, {str(pod): pod for pod in pods}

        def named(shown: events.Pods) -> events.Pods:
            return {unit: tuple(_named(pod, known(pod)) for pod in refs) for unit, refs in shown.items()}

        def known(pod: PodRef) -> PodDemand | None:
            found = by_uid.get(pod.uid) or by_name.get(_name_of(pod))
            if found is not None or pod.uid:
                return found
            return next((one for one in reversed(self._ended.values()) if str(one) == _name_of(pod)), None)

        checkpoint, listed = observed.checkpoint, observed.listed
        return replace(
            observed,
            listed=listed and named(listed),
            checkpoint=checkpoint and replace(checkpoint, pods=named(checkpoint.pods)),
            ended=frozenset(self._ended),
            grace={pod.uid: pod.grace for pod in pods},
        )

    def grace(self, claim: ClaimRef) -> float:
        """Seconds that the pods with this claim have to end when they are deleted."""
        return max((pod.grace for pod in _with(claim, self._living())), default=DEFAULT_GRACE_SECONDS)

    def lingers(self, claim: ClaimRef, grace: float) -> float:
        """Seconds for which processes of pods with this claim may go on though kubelet has unprepared it; 0: none does.

        ``grace`` is what its pods have, for the case that they were gone before anybody looked; 0: not known.
        """
        now, grace = self._now(), grace + self.slack() if grace else 0.0
        gone = [until for pod, until in self._gone.values() if _with(claim, (pod,))]
        if gone:
            return max(0.0, max(gone) - now)
        if self._pods is None and _with(claim, self._living()):
            return grace  # it may be gone, and we could not be told
        if _with(claim, self._living()) or self._have_ended(claim):
            return 0.0  # as usual: kubelet unprepares before it reports the end
        return max(0.0, self._since + grace - now) if self._pods is not None else grace

    def saw_the_end(self, claim: ClaimRef) -> bool:
        """Whether every pod that is known to have had this claim was seen to end, and there was one."""
        if self._pods is None or any(_with(claim, (pod,)) for pod, _ in self._gone.values()):
            return False
        return not _with(claim, self._living()) and self._have_ended(claim)

    # clusterwatch.Follower

    def listed(self, objects: tuple[WatchedPod, ...]) -> None:
        before = self._before if self._pods is None else self._pods
        self._pods, self._strange, self._since = {}, set(), self._now()
        for one in objects:
            self._take(one)
        gone = [pod for own, pod in before.items() if own not in self._pods and pod.uid not in self._ended]
        for pod in gone:
            self._vanished(pod)
        if gone:
            self._told()

    def changed(self, kind: str, obj: WatchedPod) -> None:
        assert self._pods is not None
        self._strange.discard(obj.uid)
        before, after = self._pods.get(obj.uid), obj.demand
        if kind == "DELETED":
            self._pods.pop(obj.uid, None)
            self._note_end(after)
        else:
            self._take(obj)
        if before is None:
            return
        if after is not None and after.ended:
            self._told()
        elif kind == "DELETED" or after is None:
            self._vanished(before)
            self._told()

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        uid = identity.uid or str(identity)
        if kind == "DELETED":
            self.changed(kind, WatchedPod(uid, None))
        else:
            self._strange.add(uid)
            if uid in self._gone and self._pods is not None:  # it is not: the list went without it
                self._pods[uid], _ = self._gone.pop(uid)

    def lost(self, error: ClusterError) -> None:
        self._before, self._pods = self._before if self._pods is None else self._pods, None

    # --- who is there

    def _take(self, one: WatchedPod) -> None:
        """It is there."""
        assert self._pods is not None
        pod = one.demand
        if pod is None or pod.ended:
            self._pods.pop(one.uid, None)
        else:
            self._pods[one.uid] = pod
        if pod is not None and not pod.mirror:
            self._gone.pop(pod.uid, None)
        self._note_end(pod)

    def _note_end(self, pod: PodDemand | None) -> None:
        """Or that it goes on: before kubelet 1.27 what a container is between two runs looks like its end."""
        if pod is None or pod.mirror:
            return
        self._ended.pop(pod.uid, None)
        if pod.ended:
            self._ended[pod.uid] = replace(pod, asked={})
            for uid in [*self._ended][:-REMEMBERED]:
                del self._ended[uid]

    def _vanished(self, pod: PodDemand) -> None:
        """Not a static pod: kubelet takes its mirror away when it has ended, and anybody can make an object like it."""
        if not pod.mirror:
            self._gone[pod.uid] = pod, self._now() + pod.grace + self.slack()

    def _living(self) -> Iterator[PodDemand]:
        """Those that have not ended, each UID once: a mirror that says another pod's UID is nobody's."""
        pods = self._before if self._pods is None else self._pods
        if not any(pod.mirror for pod in pods.values()):
            yield from pods.values()
            return
        first: dict[str, PodDemand] = {}
        for pod in sorted(pods.values(), key=lambda pod: (pod.mirror, pod.created)):
            first.setdefault(pod.uid, pod)
        yield from first.values()

    def _have_ended(self, claim: ClaimRef) -> bool:
        """Whether a pod with this claim has, one of those that are known to name it."""
        return any(claim.name in pod.claims for pod in _with(claim, self._ended.values()))

    def _nowhere(self, ledger: Ledger) -> list[PodDemand]:
        """Gone without having been seen to end, and no hold names them, which would wait for them itself."""
        now = self._now()
        self._gone = {uid: (pod, until) for uid, (pod, until) in self._gone.items() if until > now}
        if not self._gone:
            return []
        held = {pod.uid for entry in ledger.entries.values() if entry.hold is not None for pod in entry.hold.pods}
        return [pod for uid, (pod, _) in self._gone.items() if uid not in held]


def demand_of(pod: Json, node: str = "") -> PodDemand | None:
    """What a pod takes from this node's devices; None if nothing.

    App containers and sidecars hold theirs together; plain init containers run before, one after the other, beside the
    sidecars that began earlier, and what they had is taken over (kubelet pkg/kubelet/cm/devicemanager/manager.go,
    devicesToReuse). What DRA serves instead (KEP-5004) is not counted.
    """
    status, spec, metadata = pod.get("status") or {}, pod.get("spec") or {}, pod.get("metadata") or {}
    static = (metadata.get("annotations") or {}).get(_MIRROR)
    if static and not _is_mirror(metadata, node):
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
    extended = status.get("extendedResourceClaimStatus") or {}
    by_claim = {mapping.get("resourceName") for mapping in extended.get("requestMappings") or ()}
    asked = {
        resource: max(together[resource], most.get(resource, 0))
        for resource in {*together, *most}
        if resource not in by_claim and (together[resource] or most.get(resource))
    }
    named = (*(spec.get("resourceClaims") or ()), *(status.get("resourceClaimStatuses") or ()), extended)
    claims = frozenset(str(one["resourceClaimName"]) for one in named if one.get("resourceClaimName"))
    if len(claims) > MOST_NAMES:
        claims = frozenset({ANY_CLAIM})
    if not asked and not claims:
        return None
    return PodDemand(
        str(metadata.get("namespace")),
        str(metadata.get("name")),
        str(static or metadata.get("uid") or ""),
        asked,
        claims,
        _grace(spec, metadata),
        _has_ended(pod),
        bool(static),
        str(metadata.get("creationTimestamp") or ""),
    )


def _is_mirror(metadata: Json, node: str) -> bool:
    """Whether it stands for a static pod. Anybody may write the annotation; kubelet runs no pod that has it, names the
    node as the owner (pkg/kubelet/pod/mirror_client.go), and takes away what it does not know, whatever its finalizers.
    """
    owners = metadata.get("ownerReferences") or ()
    ours = any(owner.get("kind") == "Node" and owner.get("name") == node for owner in owners)
    return ours and not metadata.get("deletionTimestamp")


def _grace(spec: Json, metadata: Json) -> float:
    """Of a force delete, which says 0, kubelet may learn too late, and grant what the pod itself has."""
    given = spec.get("terminationGracePeriodSeconds"), metadata.get("deletionGracePeriodSeconds")
    known = [float(seconds) for seconds in given if isinstance(seconds, int)]
    return min(max(known), MOST_GRACE_SECONDS) if known else DEFAULT_GRACE_SECONDS


def _has_ended(pod: Json) -> bool:
    """Whether kubelet has said that no container runs or will run. The phase alone may be the control plane's word,
    about a node that is cut off (pod garbage collection); kubelet before 1.27 leaves it as it was at a deletion.
    """
    status, metadata = pod.get("status") or {}, pod.get("metadata") or {}
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    states = [one.get("state") or {} for kind in kinds for one in status.get(kind) or ()]
    over = all(state.get("terminated") is not None for state in states)
    if status.get("phase") not in _TERMINAL:
        app = len(status.get("containerStatuses") or ())
        return (
            bool(metadata.get("deletionTimestamp")) and over and 0 < len((pod.get("spec") or {})["containers"]) <= app
        )
    by_others = any(
        one.get("type") == "DisruptionTarget" and one.get("reason") != _BY_KUBELET
        for one in status.get("conditions") or ()
    )
    return over if by_others else all(state.get("running") is None for state in states)


def _with(claim: ClaimRef, pods: Iterable[PodDemand]) -> list[PodDemand]:
    names = {claim.name, ANY_CLAIM}
    return [pod for pod in pods if pod.namespace == claim.namespace and not names.isdisjoint(pod.claims)]


def _named(pod: PodRef, known: PodDemand | None) -> PodRef:
    return pod if known is None else replace(pod, namespace=known.namespace, name=known.name, uid=known.uid)


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
