"""How the owner and the lane of a device follow from its holders: the one place where an owner is made."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from drabridge.inventory.devices import Presence
from drabridge.ledger import refusals
from drabridge.ledger.effects import LaneMoveAborted, Notify, Refusal, Released, Subject
from drabridge.ledger.eligibility import cordoned_by
from drabridge.ledger.entries import (
    DRA_OWNERS,
    MOVING,
    ClaimHold,
    ClaimPhase,
    ClaimRef,
    Entry,
    Hold,
    Lane,
    Move,
    MoveStep,
    Owner,
    PodRef,
)
from drabridge.ledger.transaction import Transaction


def owner_of(hold: Hold | None, claims: tuple[ClaimHold, ...]) -> Owner:
    """Return the owner of a device with these holders. Admin access and claims that were denied do not count."""
    strongest = Owner.NONE
    for held in claims:
        if held.admin or held.phase is ClaimPhase.DENIED:
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


def with_holders(
    tx: Transaction, before: Entry, hold: Hold | None, claims: tuple[ClaimHold, ...] = (), because: str = ""
) -> Entry:
    """Return the entry with these holders, and the owner and lane that follow; ``because``: why a holder left.

    A waiting move begins when the device becomes free. A move that has begun is aborted when the device is taken.
    """
    owner = owner_of(hold, claims)
    lane, move, since, released = before.lane, before.move, before.since, before.released_because
    if owner is not before.owner:
        since = tx.at
        if owner is Owner.NONE:
            lane, move = _lane_when_free(tx, before)
        elif lane in MOVING or lane is (Lane.DRA if owner is Owner.LEGACY else Lane.LEGACY):
            lane, move = lane_when_held(tx, before, owner)
        if owner is Owner.CONFLICT:
            _report_conflict(tx, before, hold, claims)
    if (hold is None and before.hold is not None) or _not_denied(claims) < _not_denied(before.claims):
        released = because
        who = refusals.holder(before, exclude_hold=hold, exclude_claims=claims)
        left = {held.claim.uid for held in claims if held.phase is not ClaimPhase.DENIED}
        began = [held.since for held in before.holders if held.claim.uid not in left]
        tx.effects.append(Released(before.name, who, because, tx.at - min(began, default=before.since)))
    stamps = (before.presence_since, before.legacy_until, before.was_at if owner is not Owner.NONE else ())
    former = before.hold.last_recorded if before.hold is not None and hold is None else before.former
    changed = Entry(before.device, owner, lane, hold, claims, move, since, tx.seq, released, *stamps, former)
    return stamp_legacy_end(tx, before, changed)


def _not_denied(claims: tuple[ClaimHold, ...]) -> int:
    return sum(held.phase is not ClaimPhase.DENIED for held in claims)


def stamp_legacy_end(tx: Transaction, before: Entry, entry: Entry) -> Entry:
    """Return the entry, with ``legacy_until`` set if kubelet stops dealing with the device in this step."""
    return replace(entry, legacy_until=tx.at) if before.with_kubelet and not entry.with_kubelet else entry


def lane_when_held(tx: Transaction, before: Entry, owner: Owner) -> tuple[Lane, Move | None]:
    """Put a taken device into its holder's lane; if it should be in another one, it moves there when it is released."""
    lane, move = before.lane, before.move
    if lane in MOVING and move is not None:
        lane = move.source
        tx.effects.append(LaneMoveAborted(before.name, move.target, f"taken while it was {move.step}"))
    if owner is Owner.LEGACY and lane is Lane.DRA:
        lane = Lane.LEGACY
    elif owner in DRA_OWNERS and lane is Lane.LEGACY:
        lane = Lane.DRA
    if before.target is lane:
        return lane, None
    asked = move.since if move else tx.at
    return lane, Move(lane, before.target, MoveStep.WAITING, asked, tx.at, "the device is held")


def _lane_when_free(tx: Transaction, before: Entry) -> tuple[Lane, Move | None]:
    """Begin a waiting move. After CONFLICT or QUARANTINE kubelet must confirm before claims are offered the device."""
    if before.move is not None:
        return begin_move(tx, before.lane, before.move.target, before.move.since)
    if before.owner in (Owner.CONFLICT, Owner.QUARANTINE) and before.lane is Lane.DRA:
        return begin_move(tx, Lane.LEGACY, Lane.DRA, tx.at)
    return before.lane, None


def begin_move(tx: Transaction, source: Lane, target: Lane, asked: float) -> tuple[Lane, Move | None]:
    """Begin to move a free device: the present side must confirm that it is withdrawn before the other side gets it."""
    if target is source:
        return source, None
    if {source, target} == {Lane.LEGACY, Lane.SHARED}:
        return target, None  # pods may have it before and after the move, and claims only by a lease
    lane = Lane.LEGACY_TO_DRA if target is Lane.DRA else Lane.DRA_TO_LEGACY
    whom = "kubelet" if lane is Lane.LEGACY_TO_DRA else "the API server"
    return lane, Move(source, target, MoveStep.REVOKING, asked, tx.at, f"waits for {whom} to confirm")


