"""When to ask kubelet: often while a hold may end, seldom otherwise, at once when something hints at it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from drabridge.evidence.witness import Witness
from drabridge.ledger import events
from drabridge.ledger.model import Ledger, Owner
from drabridge.ledger.outcome import Decision
from drabridge.tasks import Signal

log = logging.getLogger(__name__)

HELD_SECONDS = 10.0  # while pods hold devices: they may end
ABSENT_SECONDS = 5.0  # while a hold was missing once: the second look decides
IDLE_SECONDS = 60.0  # nobody holds anything: only a holder that we know nothing of could appear

_HELD = frozenset({Owner.LEGACY, Owner.CONFLICT, Owner.QUARANTINE})


class Keeper(Protocol):
    @property
    def ledger(self) -> Ledger: ...

    async def apply(self, event: events.Event) -> Decision: ...


class EvidenceLoop:
    """Feeds the ledger with what kubelet says. ``enrich`` may add what others know (the API server, a probe)."""

    def __init__(
        self,
        keeper: Keeper,
        witness: Witness,
        *,
        enrich: Callable[[events.Observed], Awaitable[events.Observed]] | None = None,
    ) -> None:
        self._keeper = keeper
        self._witness = witness
        self._enrich = enrich
        self.wake = Signal()

    async def run(self) -> None:
        while True:
            await self.look()
            await self.wake.wait(self.pause_seconds())

    async def look(self) -> None:
        """One round of evidence."""
        observed = await self._witness.look(self._keeper.ledger)
        if self._enrich is not None:
            observed = await self._enrich(observed)
        await self._keeper.apply(observed)

    def pause_seconds(self) -> float:
        """Until the next round, from what the ledger knows."""
        held = [entry for entry in self._keeper.ledger.entries.values() if entry.owner in _HELD]
        if any(entry.hold is not None and entry.hold.absences for entry in held):
            return ABSENT_SECONDS
        return HELD_SECONDS if held else IDLE_SECONDS
