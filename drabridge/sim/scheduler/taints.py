"""Device taints and tolerations (KEP-5055), and the eviction of pods by taints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from drabridge.sim.apiserver.objects import Objects
from drabridge.sim.apiserver.status import JSON
from drabridge.sim.scheduler.claim_controller import EXTENDED_ANNOTATION, ended
from drabridge.sim.scheduler.events import post

BLOCKING = ("NoSchedule", "NoExecute")


def tolerates(toleration: JSON, taint: JSON) -> bool:
    """Match: an empty key (with Exists) matches every key, an empty effect every effect."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def blocking(taints: Iterable[JSON], tolerations: Sequence[JSON]) -> JSON | None:
    """Return the first taint that keeps a request off the device. Effect None never does."""
    for taint in taints:
        if taint["effect"] in BLOCKING and not any(tolerates(one, taint) for one in tolerations):
            return taint
    return None


def eviction_delay_seconds(taints: Iterable[JSON], tolerations: Sequence[JSON], now: datetime) -> float | None:
    """Seconds until users of the device are evicted; 0 for at once, None for never. Only NoExecute evicts."""
    delays = []
    for taint in taints:
        if taint["effect"] != "NoExecute":
            continue
        matching = [one for one in tolerations if tolerates(one, taint)]
        limits = [one["tolerationSeconds"] for one in matching if "tolerationSeconds" in one]
        if not matching:
            delays.append(0.0)
        elif limits:
            added = datetime.strptime(taint["timeAdded"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            delays.append(max(0.0, min(limits) - (now - added).total_seconds()))
    return min(delays, default=None)


# --- eviction: NoExecute deletes the pods that use a device (the device taint eviction controller) --------------------


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


def slices_with_rules(objects: Objects) -> Sequence[JSON]:
    """Return all slices, their devices with the taints of the DeviceTaintRules that select them, for reading only.

    ``resourceslice/tracker`` of the dynamic-resource-allocation library: a selector's empty fields select everything,
    and a rule without a selector nothing.
    """
    slices = objects.peek("resourceslices")
    rules = [one["spec"] for one in objects.peek("devicetaintrules") if "deviceSelector" in one["spec"]]
    if not rules or not objects.gates["DRADeviceTaintRules"]:
        return slices
    return [_with_rules(one, rules) for one in slices]


def _with_rules(one: JSON, rules: Sequence[JSON]) -> JSON:
    spec = one["spec"]
    devices = []
    for device in spec.get("devices", []):
        place = {"driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]}
        taints = [rule["taint"] for rule in rules if rule["deviceSelector"].items() <= place.items()]
        devices.append({**device, "taints": [*device.get("taints", []), *taints]} if taints else device)
    return {**one, "spec": {**spec, "devices": devices}} if devices else one


def _taints(objects: Objects) -> dict[tuple[str, str, str], list[JSON]]:
    found = {}
    for one in slices_with_rules(objects):
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
