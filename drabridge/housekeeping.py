"""What is due by time alone: tombstones, CDI files that nothing refers to any more, the heartbeat."""

from __future__ import annotations

import asyncio

from drabridge.inventory.model import Presence, device_id_of
from drabridge.ledger import events
from drabridge.ledger.advertise import must_list
from drabridge.runtime import Runtime

TICK_SECONDS = 3.0


class Housekeeping:
    """A slow tick. Everything here may be late; nothing here may be wrong."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def run(self) -> None:
        while True:
            self._runtime.beat = asyncio.get_running_loop().time()
            await self.tick()
            await asyncio.sleep(TICK_SECONDS)

    async def tick(self) -> None:
        await self._forget()
        self._runtime.legacy.learn()  # a device may have left its lane long enough ago to leave the list as well
        self._runtime.files.sweep(self._runtime.keeper.ledger)

    async def _forget(self) -> None:
        """Drop devices that are gone for good: unheld, unknown to the inventory, and quiescent at kubelet."""
        runtime = self._runtime
        if not runtime.inventory.current.complete:
            return
        known = runtime.inventory.current.by_name()
        recent = {device_id_of(unit) for unit in runtime.legacy.recent_ids}
        now = runtime.now()
        gone = [
            entry.name
            for entry in runtime.keeper.ledger.entries.values()
            if entry.device.presence is Presence.GONE
            and entry.name not in known
            and not must_list(entry, now, runtime.keeper.policy)
            and entry.device.id not in recent
        ]
        if gone:
            await runtime.keeper.apply(events.Forgotten(tuple(gone), now))
