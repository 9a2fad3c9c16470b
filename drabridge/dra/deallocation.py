"""Learn that a claim which no container uses has been deallocated, so that its devices become free.

A claim's devices are free when kubelet has unprepared it *and* the API server has taken the allocation back, which
happens a moment later, and nobody tells the node. Watching all claims of a cluster from every node would
cost an API server more than asking about the few claims that this node waits for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from drabridge.dra.allocation import allocation_of, is_allocated
from drabridge.dra.claim_objects import ClaimObjects
from drabridge.dra.ports import DraPorts
from drabridge.errors import DrabridgeError, PeerError
from drabridge.evidence.pod_objects import DEFAULT_GRACE_SECONDS
from drabridge.kube.api import NotFoundError, backoff
from drabridge.ledger import events
from drabridge.ledger.effects import Decision, RefusalCode
from drabridge.ledger.entries import ClaimHold, ClaimPhase, ClaimRef, Ledger
from drabridge.ledger.service import LedgerService
from drabridge.system.supervise import WakeUp
from drabridge.system.untrusted import reading

log = logging.getLogger(__name__)

_CLAIMS_IN_THE_WAY = frozenset({RefusalCode.CLAIM_HELD, RefusalCode.OVERCOMMITTED})

FIRST_SECONDS = 0.5  # the resourceclaim controller deallocates within a second of the pod's end
MOST_DENIED_SECONDS = 4.0  # until the API server is asked about a denied claim, no other claim gets its device
MOST_SECONDS = 60.0  # a claim that stays allocated waits for a pod; there is no hurry


class Deallocations:
    """Asks the API server about idle claims, each with its own back-off, and tells the ledger."""

    def __init__(
        self,
        ledger_service: LedgerService,
        claims: ClaimObjects,
        ports: DraPorts,
        *,
        driver: str,
        pool: str,
        awaited: Callable[[ClaimRef], bool],
        denials: Callable[[ClaimRef], int],
    ) -> None:
        """``awaited``: whether the claim has not been told of its lease; until then others watch the claim.

        ``denials``: how often the claim was denied its lease. With each denial its devices stay closed to all claims
        for longer, up to ``MOST_DENIED_SECONDS``.
        """
        self._awaited = awaited
        self._denials = denials
        self._ledger_service = ledger_service
        self._claims = claims
        self._ports = ports
        self._driver = driver
        self._pool = pool
        self._due: dict[ClaimRef, tuple[float, Iterator[float]]] = {}
        self._wake = WakeUp()

    def wake(self) -> None:
        """Look at the ledger again, because it changed: there may be other idle claims."""
        self._wake.set()

    async def run(self) -> None:
        """Ask about each idle claim when it is due, until cancelled."""
        while True:
            now = time.monotonic()
            claims = idle_claims(self._ledger_service.ledger)
            idle = frozenset(claim for claim in claims if not self._awaited(claim))
            for claim in idle - self._due.keys():
                delays = backoff(min(FIRST_SECONDS * 2 ** self._denials(claim), MOST_DENIED_SECONDS), MOST_SECONDS)
                self._due[claim] = (now + next(delays), delays)
            for claim in self._due.keys() - idle:
                del self._due[claim]
            for claim, (at, delays) in sorted(self._due.items(), key=lambda item: item[1][0]):
                if at > now:
                    break
                try:
                    with reading(f"claim {claim}"):
                        await self.release_if_deallocated(claim)
                except DrabridgeError as error:
                    log.warning("claim's allocation not known", extra={"claim": claim.uid, "reason": str(error)})
                self._due[claim] = (time.monotonic() + next(delays), delays)
            pause = min((at for at, _ in self._due.values()), default=now + MOST_SECONDS) - time.monotonic()
            await self._wake.wait(max(pause, 0.01))

    async def release_in_the_way(self, claim: ClaimRef, decision: Decision) -> bool:
        """Ask about the claims that hold what ``claim`` was refused; return whether the holds of one have changed.

        A claim is refused for good only after this: the API server may have deallocated those claims a moment ago, and
        :meth:`run` may learn of it while we ask. If such a claim still holds a device because it was never unprepared,
        the device is withdrawn from the slices. Raises ClusterError.
        """
        ledger = self._ledger_service.ledger
        others = {
            held.claim
            for refusal in decision.refusals
            if refusal.code in _CLAIMS_IN_THE_WAY and (entry := ledger.entries.get(refusal.device)) is not None
            for held in entry.holders
            if held.api_allocated and held.claim.name and held.claim.uid != claim.uid
        }
        before = {other: holds_of(ledger, other) for other in others}
        for other in sorted(others, key=lambda other: other.uid):
            await self.release_if_deallocated(other)
        return any(holds_of(self._ledger_service.ledger, other) != held for other, held in before.items())

    async def release_if_deallocated(self, claim: ClaimRef) -> bool:
        """Ask the API server about a claim, and tell the ledger which devices it lost. Prepared devices stay held.

        Returns whether the claim has lost a device here, because it was deallocated, or allocated again. The claim
        keeps its devices if the answer makes no sense or comes too late, and while processes of its pods may run on:
        kubelet may know earlier than we do that the pods are gone. Raises ClusterError if the server cannot be asked. A
        server that lacks this version of claims counts as such: its 404 says nothing about the claim.
        """
        ledger = self._ledger_service.ledger
        asked_for = holds_of(ledger, claim)
        prepared = any(held.phase is ClaimPhase.PREPARED for held in asked_for)
        if not prepared and lingers(ledger, self._ports, claim):  # the ledger itself takes care of prepared devices
            return False
        try:
            obj = await self._claims.get(claim)
        except NotFoundError:
            obj = None
        if holds_of(self._ledger_service.ledger, claim) != asked_for or self._awaited(claim):
            return False  # it may have been allocated again since the server read it
        kept: frozenset[str] = frozenset()
        try:
            with reading(f"claim {claim}"):
                allocated = is_allocated(claim, obj)
            results = allocation_of(claim, obj, self._driver).results if obj and allocated else ()
        except PeerError as error:
            log.error("claim not readable; it keeps its devices", extra={"claim": claim.uid, "reason": str(error)})
            return False
        if allocated:
            kept = frozenset(r.device for r in results if r.pool == self._pool and not r.admin)
            if kept.issuperset(self._ledger_service.ledger.by_claim.get(claim.uid, ())):
                return False
        await self._ledger_service.apply(events.ClaimDeallocated(claim.uid, self._ports.clock(), kept))
        return True


def idle_claims(ledger: Ledger) -> frozenset[ClaimRef]:
    """Return the claims to ask about: those with a device that is not prepared, or whose hold lingers.

    Claims whose names are unknown are left out: nobody can ask about them.
    """
    holds = (held for entry in ledger.entries.values() for held in entry.claims)
    idle = (held for held in holds if held.phase is not ClaimPhase.PREPARED or held.lingers)
    return frozenset(held.claim for held in idle if held.claim.name)


def lingers(ledger: Ledger, ports: DraPorts, claim: ClaimRef) -> float:
    """Return the seconds for which processes of an unprepared claim's pods may still run; 0: none runs.

    Kubelet unprepares the claims of force-deleted pods during their containers' grace period. So an unprepared device
    is not free yet if nobody saw the pod end (kubernetes#141471). Kubernetes' default grace period counts for a
    prepared claim whose pods were not known when it was prepared, or that is known only from its record.
    """
    pods = ports.pods()
    if pods is None:
        return 0.0
    graces = [
        held.grace or (DEFAULT_GRACE_SECONDS if held.phase is ClaimPhase.PREPARED else 0.0)
        for held in holds_of(ledger, claim)
    ]
    return pods.lingers(claim, max(graces, default=0.0))


def holds_of(ledger: Ledger, claim: ClaimRef) -> list[ClaimHold]:
    """Return the holds of a claim in the ledger, also those that wait."""
    held = (ledger.entries[name].claim(claim.uid) for name in ledger.by_claim.get(claim.uid, ()))
    return [one for one in held if one is not None]
