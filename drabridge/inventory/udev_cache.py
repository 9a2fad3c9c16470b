"""The records of all wanted devices, kept up to date: enumerated, looked at again, forgotten."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from drabridge.inventory.udev import Udev
from drabridge.inventory.udev_device import UdevDevice

UNFINISHED_SECONDS = 2.0
"""How long a device without an entry in udevd's database is waited for. Some never get one: those without number,
link, tag and property (systemd device_should_have_db)."""


class UdevCache:
    """What udev shows, by syspath. A record that did not change stays the same object."""

    def __init__(self, udev: Udev) -> None:
        self._udev = udev
        self._first_seen: dict[str, float] = {}
        self.devices: dict[str, UdevDevice] = {}
        self.reported_by_udevd: set[str] = set()  # syspaths that udevd has reported

    def enumerate(self) -> set[str]:
        """Look at everything; the syspaths that changed, came or went."""
        found = self._udev.enumerate()
        gone = self.devices.keys() - found.keys()
        for syspath in gone:
            self._forget(syspath)
        changed = {syspath for syspath, record in found.items() if self._accept(record)}
        self.devices = {syspath: self.devices[syspath] for syspath in found}
        return changed | gone

    def check(self, syspaths: Iterable[str]) -> set[str]:
        """Look at these devices, and at the known ones below them, whose ancestors they are."""
        touched = set()
        shared: dict[str, UdevDevice | None] = {}
        for syspath in dict.fromkeys(path for top in sorted(syspaths) for path in (top, *self._below(top))):
            record = self._udev.read(syspath, shared)
            if record is not None and self._in_scope(record):
                if self._accept(record):
                    touched.add(syspath)
            elif syspath in self.devices:
                self._forget(syspath)
                touched.add(syspath)
        return touched

    def remove(self, syspath: str, *, alone: bool) -> set[str]:
        """Believe that a device is gone, with all below it unless ``alone``; the syspaths that are forgotten."""
        gone = {syspath} if alone else {syspath, *self._below(syspath)}
        for path in gone:
            self._forget(path)
        return gone

    def note_first_seen(self, now: float) -> None:
        """Remember since when the new records are here."""
        for syspath in self.devices.keys() - self._first_seen.keys():
            self._first_seen[syspath] = now

    def finished(self, record: UdevDevice, now: float) -> bool:
        """Whether udevd has said all that it will say about a device."""
        if record.initialized or record.syspath in self.reported_by_udevd:
            return True
        return now - self._first_seen[record.syspath] >= UNFINISHED_SECONDS

    def _below(self, syspath: str) -> list[str]:
        prefix = syspath + "/"
        return sorted(path for path in self.devices if path.startswith(prefix))

    def _in_scope(self, record: UdevDevice) -> bool:
        return not self._udev.scope.subsystems or record.subsystem in self._udev.scope.subsystems

    def _accept(self, record: UdevDevice) -> bool:
        """Keep a record unless it says what we know already: then the old object stays, and all that was made of it."""
        old = self.devices.get(record.syspath)
        if old is not None and old.initialized and not record.initialized:
            # udevd's database is gone (it restarted on an empty /run); what it said of this hardware is still true
            record = replace(
                record,
                properties={**old.properties, **record.properties},
                devlinks=old.devlinks,
                tags=old.tags,
                initialized=True,
            )
        if record == old:
            return False
        self.devices[record.syspath] = record
        return True

    def _forget(self, syspath: str) -> None:
        self.devices.pop(syspath, None)
        self._first_seen.pop(syspath, None)
        self.reported_by_udevd.discard(syspath)
