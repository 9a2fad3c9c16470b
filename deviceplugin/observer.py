"""Report facts to the program around the library, for its metrics, logs and events."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from deviceplugin.registration import RegistrationPhase

log = logging.getLogger("deviceplugin")


class Fact(Struct, frozen=True):
    """Root of the facts; ``resource`` is the extended resource name."""

    resource: str


class PhaseChanged(Fact, frozen=True):
    """The registration entered another phase; ``error`` is the last error, empty when there is none."""

    old: RegistrationPhase
    new: RegistrationPhase
    error: str = ""


class Bound(Fact, frozen=True):
    """A fresh server listens on ``socket``."""

    socket: Path


class BindFailed(Fact, frozen=True):
    """The server could not be started; ``error`` says why. It is tried again."""

    error: str


class KubeletSeen(Fact, frozen=True):
    """kubelet.sock is new (kubelet_restart.py): another kubelet, or the first one."""


class Registered(Fact, frozen=True):
    """Kubelet accepted Register after ``seconds``; a stream must follow."""

    seconds: float


class RegisterFailed(Fact, frozen=True):
    """Kubelet refused Register, or could not be reached. ``code`` is the gRPC status name."""

    code: str
    message: str
    seconds: float


class StreamOpened(Fact, frozen=True):
    """ListAndWatch began. ``expected`` is false for a stream that does not follow a Register of ours."""

    expected: bool


class StreamEnded(Fact, frozen=True):
    """ListAndWatch ended after ``seconds``, for any reason."""

    expected: bool
    seconds: float


class ListSent(Fact, frozen=True):
    """A stream took list ``version`` with ``devices`` entries; building and writing took ``seconds``."""

    version: int
    devices: int
    healthy: int
    seconds: float


class Allocated(Fact, frozen=True):
    """One Allocate was answered with ``code`` (``OK`` or the gRPC status name).

    ``ids``: those of each container, sorted, each once.
    """

    ids: tuple[str, ...]
    code: str
    message: str
    seconds: float


class Preferred(Fact, frozen=True):
    """One GetPreferredAllocation was answered; ``answered`` is false when the answer was empty."""

    available: int
    size: int
    answered: bool
    seconds: float


class PreStarted(Fact, frozen=True):
    """One PreStartContainer was answered."""

    ids: tuple[str, ...]
    code: str
    message: str
    seconds: float


class Observer(Protocol):
    """What takes the facts. It is called on the event loop: be quick. Exceptions are logged and ignored."""

    def observe(self, fact: Fact) -> None:
        """Take one fact."""
        ...


class Notifier:
    """Calls an observer, and logs what it raises."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer

    def __call__(self, fact: Fact) -> None:
        log.debug("%s", fact)
        if self._observer is None:
            return
        try:
            self._observer.observe(fact)
        except Exception:
            log.exception("observer failed", extra={"fact": type(fact).__name__})
