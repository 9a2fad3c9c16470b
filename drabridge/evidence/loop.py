"""Decide when to ask kubelet: often while a hold may end or its pod is unknown, at once after a hint, else seldom."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping

from drabridge.evidence.kubelet import KubeletEvidence
from drabridge.ledger import events
from drabridge.ledger.entries import Hold, Owner
from drabridge.ledger.proofs import End
from drabridge.ledger.release_rule import end_of_hold
from drabridge.ledger.service import LedgerService
from drabridge.system.supervise import WakeUp

log = logging.getLogger(__name__)

HELD_SECONDS = 10.0  # while pods hold devices: they may end
ABSENT_SECONDS = 5.0  # while a pod was missing once: the second round decides
LEAST_SECONDS = 0.2  # however short the seconds of `safety` are: kubelet's limiter allows 100 questions a second
LONGER = 1.5  # the factor from one pause to the next, while kubelet does not give the expected answer yet
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
        self._eager_seconds = LEAST_SECONDS  # the pause while kubelet has not given an expected answer yet
        self._asked_at = 0.0  # the last round, wall seconds
        self._ends: Mapping[str, End] = {}  # as the last round had them

    def changed(self) -> None:
        """Compute again when the next round is due, because the ledger changed. After an Allocate it is due at once."""
        if any(hold.allocated_at >= self._asked_at for hold in self._unidentified()):
            self.hurry()
        self._wake.set()

    def hurry(self) -> None:
        """Ask now: something hints that kubelet knows more than the ledger."""
        self._urgent = True
        self._eager_seconds = LEAST_SECONDS
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
            self._eager_seconds = LEAST_SECONDS if self._urgent else min(self._eager_seconds * LONGER, HELD_SECONDS)

    async def run_once(self) -> None:
        """Gather one round of evidence and apply it to the ledger."""
        self._asked_at = self._ledger_service.now()
        observed = await self._kubelet.gather(self._ledger_service.ledger)
        if self._enrich is not None:
            observed = await self._enrich(observed)
        self._ends = observed.ends
        await self._ledger_service.apply(observed)

    def pause_seconds(self) -> float:
        """Return the seconds until the next round, from what the ledger knows."""
        policy = self._ledger_service.policy
        held = [entry for entry in self._ledger_service.ledger.entries.values() if entry.owner in _HELD]
        if not held:
            return IDLE_SECONDS
        pause = min(HELD_SECONDS, max(policy.min_hold_seconds, LEAST_SECONDS))
        if any(entry.hold is not None and entry.hold.absences for entry in held):
            pause = min(ABSENT_SECONDS, max(policy.absent_seconds / 2, LEAST_SECONDS))
        expects = any(self._unidentified()) or any(self._has_ended(entry.hold) for entry in held)
        return min(pause, self._eager_seconds) if expects else pause

    def _has_ended(self, hold: Hold | None) -> bool:
        """Whether the end of the hold is proven, and only kubelet shows its pods yet."""
        return hold is not None and end_of_hold(hold, self._ends).proves

    def _unidentified(self) -> Iterator[Hold]:
        """Yield the holds whose pod kubelet's checkpoint has not named.

        Without its UID, no end of a pod proves anything. Once the pod has ended, it is too late to ask. A device in
        quarantine is left out: no pod's end proves anything about it.
        """
        for entry in self._ledger_service.ledger.entries.values():
            hold = entry.hold
            if (
                entry.owner is not Owner.QUARANTINE
                and hold is not None
                and not (hold.recorded and all(pod.name for pod in hold.pods))
            ):
                yield hold
