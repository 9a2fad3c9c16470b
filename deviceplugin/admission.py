"""The simple rule for Allocate: every id is in the list, and healthy."""

from __future__ import annotations

from collections.abc import Iterable

from deviceplugin.api import Plugin
from deviceplugin.errors import AllocationError
from deviceplugin.model import Health


def require_healthy(plugin: Plugin, ids: Iterable[str]) -> None:
    """Raise AllocationError (NOT_FOUND, FAILED_PRECONDITION) unless ``plugin`` lists each of ``ids`` as healthy.

    An allocator that knows who holds a device must not use this for a pod's own device: kubelet asks again for it
    after a restart, and it may be unhealthy by then.
    """
    snapshot = plugin.devices().current
    listed = {device.id: device.health for device in (snapshot.value if snapshot else ())}
    wanted = list(ids)
    unknown = [device_id for device_id in wanted if device_id not in listed]
    if unknown:
        raise AllocationError(
            "NOT_FOUND",
            f"{plugin.resource} has no device {', '.join(unknown)} on this node (it has {len(listed)})",
            hint="it was probably unplugged after kubelet chose it; delete the pod, its replacement gets another",
        )
    faulty = [device_id for device_id in wanted if listed[device_id] is not Health.HEALTHY]
    if faulty:
        raise AllocationError(
            "FAILED_PRECONDITION",
            f"device {', '.join(faulty)} of {plugin.resource} is unhealthy",
            hint="the device plugin's log says why; delete the pod, its replacement gets another",
        )
