"""Decide when to ask kubelet: often while a hold may end, seldom otherwise, at once upon a hint."""

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
ABSENT_SECONDS = 5.0  # while a pod was missing once: the second round decides
LEAST_SECONDS = 0.2  # however short the seconds of `safety` are: kubelet's limiter allows 100 questions a second
IDLE_SECONDS = 60.0  # while nobody holds anything: only an unknown holder could appear

_HELD = frozenset({Owner.LEGACY, Owner.CONFLICT, Owner.QUARANTINE})


class EvidenceLoop:
    """Tells the ledger what kubelet says. ``enrich`` may add what other sources know (other_sources.py)."""

    def __init__(
        self,
        ledger_service: LedgerService,
        kubelet: KubeletEvidence,
        *,
        enrich: Callable[[events.Observed], Awaitable[events.Observed]] | None = None,
    ) -> None:
        self._ledger_service = ledger_service
        self._kubelet = kubelet
        self._enrich = enrich
        self._wake = WakeUp()
        self._urgent = False

    def changed(self) -> None:
        """Compute anew when the next round is due, because the ledger changed."""
        self._wake.set()

    def hurry(self) -> None:
        """Ask now: something hints that kubelet knows more than the ledger."""
        self._urgent = True
        self._wake.set()

    async def run(self) -> None:
        """Gather evidence again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._urgent = False
            await self.run_once()
            asked = loop.time()
            await asyncio.sleep(LEAST_SECONDS)  # however many hints there are
            while not self._urgent and (left := asked + self.pause_seconds() - loop.time()) > 0:
                await self._wake.wait(left)

    async def run_once(self) -> None:
        """Gather one round of evidence and apply it to the ledger."""
        observed = await self._kubelet.gather(self._ledger_service.ledger)
        if self._enrich is not None:
            observed = await self._enrich(observed)
        await self._ledger_service.apply(observed)

    def pause_seconds(self) -> float:
        """Return the seconds until the next round, from what the ledger knows."""
        policy = self._ledger_service.policy
        held = [entry for entry in self._ledger_service.ledger.entries.values() if entry.owner in _HELD]
        if any(entry.hold is not None and entry.hold.absences for entry in held):
            return min(ABSENT_SECONDS, max(policy.absent_seconds / 2, LEAST_SECONDS))
        return min(HELD_SECONDS, max(policy.min_hold_seconds, LEAST_SECONDS)) if held else IDLE_SECONDS
