"""The clock was set between two runs: no device stays held until it reaches old stamps, none is free too early."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.ledger.entries import ClaimHold, ClaimPhase, Entry, Hold, Lane, LedgerDevice, Move, MoveStep, Owner
from drabridge.ledger.events import (
    AgentStarted,
    CheckpointRead,
    ClaimDeallocated,
    KubeletStarted,
    Observed,
    SetLane,
    Unprepare,
)
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.transitions.recovery import with_waits_begun_anew
from tests.support.ledger_node import CLAIM, NOON, PODS, Node, allocate, device, prepare

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


@pytest.mark.parametrize("step", [0.0, 3600.0, -3600.0])
def test_what_may_run_on_is_waited_for_in_full_after_a_start(step: float) -> None:
    """The processes of a claim's pod have a grace period, and the clock is set while no agent runs."""
    node = Node(device(0, Lane.DRA))
    node.yes(prepare(0, at=NOON))
    node.yes(Unprepare(CLAIM.uid, NOON, lingers=60.0))
    node.yes(ClaimDeallocated(CLAIM.uid, NOON))
    began = NOON + 10.0 + step
    node.yes(AgentStarted(began))
    node.do(Unprepare(CLAIM.uid, began + 59.0))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED
    node.do(Unprepare(CLAIM.uid, began + 61.0))
    assert node.owner("gpu-0") is Owner.NONE


@pytest.mark.parametrize("step", [0.0, 3600.0, -3600.0])
def test_a_pod_that_was_not_seen_has_its_grace_period_from_the_start_on(step: float) -> None:
    node = held(NOON)
    node.yes(Observed(NOON + 1.0, node.ledger.seq, PODS, CheckpointRead(PODS, barrier=True), {}))
    node.yes(Observed(NOON + 100.0, node.ledger.seq, {}, CheckpointRead({}, barrier=True), {}))
    assert node["gpu-0"].hold is not None
    assert node["gpu-0"].hold.unseen_since
    free_after = looks_until_free(node, NOON + 101.0 + step)
    assert free_after is not None
    assert node.policy.grace_seconds <= free_after <= 2 * node.policy.grace_seconds + 4 * LOOK_SECONDS


STAMPS = st.floats(NOON - YEAR, NOON + YEAR)


@given(st.tuples(*[STAMPS] * 8))
def test_no_stamp_is_later_and_earlier_ones_stay(stamps: tuple[float, ...]) -> None:
    since, allocated, seen, asked, stepped, claimed, present, until = stamps
    entry = Entry(
        LedgerDevice("gpu-0", "r", ("GPU-0",)),
        since=since,
        hold=Hold(allocated_at=allocated, last_seen=seen),
        move=Move(Lane.LEGACY, Lane.DRA, MoveStep.WAITING, asked, stepped),
        claims=(ClaimHold(CLAIM, ClaimPhase.GRANTED, claimed),),
        presence_since=present,
        legacy_until=until,
    )
    mended = with_waits_begun_anew(entry, NOON, LedgerPolicy())
    assert mended.hold is not None
    assert mended.move is not None
    found = (
        *(mended.since, mended.hold.allocated_at, mended.hold.last_seen),
        *(mended.move.since, mended.move.step_since, mended.claims[0].since),
        *(mended.presence_since, mended.legacy_until),
    )
    assert found == tuple(min(stamp, NOON) for stamp in stamps)
    assert (mended is entry) == (max(stamps) <= NOON)
