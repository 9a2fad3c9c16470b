"""Follow the pods that the scheduler has chosen this node for and not bound yet (``status.nominatedNodeName``).

It names the node before it writes the allocation of the pod's claims, and while it waits for their binding conditions.
So these pods name the claims that wait for a lease here, and no agent has to watch all claims of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from drabridge.dra.claim_names import ClaimKey, WaitingPod
from drabridge.errors import ClusterError
from drabridge.evidence.pod_objects import are_many, claim_names
from drabridge.kube.api import PODS, Cluster
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView, PodFields
from drabridge.kube.watch import follow

MOST_PODS = 1024  # a node has 110 by default; claims of more get no lease
MOST_SECONDS = 5.0  # between looks at a claim that is not allocated yet, or after an error


class NominatedPod(Struct, frozen=True):
    """A pod that waits to be bound here."""

    uid: str
    namespace: str
    name: str
    scheduler: str
    claims: frozenset[str]  # names

    @property
    def waiting(self) -> WaitingPod:
        """The pod as one that waits with a claim."""
        return WaitingPod(self.namespace, self.name, self.scheduler, self.claims)


def nominated_pod(pod: Json) -> NominatedPod:
    """Read a pod of the API server."""
    metadata, spec, names = pod.get("metadata") or {}, pod.get("spec") or {}, claim_names(pod)
    return NominatedPod(
        str(metadata.get("uid") or ""),
        str(metadata.get("namespace") or ""),
        str(metadata.get("name") or ""),
        str(spec.get("schedulerName") or ""),
        frozenset() if are_many(names) else names,
    )


NOMINATED = ObjectView(nominated_pod, PodFields)


def nominated_to(node: str) -> str:
    """The field selector of the pods that wait to be bound to a node."""
    return f"status.nominatedNodeName={node}"


class NominatedPods:
    """The nominated pods of one node. While the watch is lost, those that were known last count."""

    comes_after_allocation = False
    most_seconds = MOST_SECONDS

    def __init__(self, cluster: Cluster, node: str, changed: Callable[[], None]) -> None:
        """``changed`` is called after every change."""
        self._cluster = cluster
        self._selector = nominated_to(node)
        self._changed = changed
        self._pods: dict[str, NominatedPod] = {}
        self._seen: dict[str, int] = {}  # pod UID -> the change that showed it last
        self._changes = 0
        self.lost_because = "the pods were not listed yet"  # "" while the watch lives
        self.view = NOMINATED

    async def run(self) -> None:
        """Follow the pods until cancelled. What was known last counts until the next run."""
        await follow(self._cluster, PODS, self._selector, self)

    @property
    def claims(self) -> Mapping[ClaimKey, frozenset[str]]:
        """The claims that nominated pods name, with the UIDs of these pods and when each was seen last.

        A pod that is denied and chosen again, perhaps before anybody looks here, looks as if nothing had happened to
        it. So each time that a pod is seen is a reason to look at its claims.
        """
        found: dict[ClaimKey, frozenset[str]] = {}
        for pod in self._pods.values():
            for name in pod.claims:
                found[pod.namespace, name] = found.get((pod.namespace, name), frozenset()) | {
                    f"{pod.uid} {self._seen[pod.uid]}"
                }
        return found

    async def pods(self, key: ClaimKey, claim: Json) -> tuple[WaitingPod, ...]:
        """Return the nominated pods that name the claim."""
        namespace, name = key
        pods = self._pods.values()
        return tuple(pod.waiting for pod in pods if pod.namespace == namespace and name in pod.claims)

    def forget(self) -> None:
        """Nobody follows the pods any more."""
        self._pods, self.lost_because = {}, "the pods are not followed"

    # The methods of kube.watch.Follower.

    def listed(self, objects: tuple[NominatedPod, ...]) -> None:
        self._pods = {pod.uid: pod for pod in [pod for pod in objects if pod.claims][:MOST_PODS]}
        self._changes += 1
        self._seen = dict.fromkeys(self._pods, self._changes)
        self.lost_because = ""
        self._changed()

    def changed(self, kind: str, obj: NominatedPod) -> None:
        if kind == "DELETED" or not obj.claims:
            self._pods.pop(obj.uid, None)
            self._seen.pop(obj.uid, None)
        elif obj.uid in self._pods or len(self._pods) < MOST_PODS:
            self._changes += 1
            self._pods[obj.uid], self._seen[obj.uid] = obj, self._changes
        self._changed()

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        """Its claims get no lease; the scheduler gives up in the end."""
        self._pods.pop(str(identity.uid), None)
        self._seen.pop(str(identity.uid), None)
        self._changed()

    def lost(self, error: ClusterError) -> None:
        self.lost_because = str(error)
        self._changed()  # claims that were left to it are to be asked about
