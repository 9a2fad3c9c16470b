"""Transitions about claims: allocated, prepared, unprepared, deallocated, and the lease."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from drabridge.ledger import refusals
from drabridge.ledger.effects import Refusal
from drabridge.ledger.entries import (
    ClaimHold,
    ClaimPhase,
    ClaimRef,
    ClaimShare,
    Entry,
    Owner,
)
from drabridge.ledger.events import DeviceUse, Unprepare, WithdrawnFromKubelet
from drabridge.ledger.ownership import cordon, obstacle, overlap, with_holder_found, with_holders
from drabridge.ledger.transaction import Outcome, RequestedUse, Transaction


def _shares(use: DeviceUse) -> tuple[ClaimShare, ...]:
    return (use.share,) if use.share else ()


def with_share(shares: tuple[ClaimShare, ...], new: ClaimShare | None) -> tuple[ClaimShare, ...]:
    """Return the shares of one claim with ``new`` among them.

    Kubelet, and a record of an older agent, know only the id of a share. Once its amounts are known, they are kept.
    """
    if new is None:
        return shares
    known = next((share for share in shares if share.id == new.id), None)
    if known is None:
        return (*shares, new)
    return shares if known.consumed else tuple(new if share is known else share for share in shares)


def _replaced(claims: tuple[ClaimHold, ...], new: ClaimHold) -> tuple[ClaimHold, ...]:
    """Return ``claims`` with ``new`` instead of the one of the same UID and kind (admin access or not)."""
    rest = tuple(held for held in claims if (held.claim.uid, held.admin) != (new.claim.uid, new.admin))
    return (*rest, new)


def _give(tx: Transaction, entry: Entry, request: RequestedUse, phase: ClaimPhase) -> Entry:
    new = ClaimHold(request.claim, phase, tx.at, _shares(request.use), grace=request.grace)
    return with_holders(tx, entry, entry.hold, _replaced(entry.claims, new))


def grant(tx: Transaction, entry: Entry, request: RequestedUse) -> Outcome:
    """Record that the API server gave a free device to a claim, even if the hardware is gone."""
    uid = request.claim.uid
    return cordon(tx, entry, uid) or overlap(tx, entry, uid) or _give(tx, entry, request, ClaimPhase.GRANTED)


def pend(tx: Transaction, entry: Entry, request: RequestedUse) -> Outcome:
    """Record that a claim was given a device of the shared lane and waits for its lease: kubelet must give it up."""
    if not request.use.lease:
        return refusals.no_lease(entry)
    return obstacle(tx, entry, request.claim.uid) or _give(tx, entry, request, ClaimPhase.PENDING)


def pend_as_well(tx: Transaction, entry: Entry, request: RequestedUse) -> Outcome:
    """Record an allocation of a device whose lease claims wait for: a known allocation, or a further share.

    A second holder without a share is refused. If the device has gone meanwhile, or a relative was taken, everybody is
    refused: nobody can be granted its lease.
    """
    if entry.claim(request.claim.uid) is None and not request.use.lease:
        return refusals.no_lease(entry)
    return obstacle(tx, entry, request.claim.uid) or _join(tx, entry, request, ClaimPhase.PENDING)


def prepare(tx: Transaction, entry: Entry, request: RequestedUse) -> Outcome:
    """Prepare a free device for a claim whose allocation the watch has not shown yet; the API server was asked."""
    return obstacle(tx, entry, request.claim.uid) or _give(tx, entry, request, ClaimPhase.PREPARED)


def regrant(tx: Transaction, entry: Entry, request: RequestedUse) -> Outcome:
    """Record an allocation of a device that claims hold: a known one, or a further share. Refuse a second holder.

    If the device has gone meanwhile, or a relative was taken, a waiting claim is refused: it cannot get its lease.
    """
    known = entry.claim(request.claim.uid)
    if known and known.phase is ClaimPhase.WITHDRAWN and (refusal := obstacle(tx, entry, request.claim.uid)):
        return refusal
    if refusal := cordon(tx, entry, request.claim.uid):
        return refusal
    return _join(tx, entry, request, ClaimPhase.GRANTED)


def reprepare(tx: Transaction, entry: Entry, request: RequestedUse) -> Outcome:
    """Prepare a device that claims hold, for a claim that holds it or has a further share. A second holder is refused.

    By now a pod may have a relative: kubelet is believed about pods, whoever had the device first.
    """
    held = entry.claim(request.claim.uid)
    if held and held.phase in (ClaimPhase.PENDING, ClaimPhase.WITHDRAWN):
        return refusals.pending(entry)
    prepared = held is not None and held.phase is ClaimPhase.PREPARED
    if not prepared and (refusal := obstacle(tx, entry, request.claim.uid)):
        return refusal
    return _join(tx, entry, request, ClaimPhase.PREPARED)


def _join(tx: Transaction, entry: Entry, request: RequestedUse, phase: ClaimPhase) -> Outcome:
    """Add the claim to those that hold the device, or refuse it. Repeating it changes nothing."""
    use = request.use
    known = entry.claim(request.claim.uid)
    other = next((held for held in entry.holders if held.claim.uid != request.claim.uid), None)
    new_share = use.share is not None and (known is None or all(use.share.id != share.id for share in known.shares))
    shared = entry.device.shareable and use.share and all(held.shares for held in entry.holders)
    # A claim whose former processes linger is prepared again: another pod has the claim now.
    stronger = phase is ClaimPhase.PREPARED and (
        known is None or known.phase is not ClaimPhase.PREPARED or bool(known.lingers)
    )
    if (known is None or stronger) and other is not None and not shared:
        return refusals.exclusive(entry, other, tx.at)
    if new_share and use.share and (over := _overcommitted(entry, use.share)):
        return over
    if known is None:
        return _give(tx, entry, request, phase)
    shares = with_share(known.shares, use.share)
    if not (stronger or shares != known.shares or not known.api_allocated):
        return entry
    changed = replace(
        known,
        claim=known.claim if known.claim.name else request.claim,
        phase=phase if stronger else known.phase,
        since=tx.at if stronger else known.since,
        shares=shares,
        api_allocated=True,
        grace=max(known.grace, request.grace),
        lingers=0.0 if stronger else known.lingers,
    )
    return with_holders(tx, entry, entry.hold, _replaced(entry.claims, changed))


def _overcommitted(entry: Entry, share: ClaimShare) -> Refusal | None:
    """Refuse a new share that asks for more than the others leave. The scheduler counts first; this is a check."""
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


def note_allocated(tx: Transaction, entry: Entry, request: RequestedUse) -> Outcome:
    """Record the allocation of a device in CONFLICT or QUARANTINE if the claim is known; refuse it for another."""
    known = entry.claim(request.claim.uid)
    if known is None:
        return refusals.held(entry, tx.at)
    if known.api_allocated:
        return entry
    return replace(entry, claims=_replaced(entry.claims, replace(known, api_allocated=True)), seq=tx.seq)


def admit_admin(tx: Transaction, entry: Entry, request: RequestedUse) -> Outcome:
    """Record admin access, so that Unprepare finds it. It holds nothing, so anybody else may get the device."""
    if any(held.admin and held.claim.uid == request.claim.uid for held in entry.claims):
        return entry
    new = ClaimHold(request.claim, ClaimPhase.PREPARED, tx.at, _shares(request.use), admin=True)
    return replace(entry, claims=(*entry.claims, new), seq=tx.seq)


def found_prepared(tx: Transaction, entry: Entry, request: RequestedUse) -> Outcome:
    """Record that a claim may be in use, as a record, a CDI file or kubelet says.

    The claim then holds the device in any case.
    """
    if request.use.admin:
        return admit_admin(tx, entry, request)
    known = entry.claim(request.claim.uid)
    shares = with_share(known.shares if known else (), request.use.share)
    if known and known.phase is ClaimPhase.PREPARED:
        if shares == known.shares or not known.shares:  # a claim without shares has the whole device
            return entry
        return replace(entry, claims=_replaced(entry.claims, replace(known, shares=shares)), seq=tx.seq)
    claim = known.claim if known and known.claim.name else request.claim  # a CDI file does not know the names
    new = ClaimHold(claim, ClaimPhase.PREPARED, tx.at, shares, grace=known.grace if known else 0.0)
    hold = None if entry.owner is Owner.QUARANTINE and entry.hold and not entry.hold.confirmed else entry.hold
    return with_holder_found(tx, entry, hold, _replaced(entry.claims, new))


def with_claims(tx: Transaction, entry: Entry, claims: tuple[ClaimHold, ...], because: str) -> Entry:
    """Return the entry with other claims. A quarantine stays one."""
    if entry.owner is Owner.QUARANTINE:
        return replace(entry, claims=claims, seq=tx.seq)
    return with_holders(tx, entry, entry.hold, claims, because)


def deallocate(tx: Transaction, entry: Entry, uid: str) -> Outcome:
    """Record that the API server took the device from the claim, which keeps it while it is prepared."""
    return _change_claim(
        tx,
        entry,
        uid,
        lambda held: replace(held, api_allocated=False) if held.phase is ClaimPhase.PREPARED else None,
        "no container uses the claim and it is deallocated",
    )


def unprepare(tx: Transaction, entry: Entry, event: Unprepare) -> Outcome:
    """Record that no container uses the claim here. The device is free only if the claim is deallocated as well.

    Processes that linger keep it, and a wait for them that has begun is never shortened.
    """

    def unprepared(held: ClaimHold) -> ClaimHold | None:
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

    return _change_claim(tx, entry, event.uid, unprepared, "no container uses the claim and it is deallocated")


def _change_claim(
    tx: Transaction, entry: Entry, uid: str, change: Callable[[ClaimHold], ClaimHold | None], because: str
) -> Entry:
    """Apply ``change`` to the hold and to the admin access of the claim ``uid``; if it returns None, that one ends."""
    now = [held if held.claim.uid != uid else change(held) for held in entry.claims]
    left = tuple(held for held in now if held is not None)
    return entry if left == entry.claims else with_claims(tx, entry, left, because)


# --- the lease ------------------------------------------------------------------------------------------------------


def lease_withdrawn(tx: Transaction, entry: Entry, event: WithdrawnFromKubelet) -> Outcome:
    """Record that kubelet has given up a shared device whose lease claims wait for."""
    if event.since_seq < entry.seq:
        return refusals.stale(entry.name, "kubelet's answer is older than the claim")
    claims = tuple(
        replace(held, phase=ClaimPhase.WITHDRAWN, since=tx.at) if held.phase is ClaimPhase.PENDING else held
        for held in entry.claims
    )
    return entry if claims == entry.claims else with_holders(tx, entry, entry.hold, claims)


def lease_grant(tx: Transaction, entry: Entry, uid: str) -> Outcome:
    """Grant the claim's lease: kubelet has given the device up, and it is there. Repeating it changes nothing."""
    held = entry.claim(uid)
    if held is None:
        return refusals.stale(entry.name, "the claim does not wait for its lease")
    if held.phase in (ClaimPhase.GRANTED, ClaimPhase.PREPARED):
        return entry
    if held.phase is ClaimPhase.PENDING:
        return refusals.stale(entry.name, "kubelet has not given the device up yet")
    if refusal := obstacle(tx, entry, uid):
        return refusal
    granted = replace(held, phase=ClaimPhase.GRANTED, since=tx.at)
    return with_holders(tx, entry, entry.hold, _replaced(entry.claims, granted))


def lease_deny(tx: Transaction, entry: Entry, claim: ClaimRef) -> Outcome:
    """Deny the claim the lease: it does not hold the device. No claim gets the device until this one is deallocated.

    A prepared claim keeps the device: a container of an earlier allocation uses it.
    """
    held = entry.claim(claim.uid)
    if held is not None and held.phase is ClaimPhase.PREPARED:
        return entry
    if any(one.claim.uid == claim.uid for one in entry.denied):
        return entry
    return with_claims(tx, entry, _replaced(entry.claims, _denied(held, claim, tx.at)), "the lease was denied")


def without_waiting(tx: Transaction, entry: Entry, because: str) -> Entry:
    """Return the entry with every waiting claim denied; the step then denies these claims their other devices, too."""
    tx.denied.update((held.claim, because) for held in entry.holders)
    claims = tuple(held if held.admin else _denied(held, held.claim, tx.at) for held in entry.claims)
    return with_holders(tx, entry, entry.hold, claims, because)


def _denied(held: ClaimHold | None, claim: ClaimRef, at: float) -> ClaimHold:
    return ClaimHold(claim, ClaimPhase.DENIED, at, held.shares if held else ())
