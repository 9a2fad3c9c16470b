"""Keep the udev devices of the scope up to date: enumerate, look again, forget."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from drabridge.inventory.udev import Pass, Udev
from drabridge.inventory.udev_device import UdevDevice

UNFINISHED_SECONDS = 2.0
"""How long to wait for a device's entry in udevd's database. A device without number, link, tag and property never gets
an entry (systemd device_should_have_db)."""


class UdevCache:
    """The devices that udev shows, by syspath. A device that did not change stays the same object."""

    def __init__(self, udev: Udev) -> None:
        self._udev = udev
        self._first_seen: dict[str, float] = {}
        self.devices: dict[str, UdevDevice] = {}
        self.reported_by_udevd: set[str] = set()  # syspaths that udevd has reported

    def enumerate(self) -> set[str]:
        """Look at everything; return the syspaths that changed, came or went."""
        found = self._udev.enumerate()
        gone = self.devices.keys() - found.keys()
        for syspath in gone:
            self._forget(syspath)
        changed = {syspath for syspath, device in found.items() if self._accept(device)}
        self.devices = {syspath: self.devices[syspath] for syspath in found}
        return changed | gone

    def check(self, syspaths: Iterable[str]) -> set[str]:
        """Look at these devices and at the known ones below them; return the syspaths that changed."""
        touched = set()
        shared = Pass()
        for syspath in dict.fromkeys(path for top in sorted(syspaths) for path in (top, *self._below(top))):
            device = self._udev.read(syspath, shared)
            if device is not None and self._in_scope(device):
                if self._accept(device):
                    touched.add(syspath)
            elif syspath in self.devices:
                self._forget(syspath)
                touched.add(syspath)
        return touched

    def remove(self, syspath: str, *, alone: bool) -> set[str]:
        """Forget a device, and all below it unless ``alone``; return the forgotten syspaths."""
        gone = {syspath} if alone else {syspath, *self._below(syspath)}
        for path in gone:
            self._forget(path)
        return gone

    def note_first_seen(self, now: float) -> None:
        """Record ``now`` as the first time for new devices."""
        for syspath in self.devices.keys() - self._first_seen.keys():
            self._first_seen[syspath] = now

    def finished(self, device: UdevDevice, now: float) -> bool:
        """Whether udevd has finished with a device, or has had ``UNFINISHED_SECONDS`` to do so."""
        if device.initialized or device.syspath in self.reported_by_udevd:
            return True
        return now - self._first_seen[device.syspath] >= UNFINISHED_SECONDS

    def _below(self, syspath: str) -> list[str]:
        prefix = syspath + "/"
        return sorted(path for path in self.devices if path.startswith(prefix))

    def _in_scope(self, device: UdevDevice) -> bool:
        return not self._udev.scope.subsystems or device.subsystem in self._udev.scope.subsystems

    def _accept(self, device: UdevDevice) -> bool:
        """Keep a device; return whether it is new or changed. An unchanged one stays the old object."""
        old = self.devices.get(device.syspath)
        if old is not None and old.initialized and not device.initialized:
            # udevd's database is gone (udevd restarted on an empty /run); what it said of this hardware is still true
            device = replace(
                device,
                properties={**old.properties, **device.properties},
                devlinks=old.devlinks,
                tags=old.tags,
                initialized=True,
            )
        if device == old:
            return False
        self.devices[device.syspath] = device
        return True

    def _forget(self, syspath: str) -> None:
        self.devices.pop(syspath, None)
        self._first_seen.pop(syspath, None)
        self.reported_by_udevd.discard(syspath)
