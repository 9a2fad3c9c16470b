"""Fetch the acknowledgements that lane moves and leases wait for, and pass them to the ledger, which decides.

From legacy to DRA: kubelet no longer lists the device as allocatable, and shows no pod on it. From DRA to legacy: no
slice at the API server shows the device; then, after a quiet time, a LIST of claims shows none that has it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from drabridge.errors import ClusterError
from drabridge.evidence.kubelet import KubeletEvidence
from drabridge.inventory.devices import device_id_of
from drabridge.kube.connection import ApiServer
from drabridge.ledger.entries import Entry, Lane
from drabridge.ledger.events import (
    ClaimAllocated,
    ClaimDevices,
    NoClaimListed,
    SetLane,
    WithdrawnFromKubelet,
    WithdrawnFromSlices,
)
from drabridge.ledger.service import LedgerService

log = logging.getLogger(__name__)

DELIVERY_SECONDS = 2.0  # kubelet reads a list within milliseconds, unless it is restarting
RETRY_SECONDS = 0.05  # between questions to kubelet while a move waits; kubelet answers 100 a second
SHOWN_RETRY_SECONDS = 1.0  # after kubelet showed a pod on the device: evidence needs a moment to make it the holder
CLAIMS_RETRY_SECONDS = 5.0  # between LISTs of claims, which cost the API server more than other questions


class DevicePluginLists(Protocol):
    """The lists of devices that kubelet has, as far as a move needs to know them."""

    async def delivered(self, resources: Iterable[str], timeout_seconds: float) -> bool:
        """Wait until kubelet has read the current list of each resource; return False if that takes too long."""

    def healthy_ids(self) -> Mapping[str, frozenset[str]]:
        """Return resource -> the Healthy ids of the list that was sent, where kubelet takes all of it."""

    @property
    def busy_ids(self) -> frozenset[str]:
        """Return the ids in an Allocate or GetPreferredAllocation that is not answered yet."""


class PublishedSlices(Protocol):
    """The ResourceSlices of this node, as far as a move needs to know them."""

    @property
    def published(self) -> bool:
        """Whether the API server has our slices, as far as is known."""

    @property
    def synced_seq(self) -> int:
        """Return the sequence number of the ledger from which the API server's slices follow; -1: no slices yet."""

    @property
    def keeps_leases(self) -> bool | None:
        """Whether the API server keeps what a lease needs; None while that is not known."""

    async def withdrawn(self, names: Collection[str]) -> frozenset[str]:
        """Ask the API server now; return the devices of ``names`` that no slice shows. Raises ClusterError."""


class KubeletAcknowledgements(Struct, frozen=True):
    """Asks whether kubelet has given up a device that leaves the legacy lane, or that a claim waits to lease.

    ``hurry_evidence`` asks for a round of evidence at once.
    """

    ledger_service: LedgerService
    lists: DevicePluginLists
    kubelet: KubeletEvidence
    hurry_evidence: Callable[[], None]

    async def fetch(self, revoked: Sequence[Entry]) -> float:
        """Ask kubelet about revoked devices; return the seconds until the next attempt.

        The first question is which devices kubelet would still give out. A slow kubelet may answer from an older list
        that also lacked the device, and then read a list that has it. So the answer must equal the list that was sent
        last. If an Allocate of a device is open before or after the answer, kubelet has not given that device up. The
        second question is which devices pods have, for example pods of an earlier plugin. It is asked only if a device
        passed the first question, because a List may make kubelet count wrongly (see
        :mod:`drabridge.evidence.kubelet`). If kubelet shows a pod on the device, evidence makes that pod the holder.
        """
        since = self.ledger_service.ledger.seq
        resources = list({entry.device.resource for entry in revoked})  # one unread list delays no other
        answers = await asyncio.gather(*(self.lists.delivered({name}, DELIVERY_SECONDS) for name in resources))
        heard = {name for name, delivered in zip(resources, answers, strict=True) if delivered}
        if not heard:
            return RETRY_SECONDS
        busy = self.lists.busy_ids
        offered = await self.kubelet.allocatable()
        if offered is None:
            return RETRY_SECONDS
        sent = self.lists.healthy_ids()
        heard -= {name for name in sent if sent[name] != {unit for resource, unit in offered if resource == name}}
        healthy = {(resource, device_id_of(unit)) for resource, unit in offered}
        open_ids = set(map(device_id_of, (*busy, *self.lists.busy_ids)))  # includes ids of former replicas
        given_up = [
            entry
            for entry in revoked
            if entry.device.resource in heard
            and (entry.device.resource, entry.device.id) not in healthy
            and entry.device.id not in open_ids
        ]
        shown = await self.kubelet.shown() if given_up else None
        if shown is None:
            return RETRY_SECONDS
        held = {(resource, device_id_of(unit)) for resource, unit in shown}
        open_ids = set(map(device_id_of, self.lists.busy_ids))
        pause = RETRY_SECONDS
        for entry in given_up:
            if (entry.device.resource, entry.device.id) in held:
                self.hurry_evidence()
                pause = SHOWN_RETRY_SECONDS
            elif entry.device.id not in open_ids:
                await self.ledger_service.apply(WithdrawnFromKubelet(entry.name, since, self.ledger_service.now()))
        return pause


