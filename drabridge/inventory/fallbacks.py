"""Tell when a resource's devices begin or stop getting ``cdiFallback``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drabridge.inventory.devices import Device, Snapshot
from drabridge.inventory.observer import FallbackGiven


def why_fallbacks(devices: Iterable[Device]) -> list[str]:
    """Say which resources get ``cdiFallback`` in place of CDI devices, and why."""
    whys: dict[str, str] = {}
    for device in devices:
        if device.cdi_missing and not no_driver(device):
            whys.setdefault(device.resource, device.cdi_missing)
    return [f"{resource}: cdiFallback is given, because {why}" for resource, why in whys.items()]


def not_given(devices: Iterable[Device]) -> dict[str, str]:
    """Return resource -> why the driver's files are missing, for devices that need them as their fallback."""
    return {device.resource: why for device in devices if (why := no_driver(device))}


def no_driver(device: Device) -> str:
    """Return why a device that needs the driver's files cannot get them; "" if it can, or needs none."""
    return device.fallback.no_driver if device.cdi_missing and device.fallback is not None else ""


class Fallbacks:
    """The last fact that was reported about each resource."""

    def __init__(self) -> None:
        self._said: dict[str, FallbackGiven] = {}

    def changes(self, snapshot: Snapshot) -> Iterator[FallbackGiven]:
        """Yield one fact for each resource whose fallback changed."""
        whys: dict[str, list[str]] = {}
        for device in snapshot.devices:
            if device.cdi_missing:
                whys.setdefault(device.resource, []).append(device.cdi_missing)
        lacking = not_given(snapshot.devices)
        now = {
            resource: FallbackGiven(resource, len(each), each[0], lacking.get(resource, ""))
            for resource, each in whys.items()
        }
        before, self._said = self._said, now
        for resource in {**before, **now}:
            fact = now.get(resource, FallbackGiven(resource, 0, ""))
            if fact != before.get(resource):
                yield fact
