"""Remember the pods that are gone and were not seen to end, for as long as their processes may run.

Such a pod may have a device whose holder is in doubt: kubelet has shown no pod with it since it was allocated, or it
was allocated twice, or it is counted in several units. If kubelet has shown another pod with a device, and that pod got
it in the only Allocate, no gone pod has the device. Nor has a gone pod more units than it asked for: units for which
holds name it already are subtracted. So what a pod says of itself (its grace period, its limits) delays only devices
whose holder is in doubt.

Anybody who may delete pods by force can make any number of them. Beyond ``MOST_PODS`` the pods of the namespace with
the most of them are forgotten, and one entry takes their place: it may have any device, until the last of them has
ended. What one pod takes is bounded when it is read (``pod_objects.MOST_NAME_BYTES``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec import Struct

from drabridge.evidence.pod_objects import ANY_CLAIM, PodDemand, with_claim
from drabridge.ledger.entries import ClaimRef, Entry, Ledger, Owner
from drabridge.ledger.events import Unit

MOST_PODS = 256  # a node has 110 by default
ANY_RESOURCE = "*"


class _GonePod(Struct, frozen=True):
    """``until``: when its last process must have ended, on the watch's clock. ``units``: of kubelet's checkpoint."""

    pod: PodDemand
    until: float
    units: frozenset[Unit] = frozenset()


class GonePods:
    """Pods that are gone and may run yet. Times are those of the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._pods: dict[str, _GonePod] = {}
        self._any: dict[str, _GonePod] = {}  # namespace -> what stands for its forgotten pods

    def add(self, pod: PodDemand, until: float, units: frozenset[Unit] = frozenset()) -> None:
        """Note that ``pod`` is gone and may run until then."""
        self._pods[pod.uid] = _GonePod(pod, until, units)
        if len(self._pods) > MOST_PODS:
            self._forget_names()

    def pop(self, uid: str) -> PodDemand | None:
        """Forget a pod that is there again, or has ended. Return it if it was known."""
        gone = self._pods.pop(uid, None)
        return None if gone is None else gone.pod

    def forget_ended(self, now: float) -> None:
        """Forget those whose processes must have ended."""
        self._pods = {uid: gone for uid, gone in self._pods.items() if gone.until > now}
        self._any = {namespace: gone for namespace, gone in self._any.items() if gone.until > now}

    def by_device(self, ledger: Ledger) -> dict[str, tuple[str, ...]]:
        """Return device -> the pods that may run on with it. A hold that names a pod waits for it by itself."""
        if not self._pods and not self._any:
            return {}
        named = self._named(ledger)
        found = {
            name: tuple(sorted(str(pod) for pod in self._all() if _may_have(pod, entry, named)))
            for name, entry in ledger.entries.items()
            if _in_doubt(entry)
        }
        return {name: pods for name, pods in found.items() if pods}

    def _named(self, ledger: Ledger) -> Counter[tuple[str, str]]:
        """Count, by pod and resource, the units of holds that name the pod; at least one for each such hold."""
        named: Counter[tuple[str, str]] = Counter()
        for entry in ledger.entries.values():
            if (hold := entry.hold) is None:
                continue
            for uid in {pod.uid for pod in (*hold.pods, *hold.earlier)} & self._pods.keys():
                for resource in entry.counted_as:
                    theirs = sum((resource, unit) in self._pods[uid].units for unit in hold.units)
                    named[uid, resource] += max(theirs, 1)
        return named

    def ask_for(self, resources: Collection[str]) -> bool:
        """Tell whether one of them has claims, or asked for one of the resources."""
        return any(
            pod.claims or ANY_RESOURCE in pod.asked or not pod.asked.keys().isdisjoint(resources) for pod in self._all()
        )

    def claim_until(self, claim: ClaimRef) -> float:
        """Return until when pods with this claim may run; 0: none is known."""
        gone = (*self._pods.values(), *self._any.values())
        return max((one.until for one in gone if with_claim(claim, (one.pod,))), default=0.0)

    def _all(self) -> list[PodDemand]:
        return [gone.pod for gone in (*self._pods.values(), *self._any.values())]

    def _forget_names(self) -> None:
        """Replace the pods of the namespace with the most by one entry, which may have any device."""
        [(most, _)] = Counter(gone.pod.namespace for gone in self._pods.values()).most_common(1)
        theirs = [gone.until for gone in (*self._pods.values(), *self._any.values()) if gone.pod.namespace == most]
        self._pods = {uid: gone for uid, gone in self._pods.items() if gone.pod.namespace != most}
        anything = PodDemand(most, "(many)", "", {ANY_RESOURCE: 1}, frozenset({ANY_CLAIM}))
        self._any[most] = _GonePod(anything, max(theirs))


def _in_doubt(entry: Entry) -> bool:
    """Tell whether a pod that kubelet has not shown with the device may have it."""
    hold = entry.hold
    if hold is None:
        return False
    return entry.owner is Owner.QUARANTINE or not hold.pods or bool(hold.earlier) or hold.retaken or len(hold.units) > 1


def _may_have(pod: PodDemand, entry: Entry, named: Mapping[tuple[str, str], int]) -> bool:
    """Tell whether the pod asked for more devices of this kind than it has in the holds that name it."""
    return ANY_RESOURCE in pod.asked or any(
        pod.asked.get(resource, 0) > named[pod.uid, resource] for resource in entry.counted_as
    )
