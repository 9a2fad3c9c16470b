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


def take(tx: Transaction, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """Allocate of a free device."""
    return obstacle(tx, entry) or settle(tx, entry, Hold(units, tx.at, known=True), entry.claims)


def take_shared(tx: Transaction, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """Allocate of a free device that claims may have, too."""
    return take(tx, entry, units) if tx.policy.g2 else refusals.disabled(entry)


def retake(tx: Transaction, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """Allocate of what a legacy pod has: an app container after its init container, a re-admitted pod, another replica.

    Refusing here on the word of PodResources made pods fail in storms (project-akri/akri#849). Not under another
    resource than the pod's: there kubelet does not know of it, and takes the device for free.
    """
    if entry.counted_elsewhere:
        return refusals.held(entry, tx.at)
    if entry.device.presence is not Presence.PRESENT:
        return refusals.not_present(entry)
    old = entry.hold or Hold()
    kept = old.units if set(units) <= set(old.units) else tuple(sorted({*old.units, *units}))
    retaken = old.retaken or not old.known
    hold = Hold(kept, tx.at, False, old.last_seen, pods=old.pods, known=not retaken, retaken=retaken, grace=old.grace)
    return settle(tx, entry, hold, entry.claims)


def preempt(tx: Transaction, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """G2: until the lease is confirmed, the pod wins and the claim is denied."""
    if not tx.policy.g2:
        return refusals.held(entry, tx.at)
    tx.denied += [held.claim.uid for held in entry.holders]
    hold = Hold(units, tx.at, known=True)
    return settle(tx, entry, hold, tuple(held for held in entry.claims if held.admin))


def confirm(tx: Transaction, entry: Entry, evidence: DeviceEvidence) -> Outcome:
    """Kubelet shows the pod. What it has to end is on disk from then on: the pod may be gone when an agent starts."""
    hold = entry.hold or Hold()
    seen = release_rule.seen(hold, evidence, tx.at)
    if hold.units != entry.device.units:
        missing = {unit for unit in evidence.units if unit not in hold.units and unit not in entry.device.units}
        if missing and hold.units and not entry.counted_elsewhere:
            seen = replace(seen, units=(*hold.units, *sorted(missing)))
        elif tx.at >= tx.ledger.node.releases_suspended_until:
            seen = release_rule.without_ended_shares(seen, entry, evidence, tx.at, tx.policy)
    if seen.grace != hold.grace:
        return replace(entry, hold=seen, seq=tx.seq)
    return entry if seen is hold else replace(entry, hold=seen)


def adopt(tx: Transaction, entry: Entry, evidence: DeviceEvidence) -> Outcome:
    """Kubelet shows a pod on a device that no pod was known to have: believe it. With a claim on it: CONFLICT.

    Under a resource that may mean another device, quarantine does not end with that pod: others may have it, too.
    """
    units = tuple(dict.fromkeys(evidence.units)) or entry.device.units  # perhaps of more replicas than it has now
    if entry.owner is Owner.QUARANTINE and (evidence.elsewhere or entry.counted_elsewhere):
        if evidence.elsewhere:
            hold = replace(entry.hold or Hold(), units=units, resource=evidence.elsewhere)
            entry = replace(entry, hold=hold, seq=tx.seq)
        return confirm(tx, entry, evidence)
    hold = Hold(
        units,
        tx.at,
        True,
        tx.at,
        pods=evidence.pods,
        because=HeldBecause.RUNNING,
        resource=evidence.elsewhere,
        known=True,
        grace=evidence.grace,
    )
    message = (
        f"{entry.name} was recorded as {entry.owner}, and kubelet shows {', '.join(map(str, evidence.pods))} on it"
    )
    if evidence.elsewhere:
        message += f" as {evidence.elsewhere}"
    tx.effects.append(Notify(Subject.NODE, "DeviceAdopted", message, warning=False))
    return settle(tx, entry, hold, entry.claims)


def weigh(tx: Transaction, entry: Entry, evidence: DeviceEvidence) -> Outcome:
    """Kubelet does not show the pod: has it let go?"""
    hold = entry.hold or Hold()
    strict = entry.owner is Owner.QUARANTINE
    node = tx.ledger.node
    if strict and not node.merged:
        return entry
    verdict = release_rule.weigh(
        hold,
        evidence,
        at=tx.at,
        suspended_until=node.releases_suspended_until,
        policy=tx.policy,
        strict=strict,
    )
    if isinstance(verdict, HoldEnded):
        claims = (*entry.claims, *_allocated(tx, evidence)) if strict else entry.claims
        return settle(tx, entry, None, claims, verdict.because)
    return entry if verdict is hold else replace(entry, hold=verdict)


def _allocated(tx: Transaction, evidence: DeviceEvidence) -> list[ClaimHold]:
    """No container uses the device, but the scheduler gave it to these claims before the record was lost. While it was
    in quarantine, admin access alone was recorded.
    """
    shares: dict[ClaimRef, tuple[ClaimShare, ...]] = {}
    for claim, use in evidence.allocated or ():
        if not use.admin:
            shares[claim] = joined(shares.get(claim, ()), use.share)
    return [ClaimHold(claim, ClaimPhase.GRANTED, tx.at, theirs) for claim, theirs in shares.items()]


def recount(tx: Transaction, entry: Entry, what: Any) -> Outcome:
    """Kubelet or the agent began anew: absences seen so far count no more, nor does what kubelet has shown."""
    hold = entry.hold
    if hold is None or not (hold.absences or hold.known or hold.unseen_since):
        return entry
    return replace(entry, hold=replace(hold, absences=0, absent_since=0.0, known=False, unseen_since=0.0))
