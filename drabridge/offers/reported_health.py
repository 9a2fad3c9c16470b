"""Report the presence of devices as health, for kubelet's DRA health stream and the status of claims. Pure.

No health rule is here: whether a device is healthy is decided in ``inventory/health_rules.py``.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from drabridge.inventory.devices import Device, Presence


class ReportedHealth(Struct, frozen=True):
    """The health of one device. ``message`` is shown in the pod's status; kubelet cuts it at 1024 bytes."""

    name: str
    healthy: bool
    message: str = ""


def health_of(devices: Iterable[Device], held: Iterable[str] = ()) -> tuple[ReportedHealth, ...]:
    """Return the health of all devices, by name. ``held``: devices of claims, which are unhealthy if they vanished."""
    known = {device.name: _reported(device) for device in devices}
    for name in held:
        known.setdefault(name, ReportedHealth(name, False, "the device is gone"))
    return tuple(known[name] for name in sorted(known))


def _reported(device: Device) -> ReportedHealth:
    if device.presence is Presence.PRESENT:
        return ReportedHealth(device.name, True)
    return ReportedHealth(device.name, False, device.reason or f"the device is {device.presence}")
