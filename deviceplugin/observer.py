"""Facts that the library reports: frozen records for metrics, logs and events of the program around it."""

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
    """The registration moved on; ``error`` is the last one, empty when there is none to report."""

    old: RegistrationPhase
    new: RegistrationPhase
    error: str = ""


class Bound(Fact, frozen=True):
    """A fresh server listens on ``socket``."""

    socket: Path


class BindFailed(Fact, frozen=True):
    """No server: ``error`` says what is wrong with the directory or the path. It will be tried again."""

    error: str


class KubeletSeen(Fact, frozen=True):
    """kubelet.sock is new: another kubelet, or the first one."""


class Registered(Fact, frozen=True):
    """Kubelet answered Register with success after ``seconds``; a stream must follow."""

    seconds: float


class RegisterFailed(Fact, frozen=True):
    """Kubelet refused, or could not be reached. ``code`` is the gRPC status name."""

    code: str
    message: str
    seconds: float


class StreamOpened(Fact, frozen=True):
    """ListAndWatch began. ``expected`` is false for one that no Register of ours asked for."""

    expected: bool


class StreamEnded(Fact, frozen=True):
    """ListAndWatch ended after ``seconds``, for whatever reason."""

    expected: bool
    seconds: float


class ListSent(Fact, frozen=True):
    """A stream took version ``version``, ``devices`` entries; ``seconds`` to build and hand over."""

    version: int
    devices: int
    healthy: int
    seconds: float


class Allocated(Fact, frozen=True):
    """One Allocate was answered with ``code`` (``OK`` or the gRPC status name); ``ids`` as kubelet sent them."""

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
    """The hook. It is called on the event loop: be quick. What it raises is logged and otherwise ignored."""

    def observe(self, fact: Fact) -> None:
        """Take one fact."""
        ...


class Notifier:
    """Calls an observer and survives it."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer

    def __call__(self, fact: Fact) -> None:
        log.debug("%s", fact)
        if self._observer is None:
            return
        try:
            self._observer.observe(fact)
        except Exception:
            log.exception("the observer failed on %s", type(fact).__name__)
