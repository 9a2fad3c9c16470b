"""The operator's way out of doubt: to say that nobody uses a device, as far as the evidence lets it be said."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from drabridge.agent.runtime import Runtime
from drabridge.containers.cdi_store import Family
from drabridge.dra.lifecycle import ClaimSide
from drabridge.errors import ClusterError, ConfigError, RefusedError
from drabridge.ledger.events import ManualRelease
from drabridge.ledger.model import DRA_OWNERS, ClaimHold, ClaimPhase, Entry, Owner
from drabridge.ledger.refusals import holder

log = logging.getLogger(__name__)


async def resolve(runtime: Runtime, claims: ClaimSide, body: bytes) -> dict[str, Any]:
    """``{"device": NAME}``: end the holds of a device in QUARANTINE or CONFLICT, or of a claim left prepared.

    Asks kubelet and the API server first, so that the answer rests on what is true now. Raises ConfigError for what
    cannot be meant, RefusedError while one of them says that somebody uses it or, about a claim, cannot be asked.
    Returns the device as it is afterwards.
    """
    entry = _entry(runtime, body)
    await runtime.evidence.run_once()
    before = runtime.ledger_service.ledger.entries.get(entry.name, entry)
    if before.owner is Owner.LEGACY:
        raise RefusedError(
            f"{before.name} is held by {holder(before)}",
            hint="delete the pod; the device is free when kubelet no longer shows it ('drabridge status' says why not)",
        )
    if before.owner in DRA_OWNERS - {Owner.DRA_PREPARED}:
        raise RefusedError(f"{before.name} is held by {holder(before)}", hint="delete the pod or the claim")
    if before.owner is Owner.QUARANTINE:
        await _no_claim_has(claims, before)
    prepared = [held for held in before.holders if held.phase is ClaimPhase.PREPARED]
    ended = [held.claim.uid for held in prepared if await _has_ended(runtime, claims, before, held)]
    if ended:
        await runtime.disk.promptly(lambda: _forget(runtime, before.name, ended))
        claims.renew_files()
    decision = await runtime.ledger_service.apply(ManualRelease(before.name, runtime.now(), frozenset(ended)))
    if not decision.accepted:
        raise RefusedError(str(decision))
    after = runtime.ledger_service.ledger.entries[before.name]
    if before.owner is not Owner.NONE:
        log.warning("resolved by the operator", extra={"device": before.name, "was": str(before.owner)})
    return {
        "device": after.name,
        "was": str(before.owner),
        "owner": str(after.owner),
        "lane": str(after.lane),
        "because": "nobody held it" if entry.owner is Owner.NONE else after.released_because,
    }


async def _no_claim_has(claims: ClaimSide, entry: Entry) -> None:
    """Kubelet before 1.34 shows no claims. Where none are served the operator knows no less than one that is away."""
    allocated = await claims.allocated()
    if allocated is None and claims.wanted:
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


async def _has_ended(runtime: Runtime, claims: ClaimSide, entry: Entry, held: ClaimHold) -> bool:
    """Of a prepared claim nobody else is asked: kubelet says when it has ended, unless it has forgotten the claim.

    Whether nobody has the device by it; false if the API server shows it allocated, which the ledger then refuses.
    """
    claim = held.claim
    try:
        if not claim.name:  # all that is known of it is its CDI file
            found = await claims.find(claim.uid)
            if found is not None:
                raise RefusedError(
                    f"{entry.name} is prepared for claim {found}, which the API server shows allocated",
                    hint="delete the pod that uses the claim",
                )
        elif claims.driver is None:
            raise ClusterError("claims are not served")
        else:
            await claims.driver.release_if_deallocated(claim)
    except ClusterError as error:
        raise RefusedError(
            f"{entry.name} is prepared for claim {claim}, and the API server could not be asked about it: {error}",
            hint="try again when it answers ('drabridge status' says what claims wait for)",
        ) from error
    now = runtime.ledger_service.ledger.entries[entry.name].claim(claim.uid)
    if now is None or now.api_allocated:
        return False
    users = await runtime.kubelet_evidence.users(claim, entry.name)
    if users is None:
        raise RefusedError(
            f"{entry.name} is prepared for claim {claim}, and kubelet could not be asked who uses it: "
            f"{runtime.kubelet_evidence.error}",
            hint="try again when it answers",
        )
    # In a conflict it may be the pod that has it open: then its hold stays until it is closed.
    opened = await runtime.other_evidence.in_use({entry.name}) if entry.hold is None else {}
    if users or opened:
        who = ", ".join([*(f"pod {user}" for user in users), *opened.values()])
        raise RefusedError(f"claim {claim} is gone, but {entry.name} is still used by {who}", hint="stop it first")
    return True


def _entry(runtime: Runtime, body: bytes) -> Entry:
    try:
        return runtime.ledger_service.ledger.entries[json.loads(body)["device"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        known = ", ".join(sorted(runtime.ledger_service.ledger.entries)) or "none"
        raise ConfigError(f"a device of this node was expected: {error}", hint=f"It has {known}") from None


def _forget(runtime: Runtime, device: str, ended: Sequence[str]) -> None:
    """Claims that have ended have the device no more on record either, or a restart would give it back to them.

    Before the ledger is told: what a crash leaves between the two is a hold that the operator can end again.
    """
    from drabridge.dra.records import RecordStore

    records = RecordStore(runtime.paths.claim_records)
    for uid in ended:
        if not set(runtime.ledger_service.ledger.by_claim.get(uid, ())) - {device}:
            runtime.cdi.remove(Family.CLAIM, uid)
            records.delete(uid)
        elif (record := records.load(uid)) is not None:
            records.save(replace(record, devices=tuple(one for one in record.devices if one.device != device)))
