"""Define what the inventory reports about its own work: frozen facts for metrics and logs (``telemetry``)."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from drabridge.inventory.event_source import EventSource


class EventSeen(Struct, frozen=True):
    """A uevent of a wanted subsystem was taken from a socket."""

    group: str
    subsystem: str
    action: str


class Reconciled(Struct, frozen=True):
    """The list of devices was computed. ``full``: everything was enumerated, not only what events named."""

    seconds: float
    full: bool
    devices: int
    changed: bool


class MonitorRestarted(Struct, frozen=True):
    """An event socket failed and was replaced. Events were lost, so everything was enumerated again."""

    why: str


class SourceChanged(Struct, frozen=True):
    """Events come from another source now."""

    source: EventSource


class ReconcileFailed(Struct, frozen=True):
    """The look at all devices failed. The last list stays in use until a later attempt succeeds."""

    why: str


class FallbackGiven(Struct, frozen=True):
    """From now on ``devices`` of a resource get ``cdiFallback``. ``why``: the first one's reason; "" if none gets it.

    ``lacks``: why devices cannot get the fallback either, so that nobody gets them.
    """

    resource: str
    devices: int
    why: str
    lacks: str = ""


class NvmlChanged(Struct, frozen=True):
    """NVML answers now (``problem`` is ""), or does not (``problem`` says why)."""

    problem: str


class XidSeen(Struct, frozen=True):
    """NVML reported an XID of a GPU or of one of its MIG instances. ``gpu``: its UUID, empty if unknown."""

    gpu: str
    xid: int


Fact = (
    EventSeen | Reconciled | MonitorRestarted | SourceChanged | ReconcileFailed | FallbackGiven | NvmlChanged | XidSeen
)
OnFact = Callable[[Fact], None]
