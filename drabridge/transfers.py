"""Moving free devices between the lanes of a running node: what is wanted, and the acknowledgements it needs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from drabridge.errors import ConfigError
from drabridge.inventory.model import Snapshot
from drabridge.ledger import Lane, MoveStep, Withdrawn
from drabridge.ledger.model import Entry
from drabridge.runtime import Runtime
from drabridge.status import Document
from drabridge.tasks import Signal

log = logging.getLogger(__name__)

DELIVERY_SECONDS = 2.0  # kubelet reads a list within milliseconds; if not, it restarts
RETRY_SECONDS = 0.05  # between questions to kubelet while a move waits for its answer (its limiter: 100 a second)


class Transfers:
    """Drives moves that the ledger has begun; the ledger decides, this only fetches what it waits for."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.wake = Signal()

    def first_lanes(self, snapshot: Snapshot) -> Mapping[str, Lane]:
        """Where devices start that the ledger has never seen."""
        return {}

    async def set_lanes(self, body: bytes) -> Document:
        """The operator's wish, as ``drabridge lanes set`` sends it."""
        raise ConfigError("not yet")

    async def run(self) -> None:
        while True:
            waiting = self._revoking()
            await self.wake.wait(RETRY_SECONDS if waiting else None)
            if waiting := self._revoking():
                await self._acknowledge(waiting)

    def _revoking(self) -> list[Entry]:
        """Devices that kubelet may still give out, and should not."""
        return [
            entry
            for entry in self._runtime.keeper.ledger.entries.values()
            if entry.lane is Lane.LEGACY_TO_DRA and entry.move is not None and entry.move.step is MoveStep.REVOKING
        ]

    async def _acknowledge(self, waiting: list[Entry]) -> None:
        """Ask kubelet what it would still give out. No Allocate may be open before, during or after the question."""
        runtime = self._runtime
        since = runtime.keeper.ledger.seq
        if not await runtime.legacy.delivered({entry.device.resource for entry in waiting}, DELIVERY_SECONDS):
            return
        busy = set(runtime.legacy.busy_ids)
        offered = await runtime.witness.allocatable()
        if offered is None:
            return
        busy |= runtime.legacy.busy_ids
        for entry in waiting:
            units = set(entry.device.units)
            if units.isdisjoint(offered) and units.isdisjoint(busy):
                await runtime.keeper.apply(Withdrawn(entry.name, since, runtime.now()))
