"""Free the devices that an agent of another driver left held when it ended, once nobody can have them any more.

The ended agent's file lists the devices that pods and claims had then. Nobody serves these devices now, so they have no
new holders. A pod that still has one asks for its resource; a claim that still has one is allocated. When neither
kubelet nor the API server has shown such a pod or claim for as long as processes may outlive it, the device is free,
and is removed from the file. In doubt, and always without an API server, it stays held until a person removes the file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection

from drabridge.coexistence.hardware import KnownDevice
from drabridge.coexistence.withheld import WithheldDevices
from drabridge.evidence.kubelet import KubeletEvidence
from drabridge.evidence.other_sources import OtherEvidence
from drabridge.inventory.devices import device_id_of
from drabridge.ledger.events import Observed
from drabridge.ledger.service import LedgerService

log = logging.getLogger(__name__)


class EndedAgents:
    """Looks for holders while devices are withheld for an agent that has ended."""

    def __init__(
        self,
        withheld: WithheldDevices,
        ledger_service: LedgerService,
        kubelet: KubeletEvidence,
        others: OtherEvidence,
        allocated_by: Callable[[str], Awaitable[frozenset[str] | None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``allocated_by`` returns the names of a driver's devices here that the API server shows allocated; None if it
        cannot be asked. ``clock``: monotonic seconds.
        """
        self._withheld = withheld
        self._ledger_service = ledger_service
        self._kubelet = kubelet
        self._others = others
        self._allocated_by = allocated_by
        self._clock = clock
        self._due = 0.0
        self._unseen: dict[tuple[str, KnownDevice], float] = {}  # device -> since when no holder is seen

    async def look(self) -> None:
        """Look once, if a look is due. Never raises."""
        withheld, policy, now = self._withheld, self._ledger_service.policy, self._clock()
        if not withheld.left:
            self._unseen = {}
            return
        if now < self._due:
            return
        self._due = now + policy.absent_seconds
        before, self._unseen = self._unseen, {}
        for driver, pieces in withheld.left.items():
            unseen = await self._without_holder(driver, pieces)
            self._unseen |= {(driver, piece): before.get((driver, piece), now) for piece in unseen}
            free = {
                piece
                for piece in unseen
                if now - self._unseen[driver, piece]
                >= policy.absent_seconds + (policy.grace_seconds if piece.grace is None else piece.grace)
            }
            if free:
                names = sorted(piece.name for piece in free)
                log.warning("nobody has what an ended agent left", extra={"driver": driver, "devices": names})
                await withheld.strike_out(driver, free)

    async def _without_holder(self, driver: str, pieces: Collection[KnownDevice]) -> set[KnownDevice]:
        """Return the devices without a visible holder; none if a source that may know a holder cannot be asked."""
        ledger, kubelet = self._ledger_service.ledger, self._kubelet
        if not ledger.node.merged or self._ledger_service.now() < ledger.node.releases_suspended_until:
            return set()
        if not (free := self._unclaimed(pieces, await kubelet.gather(ledger))):
            return set()  # the usual case while its pods run: spare kubelet the other questions
        observed = await kubelet.gather(ledger, thoroughly=True)
        if observed.checkpoint is None or not observed.checkpoint.barrier:
            return set()
        shown, allocated = await kubelet.devices_claimed_from(driver), await self._allocated_by(driver)
        if shown is None or allocated is None:
            return set()
        return {piece for piece in self._unclaimed(free, observed) if piece.name not in shown | allocated}

    def _unclaimed(self, pieces: Collection[KnownDevice], observed: Observed) -> set[KnownDevice]:
        """Return the devices that no pod can have by limits."""
        ledger, pods = self._ledger_service.ledger, self._others.pods
        if pods is None or (unaccounted := pods.unaccounted(ledger, observed)) is None:
            return set()
        if pods.unknown_devices_in_use({resource for piece in pieces for resource in piece.resources}):
            return set()
        assert observed.listed is not None  # otherwise pods would not be accounted for
        units = (*observed.listed, *(observed.checkpoint.pods if observed.checkpoint else ()))
        shown = {(resource, device_id_of(unit)) for resource, unit in units}
        return {
            piece
            for piece in pieces
            if piece.resources and not any(name in unaccounted or (name, piece.id) in shown for name in piece.resources)
        }
