"""What the inventory tells about its own work: frozen facts for whoever listens (metrics, logs)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drabridge.inventory.detect import EventSource


@dataclass(frozen=True, slots=True)
class EventSeen:
    """A uevent of a wanted subsystem was taken from a socket."""

    group: str
    subsystem: str
    action: str


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The list of devices was computed. ``full``: everything was enumerated, not only what events named."""

    seconds: float
    full: bool
    devices: int
    changed: bool


@dataclass(frozen=True, slots=True)
class MonitorRestarted:
    """An event socket failed (events were lost) and was replaced; everything was enumerated again."""

    why: str


@dataclass(frozen=True, slots=True)
class SourceChanged:
    """Events come from somewhere else now."""

    source: EventSource


@dataclass(frozen=True, slots=True)
class ReconcileFailed:
    """Looking at the devices failed as a whole; the last list stays and the next attempt follows."""

    why: str


Fact = EventSeen | Reconciled | MonitorRestarted | SourceChanged | ReconcileFailed
OnFact = Callable[[Fact], None]
