"""Withhold the devices that other agents have, or that the host uses, from this agent's inventory.

The files about these devices are read in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec.structs import replace

from drabridge.coexistence.hardware import KnownDevice
from drabridge.coexistence.host_mounts import HostMounts, numbers_of
from drabridge.coexistence.other_agents import OtherAgents
from drabridge.inventory.devices import Device, Presence, Snapshot
from drabridge.ledger.entries import Ledger, Owner
from drabridge.system.io_thread import IoThread

log = logging.getLogger(__name__)

NotForVfio = Callable[[Iterable[Device], Callable[[str], bool]], Mapping[str, str]]

LEAVE_SECONDS = 0.5  # to write what stays held; part of the 3 s in which SIGTERM ends the agent
ASK_AGAIN_SECONDS = 3.0  # the longest time for which a change at another agent stays unnoticed


def _none(devices: Iterable[Device], held: Callable[[str], bool]) -> Mapping[str, str]:
    return {}


class WithheldDevices:
    """Asks :class:`OtherAgents` and :class:`HostMounts`, and shows the snapshot without what they withheld last.

    Use from one loop.
    """

    def __init__(self, agents: OtherAgents, mounts: HostMounts | None = None) -> None:
        self._agents = agents
        self._mounts = mounts or HostMounts()
        self._changes = False  # whether the host's use matters for a device; a change of use causes no event
        self._files = IoThread("other-agents")
        self._withheld: Mapping[str, str] = {}
        self._shown: tuple[Snapshot, Mapping[str, str], Snapshot] | None = None

    @property
    def again_seconds(self) -> float | None:
        """Return the seconds until others must be asked again even if the inventory does not change; None: never."""
        return ASK_AGAIN_SECONDS if self._withheld or self._agents.left or self._changes else None

    def shown(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with withheld devices as faulty; the same object while nothing has changed."""
        if self._shown is None or self._shown[0] is not snapshot or self._shown[1] is not self._withheld:
            self._shown = snapshot, self._withheld, _without(snapshot, self._withheld)
        return self._shown[2]

    async def update(
        self, snapshot: Snapshot, ledger: Ledger, mounted: Collection[str] = (), not_for_vfio: NotForVfio = _none
    ) -> Snapshot:
        """Read what the others serve and write what this agent serves; return :meth:`shown`.

        A device in quarantine does not count as held here: its holder is not known. ``mounted``: resources whose
        devices are offered even if the host uses them. ``not_for_vfio``: see VfioBinder.why_not.
        """

        def held(name: str) -> bool:
            entry = ledger.entries.get(name)
            return entry is not None and entry.owner not in (Owner.NONE, Owner.QUARANTINE)

        disks = [one for one in snapshot.devices if one.resource not in mounted and numbers_of(one)]

        def look() -> Mapping[str, str]:
            used = dict(self._mounts.used(one for one in disks if not held(one.name)))
            not_for_vms = not_for_vfio(snapshot.devices, held)
            self._changes = bool(disks or not_for_vms)
            used |= {name: why for name, why in not_for_vms.items() if why}
            return {**used, **self._agents.announce(snapshot.devices, held)}

        withheld = await self._files.run(look)
        for why in sorted(set(withheld.values()).difference(self._withheld.values())):
            names = [name for name, reason in withheld.items() if reason == why]
            log.error("devices withheld", extra={"devices": names, "reason": why})
        if withheld != self._withheld:
            self._withheld = withheld
        return self.shown(snapshot)

    @property
    def left(self) -> Mapping[str, frozenset[KnownDevice]]:
        """Return ended driver -> its devices that overlap our devices."""
        return self._agents.left

    async def restore_file(self) -> None:
        """Write our file again if somebody removed it."""
        await self._files.run(self._agents.restore_file)

    async def strike_out(self, driver: str, free: Collection[KnownDevice]) -> None:
        """Remove ``free`` from an ended agent's file. These devices are served after the next :meth:`update`."""
        await self._files.run(lambda: self._agents.strike_out(driver, free))

    async def leave(self, ledger: Ledger, *, ended: bool) -> None:
        """Write for other agents which devices stay held, before a successor gets the ledger. Takes 0.5 s at most.

        ``ended``: this is an orderly end. Otherwise nothing is written, as if this agent had been killed.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._files.run((lambda: self._agents.end(ledger)) if ended else self._agents.close)
        self._files.stop()


def _without(snapshot: Snapshot, withheld: Mapping[str, str]) -> Snapshot:
    """Return the snapshot with withheld devices as faulty. ``withheld``: device name -> why."""
    if not withheld:
        return snapshot
    return replace(snapshot, devices=tuple(_withhold(device, withheld) for device in snapshot.devices))


def _withhold(device: Device, withheld: Mapping[str, str]) -> Device:
    why = withheld.get(device.name)
    if why is None or device.presence is Presence.GONE:
        return device
    return replace(device, presence=Presence.FAULTY, reason="; ".join(filter(None, (why, device.reason))))
