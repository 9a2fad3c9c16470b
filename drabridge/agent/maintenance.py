"""What is due by time alone: tombstones, CDI files that nothing refers to any more or that somebody removed, another
try where a disk failed, a look for another plugin, what other agents said and are told, the heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from drabridge.agent.endpoints import Pages
from drabridge.agent.runtime import Runtime
from drabridge.coexistence.competing_plugins import Rivals
from drabridge.coexistence.ended_agents import LeftBehind
from drabridge.dra.lifecycle import ClaimSide
from drabridge.inventory.model import Presence, device_id_of
from drabridge.ledger import events
from drabridge.ledger.eligibility import must_list

log = logging.getLogger(__name__)

TICK_SECONDS = 3.0  # how long a disk that works again stays unnoticed; kubelet's own retries take longer


class Housekeeping:
    """A slow tick. Everything here may be late; nothing here may be wrong."""

    def __init__(self, runtime: Runtime, claims: ClaimSide, pages: Pages) -> None:
        self._runtime = runtime
        self._claims = claims
        self._pages = pages
        self._rivals = Rivals(runtime)
        self._left = LeftBehind(runtime, claims)
        self._said = False  # that CDI files cannot be written

    async def run(self) -> None:
        """What waits for a disk keeps nothing else waiting."""
        async with asyncio.TaskGroup() as group:
            for work in (
                *(self._beat, self.tick, self._end_lingering, self._look_after_files, self._claims.try_records),
                *(self._runtime.guard.keep, self._left.look),
            ):
                group.create_task(_again_and_again(work))

    async def _beat(self) -> None:
        self._runtime.beat = asyncio.get_running_loop().time()

    async def tick(self) -> None:
        runtime = self._runtime
        runtime.ledger_service.retry_write()  # while a grant would fail nothing is offered, so nobody else tries
        await self._pages.renew()
        runtime.legacy.learn()  # a device may have left its lane long enough ago to leave the list as well
        if runtime.ledger_service.ledger.node.merged:  # before, a file may be all that is known of a hold
            runtime.files.sweep_soon(runtime.ledger_service.ledger)
        await self._rivals.look()
        await self._forget()

    async def _look_after_files(self) -> None:
        """Kubelet and runtimes resolve CDI names for as long as pods live: what is missing is written again."""
        runtime = self._runtime
        failed = runtime.cdi.error
        if failed and not await runtime.cdi.thread.promptly(runtime.cdi.probe):
            if runtime.cdi_error and not self._said:
                log.error("CDI files cannot be written: no device is offered that needs one", extra={"reason": failed})
            self._said = True
            return
        if failed:
            log.info("CDI files can be written again", extra={"directory": str(runtime.cdi.directory)})
            self._claims.wake()
        self._said = False
        gone = await runtime.cdi.thread.promptly(runtime.cdi.missing)
        if gone:
            log.warning("CDI files were removed by somebody else; they are written again", extra={"files": gone})
        if (failed or gone) and runtime.ledger_service.ledger.node.merged:  # the merge does it, too
            runtime.files.restore_soon(runtime.ledger_service.ledger, runtime.devices)
            self._claims.renew_files()

    async def _end_lingering(self) -> None:
        """Claims that were unprepared a grace period ago, or whose pods were seen to end after that."""
        runtime, pods, now = self._runtime, self._runtime.other_evidence.pods, self._runtime.now()
        holds = [
            held for entry in runtime.ledger_service.ledger.entries.values() for held in entry.claims if held.lingers
        ]
        ends = {held.claim: held.lingers_until for held in holds}
        for claim, until in ends.items():
            ended = pods is not None and pods.saw_the_end(claim)
            if ended or until <= now:
                await runtime.ledger_service.apply(events.Unprepare(claim.uid, now, ended=ended))

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
            for entry in runtime.ledger_service.ledger.entries.values()
            if entry.device.presence is Presence.GONE
            and entry.name not in known
            and not must_list(entry, now, runtime.ledger_service.policy)
            and entry.device.id not in recent
        ]
        if gone:
            await runtime.ledger_service.apply(events.Forgotten(tuple(gone), now))


async def _again_and_again(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await work()
        await asyncio.sleep(TICK_SECONDS)
