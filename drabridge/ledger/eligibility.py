"""What each API may hand out now: pure functions of the ledger, so nothing is pushed and nothing can be forgotten."""

from __future__ import annotations

from drabridge.inventory.model import Presence
from drabridge.ledger.model import DRA_OWNERS, ClaimHold, Entry, Lane, Ledger, LedgerPolicy, Owner

_LEGACY_LANES = frozenset({Lane.LEGACY, Lane.SHARED})
_DRA_LANES = frozenset({Lane.DRA, Lane.SHARED})


def legacy_healthy(ledger: Ledger, entry: Entry, policy: LedgerPolicy) -> bool:
    """Healthy in ListAndWatch: present, and held by a legacy pod or free for one.

    A device that a legacy pod holds stays Healthy whatever its lane: kubelet fails the pod otherwise when it restarts.
    Not under another resource than the pod's, where kubelet takes it for free.
    """
    if entry.device.presence is not Presence.PRESENT:
        return False
    if entry.owner is Owner.LEGACY:
        return not entry.counted_elsewhere
    return _free_for(ledger, entry, _LEGACY_LANES, policy)


def dra_schedulable(ledger: Ledger, entry: Entry, policy: LedgerPolicy) -> bool:
    """In a ResourceSlice without taint: present, and held by claims or free for one.

    Not while it waits to leave the lane: the next claim takes a device before the last one has let go, for ever where
    claims queue, and one that several may hold is never without. Nor while the scheduler takes what is held for free.
    """
    if entry.device.presence is not Presence.PRESENT:
        return False
    if entry.owner in DRA_OWNERS:
        return not entry.leaving and all(_counted(held, entry) for held in entry.holders)
    return _free_for(ledger, entry, _DRA_LANES, policy)


def _counted(held: ClaimHold, entry: Entry) -> bool:
    """Whether the scheduler counts a claim's hold, so that it gives the device to nobody whom we would refuse.

    It keeps whole devices and shares apart: one that is offered in the other manner than it is held is free to it, and
    so is what a claim that is no longer allocated has here until it is unprepared, or while its processes linger.
    """
    known = (held.api_allocated and not held.lingers) or (entry.device.shareable and not entry.device.capacity)
    return known and bool(held.shares) is entry.device.shareable


def needs_lease_conditions(entry: Entry, policy: LedgerPolicy) -> bool:
    """Whether the device is to carry the lease's binding conditions in its slice (G2)."""
    return policy.g2 and entry.lane is Lane.SHARED


def must_list(entry: Entry, at: float, policy: LedgerPolicy) -> bool:
    """Whether ListAndWatch must still name the device's units, Healthy or not.

    Dropping an id that may be in an Allocate, or that a pod still has, crashes kubelet 1.36.2 (nil dereference in the
    device manager's allocateContainerResources). A device that is gone is a tombstone until it is free and quiescent.
    """
    if entry.device.presence is not Presence.GONE or entry.owner is not Owner.NONE:
        return True
    return at - entry.since < policy.tombstone_seconds


def _free_for(ledger: Ledger, entry: Entry, lanes: frozenset[Lane], policy: LedgerPolicy) -> bool:
    """Free, offered in one of ``lanes``, and no overlapping device is held or offered elsewhere."""
    if entry.owner is not Owner.NONE or entry.lane not in lanes:
        return False
    if entry.lane is Lane.SHARED and not policy.g2:
        return False
    return blocking_relative(ledger, entry) is None


def blocking_relative(ledger: Ledger, entry: Entry) -> Entry | None:
    """What shares the hardware of a free device and keeps it from being offered: the whole of a part, a part of a
    whole, what the place was called before.
    """
    relatives = ledger.relatives(entry.device)
    return next(
        (
            relative
            for relative in relatives
            if relative.owner is not Owner.NONE
            or not (relative.lane is entry.lane or _left(relative, (entry, *relatives)))
        ),
        None,
    )


def _left(relative: Entry, family: tuple[Entry, ...]) -> bool:
    """Whether a relative is only what a place was called before, the device's own, its whole's or its part's: it is
    given to nobody, whatever its lane.
    """
    return relative.device.presence is Presence.GONE and any(
        one.device.presence is not Presence.GONE and relative.device.same_place(one.device) for one in family
    )
