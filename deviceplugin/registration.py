"""Decide when to bind, to register and to wait: the registration's state machine, as one table. Pure.

Three rules:

* Register is called only in ``REGISTERING``. No row enters that phase while kubelet reads a stream of ours, because
  kubelet <= 1.36 keeps one client per resource name, and the end of the older stream kills the newer
  (kubernetes#121994).
* A stream is the proof of registration. Kubelet opens one only after it took our Register, and never again after
  losing it (plugin/v1beta1/client.go). So a lost stream means: register again.
* A kubelet that we have not asked yet (``FRESH``) is asked at once, because every 100 ms of delay can cost running
  pods. One that we have asked (``ASKED``) is asked again after a second at least.

The machine knows no time, no sockets and no randomness. ``step`` returns the next state; entering a state means the
action and the timer that ``ENTRY`` names. Events without a row for the current phase change nothing but the
knowledge about kubelet.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from deviceplugin.timeouts import Timeouts


class RegistrationPhase(StrEnum):
    """Where the registration of one resource stands."""

    IDLE = "Idle"  # no socket of ours; waiting to try (again)
    BINDING = "Binding"  # ending the old server, starting a new one on a fresh name
    SERVING = "Serving"  # our socket is there, kubelet.sock is not
    REGISTERING = "Registering"  # a Register call is in flight
    WAIT_STREAM = "WaitStream"  # Register succeeded, ListAndWatch has not come yet
    ACTIVE = "Active"  # kubelet reads our list
    SETTLING = "Settling"  # kubelet.sock changed, but the stream is open: kubelet ends, or the file was touched
    REFUSED = "Refused"  # nobody listens on kubelet.sock; trying quickly
    LOST = "Lost"  # the stream or our socket is gone, kubelet is the same; waiting at least a second
    BACKOFF = "Backoff"  # Register failed, or no stream followed; waiting longer each time


class RegistrationEvent(StrEnum):
    """What the level check (kubelet_restart.py), the streams, the Register call and the timer report."""

    START = "Start"
    DIRECTORY_CHANGED = "DirectoryChanged"  # the plugin directory is another one, or appeared
    BOUND = "Bound"
    BIND_FAILED = "BindFailed"
    KUBELET_NEW = "KubeletNew"  # kubelet.sock with an identity not seen before
    KUBELET_GONE = "KubeletGone"  # no kubelet.sock
    OWN_SOCKET_LOST = "OwnSocketLost"  # our path is missing or leads elsewhere
    REGISTERED = "Registered"
    REFUSED = "Refused"  # connect() failed: nobody took our Register
    REGISTER_FAILED = "RegisterFailed"  # an error answer or none; kubelet may have seen the call
    STREAM_OPENED = "StreamOpened"  # the first stream since Register was sent
    STREAM_ENDED = "StreamEnded"  # that stream
    TIMER = "Timer"


P, E = RegistrationPhase, RegistrationEvent  # short, for the table


class KubeletState(StrEnum):
    """What we know about the owner of kubelet.sock."""

    ABSENT = "Absent"
    FRESH = "Fresh"  # there, and never asked by us
    ASKED = "Asked"  # a Register of ours reached it, or may have


class Action(StrEnum):
    """What ``PluginServer`` must do when a phase is entered."""

    BIND = "Bind"  # end streams, stop the server, start a fresh one
    REGISTER = "Register"  # end stray streams, call Register


class Timer(StrEnum):
    """Which interval starts when a phase is entered."""

    BACKOFF = "Backoff"
    REFUSED = "Refused"
    STREAM = "ListStream"
    SETTLE = "Settle"
    STABLE = "Stable"


class RegistrationProgress(Struct, frozen=True):
    """``attempt`` counts failures since the last success, ``refusals`` consecutive refused connects."""

    phase: RegistrationPhase = RegistrationPhase.IDLE
    kubelet: KubeletState = KubeletState.ABSENT
    attempt: int = 0
    refusals: int = 0


PhaseByKubelet = Mapping[KubeletState, RegistrationPhase]
"""A next phase that depends on our knowledge of kubelet."""


def _by_kubelet(absent: RegistrationPhase, fresh: RegistrationPhase, asked: RegistrationPhase) -> PhaseByKubelet:
    return {KubeletState.ABSENT: absent, KubeletState.FRESH: fresh, KubeletState.ASKED: asked}


class PhaseEntry(Struct, frozen=True):
    """What entering a phase means."""

    action: Action | None = None
    timer: Timer | None = None


class RegistrationStep(Struct, frozen=True):
    """The result of ``step``; ``entered`` is false when the event changed no phase (running timers go on)."""

    state: RegistrationProgress
    entered: bool

    @property
    def action(self) -> Action | None:
        return ENTRY[self.state.phase].action if self.entered else None

    @property
    def timer(self) -> Timer | None:
        return ENTRY[self.state.phase].timer if self.entered else None


READY = _by_kubelet(absent=P.SERVING, fresh=P.REGISTERING, asked=P.LOST)
FAILED = _by_kubelet(absent=P.SERVING, fresh=P.REGISTERING, asked=P.BACKOFF)
AGAIN = _by_kubelet(absent=P.SERVING, fresh=P.REGISTERING, asked=P.REGISTERING)
# FRESH here means that kubelet changed while the call was in flight: we cannot know which one answered, so its stream
# gets a moment to appear before the new one is asked (twice would be a double registration).
ANSWERED = _by_kubelet(absent=P.WAIT_STREAM, fresh=P.BACKOFF, asked=P.WAIT_STREAM)
READ = _by_kubelet(absent=P.ACTIVE, fresh=P.SETTLING, asked=P.ACTIVE)
REFUSED_BY = _by_kubelet(absent=P.SERVING, fresh=P.REFUSED, asked=P.REFUSED)

ENTRY: dict[RegistrationPhase, PhaseEntry] = {
    P.IDLE: PhaseEntry(timer=Timer.BACKOFF),
    P.BINDING: PhaseEntry(Action.BIND),
    P.SERVING: PhaseEntry(),
    P.REGISTERING: PhaseEntry(Action.REGISTER),
    P.WAIT_STREAM: PhaseEntry(timer=Timer.STREAM),
    P.ACTIVE: PhaseEntry(timer=Timer.STABLE),
    P.SETTLING: PhaseEntry(timer=Timer.SETTLE),
    P.REFUSED: PhaseEntry(timer=Timer.REFUSED),
    P.LOST: PhaseEntry(timer=Timer.BACKOFF),
    P.BACKOFF: PhaseEntry(timer=Timer.BACKOFF),
}

TABLE: dict[tuple[RegistrationPhase, RegistrationEvent], RegistrationPhase | PhaseByKubelet] = {
    (P.IDLE, E.START): P.BINDING,
    (P.IDLE, E.TIMER): P.BINDING,
    (P.IDLE, E.DIRECTORY_CHANGED): P.BINDING,
    (P.IDLE, E.KUBELET_NEW): P.BINDING,
    #
    (P.BINDING, E.BOUND): READY,
    (P.BINDING, E.BIND_FAILED): P.IDLE,
    #
    (P.SERVING, E.KUBELET_NEW): P.REGISTERING,
    (P.SERVING, E.STREAM_OPENED): P.ACTIVE,  # somebody removed kubelet.sock, but kubelet runs and took our call
    (P.SERVING, E.OWN_SOCKET_LOST): P.BINDING,
    #
    (P.REGISTERING, E.STREAM_OPENED): READ,
    (P.REGISTERING, E.REGISTERED): ANSWERED,
    (P.REGISTERING, E.REFUSED): REFUSED_BY,
    (P.REGISTERING, E.REGISTER_FAILED): FAILED,
    (P.REGISTERING, E.OWN_SOCKET_LOST): P.BINDING,
    #
    (P.WAIT_STREAM, E.STREAM_OPENED): READ,
    (P.WAIT_STREAM, E.TIMER): FAILED,
    (P.WAIT_STREAM, E.KUBELET_NEW): P.BACKOFF,
    (P.WAIT_STREAM, E.OWN_SOCKET_LOST): P.BINDING,
    #
    (P.ACTIVE, E.STREAM_ENDED): READY,
    (P.ACTIVE, E.KUBELET_NEW): P.SETTLING,
    (P.ACTIVE, E.OWN_SOCKET_LOST): P.BINDING,
    #
    (P.SETTLING, E.STREAM_ENDED): READY,
    (P.SETTLING, E.TIMER): P.ACTIVE,
    (P.SETTLING, E.KUBELET_NEW): P.SETTLING,
    (P.SETTLING, E.OWN_SOCKET_LOST): P.BINDING,
    **{(waiting, E.TIMER): AGAIN for waiting in (P.REFUSED, P.LOST, P.BACKOFF)},
    **{(waiting, E.KUBELET_NEW): P.REGISTERING for waiting in (P.REFUSED, P.LOST, P.BACKOFF)},
    **{(waiting, E.KUBELET_GONE): P.SERVING for waiting in (P.REFUSED, P.LOST, P.BACKOFF)},
    **{(waiting, E.STREAM_OPENED): P.ACTIVE for waiting in (P.REFUSED, P.LOST, P.BACKOFF)},
    **{(waiting, E.OWN_SOCKET_LOST): P.BINDING for waiting in (P.REFUSED, P.LOST, P.BACKOFF)},
}

STREAMING = frozenset({P.ACTIVE, P.SETTLING})
"""The phases in which kubelet reads our list: registered."""


def step(state: RegistrationProgress, event: RegistrationEvent) -> RegistrationStep:
    """Return the next state for ``event``. Every pair of phase and event has an answer."""
    known = _learn(state, event)
    target = TABLE.get((state.phase, event))
    if target is None:
        return RegistrationStep(known, entered=False)
    phase = target if isinstance(target, RegistrationPhase) else target[known.kubelet]
    return RegistrationStep(_enter(known, phase, event), entered=True)


def _learn(state: RegistrationProgress, event: RegistrationEvent) -> RegistrationProgress:
    """Update what we know about kubelet, in any phase."""
    match event:
        case E.KUBELET_NEW:
            return replace(state, kubelet=KubeletState.FRESH, attempt=0, refusals=0)
        case E.KUBELET_GONE:
            return replace(state, kubelet=KubeletState.ABSENT)
        case E.REFUSED if state.phase is P.REGISTERING and state.kubelet is KubeletState.ASKED:
            return replace(state, kubelet=KubeletState.FRESH)  # kubelet never got our call
        case E.TIMER if state.phase is P.SETTLING and state.kubelet is KubeletState.FRESH:
            return replace(state, kubelet=KubeletState.ASKED)  # the stream goes on: it is the same kubelet
        case E.TIMER if state.phase is P.ACTIVE:
            return replace(state, attempt=0, refusals=0)
    return state


def _enter(state: RegistrationProgress, phase: RegistrationPhase, event: RegistrationEvent) -> RegistrationProgress:
    match phase:
        case P.REGISTERING:
            return replace(state, phase=phase, kubelet=KubeletState.ASKED)
        case P.REFUSED:
            return replace(state, phase=phase, refusals=state.refusals + 1)
        case P.IDLE | P.LOST | P.BACKOFF:
            return replace(state, phase=phase, attempt=state.attempt + 1)
        case P.ACTIVE if event is E.STREAM_OPENED and state.kubelet is KubeletState.FRESH:
            return replace(state, phase=phase, kubelet=KubeletState.ASKED)
    return replace(state, phase=phase)


def delay_seconds(timer: Timer, state: RegistrationProgress, timeouts: Timeouts, rng: Random) -> float:
    """Return how long the timer of the phase just entered runs.

    ``rng`` adds up to 20 percent to the back-off.
    """
    match timer:
        case Timer.BACKOFF:
            doubled = timeouts.backoff_first_seconds * 2.0 ** min(max(state.attempt - 1, 0), 16)
            return min(doubled, timeouts.backoff_max_seconds) * rng.uniform(1.0, 1.2)
        case Timer.REFUSED:
            quick = state.refusals <= timeouts.refused_quick
            return timeouts.refused_seconds if quick else timeouts.refused_slow_seconds
        case Timer.STREAM:
            return timeouts.stream_seconds
        case Timer.SETTLE:
            return timeouts.settle_seconds
        case Timer.STABLE:
            return timeouts.stable_seconds