def _report_conflict(tx: Transaction, before: Entry, hold: Hold | None, claims: tuple[ClaimHold, ...]) -> None:
    """Tell everybody concerned that a pod and a claim have one device."""
    pods = hold.pods if hold else ()
    holders = tuple(held.claim for held in claims if not held.admin)
    message = (
        f"{before.name} is used by {', '.join(map(str, pods)) or 'a pod'} through resource limits and by "
        f"{', '.join(f'claim {claim}' for claim in holders)}; stop one of them"
    )
    _report(tx, message, pods, holders)


def _report(tx: Transaction, message: str, pods: Iterable[PodRef], claims: Iterable[ClaimRef]) -> None:
    tx.effects.append(Notify(Subject.NODE, "DeviceConflict", message))
    tx.effects += [Notify(Subject.POD, "DeviceConflict", message, p.namespace, p.name, p.uid) for p in pods if p.name]
    tx.effects += [
        Notify(Subject.CLAIM, "DeviceConflict", message, c.namespace, c.name, c.uid) for c in claims if c.name
    ]


def with_holder_found(tx: Transaction, before: Entry, hold: Hold | None, claims: tuple[ClaimHold, ...] = ()) -> Entry:
    """Return the entry as :func:`with_holders` does, with a holder that evidence shows.

    Evidence is believed even if somebody else has overlapping hardware; a request is refused then. Both holders are
    told.
    """
    found = with_holders(tx, before, hold, claims)
    if before.owner is Owner.NONE:
        _report_overlap(tx, found)
    return found


def _report_overlap(tx: Transaction, found: Entry) -> None:
    """Tell everybody concerned that a device and overlapping hardware have different holders."""
    for relative in tx.relatives(found):
        if relative.owner is not Owner.NONE and (relative.device.related(found.device) or _disjoint(found, relative)):
            message = (
                f"{found.name}, which {refusals.holder(found)} has, shares its hardware with {relative.name}, which "
                f"{refusals.holder(relative)} has; stop one of them"
            )
            pods = [pod for one in (found, relative) if one.hold for pod in one.hold.pods]
            _report(tx, message, pods, [held.claim for one in (found, relative) for held in one.holders])


def _disjoint(one: Entry, other: Entry) -> bool:
    """Whether two held devices have no holder in common, as far as their holders are known."""
    if any(entry.hold is not None and not entry.hold.pods for entry in (one, other)):
        return False  # the pod of the Allocate is not known yet
    return not _holders(one) & _holders(other)


def _holders(entry: Entry) -> set[tuple[str, str]]:
    pods = entry.hold.pods if entry.hold else ()
    return {(pod.namespace, pod.name) for pod in pods} | {("", held.claim.uid) for held in entry.holders}


def obstacle(tx: Transaction, entry: Entry, uid: str = "") -> Refusal | None:
    """Return the refusal if the device is not there, is out of service, or overlapping hardware is held; else None.

    A holder that asks for more of the device is refused for these reasons, too. ``uid``: of the claim that is to have
    it; "": a pod.
    """
    if entry.device.presence is not Presence.PRESENT:
        return refusals.not_present(entry)
    return cordon(tx, entry, uid) or overlap(tx, entry, uid)


def cordon(tx: Transaction, entry: Entry, uid: str = "") -> Refusal | None:
    """Return the refusal if the device is out of service; None for a claim that has it already."""
    if (by := cordoned_by(tx.ledger, entry)) is None:
        return None
    held = entry.claim(uid)
    if held is not None and held.phase in (ClaimPhase.GRANTED, ClaimPhase.PREPARED):
        return None
    return refusals.cordoned(entry, by)


def overlap(tx: Transaction, entry: Entry, uid: str = "") -> Refusal | None:
    """Return the refusal if somebody else holds overlapping hardware; None if it is free or has the same holder."""
    for relative in tx.relatives(entry):
        if relative.owner is not Owner.NONE and not _same_holder(tx, entry, relative, uid):
            return refusals.overlaps(entry, relative, tx.at)
    return None


def _same_holder(tx: Transaction, entry: Entry, relative: Entry, uid: str) -> bool:
    """Whether one container or one claim has both devices, and they have only a device node in common.

    A step is for one container or one claim. Devices that the claim got in an earlier step are its own as well.
    """
    if relative.device.related(entry.device):
        return False
    before = tx.ledger.entries.get(relative.name)
    was_free = before is not None and before.owner is Owner.NONE
    return was_free or (relative.hold is None and all(held.claim.uid == uid for held in relative.holders))
