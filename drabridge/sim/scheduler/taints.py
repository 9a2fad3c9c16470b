"""Device taints and tolerations (KEP-5055), and the eviction of pods by taints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drabridge.sim.apiserver.objects import Objects
from drabridge.sim.apiserver.status import JSON
from drabridge.sim.scheduler.claim_controller import EXTENDED_ANNOTATION, ended
from drabridge.sim.scheduler.events import post
from drabridge.sim.scheduler.pools import DeviceId

BLOCKING = ("NoSchedule", "NoExecute")


def tolerates(toleration: JSON, taint: JSON) -> bool:
    """Whether a toleration matches a taint. An empty key (with Exists) or an empty effect matches all."""
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


# --- eviction: NoExecute deletes the pods that use a device (the device taint eviction controller) --------------------


def evict(objects: Objects) -> None:
    """Delete pods whose claim holds a device with a NoExecute taint that it does not tolerate.

    Pods of extended-resource claims stay: 1.36.2 does not evict them (kubernetes#141290). Not imitated: a toleration
    for some seconds.
    """
    taints = _taints(objects)
    if not taints:
        return
    pods = {pod["metadata"]["uid"]: pod for pod in objects.peek("pods")}
    for claim in objects.peek("resourceclaims"):
        if claim["metadata"].get("annotations", {}).get(EXTENDED_ANNOTATION) == "true" or _tolerated(claim, taints):
            continue
        for consumer in claim["status"].get("reservedFor", []):
            pod = pods.get(consumer["uid"])
            if pod is not None and not ended(pod) and not pod["metadata"].get("deletionTimestamp"):
                post(objects, "Pod", pod, "DeviceTaintManagerEviction", "Marking for deletion", "Normal")
                objects.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])


def slices_with_rules(objects: Objects) -> Sequence[JSON]:
    """Return all slices; devices have the taints of the DeviceTaintRules that select them, too. Do not change them.

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


def _taints(objects: Objects) -> dict[DeviceId, list[JSON]]:
    """Return the NoExecute taints of each device that has one."""
    found: dict[DeviceId, list[JSON]] = {}
    for one in slices_with_rules(objects):
        for device in one["spec"].get("devices", []):
            if evicting := [taint for taint in device.get("taints", []) if taint["effect"] == "NoExecute"]:
                found[one["spec"]["driver"], one["spec"]["pool"]["name"], device["name"]] = evicting
    return found


def _tolerated(claim: JSON, taints: dict[DeviceId, list[JSON]]) -> bool:
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return all(
        blocking(taints.get((one["driver"], one["pool"], one["device"]), ()), one.get("tolerations", [])) is None
        for one in results
    )
