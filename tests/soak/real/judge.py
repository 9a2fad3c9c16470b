"""The judge of a soak on a real node: what the containers' journal, kubelet's records and the API showed, to a verdict.

Pure: no file, socket or clock is opened here. It knows nothing of the ledger.

* *double hold*: a container found its device's lock taken. The soak fails, unless kubelet itself gave it to both.
* *kubelet's double booking*, counted apart. The agent cannot see it: an Allocate names devices and no pod, and one for
  a device that is in use must succeed, for a pod that is admitted again after a restart of kubelet, or an app container
  that takes over its init container's device (observed on 1.36.2). All of this has to hold: both pods have limits;
  kubelet's checkpoint names the second pod as a holder of that device; and kubelet no longer counted the first, which
  was force-deleted (kubernetes/kubernetes#104824) or refused when kubelet, restarted, admitted its pods again, though
  its container still ran (``filterOutInactivePods`` in pkg/kubelet/kubelet_pods.go).
* *stuck*: a pod that waited longer than :data:`STUCK_SECONDS` although a device of its lane was free all the time;
  :data:`LEASED_SECONDS` until it is bound where devices are shared.
  A device that kubelet has prepared for another claim is not free, whatever the API says: a pod that is force-deleted
  while kubelet is down is unknown to the next one, whose loop unprepares its claim when kubelet and driver were both
  there once after 60 s (pkg/kubelet/cm/dra/manager.go). Until then the agent must refuse it.
* *leak*: what is still held, or left over, when all workloads are gone and everything had time to settle.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

STUCK_SECONDS = 150.0
RESERVED_SECONDS = 60.0  # a scheduler that lives gives a denied claim back at its next look, within 5 s
"""kubelet tries a failed NodePrepareResources again after 60 to 90 s (syncFrequency and its jitter, pod_workers.go);
the scheduler tries a pod that did not fit again after at most 5 minutes, and at once when a device comes back."""
LEASED_SECONDS = 60.0
"""Longest wait of a pod that is not bound yet where devices are shared: while enough are free, or its claim has one."""
NO_CLAIM_INFO = "unable to get claim info for ResourceClaim"
"""What kubelet says of a container whose claim it has not prepared (pkg/kubelet/cm/dra/manager.go)."""
BOOT_SECONDS = 100.0
"""After a reboot, until kubelet has tried twice to start the pods that it found (it tries again after 60 to 90 s)."""
BLIND_SECONDS = 10.0
"""A pause this long between two samples is the API server's absence; nobody waits for a device then."""
LAG_SECONDS = 5.0
"""A status is seen that much later than what it tells of: polled once a second, on a busy machine."""


class Line(Struct, frozen=True):
    """One line of the containers' journal: ``has``, ``taken``, ``broken``, ``nothing``, ``ends``, ``forced``."""

    at: float
    verb: str
    pod: str
    uid: str
    device: str


class Conflict(Struct, frozen=True):
    """A container that found its device's lock taken, and who had it."""

    at: float
    device: str
    holder: str
    holder_uid: str
    refused: str
    refused_uid: str

    def __str__(self) -> str:
        return f"{self.device}: {self.refused} ({self.refused_uid}) found it held by {self.holder} ({self.holder_uid})"


class KubeletRecord(Struct, frozen=True):
    """What kubelet showed of itself during the run."""

    booked: Collection[tuple[str, str]] = frozenset()
    """Device and pod UID: every pair that its checkpoint ever had."""
    rejected: Mapping[str, float] = {}
    """Pod UIDs that it refused at admission, with the wall seconds at which that was first seen."""


def parse(text: str) -> list[Line]:
    """Read the journal. A line that is torn (the node's disk was full, say) is left out."""
    lines = []
    for row in text.splitlines():
        words = row.split()
        if len(words) == 5 and words[0].isdigit():
            lines.append(Line(float(words[0]), *words[1:]))
    return lines


def conflicts(journal: Iterable[Line]) -> list[Conflict]:
    """Every taken lock. Its holder is who wrote ``has`` last before: a lock is taken before that line is written."""
    holders: dict[str, Line] = {}
    found = []
    for line in journal:
        if line.verb == "has":
            holders[line.device] = line
        elif line.verb == "taken":
            holder = holders.get(line.device, Line(0.0, "has", "nobody", "", line.device))
            found.append(Conflict(line.at, line.device, holder.pod, holder.uid, line.pod, line.uid))
    return found


def double_holds(journal: list[Line], kubelet: KubeletRecord) -> tuple[list[Conflict], list[Conflict]]:
    """The conflicts that the agent must answer for, and those that are kubelet's own."""
    forced: dict[str, float] = {}
    for line in journal:
        if line.verb == "forced":
            forced.setdefault(line.uid, line.at)  # the API server may do the first of several requests and not answer
    ours: list[Conflict] = []
    theirs: list[Conflict] = []
    for conflict in conflicts(journal):
        (ours if _against_kubelet(conflict, forced, kubelet) else theirs).append(conflict)
    return ours, theirs


