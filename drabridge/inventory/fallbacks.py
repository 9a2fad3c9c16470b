"""Tell when the CDI fallback of a resource begins or ends to be given. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drabridge.inventory.facts import FallbackGiven
from drabridge.inventory.model import Device, Snapshot


def why_fallbacks(devices: Iterable[Device]) -> list[str]:
    """Say which resources get ``cdiFallback`` in place of CDI devices, and why."""
    whys: dict[str, str] = {}
    for device in devices:
        if device.cdi_missing and not no_driver(device):
            whys.setdefault(device.resource, device.cdi_missing)
    return [f"{resource}: cdiFallback is given, because {why}" for resource, why in whys.items()]


def not_given(devices: Iterable[Device]) -> dict[str, str]:
    """Say why devices of a resource need their fallback, and the driver's files that belong to it are missing."""
    return {device.resource: why for device in devices if (why := no_driver(device))}


def no_driver(device: Device) -> str:
    """Return why the driver's files cannot be given with a device, which needs them; "" while all is well."""
    return device.fallback.no_driver if device.cdi_missing and device.fallback is not None else ""


class Fallbacks:
    """What was said of each resource last."""

    def __init__(self) -> None:
        self._said: dict[str, FallbackGiven] = {}

    def changes(self, snapshot: Snapshot) -> Iterator[FallbackGiven]:
        """Return one fact for each resource of which there is news."""
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
