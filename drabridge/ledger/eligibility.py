"""What each API may hand out now: pure functions of the ledger, so nothing is pushed and nothing can be forgotten."""

from __future__ import annotations

from drabridge.inventory.devices import Presence
from drabridge.ledger.entries import DRA_OWNERS, ClaimHold, Entry, Lane, Ledger, Owner
from drabridge.ledger.policy import LedgerPolicy

_LEGACY_LANES = frozenset({Lane.LEGACY, Lane.SHARED})
_DRA_LANES = frozenset({Lane.DRA, Lane.SHARED})


def legacy_healthy(ledger: Ledger, entry: Entry) -> bool:
    """Whether ListAndWatch shows the device Healthy: it is present, and held by a legacy pod or free for one.

    A device that a legacy pod holds stays Healthy in every lane: otherwise kubelet fails the pod when it restarts. But
    if kubelet counts the pod under another resource, the device is Unhealthy here: under this resource kubelet takes it
    for free.
    """
    if entry.device.presence is not Presence.PRESENT:
        return False
    if entry.owner is Owner.LEGACY:
        return not entry.counted_elsewhere
    return _free_for(ledger, entry, _LEGACY_LANES)


def dra_schedulable(ledger: Ledger, entry: Entry) -> bool:
    """Whether a ResourceSlice shows the device without taint: it is present, and held by claims or free for one.

    A device has a taint while it waits to leave the lane: where claims queue, the next claim would take it before the
    last one has released it, and a device for several claims would never become free. A held device also has a taint
    while the scheduler takes it for free, or would give it again to a claim that was denied it.
    """
    if entry.device.presence is not Presence.PRESENT or entry.denied:
        return False
    if entry.owner in DRA_OWNERS:
        if cordoned_by(ledger, entry) is not None:
            return False
        return entry.move is None and all(_scheduler_counts(held, entry) for held in entry.holders)
    return _free_for(ledger, entry, _DRA_LANES) and (entry.lane is Lane.DRA or leasable(ledger, entry))


def _scheduler_counts(held: ClaimHold, entry: Entry) -> bool:
    """Whether the scheduler counts a claim's hold, so that it gives the device to no claim that we would refuse.

    The scheduler counts whole devices and shares separately: a device that is held as a whole and now offered in shares
    looks free to it, and so does the reverse. A device whose claim has lost its allocation also looks free, until the
    claim is unprepared and its processes have ended.
    """
    known = (held.api_allocated and not held.lingers) or (entry.device.shareable and not entry.device.capacity)
    return known and bool(held.shares) is entry.device.shareable


def must_list(entry: Entry, at: float, policy: LedgerPolicy) -> bool:
    """Whether ListAndWatch must still name the device's units, Healthy or not.

    Dropping an id that may be in an Allocate, or that a pod still has, crashes kubelet 1.36.2 (nil dereference in the
    device manager's allocateContainerResources). So a device that is gone stays listed until it is free and quiescent.
    """
    if entry.device.presence is not Presence.GONE or entry.owner is not Owner.NONE:
        return True
    return at - entry.since < policy.tombstone_seconds


def _free_for(ledger: Ledger, entry: Entry, lanes: frozenset[Lane]) -> bool:
    """Whether it is free, in one of ``lanes``, in service, and no overlapping device is held or offered elsewhere."""
    if entry.owner is not Owner.NONE or entry.lane not in lanes:
        return False
    return blocking_relative(ledger, entry) is None and cordoned_by(ledger, entry) is None


def cordoned_by(ledger: Ledger, entry: Entry) -> Entry | None:
    """Return the entry that puts a device out of service: itself, or one with overlapping hardware; None if none does.

    Its holders keep it, and nobody else gets it.
    """
    return next((one for one in (entry, *ledger.relatives(entry.device)) if one.device.cordoned), None)


def leasable(ledger: Ledger, entry: Entry) -> bool:
    """Whether a claim may have the device by a lease: it overlaps with no other device.

    For a lease kubelet gives up one device only; it would still give the parts of that device to pods.
    """
    return all(one.device.presence is Presence.GONE for one in ledger.relatives(entry.device))


def blocking_relative(ledger: Ledger, entry: Entry) -> Entry | None:
    """Return an entry with overlapping hardware that keeps a free device from being offered, or None.

    That entry is held, or it is in another lane. An entry that is only a former name of a place does not count.
    """
    relatives = ledger.relatives(entry.device)
    return next(
        (
            relative
            for relative in relatives
            if relative.owner is not Owner.NONE
            or not (relative.lane is entry.lane or _is_former_name(relative, (entry, *relatives)))
        ),
        None,
    )


def _is_former_name(relative: Entry, family: tuple[Entry, ...]) -> bool:
    """Whether the relative is gone and another device of the family is in its place, so that nobody can get it."""
    return relative.device.presence is Presence.GONE and any(
        one.device.presence is not Presence.GONE and relative.device.same_place(one.device) for one in family
    )
