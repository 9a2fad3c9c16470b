"""Read from a pod of the API server which devices it takes, and how much of its end is known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from drabridge.kube.json_reader import Json
from drabridge.ledger.entries import ClaimRef
from drabridge.ledger.proofs import End

DEFAULT_GRACE_SECONDS = 30.0  # the API server's own default (pkg/apis/core/v1/defaults.go)
MOST_GRACE_SECONDS = 3600.0  # a pod that is deleted by force with a longer one would block the device forever
_TERMINAL = frozenset({"Succeeded", "Failed"})
MOST_NAMES = 64  # of resources, or claims, of one pod: 1.5 MB hold thirty thousand
MOST_NAME_BYTES = 4 << 10  # of these names together
ANY_CLAIM = "*"  # stands for every claim of the pod's namespace
_BY_KUBELET = "TerminationByKubelet"  # eviction or a node's shutdown; set when no container runs
_BY_GARBAGE_COLLECTION = "DeletionByPodGC"  # pkg/controller/podgc/gc_controller.go: the node may be cut off
_ABOVE = {  # kind of a controller -> who makes such, and under which name
    "ReplicaSet": ("Deployment", re.compile(r"(.+)-[bcdfghjklmnpqrstvwxz2456789]{4,10}")),  # util/rand SafeEncodeString
    "Job": ("CronJob", re.compile(r"(.+)-\d{8}")),  # minutes since 1970: pkg/controller/cronjob/utils.go, getJobName
}
_MIRROR = "kubernetes.io/config.mirror"  # kubelet pkg/kubelet/types/pod_update.go, ConfigMirrorAnnotationKey


class PodDemand(Struct, frozen=True):
    """A pod with devices.

    ``asked``: resource -> how many its containers take together. ``claims``: the names of its claims. ``uid`` is the
    one that kubelet knows. ``grace`` is in seconds. ``end``: how much is known of its end. ``mirror``: it stands for a
    static pod. ``owner``: ``Deployment/web``, the pod itself without an owner. ``containers``: runtime id -> name.
    """

    namespace: str
    name: str
    uid: str
    asked: Mapping[str, int]
    claims: frozenset[str] = frozenset()
    grace: float = DEFAULT_GRACE_SECONDS
    end: End = End.NOT_SEEN
    mirror: bool = False
    created: str = ""
    owner: str = ""
    containers: Mapping[str, str] = {}

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def ended(self) -> bool:
        """Whether none of its containers runs or will run, as far as was seen."""
        return self.end is not End.NOT_SEEN


class WatchedPod(Struct, frozen=True):
    """What is kept of a pod.

    ``uid`` is the object's: kubelet knows a static pod by another one than its mirror's.
    """

    uid: str
    demand: PodDemand | None


def watched_pod(pod: Json, node: str = "") -> WatchedPod:
    """Read a pod of the API server."""
    return WatchedPod(str((pod.get("metadata") or {}).get("uid") or ""), demand_of(pod, node))


def demand_of(pod: Json, node: str = "") -> PodDemand | None:
    """Read what a pod takes of this node's devices; None if nothing.

    App containers and sidecars hold their devices together. Plain init containers run before them, one after the other,
    beside the sidecars that began earlier; the containers after them take their devices over (devicesToReuse in
    pkg/kubelet/cm/devicemanager/manager.go). What DRA serves instead (KEP-5004) does not count.
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
    claims = claim_names(pod)
    if are_many(claims):
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
        _end_of(pod),
        bool(static),
        str(metadata.get("creationTimestamp") or ""),
        owner_of(metadata),
        _containers(status),
    )


def _containers(status: Json) -> dict[str, str]:
    """Return the containers that the runtime has, by its ids; no more than may be remembered."""
    rows = [row for kind in ("initContainer", "container") for row in status.get(f"{kind}Statuses") or ()]
    ids = {str(row.get("containerID") or "").rpartition("://")[2]: str(row.get("name")) for row in rows}
    ids.pop("", None)
    return {} if are_many((*ids, *ids.values())) else ids


def owner_of(metadata: Json) -> str:
    """Return a pod's workload: its controller, or the Deployment or CronJob that the controller's name tells."""
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            kind, name = str(reference.get("kind")), str(reference.get("name"))
            if (above := _ABOVE.get(kind)) and (stem := above[1].fullmatch(name)):
                kind, name = above[0], stem[1]
            return f"{kind}/{name}"
    return f"Pod/{metadata.get('name')}"


