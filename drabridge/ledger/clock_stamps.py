"""Stamps that a clock ahead of ours has left: a node whose clock was set back between two runs of the agent."""

from __future__ import annotations

from msgspec.structs import replace

from drabridge.ledger.model import Entry


def not_after(entry: Entry, at: float) -> Entry:
    """The entry with no stamp later than ``at`` (seconds); the same object if there is none.

    Waits are counted from stamps. One from the future would make them last until the clock gets there; taken as now,
    each wait is had in full, once more.
    """
    hold, move = entry.hold, entry.move
    if hold is not None and max(hold.allocated_at, hold.last_seen, hold.absent_since) > at:
        hold = replace(
            hold,
            allocated_at=min(hold.allocated_at, at),
            last_seen=min(hold.last_seen, at),
            absent_since=min(hold.absent_since, at),
        )
    if move is not None and max(move.since, move.step_since) > at:
        move = replace(move, since=min(move.since, at), step_since=min(move.step_since, at))
    claims = entry.claims
    if any(held.since > at for held in claims):
        claims = tuple(replace(held, since=min(held.since, at)) for held in claims)
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
