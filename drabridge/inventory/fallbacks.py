"""Tell when the CDI fallback of a resource begins or ends to be given. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drabridge.inventory.facts import FallbackGiven
from drabridge.inventory.model import Device, Snapshot


def why_fallbacks(devices: Iterable[Device]) -> list[str]:
    """Say which resources get ``cdiFallback`` in place of CDI devices, and why."""
    whys: dict[str, str] = {}
    for device in devices:
        if device.cdi_missing:
            whys.setdefault(device.resource, device.cdi_missing)
    return [f"{resource}: cdiFallback is given, because {why}" for resource, why in whys.items()]


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
        now = {resource: FallbackGiven(resource, len(each), each[0]) for resource, each in whys.items()}
        before, self._said = self._said, now
        for resource in {**before, **now}:
            fact = now.get(resource, FallbackGiven(resource, 0, ""))
            if fact != before.get(resource):
                yield fact
