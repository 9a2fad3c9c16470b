"""Events of one device in order, bursts of events paced, and checks that are due later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.inventory.events import BURST, INTERVAL_SECONDS, Pacer, RecheckQueue, Uevent, latest_per_device


def event(seqnum: int, action: str, syspath: str = "/a", group: str = "kernel") -> Uevent:
    return Uevent(seqnum, action, syspath, "usb", group)


@given(st.permutations([event(1, "add"), event(2, "remove"), event(3, "add"), event(4, "add", "/b")]))
def test_the_highest_seqnum_has_the_last_word(events: list[Uevent]) -> None:
    words = latest_per_device(events)
    assert [(word.syspath, word.seqnum) for word in words.values()] == [("/a", 3), ("/b", 4)]


def test_the_first_events_act_at_once_and_a_burst_is_paced() -> None:
    pacer = Pacer()
    for _ in range(BURST):
        assert pacer.delay(10.0) == 0
        pacer.spend(10.0)
    assert pacer.delay(10.0) == pytest.approx(INTERVAL_SECONDS)
    assert pacer.delay(10.0 + INTERVAL_SECONDS) == pytest.approx(0)
    assert pacer.delay(20.0) == 0


@pytest.mark.parametrize(("round_seconds", "rounds_per_second"), [(0.0, 50), (0.001, 50), (0.05, 4.5)])
def test_an_endless_burst_is_bounded_and_leaves_the_loop_free(round_seconds: float, rounds_per_second: float) -> None:
    pacer, now, rounds = Pacer(), 0.0, 0
    while now < 10:
        now += max(pacer.delay(now), 0.0001)
        if pacer.delay(now) <= 1e-9:
            pacer.spend(now, round_seconds)
            now += round_seconds
            rounds += 1
    assert 10 < rounds <= 10 * rounds_per_second + 2 * BURST


def test_udevd_answers_for_an_event_or_the_check_stays_owed() -> None:
    rechecks = RecheckQueue()
    rechecks.add("/a", 1.0, seqnum=5)
    rechecks.add("/b", 1.0, seqnum=6)
    rechecks.add("/a", 2.0)
    rechecks.answered("/a", 4)  # an older event
    rechecks.answered("/b", 6)
    assert rechecks.next_due() == 1.0
    assert {recheck.syspath for recheck in rechecks.take_due(1.5)} == {"/a"}
    assert rechecks.next_due() == 2.0
    rechecks.answered("/a", 9)  # says nothing about a check that no event caused
    assert {recheck.syspath for recheck in rechecks.take_due(3)} == {"/a"}
    assert rechecks.next_due() is None
