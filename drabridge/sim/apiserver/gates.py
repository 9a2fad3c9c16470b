"""Feature gates of each release, and the fields that the server drops, in silence, where one is off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from drabridge.sim.apiserver.status import JSON
from drabridge.sim.release import RECORDED, minor_of


class Gate(NamedTuple):
    """Since which 1.<minor> a gate is known, on by default, and locked to on (0: not yet)."""

    known: int
    on: int
    locked: int = 0


# pkg/features/kube_features.go. Taints and their rules are GA in 1.37, and locked in 1.38.
_GATES: Mapping[str, Gate] = MappingProxyType(
    {
        "DRAAdminAccess": Gate(32, 34, 36),
        "DRAConsumableCapacity": Gate(34, 36),
        "DRADeviceBindingConditions": Gate(34, 36),
        "DRADeviceTaintRules": Gate(35, 37, 38),
        "DRADeviceTaints": Gate(33, 36, 38),
        "DRAExtendedResource": Gate(34, 36, 37),
        "DRAPartitionableDevices": Gate(33, 36),
        "DRAPrioritizedList": Gate(33, 34, 37),
        "DRAResourceClaimDeviceStatus": Gate(32, 33, 37),
        "DRAResourceClaimGranularStatusAuthorization": Gate(36, 36),
    }
)

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


def merged_gates(changes: Mapping[str, bool] | None, release: str = RECORDED) -> dict[str, bool]:
    """Return the release's defaults with ``changes``; a gate that it does not know is off.

    Raises ValueError for a change of a gate that the release does not know, that nothing here looks at, or that is
    locked: the real server does not start with it.
    """
    minor = minor_of(release)
    known = sorted(name for name, gate in _GATES.items() if gate.known <= minor)
    if unknown := set(changes or {}).difference(known):
        raise ValueError(f"unknown feature gates {sorted(unknown)}; known are {known}")
    for name, on in (changes or {}).items():
        if not on and 0 < _GATES[name].locked <= minor:
            raise ValueError(f"cannot set feature gate {name} to false, feature is locked to true")
    return {**{name: gate.on <= minor for name, gate in _GATES.items()}, **(changes or {})}


def drop_disabled(plural: str, obj: JSON, old: JSON | None, gates: Mapping[str, bool]) -> None:
    """Delete from ``obj`` what disabled gates guard, except where ``old`` already uses the feature."""
    off = {gate for gate, on in gates.items() if not on}
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
    policies = {"DRAConsumableCapacity": ("requestPolicy",)}
    _drop(_capacities(devices), _capacities(old_devices), policies, off)


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
