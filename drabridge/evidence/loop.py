"""When to ask kubelet: often while a hold may end, seldom otherwise, at once when something hints at it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from drabridge.evidence.kubelet import KubeletEvidence
from drabridge.ledger import events
from drabridge.ledger.model import Owner
from drabridge.ledger.service import LedgerService
from drabridge.system.supervise import WakeUp

log = logging.getLogger(__name__)

HELD_SECONDS = 10.0  # while pods hold devices: they may end
ABSENT_SECONDS = 5.0  # while a hold was missing once: the second look decides
LEAST_SECONDS = 0.2  # however short the configured doubts are: kubelet's limiter allows 100 questions a second
IDLE_SECONDS = 60.0  # nobody holds anything: only a holder that we know nothing of could appear

_HELD = frozenset({Owner.LEGACY, Owner.CONFLICT, Owner.QUARANTINE})


class EvidenceLoop:
    """Feeds the ledger with what kubelet says. ``enrich`` may add what others know (the API server, a probe)."""

    def __init__(
        self,
        ledger_service: LedgerService,
        witness: KubeletEvidence,
        *,
        enrich: Callable[[events.Observed], Awaitable[events.Observed]] | None = None,
    ) -> None:
        self._ledger_service = ledger_service
        self._witness = witness
        self._enrich = enrich
        self._wake = WakeUp()
        self._urgent = False

    def changed(self) -> None:
        """The ledger changed: the next round may be due earlier than it was."""
        self._wake.set()

    def hurry(self) -> None:
        """Something hints that kubelet knows more than we do: ask now."""
        self._urgent = True
        self._wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._urgent = False
            await self.look()
            looked = loop.time()
            await asyncio.sleep(LEAST_SECONDS)  # however many hints there are
            while not self._urgent and (left := looked + self.pause_seconds() - loop.time()) > 0:
                await self._wake.wait(left)

    async def look(self) -> None:
        """One round of evidence."""
        observed = await self._witness.look(self._ledger_service.ledger)
        if self._enrich is not None:
            observed = await self._enrich(observed)
        await self._ledger_service.apply(observed)

    def pause_seconds(self) -> float:
        """Until the next round, from what the ledger knows."""
        policy = self._ledger_service.policy
        held = [entry for entry in self._ledger_service.ledger.entries.values() if entry.owner in _HELD]
        if any(entry.hold is not None and entry.hold.absences for entry in held):
            return min(ABSENT_SECONDS, max(policy.absent_seconds / 2, LEAST_SECONDS))
        return min(HELD_SECONDS, max(policy.min_hold_seconds, LEAST_SECONDS)) if held else IDLE_SECONDS
