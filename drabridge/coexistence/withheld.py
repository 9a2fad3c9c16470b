"""The inventory without what other agents have, for the loop: their files are looked at in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from drabridge.coexistence.other_agents import OtherAgents, Piece
from drabridge.inventory.model import Device, Presence, Snapshot
from drabridge.ledger.model import Ledger, Owner
from drabridge.system.io_thread import IoThread

log = logging.getLogger(__name__)

GOODBYE_SECONDS = 0.5  # to say what stays held; of the 3 s in which SIGTERM is promised to end the agent
AGAIN_SECONDS = 3.0  # how long what has changed at another agent stays unnoticed


class WithheldDevices:
    """Asks :class:`OtherAgents`, and shows the snapshot by its last answer. Use from one loop."""

    def __init__(self, agents: OtherAgents) -> None:
        self._agents = agents
        self._files = IoThread("other-agents")
        self._withheld: Mapping[str, str] = {}
        self._shown: tuple[Snapshot, Mapping[str, str], Snapshot] | None = None

    @property
    def again_seconds(self) -> float | None:
        """When to ask again, though the inventory does not change; None: there is no need."""
        return AGAIN_SECONDS if self._withheld or self._agents.left else None

    def shown(self, snapshot: Snapshot) -> Snapshot:
        """By the last answer. The same object as long as neither has changed."""
        if self._shown is None or self._shown[0] is not snapshot or self._shown[1] is not self._withheld:
            self._shown = snapshot, self._withheld, without(snapshot, self._withheld)
        return self._shown[2]

    async def without(self, snapshot: Snapshot, ledger: Ledger) -> Snapshot:
        """Ask, and tell the others what is served here. Quarantine is no knowledge: who may hold it is not known."""

        def held(name: str) -> bool:
            entry = ledger.entries.get(name)
            return entry is not None and entry.owner not in (Owner.NONE, Owner.QUARANTINE)

        withheld = await self._files.run(lambda: self._agents.take(snapshot.devices, held))
        for why in sorted(set(withheld.values()).difference(self._withheld.values())):
            names = [name for name, reason in withheld.items() if reason == why]
            log.error("devices withheld", extra={"devices": names, "reason": why})
        if withheld != self._withheld:
            self._withheld = withheld
        return self.shown(snapshot)

    @property
    def left(self) -> Mapping[str, frozenset[Piece]]:
        """Driver that has ended -> what it left of devices that are here."""
        return self._agents.left

    async def keep(self) -> None:
        """Say again what was said last, where somebody removed it."""
        await self._files.run(self._agents.keep)

    async def forget(self, driver: str, free: Collection[Piece]) -> None:
        """Strike out what nobody has any more; it is served as soon as the others are asked again."""
        await self._files.run(lambda: self._agents.forget(driver, free))

    async def leave(self, ledger: Ledger, *, ended: bool) -> None:
        """Say what stays held, before a successor may have the ledger; ``ended``: by an orderly end, else nothing is
        said, as if this agent was killed. A disk that hangs is left to it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._files.run((lambda: self._agents.end(ledger)) if ended else self._agents.close)
        self._files.stop()


def without(snapshot: Snapshot, withheld: Mapping[str, str]) -> Snapshot:
    """The snapshot, with what is withheld as faulty, and why."""
    if not withheld:
        return snapshot
    return replace(snapshot, devices=tuple(_withhold(device, withheld) for device in snapshot.devices))


def _withhold(device: Device, withheld: Mapping[str, str]) -> Device:
    why = withheld.get(device.name)
    if why is None or device.presence is Presence.GONE:
        return device
    return replace(device, presence=Presence.FAULTY, reason="; ".join(filter(None, (why, device.reason))))