def explain(conflict: Conflict, journal: Iterable[Line], kubelet: KubeletRecord) -> list[str]:
    """Tell a double hold's story: why it is not kubelet's own, and what the journal has of the device and both pods."""
    lines = list(journal)
    forced = {line.uid: line.at for line in lines if line.verb == "forced"}
    both = {conflict.holder_uid, conflict.refused_uid}
    return [
        f"not kubelet's own: {_against_kubelet(conflict, forced, kubelet)}",
        *(
            f"{line.at:.0f} {line.verb} {line.pod} {line.uid} {line.device}"
            for line in lines
            if line.device == conflict.device or line.uid in both
        ),
    ]


def _against_kubelet(conflict: Conflict, forced: Mapping[str, float], kubelet: KubeletRecord) -> str:
    """Say why the conflict is not kubelet's own double booking; empty when it is."""
    if not (conflict.holder.startswith("limits-") and conflict.refused.startswith("limits-")):
        return "one of them has a claim"
    if (conflict.device, conflict.refused_uid) not in kubelet.booked:
        return f"kubelet's checkpoint never gave {conflict.device} to {conflict.refused}"
    holder = conflict.holder_uid
    if holder in forced and forced[holder] <= conflict.at:
        return ""
    if holder in kubelet.rejected and kubelet.rejected[holder] <= conflict.at + LAG_SECONDS:
        return ""
    return (
        f"at {conflict.at:.0f} kubelet still counted {conflict.holder} (force-deleted: {forced.get(holder, 'never')}, "
        f"refused: {kubelet.rejected.get(holder, 'never')})"
    )


def broken(journal: list[Line]) -> list[str]:
    """Containers that could not do their part: such a run proves nothing.

    A pod with limits that was force-deleted between its admission and its container's start is left out: kubelet takes
    the device back ("Pods to be removed" in pkg/kubelet/cm/devicemanager/manager.go) and starts the container all the
    same, without it (seen on 1.36.2).
    """
    forced = {line.uid for line in journal if line.verb == "forced" and line.pod.startswith("limits-")}
    return [
        f"{line.pod}: {'its lock could not be tried' if line.verb == 'broken' else 'it has no device'} ({line.device})"
        for line in journal
        if line.verb == "broken" or (line.verb == "nothing" and line.uid not in forced)
    ]


def device_seconds(journal: list[Line]) -> Counter[str]:
    """Return for how many seconds containers had devices, by the first word of their pods' names.

    A container that is killed writes no end: its time is over when the next one has the device.
    """
    ends: dict[str, float] = {}
    for line in journal:
        if line.verb in ("ends", "forced"):
            ends.setdefault(line.uid, line.at)
    last: dict[str, Line] = {}
    found: Counter[str] = Counter()
    closing = (
        [Line(journal[-1].at, "has", "", "", device) for device in {one.device for one in journal}] if journal else []
    )
    for line in (*journal, *closing):
        if line.verb == "has":
            if before := last.get(line.device):
                end = min(line.at, max(before.at, ends.get(before.uid, line.at)))
                found[before.pod.partition("-")[0]] += round(end - before.at)
            last[line.device] = line
    return found


def prepared(dra_manager_state: str) -> dict[str, set[str]]:
    """Device to the UIDs of the claims for which kubelet's record (a file of that name) has it prepared."""
    found: dict[str, set[str]] = {}
    try:
        for claim in json.loads(json.loads(dra_manager_state)["Data"])["ClaimInfoStateList"] or ():
            for state in (claim["DriverState"] or {}).values():
                for device in state["Devices"] or ():
                    found.setdefault(device["DeviceName"], set()).add(claim["ClaimUID"])
    except (ValueError, KeyError, TypeError):  # kubelet was killed before it had written any
        return {}
    return found


def unprepared_by_kubelet(pod: Mapping[str, Any]) -> bool:
    """Tell whether kubelet has forgotten that it prepared the claim of a pod that waits.

    Up to 1.36 the end of a pod that was never prepared unprepares a claim that it shares, under the pod that has it,
    and that one's containers are never created (kubernetes/kubernetes#140212; seen on 1.36.2).
    """
    states = [one.get("state", {}) for one in pod["status"].get("containerStatuses", ())]
    return any(NO_CLAIM_INFO in one.get("waiting", {}).get("message", "") for one in states)


def left_at_boot(pod: Mapping[str, Any], rebooted: float, now: float) -> bool:
    """Tell whether kubelet leaves a pod alone that was starting when its node lost power; times are wall seconds.

    It had a sandbox, which is gone, and a container that never ran: kubelet kills the one, makes no other, and tells no
    end (``CreateSandbox: false`` of computePodActions in pkg/kubelet/kuberuntime for restartPolicy Never; seen on
    1.36.3). It would be Pending for ever.
    """
    status = pod["status"]
    bound = [
        one["lastTransitionTime"]
        for one in status.get("conditions", ())
        if (one["type"], one["status"]) == ("PodScheduled", "True")
    ]
    return status.get("phase") == "Pending" and any(map(before(rebooted), bound)) and now - rebooted > BOOT_SECONDS


