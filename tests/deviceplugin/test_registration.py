"""The registration table, walked: every reachable state, and a simulated kubelet that does what it likes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

import pytest
from msgspec import Struct, field
from msgspec.structs import replace

from deviceplugin.registration import (
    ENTRY,
    STREAMING,
    TABLE,
    Action,
    KubeletState,
    RegistrationEvent,
    RegistrationPhase,
    RegistrationProgress,
    Timer,
    delay_seconds,
    step,
)
from deviceplugin.timeouts import Timeouts

ZERO = random.Random(0)


def reachable() -> list[RegistrationProgress]:
    """Every state that some order of events leads to (events may come at any time; counters up to 2)."""
    found, left = {RegistrationProgress()}, [RegistrationProgress()]
    while left:
        state = left.pop()
        for event in RegistrationEvent:
            new = step(state, event).state
            new = replace(new, attempt=min(new.attempt, 2), refusals=min(new.refusals, 2))
            if new not in found:
                found.add(new)
                left.append(new)
    return sorted(found, key=repr)


ALL_STATES = reachable()


@pytest.mark.parametrize("state", ALL_STATES, ids=lambda s: f"{s.phase}-{s.kubelet}-{s.attempt}-{s.refusals}")
def test_step_is_total_and_asks_only_a_kubelet_that_is_there(state: RegistrationProgress) -> None:
    for event in RegistrationEvent:
        result = step(state, event)
        if result.action is Action.REGISTER:
            assert result.state.kubelet is KubeletState.ASKED
            assert state.kubelet is not KubeletState.ABSENT or event is RegistrationEvent.KUBELET_NEW
        if result.entered:
            entry = ENTRY[result.state.phase]
            assert (result.action, result.timer) == (entry.action, entry.timer)


def test_registering_is_never_entered_while_kubelet_reads() -> None:
    for phase in STREAMING:
        for kubelet in KubeletState:
            for event in set(RegistrationEvent) - {RegistrationEvent.STREAM_ENDED}:
                assert step(RegistrationProgress(phase, kubelet), event).action is not Action.REGISTER, (
                    phase,
                    kubelet,
                    event,
                )


def test_the_same_kubelet_is_asked_again_only_after_a_wait() -> None:
    """Every way into REGISTERING is a timer, or a kubelet that has not been asked."""
    for state in ALL_STATES:
        for event in RegistrationEvent:
            if step(state, event).action is Action.REGISTER and event is not RegistrationEvent.TIMER:
                assert (
                    step(RegistrationProgress(RegistrationPhase.IDLE, state.kubelet), event).state.kubelet
                    is KubeletState.FRESH
                ), (state, event)


@pytest.mark.parametrize("phase", RegistrationPhase)
def test_every_phase_ends_by_itself_or_by_an_event(phase: RegistrationPhase) -> None:
    leaving = {event for (where, event), _ in TABLE.items() if where is phase}
    assert leaving
    if ENTRY[phase].timer is Timer.BACKOFF:
        assert RegistrationEvent.TIMER in leaving


def settle(state: RegistrationProgress, timer_running: bool) -> tuple[RegistrationProgress, float, int]:
    """Drive ``state`` with a well-behaved world: our binds succeed, kubelet is there, answers, reads. Returns the last
    state, the seconds that passed, and the number of Register calls."""
    seconds, registers = 0.0, 0
    events: deque[RegistrationEvent] = deque()
    action = ENTRY[state.phase].action
    timer = ENTRY[state.phase].timer if timer_running else None
    if state.kubelet is KubeletState.ABSENT:
        events.append(RegistrationEvent.KUBELET_NEW)
    for _ in range(50):
        if action is Action.BIND:
            events.append(RegistrationEvent.BOUND)
        elif action is Action.REGISTER:
            registers += 1
            events.extend([RegistrationEvent.REGISTERED, RegistrationEvent.STREAM_OPENED])
        if not events:
            if state.phase in STREAMING or timer is None:
                break
            seconds += delay_seconds(timer, state, Timeouts(), ZERO)
            events.append(RegistrationEvent.TIMER)
        result = step(state, events.popleft())
        state, action = result.state, result.action
        if result.entered:
            timer = result.timer
    return state, seconds, registers


@pytest.mark.parametrize("start", ALL_STATES, ids=lambda s: f"{s.phase}-{s.kubelet}-{s.attempt}-{s.refusals}")
def test_a_well_behaved_kubelet_is_registered_with_from_everywhere(start: RegistrationProgress) -> None:
    state, seconds, registers = settle(start, timer_running=True)
    assert state.phase in STREAMING
    assert seconds <= Timeouts().stream_seconds + 1.2 * 2**2  # no stream, then the third step of the back-off
    assert registers <= 2


def test_a_new_kubelet_is_asked_without_any_wait() -> None:
    for phase in (
        RegistrationPhase.SERVING,
        RegistrationPhase.LOST,
        RegistrationPhase.BACKOFF,
        RegistrationPhase.REFUSED,
    ):
        assert (
            step(RegistrationProgress(phase, KubeletState.ASKED, attempt=7), RegistrationEvent.KUBELET_NEW).action
            is Action.REGISTER
        )
    lost = step(
        RegistrationProgress(RegistrationPhase.ACTIVE, KubeletState.ASKED), RegistrationEvent.OWN_SOCKET_LOST
    ).state
    new = step(lost, RegistrationEvent.KUBELET_NEW).state
    assert step(new, RegistrationEvent.BOUND).action is Action.REGISTER


def test_our_lost_socket_under_the_same_kubelet_waits_a_second() -> None:
    lost = step(RegistrationProgress(RegistrationPhase.ACTIVE, KubeletState.ASKED), RegistrationEvent.OWN_SOCKET_LOST)
    assert lost.action is Action.BIND
    bound = step(lost.state, RegistrationEvent.BOUND)
    assert bound.state.phase is RegistrationPhase.LOST
    assert bound.timer is not None
    assert delay_seconds(bound.timer, bound.state, Timeouts(), ZERO) >= 1.0


def test_a_touched_kubelet_socket_changes_nothing() -> None:
    touched = step(
        RegistrationProgress(RegistrationPhase.ACTIVE, KubeletState.ASKED), RegistrationEvent.KUBELET_NEW
    ).state
    assert touched.phase is RegistrationPhase.SETTLING
    back = step(touched, RegistrationEvent.TIMER).state
    assert (back.phase, back.kubelet) == (RegistrationPhase.ACTIVE, KubeletState.ASKED)


def test_back_off_grows_to_its_limit_and_is_forgiven() -> None:
    state, waits = RegistrationProgress(RegistrationPhase.REGISTERING, KubeletState.ASKED), []
    for _ in range(8):
        failed = step(state, RegistrationEvent.REGISTER_FAILED)
        assert failed.timer is Timer.BACKOFF
        waits.append(delay_seconds(Timer.BACKOFF, failed.state, Timeouts(), ZERO))
        state = step(failed.state, RegistrationEvent.TIMER).state
    assert all(1.0 <= wait <= 36.0 for wait in waits)
    assert [round(wait / 1.1) for wait in waits[:5]] == pytest.approx([1, 2, 4, 8, 16], rel=0.15)
    assert waits[-1] >= 30.0
    active = step(state, RegistrationEvent.STREAM_OPENED).state
    assert active.attempt == 8
    assert step(active, RegistrationEvent.TIMER).state.attempt == 0


def test_refused_is_quick_first_and_slow_later() -> None:
    timeouts, state = Timeouts(), RegistrationProgress(RegistrationPhase.REGISTERING, KubeletState.ASKED)
    waits = []
    for _ in range(timeouts.refused_quick + 2):
        refused = step(state, RegistrationEvent.REFUSED)
        assert refused.timer is Timer.REFUSED
        waits.append(delay_seconds(Timer.REFUSED, refused.state, timeouts, ZERO))
        state = step(refused.state, RegistrationEvent.TIMER).state
    assert set(waits[: timeouts.refused_quick]) == {timeouts.refused_seconds}
    assert set(waits[timeouts.refused_quick :]) == {timeouts.refused_slow_seconds}


class World(Struct, frozen=True):
    """A node where anything may happen at any moment. What the driver does (timers, calls, arming) is modelled as is.

    ``armed``: the next stream to open counts as kubelet's. ``broken``: what must never happen, and did.
    """

    state: RegistrationProgress = field(default_factory=RegistrationProgress)
    timer: Timer | None = None
    binding: bool = False
    bound: bool = False
    calling: bool = False
    armed: bool = False
    stream: bool = False
    kubelet: bool = False
    broken: str = ""

    def moves(self) -> Iterator[tuple[str, World]]:
        """Everything that may happen next."""
        if self.binding:
            yield "bound", replace(self, binding=False, bound=True).feed(RegistrationEvent.BOUND)
            yield "bind failed", replace(self, binding=False).feed(RegistrationEvent.BIND_FAILED)
        if self.calling:
            for event in (RegistrationEvent.REGISTERED, RegistrationEvent.REFUSED, RegistrationEvent.REGISTER_FAILED):
                yield event.value, replace(self, calling=False).feed(event)
        if self.armed and not self.binding:  # however late: kubelet may act on a Register that we gave up
            yield "stream opens", replace(self, armed=False, stream=True).feed(RegistrationEvent.STREAM_OPENED)
        if self.stream:
            yield "stream ends", replace(self, stream=False).feed(RegistrationEvent.STREAM_ENDED)
        if self.bound and not self.binding:
            yield "own socket lost", self.feed(RegistrationEvent.OWN_SOCKET_LOST)
        if self.kubelet:
            yield "kubelet.sock removed", replace(self, kubelet=False).feed(RegistrationEvent.KUBELET_GONE)
        yield "new kubelet.sock", replace(self, kubelet=True).feed(RegistrationEvent.KUBELET_NEW)
        yield "directory changed", self.feed(RegistrationEvent.DIRECTORY_CHANGED)
        if self.timer is not None:
            yield "timer", replace(self, timer=None).feed(RegistrationEvent.TIMER)

    def feed(self, event: RegistrationEvent) -> World:
        result = step(self.state, event)
        state = replace(result.state, attempt=min(result.state.attempt, 2), refusals=min(result.state.refusals, 2))
        new = replace(self, state=state)
        if not result.entered:
            return new
        new = replace(new, timer=result.timer)
        if result.action is Action.BIND:  # ends calls and streams, stops the server, starts a new one
            return replace(new, binding=True, bound=False, calling=False, armed=False, stream=False)
        if result.action is Action.REGISTER:
            wrong = "registers while kubelet reads" * new.stream or "registers without kubelet.sock" * (not new.kubelet)
            wrong = wrong or "registers an unbound socket" * (not new.bound)
            return replace(new, calling=True, armed=True, broken=wrong)
        return new

    def defect(self) -> str:
        """What is wrong with this world; empty if nothing is."""
        if self.broken:
            return self.broken
        if (self.state.phase in STREAMING) != self.stream:
            return "the phase does not tell whether kubelet reads"
        waits_for_kubelet = self.state.phase is RegistrationPhase.SERVING and not self.kubelet
        if not (self.binding or self.calling or self.stream or self.timer is not None or waits_for_kubelet):
            return "nothing will ever happen"
        return ""


def first_defect() -> tuple[str, list[str], int]:
    """Walk every world that can be reached, nearest first: the defect, the way to it, how many worlds were seen."""
    start = World().feed(RegistrationEvent.START)
    ways: dict[World, list[str]] = {start: []}
    left = deque([start])
    while left:
        world = left.popleft()
        if world.defect():
            return world.defect(), ways[world], len(ways)
        for name, new in world.moves():
            if new not in ways:
                ways[new] = [*ways[world], name]
                left.append(new)
    return "", [], len(ways)


def test_no_order_of_events_breaks_the_rules() -> None:
    defect, way, seen = first_defect()
    assert not defect, f"{defect}: {' > '.join(way)}"
    assert seen > 150, "the walk covers next to nothing: the model is broken"


@pytest.mark.parametrize(
    ("row", "target"),
    [
        pytest.param(
            (RegistrationPhase.ACTIVE, RegistrationEvent.KUBELET_NEW),
            RegistrationPhase.REGISTERING,
            id="registers while kubelet reads",
        ),
        pytest.param(
            (RegistrationPhase.WAIT_STREAM, RegistrationEvent.TIMER),
            RegistrationPhase.SERVING,
            id="forgets to ask again",
        ),
        pytest.param((RegistrationPhase.SERVING, RegistrationEvent.STREAM_OPENED), None, id="ignores a late stream"),
        pytest.param(
            (RegistrationPhase.BINDING, RegistrationEvent.BIND_FAILED),
            RegistrationPhase.SERVING,
            id="takes a failed bind for a socket",
        ),
        pytest.param((RegistrationPhase.REGISTERING, RegistrationEvent.REGISTER_FAILED), None, id="ignores a failure"),
        pytest.param((RegistrationPhase.SERVING, RegistrationEvent.KUBELET_NEW), None, id="ignores a new kubelet"),
        pytest.param(
            (RegistrationPhase.BINDING, RegistrationEvent.BOUND),
            RegistrationPhase.REGISTERING,
            id="asks a kubelet that is not there",
        ),
        pytest.param(
            (RegistrationPhase.SETTLING, RegistrationEvent.STREAM_ENDED), None, id="ignores the end of the stream"
        ),
    ],
)
def test_the_walk_catches_a_broken_table(
    row: tuple[RegistrationPhase, RegistrationEvent], target: RegistrationPhase | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target is None:
        monkeypatch.delitem(TABLE, row)
    else:
        monkeypatch.setitem(TABLE, row, target)
    assert first_defect()[0]