class ApiServerAcknowledgements:
    """Asks the API server whether a device that moves to the legacy lane is still in a slice or a claim."""

    def __init__(
        self,
        ledger_service: LedgerService,
        slices: PublishedSlices,
        api_server: ApiServer,
        allocated: Callable[[], Awaitable[tuple[ClaimDevices, ...] | None]],
    ) -> None:
        """``allocated`` returns the claims with devices of this node; None if the API server cannot be asked."""
        self._ledger_service = ledger_service
        self._slices = slices
        self._api_server = api_server
        self._allocated = allocated
        self._slices_due = 0.0  # wall-clock seconds: no LIST of slices before this time, because the last one failed
        # The same for claims; also after a LIST with a claim that cannot be served: its refusal changes the ledger, and
        # that wakes us.
        self._claims_due = 0.0

    async def fetch_slices(self, revoked: Sequence[Entry]) -> None:
        """Ask the API server which revoked devices no slice shows any more; tell the ledger.

        It is asked once for each move, because the watch of the slices may lag behind a write.
        """
        service = self._ledger_service
        if service.now() < self._slices_due:
            return
        since = self._slices.synced_seq
        names = {entry.name for entry in revoked if since >= entry.seq}
        if not names:
            return
        try:
            withdrawn = await self._slices.withdrawn(names)
        except ClusterError as error:
            self._slices_due = service.now() + CLAIMS_RETRY_SECONDS
            log.warning("a lane move waits for the API server", extra={"reason": str(error)})
            return
        for name in withdrawn:
            await service.apply(WithdrawnFromSlices(name, since, service.now()))

    async def fetch_claims(self, quiescing: Sequence[Entry]) -> float:
        """After the quiet time, ask if a claim has one of these devices; return the seconds until the next look."""
        service = self._ledger_service
        due = min(entry.move.step_since for entry in quiescing if entry.move) + service.policy.quiesce_seconds
        if (left := max(due, self._claims_due) - service.now()) > 0:
            return left + 0.01
        since = service.ledger.seq
        if self._api_server.cluster is None:
            return CLAIMS_RETRY_SECONDS
        if (allocated := await self._allocated()) is None:  # a claim that cannot be read may have any device
            log.warning("a lane move waits for the API server", extra={"reason": "its claims are not known"})
            self._claims_due = service.now() + CLAIMS_RETRY_SECONDS
            return CLAIMS_RETRY_SECONDS
        # Admin access holds nothing (KEP-5018): a monitoring claim on every device must not stop a move.
        names = {entry.name for entry in quiescing}
        taken: set[str] = set()
        for allocation in allocated:
            if took := names & {use.device for use in allocation.uses if not use.admin}:
                taken |= took
                decision = await service.apply(ClaimAllocated(allocation.claim, allocation.uses, service.now()))
                if not decision.accepted:
                    why = "; ".join(refused.message for refused in decision.refusals)
                    reason = f"claim {allocation.claim} has it allocated, and cannot be served: {why}"
                    self._claims_due = service.now() + CLAIMS_RETRY_SECONDS
                    for name in took:
                        await service.apply(SetLane(name, Lane.LEGACY, service.now(), reason))
        for name in names - taken:
            await service.apply(NoClaimListed(name, since, service.now()))
        return CLAIMS_RETRY_SECONDS
