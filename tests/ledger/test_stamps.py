"""A node whose clock was ahead: what an earlier run stamped must not hold devices until the clock gets there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.ledger import (
    Allocate,
    Checkpoint,
    Entry,
    Facts,
    KubeletStarted,
    Lane,
    Ledger,
    NodeState,
    Observed,
    Owner,
    Policy,
    Restarted,
    SetLane,
    step,
)
from drabridge.ledger.events import Event
from drabridge.ledger.model import ClaimHold, ClaimRef, Hold, Move, MoveStep, Phase
from drabridge.ledger.stamps import not_after

NOON = 1_700_000_000.0
YEAR = 365 * 86_400.0
POLICY = Policy()
LOOK_SECONDS = 30.0


def device(number: int) -> Entry:
    return Entry(Facts(f"gpu-{number}", "r", (f"GPU-{number}",)), lane=Lane.LEGACY)


def played(ledger: Ledger, *events: Event) -> Ledger:
    for event in events:
        ledger = step(ledger, event, POLICY).of(ledger)
    return ledger


def looks_until_free(ledger: Ledger, at: float, looks: int = 60) -> float | None:
    """Seconds from ``at`` until evidence that shows nobody has freed the device; None if it never does."""
    for number in range(1, looks):
        now = at + number * LOOK_SECONDS
        nobody = Observed(now, ledger.seq, {}, Checkpoint({}, barrier=True), {})
        ledger = played(ledger, nobody)
        if ledger.entries["gpu-0"].owner is Owner.NONE:
            return now - at
    return None


@pytest.mark.parametrize("ahead", [0.0, 3600.0, YEAR])
def test_a_hold_ends_in_its_usual_time_however_far_the_clock_was_ahead(ahead: float) -> None:
    ledger = Ledger.of([device(0)], NodeState("boot", merged=True))
    ledger = played(ledger, KubeletStarted(NOON + ahead), Allocate({"gpu-0": ("GPU-0",)}, NOON + ahead))
    assert ledger.entries["gpu-0"].owner is Owner.LEGACY
    in_step = looks_until_free(played(ledger, Restarted(NOON + ahead)), NOON + ahead)
    set_back = looks_until_free(played(ledger, Restarted(NOON)), NOON)
    assert in_step is not None
    assert set_back == in_step


def test_a_move_and_its_pauses_are_counted_from_the_restart() -> None:
    ledger = Ledger.of([device(0)], NodeState("boot", merged=True))
    ledger = played(ledger, SetLane("gpu-0", Lane.DRA, NOON + YEAR, "asked"))
    assert ledger.entries["gpu-0"].move is not None
    move = played(ledger, Restarted(NOON)).entries["gpu-0"].move
    assert move is None or max(move.since, move.step_since) <= NOON


STAMPS = st.floats(NOON - YEAR, NOON + YEAR)


@given(st.tuples(*[STAMPS] * 7))
def test_no_stamp_is_later_and_earlier_ones_stay(stamps: tuple[float, ...]) -> None:
    since, allocated, seen, absent, asked, stepped, claimed = stamps
    entry = Entry(
        Facts("gpu-0", "r", ("GPU-0",)),
        since=since,
        hold=Hold(allocated_at=allocated, last_seen=seen, absent_since=absent),
        move=Move(Lane.LEGACY, Lane.DRA, MoveStep.WAITING, asked, stepped),
        claims=(ClaimHold(ClaimRef("u", "n", "c"), Phase.GRANTED, claimed),),
    )
    mended = not_after(entry, NOON)
    assert mended.hold is not None
    assert mended.move is not None
    found = (
        *(mended.since, mended.hold.allocated_at, mended.hold.last_seen, mended.hold.absent_since),
        *(mended.move.since, mended.move.step_since, mended.claims[0].since),
    )
    assert found == tuple(min(stamp, NOON) for stamp in stamps)
    assert (mended is entry) == (max(stamps) <= NOON)
