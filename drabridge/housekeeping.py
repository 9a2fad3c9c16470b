"""What is due by time alone: tombstones, CDI files that nothing refers to any more or that somebody removed, another
try where a disk failed, a look for another plugin, the heartbeat.
"""

from __future__ import annotations

import asyncio
import logging

from drabridge.claims import ClaimSide
from drabridge.inventory.model import Presence, device_id_of
from drabridge.ledger import events
from drabridge.ledger.advertise import must_list
from drabridge.pages import Pages
from drabridge.rivals import Rivals
from drabridge.runtime import Runtime

log = logging.getLogger(__name__)

TICK_SECONDS = 3.0  # how long a disk that works again stays unnoticed; kubelet's own retries take longer


class Housekeeping:
    """A slow tick. Everything here may be late; nothing here may be wrong."""

    def __init__(self, runtime: Runtime, claims: ClaimSide, pages: Pages) -> None:
        self._runtime = runtime
        self._claims = claims
        self._pages = pages
        self._rivals = Rivals(runtime)
        self._said = False  # that CDI files cannot be written

    async def run(self) -> None:
        while True:
            self._runtime.beat = asyncio.get_running_loop().time()
            await self.tick()
            await asyncio.sleep(TICK_SECONDS)

    async def tick(self) -> None:
        self._runtime.keeper.retry()  # while a grant would fail nothing is offered, so nobody else tries
        self._look_after_files()
        await self._claims.try_records()
        await self._pages.renew()
        await self._forget()
        await self._end_lingering()
        self._runtime.legacy.learn()  # a device may have left its lane long enough ago to leave the list as well
        if self._runtime.keeper.ledger.node.merged:  # before, a file may be all that is known of a hold
            self._runtime.files.sweep(self._runtime.keeper.ledger)
        await self._rivals.look()

    def _look_after_files(self) -> None:
        """Kubelet and runtimes resolve CDI names for as long as pods live: what is missing is written again."""
        runtime = self._runtime
        failed = runtime.cdi.error
        if failed and not runtime.cdi.probe():
            if runtime.cdi_error and not self._said:
                log.error("CDI files cannot be written: no device is offered that needs one", extra={"reason": failed})
            self._said = True
            return
        if failed:
            log.info("CDI files can be written again", extra={"directory": str(runtime.cdi.directory)})
            self._claims.wake()
        self._said = False
        gone = runtime.cdi.missing()
        if gone:
            log.warning("CDI files were removed by somebody else; they are written again", extra={"files": gone})
        if (failed or gone) and runtime.keeper.ledger.node.merged:  # the merge does it, too
            runtime.files.restore(runtime.keeper.ledger, runtime.devices)
            self._claims.renew_files()

    async def _end_lingering(self) -> None:
        """Claims that were unprepared a grace period ago, or whose pods were seen to end after that."""
        runtime, pods, now = self._runtime, self._runtime.others.pods, self._runtime.now()
        holds = [held for entry in runtime.keeper.ledger.entries.values() for held in entry.claims if held.lingers]
        ends = {held.claim: held.lingers_until for held in holds}
        for claim, until in ends.items():
            ended = pods is not None and pods.saw_the_end(claim)
            if ended or until <= now:
                await runtime.keeper.apply(events.Unprepare(claim.uid, now, ended=ended))

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
