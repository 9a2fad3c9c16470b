"""What an agent of another driver left when it ended, until nobody can have it any more.

Its file names hardware that pods and claims had then. Nobody serves that any more, so nobody new can have got it: a pod
that has it asks for the resource, a claim that has it is allocated. Once neither kubelet nor the API server shows such
a pod or claim, for as long as processes may outlive them, it is free, and is struck out of the file. In doubt, and
always where there is no API server, it stays held until a person removes the file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from drabridge.agent.runtime import Runtime
from drabridge.coexistence.other_agents import Piece
from drabridge.dra.lifecycle import ClaimSide
from drabridge.inventory.model import device_id_of
from drabridge.ledger.events import Observed

log = logging.getLogger(__name__)


class LeftBehind:
    """Looks after it while something is withheld for it. ``clock`` counts seconds and never goes back."""

    def __init__(self, runtime: Runtime, claims: ClaimSide, clock: Callable[[], float] = time.monotonic) -> None:
        self._runtime = runtime
        self._claims = claims
        self._clock = clock
        self._due = 0.0
        self._unseen: dict[tuple[str, Piece], float] = {}  # since when nobody is seen to have it

    async def look(self) -> None:
        """One round, if one is due. Never raises."""
        guard, policy, at = self._runtime.guard, self._runtime.ledger_service.policy, self._clock()
        if not guard.left:
            self._unseen = {}
        if not guard.left or at < self._due:
            return
        self._due = at + policy.absent_seconds
        before, self._unseen = self._unseen, {}
        for driver, pieces in guard.left.items():
            unseen = await self._without_holder(driver, pieces)
            self._unseen |= {(driver, piece): before.get((driver, piece), at) for piece in unseen}
            free = {
                piece
                for piece in unseen
                if at - self._unseen[driver, piece]
                >= policy.absent_seconds + (policy.grace_seconds if piece.grace is None else piece.grace)
            }
            if free:
                names = sorted(piece.name for piece in free)
                log.warning("nobody has what an ended agent left", extra={"driver": driver, "devices": names})
                await guard.forget(driver, free)

    async def _without_holder(self, driver: str, pieces: Collection[Piece]) -> set[Piece]:
        """Those that nobody is seen to have; none where anybody who could know more cannot be asked."""
        ledger, kubelet = self._runtime.ledger_service.ledger, self._runtime.kubelet_evidence
        if not ledger.node.merged or self._runtime.now() < ledger.node.releases_suspended_until:
            return set()
        if not (free := self._unclaimed(pieces, await kubelet.gather(ledger))):
            return set()  # as it is for as long as its pods run: kubelet is not asked for more
        observed = await kubelet.gather(ledger, thoroughly=True)
        if observed.checkpoint is None or not observed.checkpoint.barrier:
            return set()
        shown, allocated = await kubelet.devices_claimed_from(driver), await self._claims.of_driver(driver)
        if shown is None or allocated is None:
            return set()
        return {piece for piece in self._unclaimed(free, observed) if piece.name not in shown | allocated}

    def _unclaimed(self, pieces: Collection[Piece], observed: Observed) -> set[Piece]:
        """Those that no pod has by its limits, or may have."""
        ledger, pods = self._runtime.ledger_service.ledger, self._runtime.other_evidence.pods
        unaccounted = None if pods is None else pods.unaccounted(ledger, observed)
        if pods is None or unaccounted is None or pods.claims_linger(ledger):
            return set()
        units = (*(observed.listed or ()), *(observed.checkpoint.pods if observed.checkpoint else ()))
        shown = {(resource, device_id_of(unit)) for resource, unit in units}
        return {
            piece
            for piece in pieces
            if piece.resources and not any(name in unaccounted or (name, piece.id) in shown for name in piece.resources)
        }
