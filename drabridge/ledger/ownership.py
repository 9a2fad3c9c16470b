"""How the owner and the lane of a device follow from who holds it: the one place where an owner is made."""

from __future__ import annotations

from msgspec.structs import replace

from drabridge.inventory.model import Presence
from drabridge.ledger import refusals
from drabridge.ledger.effects import (
    LaneMoveAborted,
    Notify,
    Refusal,
    Released,
    Subject,
)
from drabridge.ledger.model import (
    DRA_OWNERS,
    MOVING,
    ClaimHold,
    ClaimPhase,
    Entry,
    Hold,
    Lane,
    Move,
    MoveStep,
    Owner,
)
from drabridge.ledger.transaction import Transaction


def owner_of(hold: Hold | None, claims: tuple[ClaimHold, ...]) -> Owner:
    """Who owns a device with these holders. Admin access holds nothing."""
    strongest = Owner.NONE
    for held in claims:
        if held.admin:
            continue
        if held.phase is ClaimPhase.PREPARED:
            strongest = Owner.DRA_PREPARED
            break
        if held.phase is ClaimPhase.GRANTED:
            strongest = Owner.DRA_GRANTED
        elif strongest is Owner.NONE:
            strongest = Owner.DRA_PENDING
    if hold is None:
        return strongest
    return Owner.LEGACY if strongest is Owner.NONE else Owner.CONFLICT


def settle(
    tx: Transaction, before: Entry, hold: Hold | None, claims: tuple[ClaimHold, ...] = (), because: str = ""
) -> Entry:
    """The entry with these holders: its owner, its lane, and a waiting move begun or an open one aborted."""
    owner = owner_of(hold, claims)
    lane, move, since, released = before.lane, before.move, before.since, before.released_because
    if owner is not before.owner:
        since = tx.at
        if owner is Owner.NONE:
            lane, move = _lane_when_free(tx, before)
        elif lane in MOVING or lane is (Lane.DRA if owner is Owner.LEGACY else Lane.LEGACY):
            lane, move = lane_when_held(tx, before, owner)
        if owner is Owner.CONFLICT:
            _alarm(tx, before, hold, claims)
    if (hold is None and before.hold is not None) or len(claims) < len(before.claims):
        released = because
        who = refusals.holder(before, hold, claims)
        left = {held.claim.uid for held in claims}
        began = [held.since for held in before.holders if held.claim.uid not in left]
        tx.effects.append(Released(before.name, who, because, tx.at - min(began, default=before.since)))
    stamps = (before.presence_since, before.legacy_until, before.was_at if owner is not Owner.NONE else ())
    settled = Entry(before.device, owner, lane, hold, claims, move, since, tx.seq, released, *stamps)
    return left_kubelet(tx, before, settled)


def left_kubelet(tx: Transaction, before: Entry, entry: Entry) -> Entry:
    """The entry; with the time where kubelet's business with the device ends here."""
    return replace(entry, legacy_until=tx.at) if before.with_kubelet and not entry.with_kubelet else entry


def lane_when_held(tx: Transaction, before: Entry, owner: Owner) -> tuple[Lane, Move | None]:
    """A held device is in the lane of its holder's side; where it was meant to be, it moves when it is let go."""
    lane, move = before.lane, before.move
    target = lane if move is None else move.target
    if lane in MOVING and move is not None:
        lane = move.source
        tx.effects.append(LaneMoveAborted(before.name, move.target, f"taken while it was {move.step}"))
    if owner is Owner.LEGACY and lane is Lane.DRA:
        lane = Lane.LEGACY
    elif owner in DRA_OWNERS and lane is Lane.LEGACY:
        lane = Lane.DRA
    if target is lane:
        return lane, None
    asked = move.since if move else tx.at
    return lane, Move(lane, target, MoveStep.WAITING, asked, tx.at, "the device is held")


def _lane_when_free(tx: Transaction, before: Entry) -> tuple[Lane, Move | None]:
    """A waiting move begins. Out of CONFLICT or QUARANTINE, kubelet must confirm before claims are offered a device."""
    if before.move is not None:
        return begin(tx, before.lane, before.move.target, before.move.since)
    if before.owner in (Owner.CONFLICT, Owner.QUARANTINE) and before.lane is Lane.DRA:
        return begin(tx, Lane.LEGACY, Lane.DRA, tx.at)
    return before.lane, None


def begin(tx: Transaction, source: Lane, target: Lane, asked: float) -> tuple[Lane, Move | None]:
    """Start to move a free device: tell the side that has it; the other side gets it once that is confirmed."""
    if target is source:
        return source, None
    if source is Lane.LEGACY and target is Lane.SHARED:
        return Lane.SHARED, None  # nobody loses it, and its claims will be guarded
    revoke = Lane.LEGACY_TO_DRA if target is Lane.DRA else Lane.DRA_TO_LEGACY
    whom = "kubelet" if revoke is Lane.LEGACY_TO_DRA else "the API server"
    return revoke, Move(source, target, MoveStep.REVOKING, asked, tx.at, f"waits for {whom} to confirm")


def _alarm(tx: Transaction, before: Entry, hold: Hold | None, claims: tuple[ClaimHold, ...]) -> None:
    """Tell everybody concerned that a pod and a claim have one device."""
    pods = hold.pods if hold else ()
    holders = tuple(held.claim for held in claims if not held.admin)
    message = (
        f"{before.name} is used by {', '.join(map(str, pods)) or 'a pod'} through resource limits and by "
        f"{', '.join(f'claim {claim}' for claim in holders)}; stop one of them"
    )
    tx.effects.append(Notify(Subject.NODE, "DeviceConflict", message))
    tx.effects += [Notify(Subject.POD, "DeviceConflict", message, p.namespace, p.name, p.uid) for p in pods if p.name]
    tx.effects += [
        Notify(Subject.CLAIM, "DeviceConflict", message, c.namespace, c.name, c.uid) for c in holders if c.name
    ]


def obstacle(tx: Transaction, entry: Entry) -> Refusal | None:
    """Why a free device cannot be given to anybody: it is not there, or overlapping hardware is held."""
    if entry.device.presence is not Presence.PRESENT:
        return refusals.not_present(entry)
    return overlap(tx, entry)


def overlap(tx: Transaction, entry: Entry) -> Refusal | None:
    """Who holds overlapping hardware. One container, or claim, may have several devices that hand out one node."""
    for relative in tx.relatives(entry):
        if relative.owner is not Owner.NONE and not _taken_with_it(tx, entry, relative):
            return refusals.overlaps(entry, relative, tx.at)
    return None


def _taken_with_it(tx: Transaction, entry: Entry, relative: Entry) -> bool:
    """Whether this very step gives the other one as well; a request is of one container, or of one claim."""
    before = tx.ledger.entries.get(relative.name)
    free = before is not None and before.owner is Owner.NONE
    return free and not relative.device.related(entry.device)
