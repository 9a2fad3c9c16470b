"""Eviction by device taints: NoExecute deletes the pods that use a device (the device taint eviction controller)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from drabridge.sim.apiserver.objects import Objects
from drabridge.sim.scheduler.claims import EXTENDED_ANNOTATION, ended
from drabridge.sim.scheduler.events import post
from drabridge.sim.scheduler.taints import eviction_delay_seconds

JSON = dict[str, Any]


def evict(objects: Objects) -> float | None:
    """Delete pods whose claim holds a device with a NoExecute taint it does not tolerate (any longer).

    Returns the seconds until the next toleration runs out, None when there is none. Pods of extended-resource claims
    stay: 1.36.2 does not evict them (kubernetes#141290).
    """
    taints = _taints(objects)
    if not taints:
        return None
    now, soonest = datetime.now(UTC), None
    pods = {pod["metadata"]["uid"]: pod for pod in objects.peek("pods")}
    for claim in objects.peek("resourceclaims"):
        if claim["metadata"].get("annotations", {}).get(EXTENDED_ANNOTATION) == "true":
            continue
        delay = _delay(claim, taints, now)
        if delay is None:
            continue
        if delay > 0:
            soonest = delay if soonest is None else min(soonest, delay)
            continue
        for consumer in claim["status"].get("reservedFor", []):
            pod = pods.get(consumer["uid"])
            if pod is not None and not ended(pod) and not pod["metadata"].get("deletionTimestamp"):
                post(objects, "Pod", pod, "DeviceTaintManagerEviction", "Marking for deletion", "Normal")
                objects.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
    return soonest


def _taints(objects: Objects) -> dict[tuple[str, str, str], list[JSON]]:
    found = {}
    for one in objects.peek("resourceslices"):
        for device in one["spec"].get("devices", []):
            if any(taint["effect"] == "NoExecute" for taint in device.get("taints", [])):
                key = (one["spec"]["driver"], one["spec"]["pool"]["name"], device["name"])
                found[key] = device["taints"]
    return found


def _delay(claim: JSON, taints: dict[tuple[str, str, str], list[JSON]], now: datetime) -> float | None:
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    delays = [
        eviction_delay_seconds(taints[key], result.get("tolerations", []), now)
        for result in results
        if (key := (result["driver"], result["pool"], result["device"])) in taints
    ]
    return min((one for one in delays if one is not None), default=None)
