"""The fields that the server drops, in silence, where a feature gate is off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from drabridge.sim.apiserver.status import JSON
from drabridge.sim.releases import Release

_DEVICE_FIELDS = {
    "DRADeviceTaints": ("taints",),
    "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
    "DRADeviceBindingConditions": ("bindsToNode", "bindingConditions", "bindingFailureConditions"),
    "DRAConsumableCapacity": ("allowMultipleAllocations",),
}
_SLICE_FIELDS = {"DRAPartitionableDevices": ("sharedCounters", "perDeviceNodeSelection")}
_REQUEST_FIELDS = {
    "DRAAdminAccess": ("adminAccess",),
    "DRADeviceTaints": ("tolerations",),
    "DRAConsumableCapacity": ("capacity",),
}
_RESULT_FIELDS = {
    "DRAAdminAccess": ("adminAccess",),
    "DRADeviceTaints": ("tolerations",),
    "DRADeviceBindingConditions": ("bindingConditions", "bindingFailureConditions"),
    "DRAConsumableCapacity": ("shareID", "consumedCapacity"),
}
_Table = Mapping[str, tuple[str, ...]]


def drop_disabled(plural: str, obj: JSON, old: JSON | None, gates: Mapping[str, bool], release: Release) -> None:
    """Delete from ``obj`` what disabled gates guard, except where ``old`` already uses the feature."""
    off = {gate for gate, on in gates.items() if not on}
    if plural != "resourceslices" and not release.drops_tolerations:
        off.discard("DRADeviceTaints")
    dropper = _DROPPERS.get(plural)
    if off and dropper is not None:
        dropper(obj, old or {}, off)


def _uses(objects: Iterable[JSON], names: tuple[str, ...]) -> bool:
    return any(name in one for one in objects for name in names)


def _drop(objects: list[JSON], old: list[JSON], table: _Table, off: set[str]) -> None:
    for gate in off & table.keys():
        names = table[gate]
        if _uses(old, names):
            continue
        for one in objects:
            for name in names:
                one.pop(name, None)


def _slice(obj: JSON, old: JSON, off: set[str]) -> None:
    spec, before = obj.get("spec", {}), old.get("spec", {})
    devices, old_devices = spec.get("devices", []), before.get("devices", [])
    _drop([spec], [before], _SLICE_FIELDS, off)
    _drop(devices, old_devices, _DEVICE_FIELDS, off)
    lists = {"DRAListTypeAttributes": ("bools", "ints", "strings", "versions")}
    _drop(_attributes(devices), _attributes(old_devices), lists, off)
    policies = {"DRAConsumableCapacity": ("requestPolicy",)}
    _drop(_capacities(devices), _capacities(old_devices), policies, off)


def _attributes(devices: list[JSON]) -> list[JSON]:
    return [value for device in devices for value in device.get("attributes", {}).values()]


def _capacities(devices: list[JSON]) -> list[JSON]:
    return [capacity for device in devices for capacity in device.get("capacity", {}).values()]


def _requests(spec: JSON) -> list[JSON]:
    requests = spec.get("devices", {}).get("requests", [])
    return [
        *(request["exactly"] for request in requests if "exactly" in request),
        *(sub for request in requests for sub in request.get("firstAvailable", [])),
    ]


def _claim_spec(spec: JSON, before: JSON, off: set[str]) -> None:
    requests = spec.get("devices", {}).get("requests", [])
    old_requests = before.get("devices", {}).get("requests", [])
    _drop(requests, old_requests, {"DRAPrioritizedList": ("firstAvailable",)}, off)
    _drop(_requests(spec), _requests(before), _REQUEST_FIELDS, off)


def _claim(obj: JSON, old: JSON, off: set[str]) -> None:
    _claim_spec(obj.get("spec", {}), old.get("spec", {}), off)
    status, before = obj.get("status", {}), old.get("status", {})
    _drop([status], [before], {"DRAResourceClaimDeviceStatus": ("devices",)}, off)
    results = [one.get("allocation", {}).get("devices", {}).get("results", []) for one in (status, before)]
    _drop(results[0], results[1], _RESULT_FIELDS, off)


def _template(obj: JSON, old: JSON, off: set[str]) -> None:
    _claim_spec(obj.get("spec", {}).get("spec", {}), old.get("spec", {}).get("spec", {}), off)


def _class(obj: JSON, old: JSON, off: set[str]) -> None:
    names = {"DRAExtendedResource": ("extendedResourceName",)}
    _drop([obj.get("spec", {})], [old.get("spec", {})], names, off)


_DROPPERS: Mapping[str, Callable[[JSON, JSON, set[str]], None]] = MappingProxyType(
    {"resourceslices": _slice, "resourceclaims": _claim, "resourceclaimtemplates": _template, "deviceclasses": _class}
)
