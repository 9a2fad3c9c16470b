"""Release a device in doubt because the operator says that nobody uses it, unless evidence contradicts this."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from drabridge.agent.requests import read_request
from drabridge.dra.claim_queries import ClaimQueries
from drabridge.dra.lifecycle import ClaimSide
from drabridge.errors import ClusterError, ConfigError, RefusedError
from drabridge.evidence.kubelet import KubeletEvidence
from drabridge.evidence.loop import EvidenceLoop
from drabridge.evidence.other_sources import OtherEvidence
from drabridge.ledger.entries import DRA_OWNERS, ClaimHold, ClaimPhase, Entry, Owner
from drabridge.ledger.events import ManualRelease
from drabridge.ledger.refusals import holder
from drabridge.ledger.service import LedgerService

log = logging.getLogger(__name__)

ForgetDevice = Callable[[str, Sequence[str]], Awaitable[None]]
"""Removes a device from the records and CDI files of the claims with these UIDs."""


class _Asked(Struct):
    device: str


class OperatorRelease(Struct, frozen=True):
    """``drabridge lanes release``: asks every source once more, then ends the holds that no source confirms."""

    ledger_service: LedgerService
    evidence: EvidenceLoop
    kubelet: KubeletEvidence
    others: OtherEvidence
    claims: ClaimSide
    queries: ClaimQueries
    forget_device: ForgetDevice

    async def request(self, body: bytes) -> dict[str, Any]:
        """End the holds of a device in QUARANTINE or CONFLICT, or of a claim left prepared: ``{"device": NAME}``.

        Returns the device's new state. Raises ConfigError for a malformed body or an unknown device;
        RefusedError while a source says that the device is in use, or cannot be asked about its claim.
        """
        service = self.ledger_service
        entry = self._entry(body)
        await self.evidence.run_once()
        before = service.ledger.entries.get(entry.name, entry)
        if before.owner is Owner.LEGACY:
            raise RefusedError(
                f"{before.name} is held by {holder(before)}",
                hint="delete the pod; the device is free when kubelet no longer shows it "
                "('drabridge status' says why not)",
            )
        if before.owner in DRA_OWNERS - {Owner.DRA_PREPARED}:
            raise RefusedError(f"{before.name} is held by {holder(before)}", hint="delete the pod or the claim")
        if before.owner is Owner.QUARANTINE:
            await self._refuse_if_allocated(before)
        prepared = [held for held in before.holders if held.phase is ClaimPhase.PREPARED]
        ended = [held.claim.uid for held in prepared if await self._has_ended(before, held)]
        if ended:  # this comes before the ledger is told: a crash in between leaves a hold that can be released again
            await self.forget_device(before.name, ended)
            self.claims.renew_files()
        decision = await service.apply(ManualRelease(before.name, service.now(), frozenset(ended)))
        if not decision.accepted:
            raise RefusedError(str(decision))
        after = service.ledger.entries[before.name]
        if before.owner is not Owner.NONE:
            log.warning("released by the operator", extra={"device": before.name, "was": str(before.owner)})
        return {
            "device": after.name,
            "was": str(before.owner),
            "owner": str(after.owner),
            "lane": str(after.lane),
            "because": "nobody held it" if entry.owner is Owner.NONE else after.released_because,
        }

    def _entry(self, body: bytes) -> Entry:
        entries = self.ledger_service.ledger.entries
        known = f"It has {', '.join(sorted(entries)) or 'none'}"
        asked = read_request(body, _Asked, "a device of this node was expected", known)
        if asked.device not in entries:
            raise ConfigError(f"a device of this node was expected: {asked.device}", hint=known)
        return entries[asked.device]

    async def _refuse_if_allocated(self, entry: Entry) -> None:
        """Raise RefusedError if the API server shows the device allocated to a claim, or cannot be asked.

        Kubelet before 1.34 shows no claims, so the API server is asked. It need not answer where no claims are served.
        """
        allocated = await self.queries.allocated()
        if allocated is None and self.claims.wanted:
            raise RefusedError(
                f"{entry.name} may be a claim's, and the API server could not be asked",
                hint="try again when it answers ('drabridge status' says what claims wait for)",
            )
        for one in allocated or ():
            if any(use.device == entry.name and not use.admin for use in one.uses):
                raise RefusedError(
                    f"{entry.name}: the API server shows it allocated to claim {one.claim}",
                    hint="delete the pod that uses the claim",
                )

    async def _has_ended(self, entry: Entry, held: ClaimHold) -> bool:
        """Whether a prepared claim no longer has the device; False if the API server shows the claim allocated.

        Usually kubelet says when a prepared claim ends, but it cannot do so for a claim that it has forgotten. Raises
        RefusedError if the claim's pods or processes still use the device, or a source cannot be asked.
        """
        claim = held.claim
        try:
            if not claim.name:  # only its CDI file is known
                found = await self.queries.find(claim.uid)
                if found is not None:
                    raise RefusedError(
                        f"{entry.name} is prepared for claim {found}, which the API server shows allocated",
                        hint="delete the pod that uses the claim",
                    )
            else:
                await self.claims.release_if_deallocated(claim)
        except ClusterError as error:
            raise RefusedError(
                f"{entry.name} is prepared for claim {claim}, and the API server could not be asked about it: {error}",
                hint="try again when it answers ('drabridge status' says what claims wait for)",
            ) from error
        now = self.ledger_service.ledger.entries[entry.name].claim(claim.uid)
        if now is None or now.api_allocated:
            return False
        users = await self.kubelet.users(claim, entry.name)
        if users is None:
            raise RefusedError(
                f"{entry.name} is prepared for claim {claim}, and kubelet could not be asked who uses it: "
                f"{self.kubelet.error}",
                hint="try again when it answers",
            )
        # In a conflict the pod, not the claim, may have the device open. The pod's hold then stays until it is closed.
        opened = await self.others.in_use({entry.name}) if entry.hold is None else {}
        if users or opened:
            who = ", ".join([*(f"pod {user}" for user in users), *opened.values()])
            raise RefusedError(f"claim {claim} is gone, but {entry.name} is still used by {who}", hint="stop it first")
        return True
