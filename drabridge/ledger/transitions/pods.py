"""Rows about pods with resource limits: Allocate, and what kubelet shows."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from drabridge.inventory.model import Presence
from drabridge.ledger import refusals, release_rule
from drabridge.ledger.effects import (
    Notify,
    Subject,
)
from drabridge.ledger.model import (
    ClaimHold,
    ClaimPhase,
    ClaimRef,
    ClaimShare,
    Entry,
    HeldBecause,
    Hold,
    Owner,
)
from drabridge.ledger.ownership import obstacle, settle
from drabridge.ledger.release_rule import DeviceEvidence, HoldEnded
from drabridge.ledger.transaction import Outcome, Transaction
from drabridge.ledger.transitions.claims import joined


def take(draft: Transaction, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """Allocate of a free device."""
    return obstacle(draft, entry) or settle(draft, entry, Hold(units, draft.at, known=True), entry.claims)


def take_shared(draft: Transaction, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """Allocate of a free device that claims may have, too."""
    return take(draft, entry, units) if draft.policy.g2 else refusals.disabled(entry)


def retake(draft: Transaction, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """Allocate of what a legacy pod has: an app container after its init container, a re-admitted pod, another replica.

    Refusing here on the word of PodResources made pods fail in storms (project-akri/akri#849). Not under another
    resource than the pod's: there kubelet does not know of it, and takes the device for free.
    """
    if entry.counted_elsewhere:
        return refusals.held(entry, draft.at)
    if entry.device.presence is not Presence.PRESENT:
        return refusals.not_present(entry)
    old = entry.hold or Hold()
    kept = old.units if set(units) <= set(old.units) else tuple(sorted({*old.units, *units}))
    retaken = old.retaken or not old.known
    hold = Hold(
        kept, draft.at, False, old.last_seen, pods=old.pods, known=not retaken, retaken=retaken, grace=old.grace
    )
    return settle(draft, entry, hold, entry.claims)


def preempt(draft: Transaction, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """G2: until the lease is confirmed, the pod wins and the claim is denied."""
    if not draft.policy.g2:
        return refusals.held(entry, draft.at)
    draft.denied += [held.claim.uid for held in entry.holders]
    hold = Hold(units, draft.at, known=True)
    return settle(draft, entry, hold, tuple(held for held in entry.claims if held.admin))


def confirm(draft: Transaction, entry: Entry, witness: DeviceEvidence) -> Outcome:
    """Kubelet shows the pod. What it has to end is on disk from then on: the pod may be gone when an agent starts."""
    hold = entry.hold or Hold()
    seen = release_rule.seen(hold, witness, draft.at)
    if hold.units != entry.device.units:
        missing = {unit for unit in witness.units if unit not in hold.units and unit not in entry.device.units}
        if missing and hold.units and not entry.counted_elsewhere:
            seen = replace(seen, units=(*hold.units, *sorted(missing)))
        elif draft.at >= draft.ledger.node.releases_suspended_until:
            seen = release_rule.without_ended_shares(seen, entry, witness, draft.at, draft.policy)
    if seen.grace != hold.grace:
        return replace(entry, hold=seen, seq=draft.seq)
    return entry if seen is hold else replace(entry, hold=seen)


def adopt(draft: Transaction, entry: Entry, witness: DeviceEvidence) -> Outcome:
    """Kubelet shows a pod on a device that no pod was known to have: believe it. With a claim on it: CONFLICT.

    Under a resource that may mean another device, quarantine does not end with that pod: others may have it, too.
    """
    units = tuple(dict.fromkeys(witness.units)) or entry.device.units  # perhaps of more replicas than it has now
    if entry.owner is Owner.QUARANTINE and (witness.elsewhere or entry.counted_elsewhere):
        if witness.elsewhere:
            hold = replace(entry.hold or Hold(), units=units, resource=witness.elsewhere)
            entry = replace(entry, hold=hold, seq=draft.seq)
        return confirm(draft, entry, witness)
    hold = Hold(
        units,
        draft.at,
        True,
        draft.at,
        pods=witness.pods,
        because=HeldBecause.RUNNING,
        resource=witness.elsewhere,
        known=True,
        grace=witness.grace,
    )
    message = f"{entry.name} was recorded as {entry.owner}, and kubelet shows {', '.join(map(str, witness.pods))} on it"
    if witness.elsewhere:
        message += f" as {witness.elsewhere}"
    draft.effects.append(Notify(Subject.NODE, "DeviceAdopted", message, warning=False))
    return settle(draft, entry, hold, entry.claims)


def weigh(draft: Transaction, entry: Entry, witness: DeviceEvidence) -> Outcome:
    """Kubelet does not show the pod: has it let go?"""
    hold = entry.hold or Hold()
    strict = entry.owner is Owner.QUARANTINE
    node = draft.ledger.node
    if strict and not node.merged:
        return entry
    verdict = release_rule.weigh(
        hold,
        witness,
        at=draft.at,
        suspended_until=node.releases_suspended_until,
        policy=draft.policy,
        strict=strict,
    )
    if isinstance(verdict, HoldEnded):
        claims = (*entry.claims, *_allocated(draft, witness)) if strict else entry.claims
        return settle(draft, entry, None, claims, verdict.because)
    return entry if verdict is hold else replace(entry, hold=verdict)


def _allocated(draft: Transaction, witness: DeviceEvidence) -> list[ClaimHold]:
    """No container uses the device, but the scheduler gave it to these claims before the record was lost. While it was
    in quarantine, admin access alone was recorded.
    """
    shares: dict[ClaimRef, tuple[ClaimShare, ...]] = {}
    for claim, use in witness.allocated or ():
        if not use.admin:
            shares[claim] = joined(shares.get(claim, ()), use.share)
    return [ClaimHold(claim, ClaimPhase.GRANTED, draft.at, theirs) for claim, theirs in shares.items()]


def recount(draft: Transaction, entry: Entry, what: Any) -> Outcome:
    """Kubelet or the agent began anew: absences seen so far count no more, nor does what kubelet has shown."""
    hold = entry.hold
    if hold is None or not (hold.absences or hold.known or hold.unseen_since):
        return entry
    return replace(entry, hold=replace(hold, absences=0, absent_since=0.0, known=False, unseen_since=0.0))
