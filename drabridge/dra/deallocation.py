"""Learns that a claim which no container uses has been deallocated, so that its devices become free.

A claim's devices are free when kubelet has unprepared it *and* the API server has taken the allocation back, which
happens a moment later and is announced to nobody on the node. Watching all claims of a cluster from every node would
cost an API server more than asking about the few claims that this node waits for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator

from drabridge.errors import DrabridgeError
from drabridge.kube.api import backoff
from drabridge.ledger.model import ClaimPhase, ClaimRef, Ledger
from drabridge.ledger.service import LedgerService
from drabridge.system.supervise import WakeUp
from drabridge.system.untrusted import reading

log = logging.getLogger(__name__)

FIRST_SECONDS = 0.5  # the resourceclaim controller deallocates within a second of the pod's end
MOST_SECONDS = 60.0  # a claim that stays allocated waits for a pod; there is no hurry


class DeallocationPoller:
    """Asks about idle claims, each with its own back-off."""

    def __init__(self, ledger_service: LedgerService, ask: Callable[[ClaimRef], Awaitable[bool]]) -> None:
        """``ask`` returns whether the claim turned out to be deallocated; it tells the ledger itself."""
        self._ledger_service = ledger_service
        self._ask = ask
        self._due: dict[ClaimRef, tuple[float, Iterator[float]]] = {}
        self._wake = WakeUp()

    def wake(self) -> None:
        """The ledger changed."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            now = time.monotonic()
            idle = idle_claims(self._ledger_service.ledger)
            for claim in idle - self._due.keys():
                delays = backoff(FIRST_SECONDS, MOST_SECONDS)
                self._due[claim] = (now + next(delays), delays)
            for claim in self._due.keys() - idle:
                del self._due[claim]
            for claim, (at, delays) in sorted(self._due.items(), key=lambda item: item[1][0]):
                if at > now:
                    break
                try:
                    with reading(f"claim {claim}"):
                        await self._ask(claim)
                except DrabridgeError as error:
                    log.warning("cannot ask about a claim", extra={"claim": claim.uid, "error": str(error)})
                self._due[claim] = (time.monotonic() + next(delays), delays)
            pause = min((at for at, _ in self._due.values()), default=now + MOST_SECONDS) - time.monotonic()
            await self._wake.wait(max(pause, 0.01))


def idle_claims(ledger: Ledger) -> frozenset[ClaimRef]:
    """Claims with devices here that are not prepared: all of theirs, or those of an allocation before the present one.
    And those that only linger.

    Without a name a claim cannot be asked about.
    """
    holds = (held for entry in ledger.entries.values() for held in entry.claims)
    idle = (held for held in holds if held.phase is not ClaimPhase.PREPARED or held.lingers)
    return frozenset(held.claim for held in idle if held.claim.name)
