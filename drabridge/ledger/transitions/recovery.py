"""Transitions after a loss of the record or a reboot, and by the operator's word that a hold has ended."""

from __future__ import annotations

from msgspec.structs import replace

from drabridge.ledger import refusals
from drabridge.ledger.entries import ClaimPhase, Entry, HeldBecause, Hold, Owner
from drabridge.ledger.events import ManualRelease
from drabridge.ledger.ownership import lane_when_held, with_holders
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.release_rule import grace_of
from drabridge.ledger.transaction import Outcome, Transaction
from drabridge.ledger.transitions.claims import with_claims
from drabridge.ledger.transitions.pods import recount


def quarantine(tx: Transaction, entry: Entry, reason: str) -> Outcome:
    """Quarantine a device that looks free: the record is lost, and anybody may hold it."""
    lane, move = lane_when_held(tx, entry, Owner.QUARANTINE)
    return replace(
        entry,
        owner=Owner.QUARANTINE,
        lane=lane,
        move=move,
        hold=Hold(allocated_at=tx.at),
        since=tx.at,
        seq=tx.seq,
        released_because="",
    )


_NOBODY_SEEN = frozenset(  # kubelet was asked and shows nobody, but that is not certain enough
    {HeldBecause.ONCE_ABSENT, HeldBecause.NO_SECOND_WITNESS, HeldBecause.POD_UNACCOUNTED, HeldBecause.GRACE_PERIOD}
)


def release_manually(tx: Transaction, entry: Entry, event: ManualRelease) -> Outcome:
    """End the holds that nobody uses, as far as kubelet and the API server know; refuse if they say otherwise."""
    hold, claims = entry.hold, entry.claims
    staying = []
    if hold is not None and hold.because not in _NOBODY_SEEN:
        staying.append(refusals.in_use(entry, f"kubelet does not say that no pod uses it ({hold.because})"))
    else:
        hold = None
    used = [held for held in entry.holders if held.api_allocated or held.claim.uid not in event.ended]
    if used and len(used) == len(entry.holders):
        why = "the API server shows it allocated to" if used[0].api_allocated else "a container may still use it by"
        staying.append(refusals.in_use(entry, f"{why} claim {used[0].claim}"))
    else:  # the shares of claims in use stay, and so does admin access of other claims
        ended = {held.claim.uid for held in entry.holders} - {held.claim.uid for held in used}
        claims = tuple(held for held in claims if held.claim.uid not in ended)
    sides = 2 if entry.owner is Owner.CONFLICT else 1  # a conflict is over when one side has ended
    return staying[0] if len(staying) >= sides else with_holders(tx, entry, hold, claims, "the operator resolved it")


def reboot(tx: Transaction, entry: Entry, argument: None) -> Outcome:
    """Make prepared claims granted: no container of the last boot runs. Legacy holds stay, as in the checkpoint."""
    claims = tuple(
        replace(held, phase=ClaimPhase.GRANTED, since=tx.at, lingers=0.0) if held.phase is ClaimPhase.PREPARED else held
        for held in entry.claims
        if not (held.phase is ClaimPhase.PREPARED and (held.admin or not held.api_allocated))
    )
    if claims != entry.claims:
        entry = with_claims(tx, entry, claims, "the node was rebooted and the claim is deallocated")
    return recount(tx, entry, argument)


def with_waits_begun_anew(entry: Entry, at: float, policy: LedgerPolicy) -> Entry:
    """Return the entry as it is for an agent that starts at ``at`` (seconds); the same object if nothing changes.

    A node's clock may have been set between two runs of the agent. If it was set back, a wait that counts from a stamp
    would last until the clock gets there; so no stamp is later than ``at``. If it was set forward, a wait for processes
    that may still run would be over at once; so each such wait starts again.
    """
    hold, move = entry.hold, entry.move
    if hold is not None and hold.earlier:
        hold = replace(hold, earlier_until=at + grace_of(hold, policy) + policy.absent_seconds)
    if hold is not None and (hold.absences or hold.unseen_since or max(hold.allocated_at, hold.last_seen) > at):
        hold = replace(
            hold,
            allocated_at=min(hold.allocated_at, at),
            last_seen=min(hold.last_seen, at),
            absences=0,
            absent_since=0.0,
            unseen_since=0.0,
        )
    if move is not None and max(move.since, move.step_since) > at:
        move = replace(move, since=min(move.since, at), step_since=min(move.step_since, at))
    claims = entry.claims
    if any(held.since > at or held.lingers for held in claims):
        claims = tuple(replace(held, since=at if held.lingers else min(held.since, at)) for held in claims)
    own = (entry.since, entry.presence_since, entry.legacy_until)
    if hold is entry.hold and move is entry.move and claims is entry.claims and max(own) <= at:
        return entry
    since, presence_since, legacy_until = (min(stamp, at) for stamp in own)
    return replace(
        entry,
        hold=hold,
        move=move,
        claims=claims,
        since=since,
        presence_since=presence_since,
        legacy_until=legacy_until,
    )
