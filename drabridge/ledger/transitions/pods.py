"""Transitions about pods with resource limits: Allocate, and what kubelet shows."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from drabridge.inventory.devices import Presence
from drabridge.ledger import refusals, release_rule
from drabridge.ledger.effects import (
    Notify,
    Subject,
)
from drabridge.ledger.eligibility import cordoned_by
from drabridge.ledger.entries import (
    NEVER_KNOWN,
    ClaimHold,
    ClaimPhase,
    ClaimRef,
    ClaimShare,
    Entry,
    HeldBecause,
    Hold,
    Owner,
    PodRef,
)
from drabridge.ledger.ownership import obstacle, with_holder_found, with_holders
from drabridge.ledger.release_rule import DeviceEvidence, HoldEnded
from drabridge.ledger.transaction import Outcome, Transaction
from drabridge.ledger.transitions.claims import with_share, without_waiting

ADMISSION_SECONDS = 1.0  # kubelet allocates for all containers of a pod at once, when it admits the pod


def take(tx: Transaction, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """Give a free device to a pod. Claims that wait for the lease of overlapping hardware are denied it."""
    refusal = obstacle(tx, entry)
    if refusal is not None:
        for relative in tx.relatives(entry):
            if relative.owner is Owner.DRA_PENDING:
                tx.touched[relative.name] = without_waiting(tx, relative, f"a pod was given {entry.name} first")
        refusal = obstacle(tx, entry)
    hold = Hold(units, tx.at, known=True, former=entry.former)
    return refusal or with_holders(tx, entry, hold, entry.claims)


def retake(tx: Transaction, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """Give a legacy pod's device again: to its app container, to the re-admitted pod, or to another replica's pod.

    A refusal because PodResources still shows the pod made many pods fail (project-akri/akri#849). But this refuses the
    device if kubelet counts the pod under another resource: then kubelet takes the device for free. A device that is
    out of service goes only to further containers of the pod that is being admitted.
    """
    if entry.counted_elsewhere:
        return refusals.held(entry, tx.at)
    if entry.device.presence is not Presence.PRESENT:
        return refusals.not_present(entry)
    old = entry.hold or Hold()
    admitting = tx.at - old.allocated_at <= ADMISSION_SECONDS
    if (by := cordoned_by(tx.ledger, entry)) and not (admitting and set(units) <= set(old.units)):
        return refusals.cordoned(entry, by)
    kept = old.units if set(units) <= set(old.units) else tuple(sorted({*old.units, *units}))
    retaken = old.retaken or not old.known
    others = () if set(units) & set(old.units) else old.pods  # these pods have other units, and keep them
    ended = tx.at + release_rule.grace_of(old, tx.policy) + tx.policy.absent_seconds
    hold = Hold(
        kept,
        tx.at,
        pods=others,
        known=not retaken,
        retaken=retaken,
        grace=old.grace,
        former=old.last_recorded,
        earlier=old.earlier,
        earlier_until=old.earlier_until,
    )
    hold = release_rule.with_earlier(hold, _left_by(old, tx.at), ended)
    return with_holders(tx, entry, hold, entry.claims)


def _left_by(hold: Hold, at: float) -> tuple[PodRef, ...]:
    """Return the pods that had a device before it is given out again; none if the same pod's next container gets it."""
    if hold.recorded:
        return hold.recorded
    return (NEVER_KNOWN,) if at - hold.allocated_at > ADMISSION_SECONDS else ()


def preempt(tx: Transaction, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """Give a device to a pod although claims wait for its lease; deny the claims."""
    return take(tx, without_waiting(tx, entry, f"a pod was given {entry.name} first"), units)


def adopt_before_lease(tx: Transaction, entry: Entry, evidence: DeviceEvidence) -> Outcome:
    """Believe kubelet, which shows a pod on a device whose lease claims wait for; deny the claims."""
    return adopt(tx, without_waiting(tx, entry, f"kubelet shows a pod on {entry.name}"), evidence)


def confirm(tx: Transaction, entry: Entry, evidence: DeviceEvidence) -> Outcome:
    """Record that kubelet shows the pod.

    Some facts are made durable, because the pod may be gone at the next start and its end needs them: its grace period
    and, for a device that several pods have, these pods.
    """
    hold = entry.hold or Hold()
    seen = release_rule.with_record(release_rule.confirm(hold, evidence, tx.at), evidence, tx.at)
    seen = release_rule.without_left(seen, hold, evidence, tx.at, tx.policy)
    if hold.units != entry.device.units:
        missing = {unit for unit in evidence.units if unit not in hold.units and unit not in entry.device.units}
        if missing and hold.units and not entry.counted_elsewhere:
            seen = replace(seen, units=(*hold.units, *sorted(missing)))
        elif tx.at >= tx.ledger.node.releases_suspended_until:
            seen = release_rule.without_ended_units(seen, entry, evidence, tx.at, tx.policy)
    several = len(seen.units) > 1 and _uids(seen) != _uids(hold)
    if several or (seen.grace, seen.earlier) != (hold.grace, hold.earlier):
        return replace(entry, hold=seen, seq=tx.seq)
    return entry if seen is hold else replace(entry, hold=seen)


def _uids(hold: Hold) -> set[str]:
    return {pod.uid for pod in (*hold.pods, *hold.recorded)}


def adopt(tx: Transaction, entry: Entry, evidence: DeviceEvidence) -> Outcome:
    """Believe kubelet, which shows a pod on a device without a known pod. If a claim has the device: CONFLICT.

    A pod under a resource that may mean another device does not end a quarantine: others may have the device, too.
    """
    units = tuple(dict.fromkeys(evidence.units)) or entry.device.units  # perhaps more units than it has now
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
        former=(NEVER_KNOWN,),
    )
    message = (
        f"{entry.name} was recorded as {entry.owner}, and kubelet shows {', '.join(map(str, evidence.pods))} on it"
    )
    if evidence.elsewhere:
        message += f" as {evidence.elsewhere}"
    tx.effects.append(Notify(Subject.NODE, "DeviceAdopted", message, warning=False))
    return with_holder_found(tx, entry, hold, entry.claims)


def judge_absence(tx: Transaction, entry: Entry, evidence: DeviceEvidence) -> Outcome:
    """Judge whether the holder has released the device: kubelet does not show a pod."""
    hold = entry.hold or Hold()
    quarantined = entry.owner is Owner.QUARANTINE
    node = tx.ledger.node
    if quarantined and not node.merged:
        return entry
    if not quarantined:
        hold = release_rule.with_record(hold, evidence, tx.at)
    verdict = release_rule.judge(
        hold,
        evidence,
        at=tx.at,
        suspended_until=node.releases_suspended_until,
        policy=tx.policy,
        quarantined=quarantined,
    )
    if isinstance(verdict, HoldEnded):
        claims = _with_allocated(tx, entry, evidence) if quarantined else entry.claims
        return with_holders(tx, replace(entry, hold=hold), None, claims, verdict.because)
    return entry if verdict is entry.hold else replace(entry, hold=verdict)


def _with_allocated(tx: Transaction, entry: Entry, evidence: DeviceEvidence) -> tuple[ClaimHold, ...]:
    """Return a quarantined device's claims, and all claims that are allocated it, even if they were denied."""
    shares: dict[ClaimRef, tuple[ClaimShare, ...]] = {}
    for claim, use in evidence.allocated or ():
        if not use.admin:
            shares[claim] = with_share(shares.get(claim, ()), use.share)
    uids = {claim.uid for claim in shares}
    others = (held for held in entry.claims if held.admin or held.claim.uid not in uids)
    return (*others, *(ClaimHold(claim, ClaimPhase.GRANTED, tx.at, theirs) for claim, theirs in shares.items()))


def recount(tx: Transaction, entry: Entry, argument: Any) -> Outcome:
    """Count evidence from zero: kubelet or the agent started, so earlier evidence does not count."""
    hold = entry.hold
    if hold is None or not (hold.absences or hold.known or hold.unseen_since):
        return entry
    return replace(entry, hold=replace(hold, absences=0, absent_since=0.0, known=False, unseen_since=0.0))