def left_reserved(pod: Mapping[str, Any], claim: Mapping[str, Any], now: float) -> bool:
    """Tell whether a denied claim stays allocated because several pods that wait have it reserved.

    A scheduler that is killed while it gives a denied claim back leaves the reservations; the next one takes back an
    allocation only of one pod (PostFilter of pkg/scheduler/framework/plugins/dynamicresources; seen on 1.37.2).
    """
    status = claim["status"]
    denied = [
        one["lastTransitionTime"]
        for device in status.get("devices", ())
        for one in device.get("conditions", ())
        if one["reason"] == "Denied"
    ]
    several = len(status.get("reservedFor", ())) > 1
    return several and "nodeName" not in pod["spec"] and any(map(before(now - RESERVED_SECONDS), denied))


def before(moment: float) -> Callable[[str], bool]:
    """Whether a time of the API server's is before a moment in wall seconds."""
    return lambda at: datetime.fromisoformat(at).timestamp() < moment


class Waiting(Struct, frozen=True):
    """A pod that neither runs nor ended."""

    pod: str
    uid: str
    lane: str
    needs: int
    """Devices of its lane that have to be free for it; 0 when it has them already: bound, or its claim is allocated."""
    bound: bool = False
    """To the node: it waits for kubelet."""
    blocked: bool = False
    """Kubelet has a device of its claim prepared for another one still."""


class Sample(Struct, frozen=True):
    """The cluster at one moment, on the monotonic clock."""

    at: float
    waiting: tuple[Waiting, ...]
    free: Mapping[str, int]
    """By lane: devices that are offered and that no pod or claim has."""
    excused: Collection[str] = frozenset()
    """UIDs of pods that just failed for a fault of this run, such as an agent that was away: their wait begins anew."""


class Waits:
    """How long each pod waits for what is free.

    One wait ends when the pod is bound, and another one begins. A claim that is allocated and denied again ends none.
    """

    def __init__(self, unbound_seconds: float = STUCK_SECONDS) -> None:
        """``unbound_seconds``: longest wait of a pod that is not bound."""
        self._unbound_seconds = unbound_seconds
        self._since: dict[tuple[str, bool], float] = {}
        self._last = 0.0
        self.stuck: dict[str, str] = {}  # uid -> sentence
        self.longest = 0.0
        """Seconds that a pod was not bound while what it needs was free, or its claim had it, all the time."""

    def observe(self, sample: Sample) -> None:
        """Look at one moment more."""
        gap = sample.at - self._last
        if gap > BLIND_SECONDS:
            self._since = {key: since + gap for key, since in self._since.items()}
        self._last = sample.at
        before, self._since = self._since, {}
        for pod in sample.waiting:
            key = (pod.uid, pod.bound)
            if pod.blocked or pod.uid in sample.excused or sample.free.get(pod.lane, 0) < pod.needs:
                continue  # begins anew when it is seen next
            since = self._since[key] = before.get(key, sample.at)
            if not pod.bound:
                self.longest = max(self.longest, sample.at - since)
            if sample.at - since > (STUCK_SECONDS if pod.bound else self._unbound_seconds):
                state = f"{pod.needs} free" if pod.needs else "its own"
                self.stuck[pod.uid] = (
                    f"{pod.pod} waits for {sample.at - since:.0f} s, with devices {state} ({pod.lane})"
                )


def left_over(
    devices: Iterable[Mapping[str, Any]],
    known: int,
    locked: Iterable[str],
    files: Iterable[str],
    objects: Iterable[str],
    *,
    shared: bool = False,
) -> list[str]:
    """What is left when everybody is gone: rows of the agent's status, locks, files on the node, objects of the API.

    ``shared``: a free device is offered to both APIs, if it is not lent to claims.
    """
    rows = list(devices)
    found = [
        f"{row['name']} is still {row['owner']} ({row.get('evidence', '')}): {row.get('holders')}"
        for row in rows
        if row["owner"] != "none"
    ]
    found += [
        f"{row['name']} is offered to {' and '.join(row['offered']) or 'nobody'}: {row}"
        for row in rows
        if row["owner"] == "none" and len(row["offered"]) != (2 if shared and row["lane"] == "shared" else 1)
    ]
    if len(rows) != known:
        found.append(f"{len(rows)} devices are known, {known} exist")
    found += [f"the lock of {name} is still held" for name in locked]
    found += [f"{path} was left behind" for path in files]
    return found + [f"{name} is still there" for name in objects]


class Verdict(Struct):
    """What a run found."""

    pods: int = 0
    refusals: int = 0
    double_holds: list[str] = []
    leaks: list[str] = []
    stuck: list[str] = []
    failures: list[str] = []
    """Why the run proves nothing, though it found nothing."""
    seconds: float = 0.0
    story: list[str] = []
    """What the journal and kubelet's records say of each double hold."""

    @property
    def ok(self) -> bool:
        return not (self.double_holds or self.leaks or self.stuck or self.failures)

    def __str__(self) -> str:
        return (
            f"soak: cluster=real pods={self.pods} refusals={self.refusals} double_holds={len(self.double_holds)} "
            f"leaks={len(self.leaks)} stuck={len(self.stuck)} seconds={self.seconds:.0f}"
        )
