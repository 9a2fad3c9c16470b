"""Keep the CDI files of devices that pods hold: restore them, follow the device, remove them.

Kubelet repeats the names of an Allocate for the pod's whole life without asking again, so the files behind the names
must say what they mean now. A device that is plugged in again may have another number. While it is away, another device
may have its old number. The same is true while a driver that resets has removed a node. So the file is removed with the
device and comes back with it. A container that starts in between fails, because its CDI name cannot be resolved, and
kubelet tries again. The container never gets another device.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.errors import HostError
from drabridge.inventory.devices import Device, Presence
from drabridge.ledger.entries import Entry, Ledger, Owner

log = logging.getLogger(__name__)


class LegacyCdiFiles:
    """Keeps the files up to date between the calls of Allocate, which writes its own.

    The methods wait for a disk: never call them on the loop, except those that end in ``_soon``.
    """

    def __init__(self, cdi: CdiStore) -> None:
        self._cdi = cdi
        self._seen: dict[str, Device] = {}

    def restore_soon(self, ledger: Ledger, devices: Mapping[str, Device]) -> None:
        """Do :meth:`restore` in the thread of the CDI directory."""
        self._cdi.thread.submit_latest("restore CDI files", lambda: self.restore(ledger, devices))

    def follow_soon(self, ledger: Ledger, devices: Mapping[str, Device]) -> None:
        """Do :meth:`follow` in the thread of the CDI directory."""
        self._cdi.thread.submit_latest("follow devices", lambda: self.follow(ledger, devices))

    def sweep_soon(self, ledger: Ledger) -> None:
        """Do :meth:`sweep` in the thread of the CDI directory; a later Allocate writes after it."""
        self._cdi.thread.submit_latest("sweep CDI files", lambda: self.sweep(ledger))

    def restore(self, ledger: Ledger, devices: Mapping[str, Device]) -> None:
        """Write the files of held devices that are present, and remove the others. At start: a boot empties /var/run.

        The file of a faulty held device stays if it still says what the device has.
        """
        here = [device for device in _held(ledger, devices) if device.presence is Presence.PRESENT]
        doubtful = {
            device.name
            for device in _held(ledger, devices)
            if device.presence is Presence.FAULTY and self._cdi.has(self._cdi.legacy_spec(device))
        }
        self._seen = dict(devices)
        try:
            self._cdi.regenerate(Family.LEGACY, [self._cdi.legacy_spec(device) for device in here], keep=doubtful)
        except HostError as error:
            log.error("CDI files could not be written", extra={"reason": str(error)})

    def follow(self, ledger: Ledger, devices: Mapping[str, Device]) -> None:
        """Bring the files of held devices up to date after a change of the inventory."""
        before, self._seen = self._seen, dict(devices)
        for device in _held(ledger, devices):
            if before.get(device.name) == device:
                continue
            try:
                self._update(device)
            except HostError as error:
                log.error("CDI file could not be updated", extra={"device": device.name, "reason": str(error)})

    def sweep(self, ledger: Ledger) -> None:
        """Remove the files of devices that no pod can hold any more."""
        try:
            for name in self._cdi.keys(Family.LEGACY):
                entry = ledger.entries.get(name)
                if entry is None or not _may_be_held(entry):
                    self._cdi.remove(Family.LEGACY, name)
        except HostError as error:
            log.warning("CDI files could not be removed", extra={"reason": str(error)})

    def _update(self, device: Device) -> None:
        match device.presence:
            case Presence.PRESENT:
                self._cdi.write(self._cdi.legacy_spec(device))
            case Presence.GONE:
                self._cdi.remove(Family.LEGACY, device.name)
            case Presence.FAULTY:  # the file stays true after a failed health rule, but not after a lost node
                if not self._cdi.has(self._cdi.legacy_spec(device)):
                    self._cdi.remove(Family.LEGACY, device.name)


def _may_be_held(entry: Entry) -> bool:
    return entry.hold is not None or entry.owner is Owner.QUARANTINE


def _held(ledger: Ledger, devices: Mapping[str, Device]) -> Iterable[Device]:
    return [devices[entry.name] for entry in ledger.entries.values() if _may_be_held(entry) and entry.name in devices]
