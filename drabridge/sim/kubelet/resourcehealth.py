"""``status.containerStatuses[].allocatedResourcesStatus`` of a pod (KEP-4680, gate ResourceHealthStatus, on in
1.36).
"""

from __future__ import annotations

from typing import Any

from drabridge.sim.kubelet.claims import ClaimInfo, Key, container_refs
from drabridge.sim.kubelet.devices import DeviceState
from drabridge.sim.kubelet.health import HealthBook
from drabridge.sim.kubelet.pods import Container, PodSpec


def of_pod(
    pod: PodSpec, state: DeviceState, cache: dict[Key, ClaimInfo], book: HealthBook, now: float
) -> dict[str, list[dict[str, Any]]]:
    """Container -> its list as in the API. Only regular containers have one (kubernetes#139940)."""
    return {
        container.name: _plugin_devices(pod, container, state) + _claim_devices(pod, container, cache, book, now)
        for container in pod.containers
    }


def _plugin_devices(pod: PodSpec, container: Container, state: DeviceState) -> list[dict[str, Any]]:
    """manager.go, UpdateAllocatedResourcesStatus: a device that left the list counts as Healthy."""
    entries = []
    for resource, allocation in sorted(state.container_allocations(pod.uid, container.name).items()):
        unhealthy = state.unhealthy.get(resource, set())
        health = [(id_, "Unhealthy" if id_ in unhealthy else "Healthy") for id_ in sorted(allocation.ids)]
        entries.append({"name": resource, "resources": [{"health": h, "resourceID": id_} for id_, h in health]})
    return entries


def _claim_devices(
    pod: PodSpec, container: Container, cache: dict[Key, ClaimInfo], book: HealthBook, now: float
) -> list[dict[str, Any]]:
    """cm/dra/manager.go, UpdateAllocatedResourcesStatus: the first CDI id names a device, else driver/pool/device."""
    entries = []
    for claim, request, label in container_refs(pod, container):
        info = cache.get((pod.namespace, claim))
        resources = []
        for driver, devices in info.drivers.items() if info else ():
            for device in devices:
                if not device.serves(request):
                    continue
                known = book.of(driver, device.pool, device.device, now)
                entry = {"health": known.health}
                if known.message:
                    entry["message"] = known.message
                entry["resourceID"] = device.cdi[0] if device.cdi else f"{driver}/{device.pool}/{device.device}"
                resources.append(entry)
        if resources:
            entries.append({"name": label, "resources": resources})
    return entries
