"""Follow this node's pods at the API server: which ask for devices, and which have ended.

A pod is *unaccounted* if it is bound here, has not ended, and asks for more of a resource than kubelet shows for it.
It may hold any device of the resource: a new kubelet has not re-admitted it yet, or it was admitted a moment ago.

A pod that is gone, but was not seen to end (a force delete, a node that was cut off), *may run yet*
(:mod:`drabridge.evidence.gone_pods`). A pod that ends as usual costs no wait, because kubelet reports its end before
the object is removed (pkg/kubelet/status/status_manager.go, syncPod).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator

from msgspec.structs import replace

from drabridge.errors import ClusterError
from drabridge.evidence.gone_pods import GonePods
from drabridge.evidence.pod_objects import (
    DEFAULT_GRACE_SECONDS,
    PodDemand,
    WatchedPod,
    are_many,
    watched_pod,
    with_claim,
)
from drabridge.inventory.devices import device_id_of
from drabridge.kube.api import PODS, Cluster
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView, PodFields
from drabridge.kube.watch import follow
from drabridge.ledger import events
from drabridge.ledger.entries import ClaimRef, Ledger, PodRef

MOST_LIVING = 1024  # a node has 110 by default; more can only be written by hand, and kubelet refuses them
MOST_UNREADABLE = 16_384  # UIDs; one entry stands for all further ones, until the next list
REMEMBERED = 256  # ended pods; each may name claims in 4 KB. A forgotten one only costs a wait


class PodWatch:
    """The pods of one node. ``ended`` is called when one of them with devices is gone or has ended."""

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        ended: Callable[[], None],
        ours: Callable[[], Collection[str]] = frozenset,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ours`` returns the resources that matter; it is called in any thread. ``now`` counts seconds."""
        self._cluster = cluster
        self._node = node
        self._selector = f"spec.nodeName={node}"
        self._ours = ours
        self._on_end = ended
        self._now = now
        self.slack: Callable[[], float] = float  # seconds from the end of a grace period until the last process is dead
        self._pods: dict[str, PodDemand] | None = None  # not ended, by the object's uid; None: the watch is lost
        self._before: dict[str, PodDemand] = {}  # the pods before the watch was lost
        self._gone = GonePods()
        self._units: dict[str, frozenset[events.Unit]] = {}  # UID of a living pod -> what kubelet's checkpoint gives it
        self._ended: dict[str, PodDemand] = {}  # the oldest first
        self._listed_at = 0.0  # pods that were gone before this time were never known
        self.sent: Counter[str] = Counter()  # by resource of ours: pods that were sent here with limits of it
        self._unreadable: set[str] = set()  # uids; these pods may ask for anything. "": many more
        self.view = ObjectView(self._read, PodFields)

    def _read(self, pod: Json) -> WatchedPod:
        """Read a pod; if it asks for very many kinds of devices, keep only those of this node."""
        one = watched_pod(pod, self._node)
        if one.demand is None or not are_many(one.demand.asked):
            return one
        ours = self._ours()
        asked = {resource: count for resource, count in one.demand.asked.items() if resource in ours}
        return WatchedPod(one.uid, replace(one.demand, asked=asked) if asked or one.demand.claims else None)

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        await follow(self._cluster, PODS, self._selector, self)

    def unaccounted(self, ledger: Ledger, observed: events.Observed) -> dict[str, tuple[str, ...]] | None:
        """Return resource -> pods that ask for more of it than ``observed`` shows; None while pods are not known."""
        if self._pods is None or self._unreadable or observed.listed is None:
            return None
        shown = _shown_units(ledger, observed)
        self._note_units(observed)
        found: dict[str, list[str]] = {}
        for pod in self._living():
            for resource, count in pod.asked.items():
                if count > max(shown[resource, pod.uid], shown[resource, str(pod)]):
                    found.setdefault(resource, []).append(str(pod))
        return {resource: tuple(sorted(pods)) for resource, pods in found.items()}

    def may_run_yet(self, ledger: Ledger) -> dict[str, tuple[str, ...]]:
        """Return device -> pods that are gone, were not seen to end, and may run on with the device."""
        self._gone.forget_ended(self._now())
        return self._gone.by_device(ledger)

    def unknown_devices_in_use(self, resources: Collection[str]) -> bool:
        """Tell whether a pod that may run yet has claims, or asked for one of ``resources`` (of another agent)."""
        self._gone.forget_ended(self._now())
        return self._gone.ask_for(resources)

    def enrich(self, observed: events.Observed) -> events.Observed:
        """Return ``observed`` with the pods' names and UIDs, their grace periods, and who has ended."""
        pods = [*self._living()]
        by_uid, by_name = {pod.uid: pod for pod in pods}, {str(pod): pod for pod in pods}

        def named(shown: events.Pods) -> events.Pods:
            return {unit: tuple(_named(pod, known(pod)) for pod in refs) for unit, refs in shown.items()}

        def known(pod: PodRef) -> PodDemand | None:
            if pod.uid:
                return by_uid.get(pod.uid) or self._ended.get(pod.uid)
            found = by_name.get(_name_of(pod))
            return found or next((one for one in reversed(self._ended.values()) if str(one) == _name_of(pod)), None)

        checkpoint, listed = observed.checkpoint, observed.listed
        return replace(
            observed,
            listed=listed and named(listed),
            checkpoint=checkpoint and replace(checkpoint, pods=named(checkpoint.pods)),
            names={pod.uid: (pod.namespace, pod.name) for pod in (*self._ended.values(), *pods)},
            ends={uid: pod.end for uid, pod in self._ended.items()},
            grace={pod.uid: pod.grace for pod in pods},
        )

    def grace(self, claim: ClaimRef) -> float:
        """Return the seconds that the pods with this claim have to end when they are deleted."""
        return max((pod.grace for pod in with_claim(claim, self._living())), default=DEFAULT_GRACE_SECONDS)

    def lingers(self, claim: ClaimRef, grace: float) -> float:
        """Return for how many seconds pods of a claim that kubelet has unprepared may still run; 0: none does.

        ``grace`` is the pods' grace period, for the case that they were gone before they were listed; 0: not known.
        """
        now, grace = self._now(), grace + self.slack() if grace else 0.0
        if gone := self._gone.claim_until(claim):
            return max(0.0, gone - now)
        if self._pods is None and with_claim(claim, self._living()):
            return grace  # the pod may be gone: a lost watch cannot tell
        if with_claim(claim, self._living()) or self._have_ended(claim):
            return 0.0  # the usual case: kubelet unprepares before it reports the end
        return max(0.0, self._listed_at + grace - now) if self._pods is not None else grace

    def living(self, uids: Collection[str]) -> list[PodDemand]:
        """Return those of the pods that have not ended."""
        return [pod for pod in self._living() if pod.uid in uids]

    def names_of(self, uid: str, container: str) -> tuple[str, str, str]:
        """Return namespace, pod and container of a UID and an id of the runtime; "" for what is not known."""
        pod = next((pod for pod in self._living() if pod.uid == uid), None)
        return (pod.namespace, pod.name, pod.containers.get(container, "")) if pod is not None else ("", "", "")

    def owner(self, namespace: str, name: str) -> str:
        """Return the workload of a pod, ``Deployment/web``; "" if it is not known."""
        pods = (*self._living(), *self._ended.values())
        return next((pod.owner for pod in pods if (pod.namespace, pod.name) == (namespace, name)), "")

    def owner_of_claim(self, claim: ClaimRef) -> str:
        """Return the workload of a claim's pods; the claim itself if these are of several; "" if none is known."""
        owners = {pod.owner for pod in with_claim(claim, self._living())}
        owners = owners or {pod.owner for pod in with_claim(claim, self._ended.values())}
        return f"ResourceClaim/{claim.name}" if len(owners) > 1 else "".join(owners)

    def saw_the_end(self, claim: ClaimRef) -> bool:
        """Tell whether this claim had a known pod, and all of them were seen to end."""
        if self._pods is None or self._gone.claim_until(claim):
            return False
        return not with_claim(claim, self._living()) and self._have_ended(claim)

    # The methods of kube.watch.Follower.

    def listed(self, objects: tuple[WatchedPod, ...]) -> None:
        before = self._before if self._pods is None else self._pods
        had_ended = {*self._ended}
        self._pods, self._unreadable, self._listed_at = {}, set(), self._now()
        for one in sorted(objects, key=lambda one: one.demand.created if one.demand else ""):
            self._take(one)
        gone = [pod for own, pod in before.items() if own not in self._pods and pod.uid not in self._ended]
        for pod in gone:
            self._vanished(pod)
        if gone or self._ended.keys() - had_ended:
            self._on_end()

    def changed(self, kind: str, obj: WatchedPod) -> None:
        assert self._pods is not None
        self._unreadable.discard(obj.uid)
        before, after = self._pods.get(obj.uid), obj.demand
        news = after is not None and after.ended and after.uid not in self._ended
        if kind == "DELETED":
            self._pods.pop(obj.uid, None)
            self._note_end(after)
        else:
            self._take(obj)
        if news:
            self._on_end()
        if before is None or (after is not None and after.ended):
            return
        if kind == "DELETED" or after is None:
            self._vanished(before)
            self._on_end()

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        uid = identity.uid or str(identity)
        if kind == "DELETED":
            self.changed(kind, WatchedPod(uid, None))
        else:
            self._note_unreadable(uid)
            back = self._gone.pop(uid)
            if back is not None and self._pods is not None:  # it is not gone: only the list lacked it
                self._pods[uid] = back

    def lost(self, error: ClusterError) -> None:
        self._before, self._pods = self._before if self._pods is None else self._pods, None

    # The pods that are there, have ended, or are gone.

    def _take(self, one: WatchedPod) -> None:
        """Note a pod that the API server has."""
        assert self._pods is not None
        pod = one.demand
        if pod is None or pod.ended:
            self._pods.pop(one.uid, None)
        elif len(self._pods) >= MOST_LIVING and one.uid not in self._pods:
            self._note_unreadable(one.uid)
        else:
            self.sent.update(() if one.uid in self._pods else pod.asked.keys() & self._ours())
            self._pods[one.uid] = pod
        if pod is not None and not pod.mirror:
            self._gone.pop(pod.uid)
        self._note_end(pod)

    def _note_unreadable(self, uid: str) -> None:
        self._unreadable.add(uid if len(self._unreadable) < MOST_UNREADABLE else "")

    def _note_end(self, pod: PodDemand | None) -> None:
        """Note whether a pod has ended.

        A pod that looked ended may run again: before kubelet 1.27 a container between two runs looks ended.
        """
        if pod is None or pod.mirror:
            return
        self._ended.pop(pod.uid, None)
        if pod.ended:
            self._ended[pod.uid] = replace(pod, asked={})
            for uid in [*self._ended][:-REMEMBERED]:
                del self._ended[uid]

    def _vanished(self, pod: PodDemand) -> None:
        """Note that a pod is gone and was not seen to end.

        Static pods do not count: kubelet removes the mirror after the end, and anybody can make an object like it.
        """
        if not pod.mirror:
            units = self._units.pop(pod.uid, frozenset())
            self._gone.add(pod, self._now() + pod.grace + self.slack(), units)

    def _note_units(self, observed: events.Observed) -> None:
        fresh = observed.checkpoint.pods if observed.checkpoint is not None else {}
        units: dict[str, set[events.Unit]] = {}
        for unit, pods in {**observed.recorded, **fresh}.items():
            for pod in pods:
                units.setdefault(pod.uid, set()).add(unit)
        living = {pod.uid for pod in self._living()}
        known = self._units | {uid: frozenset(theirs) for uid, theirs in units.items()}
        self._units = {uid: theirs for uid, theirs in known.items() if uid in living}

    def _living(self) -> Iterator[PodDemand]:
        """Yield the pods that have not ended, each UID once.

        A mirror that claims another pod's UID does not count.
        """
        pods = self._before if self._pods is None else self._pods
        if not any(pod.mirror for pod in pods.values()):
            yield from pods.values()
            return
        first: dict[str, PodDemand] = {}
        for pod in sorted(pods.values(), key=lambda pod: (pod.mirror, pod.created)):
            first.setdefault(pod.uid, pod)
        yield from first.values()

    def _have_ended(self, claim: ClaimRef) -> bool:
        """Tell whether a pod that names this claim has ended."""
        return any(claim.name in pod.claims for pod in with_claim(claim, self._ended.values()))


def _named(pod: PodRef, known: PodDemand | None) -> PodRef:
    return pod if known is None else replace(pod, namespace=known.namespace, name=known.name, uid=known.uid)


def _shown_units(ledger: Ledger, observed: events.Observed) -> Counter[tuple[str, str]]:
    """Count the units of a resource that kubelet shows with a pod.

    The pod is known by its UID (of a fresh checkpoint) and by its name (of the List).

    Of our own resources only units of known devices count: an unknown id may mean any of them.
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
