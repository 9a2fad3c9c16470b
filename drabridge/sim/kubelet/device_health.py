"""Device health that drivers report, without sockets (``pkg/kubelet/cm/dra/healthinfo.go``)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from drabridge.sim.kubelet.device_accounting import DeviceState
from drabridge.sim.kubelet.dra_claims import ClaimInfo, Key, claim_refs
from drabridge.sim.kubelet.pods import Container, PodSpec

_NAMES = {0: "Unknown", 1: "Healthy", 2: "Unhealthy"}  # enum HealthStatus of the health contract


@dataclass(frozen=True, slots=True)
class Health:
    """``Healthy``, ``Unhealthy`` or ``Unknown``; valid until ``expires`` (monotonic seconds)."""

    health: str
    message: str
    expires: float


@dataclass(slots=True)
class HealthBook:
    """driver -> (pool, device) -> the last report."""

    drivers: dict[str, dict[tuple[str, str], Health]] = field(default_factory=dict)

    def report(self, driver: str, devices: Iterable[Any], now: float, default_timeout: float) -> None:
        """Take in the devices of one message of either version.

        The list is complete, but a device that is left out keeps its last value until that is too old.
        """
        known = self.drivers.setdefault(driver, {})
        for one in devices:
            expires = now + (one.health_check_timeout_seconds or default_timeout)
            health = Health(_NAMES.get(one.health, "Unknown"), one.message, expires)
            known[one.device.pool_name, one.device.device_name] = health

    def clear(self, driver: str) -> None:
        """Forget what the stream said, because it has ended."""
        self.drivers.pop(driver, None)

    def of(self, driver: str, pool: str, device: str, now: float) -> Health:
        known = self.drivers.get(driver, {}).get((pool, device))
        if known is None or now > known.expires:
            return Health("Unknown", "", now)
        return known


# --- allocated resources in a pod's status (KEP-4680, gate ResourceHealthStatus) --------------------------


def allocated_resources_status(
    pod: PodSpec, state: DeviceState, cache: dict[Key, ClaimInfo], book: HealthBook, now: float, *, messages: bool
) -> dict[str, list[dict[str, Any]]]:
    """Container -> its list as in the API. Only regular containers have one (kubernetes#139940).

    ``messages``: with the driver's text (gate ResourceHealthStatusMessage).
    """
    listed = {}
    for container in pod.containers:
        claims = _claim_devices(pod, container, cache, book, now, messages=messages)
        listed[container.name] = _plugin_devices(pod, container, state) + claims
    return listed


def _plugin_devices(pod: PodSpec, container: Container, state: DeviceState) -> list[dict[str, Any]]:
    """manager.go, UpdateAllocatedResourcesStatus: a device that left the list counts as Healthy."""
    entries = []
    for resource, allocation in sorted(state.container_allocations(pod.uid, container.name).items()):
        unhealthy = state.unhealthy.get(resource, set())
        health = [(id_, "Unhealthy" if id_ in unhealthy else "Healthy") for id_ in sorted(allocation.ids)]
        entries.append({"name": resource, "resources": [{"health": h, "resourceID": id_} for id_, h in health]})
    return entries


def _claim_devices(
    pod: PodSpec, container: Container, cache: dict[Key, ClaimInfo], book: HealthBook, now: float, *, messages: bool
) -> list[dict[str, Any]]:
    """Return the health of a claim's devices; an extended resource's claim is left out, as by the real one.

    cm/dra/manager.go, UpdateAllocatedResourcesStatus: the first CDI id names a device, else driver/pool/device.
    """
    entries = []
    for claim, request, label in claim_refs(pod, container):
        info = cache.get((pod.namespace, claim))
        resources = []
        for driver, devices in info.drivers.items() if info else ():
            for device in devices:
                if not device.serves(request):
                    continue
                known = book.of(driver, device.pool, device.device, now)
                entry = {"health": known.health}
                if messages and known.message:
                    entry["message"] = known.message
                entry["resourceID"] = device.cdi[0] if device.cdi else f"{driver}/{device.pool}/{device.device}"
                resources.append(entry)
        if resources:
            entries.append({"name": label, "resources": resources})
    return entries