def claim_names(pod: Json) -> frozenset[str]:
    """Return the names of a pod's claims: its own, those of templates, and that of extended resources."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    extended = status.get("extendedResourceClaimStatus") or {}
    named = (*(spec.get("resourceClaims") or ()), *(status.get("resourceClaimStatuses") or ()), extended)
    return frozenset(str(one["resourceClaimName"]) for one in named if one.get("resourceClaimName"))


def are_many(names: Collection[str]) -> bool:
    """Tell whether these names of one pod are too many to remember."""
    return len(names) > MOST_NAMES or sum(map(len, names)) > MOST_NAME_BYTES


def with_claim(claim: ClaimRef, pods: Iterable[PodDemand]) -> list[PodDemand]:
    """Return the pods that name ``claim``."""
    names = {claim.name, ANY_CLAIM}
    return [pod for pod in pods if pod.namespace == claim.namespace and not names.isdisjoint(pod.claims)]


def _is_mirror(metadata: Json, node: str) -> bool:
    """Tell whether a pod stands for a static pod.

    Anybody may write the annotation. Kubelet runs no pod that has it, names the node as the owner
    (pkg/kubelet/pod/mirror_client.go), and deletes a mirror that it does not know, whatever its finalizers.
    """
    owners = metadata.get("ownerReferences") or ()
    ours = any(owner.get("kind") == "Node" and owner.get("name") == node for owner in owners)
    return ours and not metadata.get("deletionTimestamp")


def _grace(spec: Json, metadata: Json) -> float:
    """Return a pod's grace period in seconds.

    A force delete says 0. Kubelet may hear of it too late; then it grants the pod's own grace period.
    """
    given = spec.get("terminationGracePeriodSeconds"), metadata.get("deletionGracePeriodSeconds")
    known = [float(seconds) for seconds in given if isinstance(seconds, int)]
    return min(max(known), MOST_GRACE_SECONDS) if known else DEFAULT_GRACE_SECONDS


def _has_ended(pod: Json) -> bool:
    """Tell whether kubelet has said that no container runs or will run.

    The phase alone is not enough. The control plane may have written it for a node that is cut off (pod garbage
    collection), and kubelet before 1.27 leaves it as it was when the pod was deleted.
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


def _end_of(pod: Json) -> End:
    """Return how much of a pod's end its object shows."""
    if not _has_ended(pod):
        return End.NOT_SEEN
    return End.REPORTED if _has_terminated_for_good(pod) else End.PHASE_ONLY


def _has_terminated_for_good(pod: Json) -> bool:
    """Tell whether kubelet reported of every container that it has terminated, and none is started again.

    Without the containers' states, a phase proves nothing: anybody may write it, and a pod that kubelet rejects gets a
    phase without states. A state without an end is kubelet's guess about a container that it did not find
    (``ContainerStatusUnknown`` in pkg/kubelet/status/status_manager.go).
    """
    status, spec, metadata = pod.get("status") or {}, pod.get("spec") or {}, pod.get("metadata") or {}
    if status.get("phase") not in _TERMINAL:
        return False
    if any(one.get("reason") == _BY_GARBAGE_COLLECTION for one in status.get("conditions") or ()):
        return False
    codes = []
    for kind in ("initContainer", "container", "ephemeralContainer"):
        states = [one.get("state") or {} for one in status.get(f"{kind}Statuses") or ()]
        ends = [state["terminated"] for state in states if state.get("terminated")]
        if len(ends) < max(len(states), len(spec.get(f"{kind}s") or ())) or not all(map(_finished, ends)):
            return False
        codes += [end.get("exitCode") for end in ends]
    own = any(one.get("restartPolicy") for one in spec.get("containers") or ())  # KEP-5307
    policy = spec.get("restartPolicy")
    once = not own and (policy == "Never" or (policy == "OnFailure" and not any(codes)))
    return once or bool(metadata.get("deletionTimestamp"))


def _finished(end: Json) -> bool:
    return bool(end.get("finishedAt"))


def _extended(container: Json) -> dict[str, int]:
    """Return the extended resources among a container's limits: a name with a domain, a whole number."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return {name: int(amount) for name, amount in limits.items() if "/" in name and str(amount).isdecimal() and amount}
