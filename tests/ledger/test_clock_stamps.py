"""The clock was ahead in an earlier run: a device may not stay held until the clock reaches the old time stamps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.ledger.events import AgentStarted, CheckpointRead, KubeletStarted, Observed, SetLane
from drabridge.ledger.model import ClaimHold, ClaimPhase, Entry, Hold, Lane, LedgerDevice, Move, MoveStep, Owner
from drabridge.ledger.transitions.recovery import without_future_stamps
from tests.support.ledger_node import CLAIM, NOON, Node, allocate, device

YEAR = 365 * 86_400.0
LOOK_SECONDS = 30.0


def held(at: float) -> Node:
    """A node on which a pod was given the device when the clock said ``at``."""
    node = Node(device(0))
    node.yes(KubeletStarted(at))
    node.yes(allocate(0, at=at))
    assert node.owner("gpu-0") is Owner.LEGACY
    return node


def looks_until_free(node: Node, at: float, looks: int = 60) -> float | None:
    """Seconds from a restart at ``at`` until evidence that shows nobody has freed the device; None: it never does."""
    node.yes(AgentStarted(at))
    for number in range(1, looks):
        now = at + number * LOOK_SECONDS
        node.yes(Observed(now, node.ledger.seq, {}, CheckpointRead({}, barrier=True), {}))
        if node.owner("gpu-0") is Owner.NONE:
            return now - at
    return None


@pytest.mark.parametrize("ahead", [0.0, 3600.0, YEAR])
def test_a_hold_ends_in_its_usual_time_however_far_the_clock_was_ahead(ahead: float) -> None:
    in_step = looks_until_free(held(NOON + ahead), NOON + ahead)
    set_back = looks_until_free(held(NOON + ahead), NOON)
    assert in_step is not None
    assert set_back == in_step


def test_a_move_and_its_pauses_are_counted_from_the_restart() -> None:
    node = Node(device(0))
    node.yes(SetLane("gpu-0", Lane.DRA, NOON + YEAR, "asked"))
    assert node["gpu-0"].move is not None
    node.yes(AgentStarted(NOON))
    move = node["gpu-0"].move
    assert move is None or max(move.since, move.step_since) <= NOON


STAMPS = st.floats(NOON - YEAR, NOON + YEAR)


@given(st.tuples(*[STAMPS] * 9))
def test_no_stamp_is_later_and_earlier_ones_stay(stamps: tuple[float, ...]) -> None:
    since, allocated, seen, absent, asked, stepped, claimed, present, until = stamps
    entry = Entry(
        LedgerDevice("gpu-0", "r", ("GPU-0",)),
        since=since,
        hold=Hold(allocated_at=allocated, last_seen=seen, absent_since=absent),
        move=Move(Lane.LEGACY, Lane.DRA, MoveStep.WAITING, asked, stepped),
        claims=(ClaimHold(CLAIM, ClaimPhase.GRANTED, claimed),),
        presence_since=present,
        legacy_until=until,
    )
    mended = without_future_stamps(entry, NOON)
    assert mended.hold is not None
    assert mended.move is not None
    found = (
        *(mended.since, mended.hold.allocated_at, mended.hold.last_seen, mended.hold.absent_since),
        *(mended.move.since, mended.move.step_since, mended.claims[0].since),
        *(mended.presence_since, mended.legacy_until),
    )
    assert found == tuple(min(stamp, NOON) for stamp in stamps)
    assert (mended is entry) == (max(stamps) <= NOON)
