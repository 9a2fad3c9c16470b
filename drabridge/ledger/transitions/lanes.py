"""Transitions about moves between lanes: revoke, acknowledge, grant, in both directions."""

from __future__ import annotations

from msgspec.structs import replace

from drabridge.ledger import refusals
from drabridge.ledger.effects import LaneMoved
from drabridge.ledger.entries import MOVING, Entry, Lane, Move, MoveStep, Owner
from drabridge.ledger.events import NoClaimListed, SetLane, WithdrawnFromKubelet, WithdrawnFromSlices
from drabridge.ledger.ownership import begin_move, stamp_legacy_end
from drabridge.ledger.transaction import Outcome, Transaction

_LEASED = frozenset({Owner.DRA_GRANTED, Owner.DRA_PREPARED})


def move_free(tx: Transaction, entry: Entry, event: SetLane) -> Outcome:
    """Begin to move a free device. If it already moves to that lane, only the reason why it waits may change."""
    source = entry.move.source if entry.lane in MOVING and entry.move else entry.lane
    if entry.move and entry.lane in MOVING and event.lane is entry.move.target:
        reason = event.reason or entry.move.reason
        return entry if reason == entry.move.reason else replace(entry, move=replace(entry.move, reason=reason))
    lane, move = begin_move(tx, source, event.lane, tx.at)
    return entry if (lane, move) == (entry.lane, entry.move) else _in_lane(tx, entry, lane, move)


def move_when_released(tx: Transaction, entry: Entry, event: SetLane) -> Outcome:
    """Mark a held device to move when it is released.

    It moves at once between two lanes that its holder's side may use.

    But it never leaves the dra lane at once: when the claim ends, the scheduler may give the device to the next claim,
    because it still remembers the old slice.
    """
    if event.lane is entry.target:
        return entry
    move = None
    if entry.owner is Owner.LEGACY and {entry.lane, event.lane} == {Lane.LEGACY, Lane.SHARED}:
        return _in_lane(tx, entry, event.lane, None)
    if entry.owner in _LEASED and (entry.lane, event.lane) == (Lane.SHARED, Lane.DRA):
        return _in_lane(tx, entry, event.lane, None)  # kubelet has given it up for the lease
    if event.lane is not entry.lane:
        move = Move(entry.lane, event.lane, MoveStep.WAITING, tx.at, tx.at, event.reason or "the device is held")
    return replace(entry, move=move, seq=tx.seq)


def _in_lane(tx: Transaction, entry: Entry, lane: Lane, move: Move | None) -> Entry:
    return stamp_legacy_end(tx, entry, replace(entry, lane=lane, move=move, since=tx.at, seq=tx.seq))


def acknowledge(tx: Transaction, entry: Entry, event: WithdrawnFromKubelet) -> Outcome:
    """End a move to the DRA lane: kubelet no longer offers the device, so claims may have it."""
    if event.since_seq < entry.seq:
        return refusals.stale(entry.name, "kubelet's answer is older than the move")
    return _arrive(tx, entry)


def _arrive(tx: Transaction, entry: Entry) -> Entry:
    assert entry.move is not None
    move = entry.move
    tx.effects.append(LaneMoved(entry.name, move.source, move.target, tx.at - move.since))
    return _in_lane(tx, entry, move.target, None)


def quiesce(tx: Transaction, entry: Entry, event: WithdrawnFromSlices) -> Outcome:
    """Start the quiet time of a move to the legacy lane: schedulers that remember the old slices get time to act."""
    if event.since_seq < entry.seq:
        return refusals.stale(entry.name, "the API server's answer is older than the move")
    if entry.move is None or entry.move.step is MoveStep.QUIESCING:
        return entry
    reason = "waits for schedulers that remember it, then for the API server's list of claims"
    move = replace(entry.move, step=MoveStep.QUIESCING, step_since=tx.at, reason=reason)
    return replace(entry, move=move, seq=tx.seq)


def end_quiet_time(tx: Transaction, entry: Entry, event: NoClaimListed) -> Outcome:
    """End a move to the legacy lane: the quiet time is over and no claim has the device, so pods may have it."""
    assert entry.move is not None
    if event.since_seq < entry.seq or entry.move.step is not MoveStep.QUIESCING:
        return refusals.stale(entry.name, "the claims were listed before the slice was withdrawn")
    left = entry.move.step_since + tx.policy.quiesce_seconds - tx.at
    if left > 0:
        return refusals.stale(entry.name, f"schedulers may still remember the device, for {left:.0f} s")
    return _arrive(tx, entry)
