"""Keep the list of devices over time: a gone device stays for a while, and as long as it may be held. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from drabridge.inventory.devices import Collision, Device, Presence, Snapshot
from drabridge.inventory.identity import Key
from drabridge.system import safety_defaults

TOMBSTONE_SECONDS = safety_defaults.TOMBSTONE_SECONDS
"""How long a device stays listed as GONE after it went, although nobody holds it.

Kubelet 1.36.2 dereferences its record of every id in a finished Allocate: if an id leaves the list while its Allocate
is in flight, kubelet crashes. One minute is longer than any Allocate and the poll that then shows the pod.
"""

_NONE: Mapping[Key, str] = MappingProxyType({})
_GONE = "it is unplugged, or no rule matches it any more"


class DeviceTracker:
    """Turns successive sets of devices into versioned snapshots. ``held(name)`` says whether somebody may hold it."""

    def __init__(self, held: Callable[[str], bool], tombstone_seconds: float = TOMBSTONE_SECONDS) -> None:
        self._held = held
        self._tombstone_seconds = tombstone_seconds
        self._gone_since: dict[str, float] = {}
        self.current = Snapshot(version=0, complete=False)

    def known_ids(self) -> dict[Key, str]:
        """Return the ids of devices that are here, or gone and not yet forgotten, by resource and syspath.

        If there are two devices at one place, the held one counts: its holder may still have it.
        """
        found: dict[Key, Device] = {}
        for device in self.current.devices:
            other = found.get((device.resource, device.syspath))
            if other is None or not self._held(other.name):
                found[device.resource, device.syspath] = device
        return {key: device.id for key, device in found.items()}

    def update(
        self,
        devices: Iterable[Device],
        collisions: Iterable[Collision],
        resources: Sequence[str],
        now: float,
        away: Mapping[Key, str] = _NONE,
    ) -> Snapshot | None:
        """Take the devices that exist now; return the new snapshot when it differs from the last one, else None.

        ``resources``: the configuration's resource names, whose order is the snapshot's. ``away``: for hardware that is
        no device any more, a better reason than "gone", by resource and syspath.
        """
        here = {device.name: device for device in devices}
        collisions = tuple(collisions)
        withheld = {(c.resource, path): str(c) for c in collisions for path in c.syspaths} | dict(away)
        for name in here:
            self._gone_since.pop(name, None)
        kept = []
        for device in self.current.devices:
            if device.name in here:
                continue
            since = self._gone_since.setdefault(device.name, now)
            if now - since < self._tombstone_seconds or self._held(device.name):
                reason = withheld.get((device.resource, device.syspath), _GONE)
                kept.append(replace(device, presence=Presence.GONE, reason=reason))
            else:
                del self._gone_since[device.name]
        rank = {name: index for index, name in enumerate(resources)}
        everything = sorted(
            [*here.values(), *kept],
            key=lambda device: (rank.get(device.resource, len(rank)), device.resource, device.syspath, device.name),
        )
        return self._publish(tuple(everything), collisions)

    def next_expiry(self, now: float) -> float | None:
        """Return when the next gone device may be forgotten. Overdue ones are held: ask again after their release."""
        ends = [since + self._tombstone_seconds for since in self._gone_since.values()]
        return min((end for end in ends if end > now), default=None)

    def _publish(self, devices: tuple[Device, ...], collisions: tuple[Collision, ...]) -> Snapshot | None:
        last = self.current
        if last.complete and (devices, collisions) == (last.devices, last.collisions):
            return None
        self.current = Snapshot(last.version + 1, devices, collisions)
        return self.current
