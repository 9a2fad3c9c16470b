"""Move devices between the lanes of a running node: begin the moves of the plan, and follow each to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Container

from msgspec import Struct

from drabridge.lanes.acknowledgements import (
    CLAIMS_RETRY_SECONDS,
    ApiServerAcknowledgements,
    KubeletAcknowledgements,
    PublishedSlices,
)
from drabridge.lanes.desired import DesiredLanes
from drabridge.lanes.plan import seconds_until_replan, startable_without_slices
from drabridge.lanes.targets import LaneTargets
from drabridge.ledger.entries import Entry, Lane, WaitsFor
from drabridge.ledger.events import SetLane
from drabridge.ledger.service import LedgerService
from drabridge.system.supervise import WakeUp

GATHER_SECONDS = 0.02  # wait for further changes of the ledger, which are many; few of them concern lanes


class LaneMover(Struct, frozen=True):
    """Asks the ledger for every move that the plan wants, and fetches what the moves wait for.

    ``competing``: resources that another plugin also serves. ``changed`` is set when lanes must be looked at.
    """

    ledger_service: LedgerService
    targets: LaneTargets
    desired: DesiredLanes
    slices: PublishedSlices
    kubelet: KubeletAcknowledgements
    api_server: ApiServerAcknowledgements
    competing: Container[str]
    changed: WakeUp

    async def run(self) -> None:
        """Begin moves and follow them, until cancelled."""
        while True:
            await self._begin()
            pause = await self._follow_moves()
            if await self.changed.wait(pause):
                await asyncio.sleep(GATHER_SECONDS)

    async def _begin(self) -> None:
        """Ask the ledger for every change that the plan wants.

        A change that is not possible yet waits in the ledger.
        """
        service = self.ledger_service
        for resource in self.targets.resources():
            if (made := self.targets.plan(resource)) is None:
                continue
            begun = made.changes if self.slices.published else startable_without_slices(service.ledger, made.changes)
            for change in begun:
                await service.apply(SetLane(change.device, change.lane, service.now(), change.reason))
            if waiting := sum(change.lane is Lane.DRA for change in made.changes if change not in begun):
                made.notes.append(f"{waiting} more for the dra lane wait until slices can be published")
            self.desired.unmet[resource.name] = made.notes or self.targets.divided(made)

    async def _follow_moves(self) -> float | None:
        """Fetch the answers that entries wait for; return the seconds until the next attempt or plan, or None."""
        pauses: list[float] = []
        waiting: dict[WaitsFor | None, list[Entry]] = {}
        for entry in self.ledger_service.ledger.entries.values():
            waiting.setdefault(entry.waits_for, []).append(entry)
        leaving = [
            entry
            for entry in waiting.get(WaitsFor.KUBELET, ())
            if entry.device.resource not in self.competing  # the other plugin may offer the device again
        ]
        if leaving and self.slices.published:  # without slices the next plan may take these moves back
            pauses.append(await self.kubelet.fetch(leaving))
        if returning := waiting.get(WaitsFor.SLICES):
            await self.api_server.fetch_slices(returning)
            pauses.append(CLAIMS_RETRY_SECONDS)
        if quiet := waiting.get(WaitsFor.CLAIMS):
            pauses.append(await self.api_server.fetch_claims(quiet))
        if (left := seconds_until_replan(self.ledger_service.ledger, self.ledger_service.now())) is not None:
            pauses.append(left)
        return min(pauses, default=None)
