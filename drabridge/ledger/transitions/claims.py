"""Rows about claims: allocated, prepared, unprepared, deallocated, and the lease of level G2."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from drabridge.inventory.model import Presence
from drabridge.ledger import refusals
from drabridge.ledger.effects import Refusal
from drabridge.ledger.events import DeviceUse, Unprepare
from drabridge.ledger.model import (
    ClaimHold,
    ClaimPhase,
    ClaimShare,
    Entry,
    Owner,
)
from drabridge.ledger.ownership import obstacle, overlap, settle
from drabridge.ledger.transaction import Outcome, RequestedUse, Transaction


def _shares(use: DeviceUse) -> tuple[ClaimShare, ...]:
    return (use.share,) if use.share else ()


def joined(shares: tuple[ClaimShare, ...], new: ClaimShare | None) -> tuple[ClaimShare, ...]:
    """The shares of one claim with ``new`` among them. What it takes is kept, once anybody has said it: a record of an
    older agent and kubelet know a share's id alone.
    """
    if new is None:
        return shares
    known = next((share for share in shares if share.id == new.id), None)
    if known is None:
        return (*shares, new)
    return shares if known.consumed else tuple(new if share is known else share for share in shares)


def _with(claims: tuple[ClaimHold, ...], new: ClaimHold) -> tuple[ClaimHold, ...]:
    """``claims`` with ``new`` instead of the one of the same UID and kind."""
    rest = tuple(held for held in claims if (held.claim.uid, held.admin) != (new.claim.uid, new.admin))
    return (*rest, new)


def _give(tx: Transaction, entry: Entry, demand: RequestedUse, phase: ClaimPhase) -> Entry:
    new = ClaimHold(demand.claim, phase, tx.at, _shares(demand.use), grace=demand.grace)
    return settle(tx, entry, entry.hold, (*entry.claims, new))


def grant(tx: Transaction, entry: Entry, demand: RequestedUse) -> Outcome:
    """A claim was allocated a device that claims may have. Hardware that is gone does not make it untrue."""
    return overlap(tx, entry) or _give(tx, entry, demand, ClaimPhase.GRANTED)


def pend(tx: Transaction, entry: Entry, demand: RequestedUse) -> Outcome:
    """A claim was allocated a shared device: kubelet must give it up first, unless nobody waits for the lease."""
    if not tx.policy.g2:
        return refusals.disabled(entry)
    return obstacle(tx, entry) or _give(tx, entry, demand, ClaimPhase.PENDING if demand.guarded else ClaimPhase.GRANTED)


def prepare(tx: Transaction, entry: Entry, demand: RequestedUse) -> Outcome:
    """Kubelet prepares a claim before the watch showed its allocation; the API server was asked."""
    return obstacle(tx, entry) or _give(tx, entry, demand, ClaimPhase.PREPARED)


def regrant(tx: Transaction, entry: Entry, demand: RequestedUse) -> Outcome:
    """The API server shows an allocation of a device that claims hold: known, shared, or a second holder."""
    return _join(tx, entry, demand, ClaimPhase.GRANTED)


def reprepare(tx: Transaction, entry: Entry, demand: RequestedUse) -> Outcome:
    """Kubelet prepares a claim on a device that claims hold: this one, a share of it, or a second holder."""
    held = entry.claim(demand.claim.uid)
    if held and held.phase in (ClaimPhase.PENDING, ClaimPhase.WITHDRAWN):
        return refusals.pending(entry)
    if entry.device.presence is not Presence.PRESENT and not (held and held.phase is ClaimPhase.PREPARED):
        return refusals.not_present(entry)
    return _join(tx, entry, demand, ClaimPhase.PREPARED)


def _join(tx: Transaction, entry: Entry, demand: RequestedUse, phase: ClaimPhase) -> Outcome:
    """Add ``demand`` to the claims that hold the device, or refuse it. Repeating it changes nothing."""
    use = demand.use
    known = entry.claim(demand.claim.uid)
    other = next((held for held in entry.holders if held.claim.uid != demand.claim.uid), None)
    new_share = use.share is not None and (known is None or all(use.share.id != share.id for share in known.shares))
    shared = entry.device.shareable and use.share and all(held.shares for held in entry.holders)
    # One that lingers is prepared anew: another pod has the claim now.
    stronger = phase is ClaimPhase.PREPARED and (
        known is None or known.phase is not ClaimPhase.PREPARED or bool(known.lingers)
    )
    if (known is None or stronger) and other is not None and not shared:
        return refusals.exclusive(entry, other, tx.at)
    if new_share and use.share and (over := _overcommitted(entry, use.share)):
        return over
    if known is None:
        return _give(tx, entry, demand, phase)
    shares = joined(known.shares, use.share)
    if not (stronger or shares != known.shares or not known.api_allocated):
        return entry
    changed = replace(
        known,
        claim=known.claim if known.claim.name else demand.claim,
        phase=phase if stronger else known.phase,
        since=tx.at if stronger else known.since,
        shares=shares,
        api_allocated=True,
        grace=max(known.grace, demand.grace),
        lingers=0.0 if stronger else known.lingers,
    )
    return settle(tx, entry, entry.hold, _with(entry.claims, changed))


def _overcommitted(entry: Entry, share: ClaimShare) -> Refusal | None:
    """Whether a new share asks for more than the others leave. The scheduler counts first; this is defence."""
    total = dict(entry.device.capacity)
    for name, wanted in share.consumed:
        if name not in total:
            continue
        used = sum(
            amount
            for held in entry.holders
            for given in held.shares
            for capacity, amount in given.consumed
            if capacity == name
        )
        if used + wanted > total[name]:
            return refusals.overcommitted(entry, name, wanted, total[name] - used)
    return None


def note_allocated(tx: Transaction, entry: Entry, demand: RequestedUse) -> Outcome:
    """An allocation of a device in CONFLICT or QUARANTINE: noted for a claim that is recorded, refused for another."""
    known = entry.claim(demand.claim.uid)
    if known is None:
        return refusals.held(entry, tx.at)
    if known.api_allocated:
        return entry
    return replace(entry, claims=_with(entry.claims, replace(known, api_allocated=True)), seq=tx.seq)


def admit_admin(tx: Transaction, entry: Entry, demand: RequestedUse) -> Outcome:
    """Admin access holds nothing and hinders nobody; it is recorded so that Unprepare finds it."""
    if any(held.admin and held.claim.uid == demand.claim.uid for held in entry.claims):
        return entry
    new = ClaimHold(demand.claim, ClaimPhase.PREPARED, tx.at, _shares(demand.use), admin=True)
    return replace(entry, claims=(*entry.claims, new), seq=tx.seq)


def found_prepared(tx: Transaction, entry: Entry, demand: RequestedUse) -> Outcome:
    """A CDI file says that a claim may be in use: so it holds the device, whatever the ledger thought."""
    if demand.use.admin:
        return admit_admin(tx, entry, demand)
    known = entry.claim(demand.claim.uid)
    shares = joined(known.shares if known else (), demand.use.share)
    if known and known.phase is ClaimPhase.PREPARED:
        if shares == known.shares or not known.shares:  # who is known to have all of it has no share
            return entry
        return replace(entry, claims=_with(entry.claims, replace(known, shares=shares)), seq=tx.seq)
    claim = known.claim if known and known.claim.name else demand.claim  # a CDI file does not know the names
    new = ClaimHold(claim, ClaimPhase.PREPARED, tx.at, shares, grace=known.grace if known else 0.0)
    hold = None if entry.owner is Owner.QUARANTINE and entry.hold and not entry.hold.confirmed else entry.hold
    return settle(tx, entry, hold, _with(entry.claims, new))


def reclaim(tx: Transaction, entry: Entry, claims: tuple[ClaimHold, ...], because: str) -> Entry:
    """The entry with other claims; QUARANTINE stays what it is."""
    if entry.owner is Owner.QUARANTINE:
        return replace(entry, claims=claims, seq=tx.seq)
    return settle(tx, entry, entry.hold, claims, because)


def deallocate(tx: Transaction, entry: Entry, uid: str) -> Outcome:
    """The API server has taken the device from the claim. What kubelet has prepared stays until it unprepares."""
    return _each(
        tx,
        entry,
        uid,
        lambda held: replace(held, api_allocated=False) if held.phase is ClaimPhase.PREPARED else None,
        "no container uses the claim and it is deallocated",
    )


def unprepare(tx: Transaction, entry: Entry, event: Unprepare) -> Outcome:
    """No container uses the claim here. The device is free only if the API server has taken it back as well; it was
    held since it was prepared. Processes that linger keep it, and a wait that has begun is never cut short.
    """

    def back(held: ClaimHold) -> ClaimHold | None:
        if held.phase is not ClaimPhase.PREPARED:
            return held
        if held.admin:
            return None
        lingers = 0.0 if event.ended else max(event.lingers, held.lingers_until - tx.at)
        if lingers > 0.0:
            return replace(held, since=tx.at, lingers=lingers)
        if not held.api_allocated:
            return None
        return replace(held, phase=ClaimPhase.GRANTED, grace=0.0, lingers=0.0)

    return _each(tx, entry, event.uid, back, "no container uses the claim and it is deallocated")


def _each(tx: Transaction, entry: Entry, uid: str, change: Any, because: str) -> Entry:
    """Apply ``change`` to what the claim ``uid`` has of the device (its hold, its admin access, or both)."""
    now = [held if held.claim.uid != uid else change(held) for held in entry.claims]
    left = tuple(held for held in now if held is not None)
    return entry if left == entry.claims else reclaim(tx, entry, left, because)


# --- the lease of level G2 --------------------------------------------------------------------------------------------


def lease_withdrawn(tx: Transaction, entry: Entry, since_seq: int) -> Outcome:
    """Kubelet has given up a shared device that a claim waits for."""
    if since_seq < entry.seq:
        return refusals.stale(entry.name, "kubelet's answer is older than the claim")
    return _rephase(tx, entry, {ClaimPhase.PENDING: ClaimPhase.WITHDRAWN})


def lease_grant(tx: Transaction, entry: Entry, uid: str) -> Outcome:
    """The claim's lease is confirmed, if kubelet has given the device up."""
    held = entry.claim(uid)
    if held is None or held.phase is ClaimPhase.PENDING:
        return refusals.stale(entry.name, "kubelet has not given the device up yet")
    return _rephase(tx, entry, {ClaimPhase.WITHDRAWN: ClaimPhase.GRANTED}, uid)


def _rephase(tx: Transaction, entry: Entry, phases: dict[ClaimPhase, ClaimPhase], uid: str = "") -> Entry:
    claims = tuple(
        replace(held, phase=phases[held.phase], since=tx.at)
        if held.phase in phases and uid in ("", held.claim.uid)
        else held
        for held in entry.claims
    )
    return entry if claims == entry.claims else settle(tx, entry, entry.hold, claims)


def lease_deny(tx: Transaction, entry: Entry, uid: str) -> Outcome:
    """The claim loses its lease."""
    claims = tuple(held for held in entry.claims if held.claim.uid != uid or held.admin)
    return entry if claims == entry.claims else settle(tx, entry, entry.hold, claims, "the lease was denied")
