"""The fields that the server drops, in silence, where a feature gate is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drabridge.sim.apiserver.status import JSON, places
from drabridge.sim.releases import Release

Paths = Mapping[str, Sequence[str]]
"""Gate -> the fields that it guards; a star stands for every item of a list or map."""


def _under(place: str, *names: str) -> Sequence[str]:
    return [f"{place}.{name}" for name in names]


def _requests(spec: str) -> dict[str, Sequence[str]]:
    one, sub = f"{spec}.devices.requests.*.exactly", f"{spec}.devices.requests.*.firstAvailable.*"
    return {
        "DRAPrioritizedList": [f"{spec}.devices.requests.*.firstAvailable"],
        "DRAAdminAccess": _under(one, "adminAccess"),
        "DRADeviceTaints": [*_under(one, "tolerations"), *_under(sub, "tolerations")],
        "DRAConsumableCapacity": [*_under(one, "capacity"), *_under(sub, "capacity")],
    }


_DEVICE, _RESULT = "spec.devices.*", "status.allocation.devices.results.*"
_WHERE = ("nodeName", "nodeSelector", "allNodes")
_SLICE: Paths = {
    "DRADeviceTaints": _under(_DEVICE, "taints"),
    "DRAPartitionableDevices": [
        *_under("spec", "sharedCounters", "perDeviceNodeSelection"),
        *_under(_DEVICE, "consumesCounters", *_WHERE),
    ],
    "DRADeviceBindingConditions": _under(_DEVICE, "bindsToNode", "bindingConditions", "bindingFailureConditions"),
    "DRAConsumableCapacity": _under(_DEVICE, "allowMultipleAllocations", "capacity.*.requestPolicy"),
    "DRAListTypeAttributes": _under(f"{_DEVICE}.attributes.*", "bools", "ints", "strings", "versions"),
}
_CLAIM_STATUS: Paths = {
    "DRAResourceClaimDeviceStatus": ["status.devices"],
    "DRAAdminAccess": _under(_RESULT, "adminAccess"),
    "DRADeviceTaints": _under(_RESULT, "tolerations"),
    "DRADeviceBindingConditions": _under(_RESULT, "bindingConditions", "bindingFailureConditions"),
    "DRAConsumableCapacity": _under(_RESULT, "shareID", "consumedCapacity"),
}
_GUARDED: Mapping[str, Sequence[Paths]] = {
    "resourceslices": [_SLICE],
    "resourceclaims": [_requests("spec"), _CLAIM_STATUS],
    "resourceclaimtemplates": [_requests("spec.spec")],
    "deviceclasses": [{"DRAExtendedResource": ["spec.extendedResourceName"]}],
}


def drop_disabled(plural: str, obj: JSON, gates: Mapping[str, bool], release: Release) -> None:
    """Delete from ``obj`` what disabled gates guard."""
    for paths in _GUARDED.get(plural, ()):
        for gate, fields in paths.items():
            kept = gate == "DRADeviceTaints" and plural != "resourceslices" and not release.drops_tolerations
            if not gates[gate] and not kept:
                for place, _, name in (field.rpartition(".") for field in fields):
                    for one in places(obj, place):
                        one.pop(name, None)
