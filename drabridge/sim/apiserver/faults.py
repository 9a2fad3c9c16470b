"""Faults on demand: slow, refusing, hanging, partitioned and lagging API servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from drabridge.sim.apiserver.status import ApiError

# http.StatusText and metav1.StatusReason of what an API server says under load
_REASONS = {
    401: ("Unauthorized", "Unauthorized"),
    403: ("Forbidden", "forbidden by a fault on demand"),
    409: ("Conflict", "the object has been modified; please apply your changes to the latest version and try again"),
    429: ("TooManyRequests", "Too many requests, please try again later."),
    500: ("InternalError", "Internal error occurred: etcdserver: request timed out"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "Timeout: request did not complete within the allotted timeout"),
}


@dataclass(slots=True)
class Fault:
    """One kind of trouble for the next ``times`` requests that match; empty fields match everything."""

    times: int
    status: int = 0
    """HTTP status to answer with; 0 stands for never answering at all."""
    verb: str = ""
    resource: str = ""
    after_commit: bool = False
    """Whether the work is done before the error is answered. The client cannot know that its write took effect."""

    @property
    def error(self) -> ApiError:
        reason, message = _REASONS.get(self.status, ("", "a fault on demand"))
        return ApiError(self.status, message, reason)

    def matches(self, verb: str, resource: str) -> bool:
        return self.times > 0 and self.verb in ("", verb) and self.resource in ("", resource)


@dataclass(slots=True)
class Faults:
    """All faults of a server. The fields may be set while it runs: each request reads them."""

    latency_seconds: float = 0.0
    watch_lag_seconds: float = 0.0
    """Delay from the acknowledgement of a write to its event in watches."""
    answer_lag_seconds: float = 0.0
    """Delay from a write to its acknowledgement; watches may show the write earlier."""
    partitioned: bool = False
    """New connections are cut at once, and open ones are closed; see :meth:`partition`."""
    rules: list[Fault] = field(default_factory=list)
    cut: Callable[[bool], int] = field(default=lambda watches_only: 0)
    """Cuts open connections; the server puts itself here."""

    def fail(
        self,
        times: int = 1,
        status: int = 500,
        *,
        verb: str = "",
        resource: str = "",
        after_commit: bool = False,
    ) -> Fault:
        """Answer the next ``times`` matching requests with ``status``."""
        fault = Fault(times, status, verb, resource, after_commit)
        self.rules.append(fault)
        return fault

    def hang(self, times: int = 1, *, verb: str = "", resource: str = "") -> Fault:
        """Take the next ``times`` matching requests and never answer them."""
        return self.fail(times, 0, verb=verb, resource=resource)

    def drop_watches(self) -> int:
        """Cut every open watch in the middle of its stream; returns how many there were."""
        return self.cut(True)

    def partition(self) -> None:
        """Make the server unreachable until :meth:`heal`."""
        self.partitioned = True
        self.cut(False)

    def heal(self) -> None:
        """Switch all faults off."""
        self.partitioned = False
        self.latency_seconds = self.watch_lag_seconds = self.answer_lag_seconds = 0.0
        self.rules.clear()

    def take(self, verb: str, resource: str) -> Fault | None:
        """Return the fault for this request, counted down."""
        for fault in self.rules:
            if fault.matches(verb, resource):
                fault.times -= 1
                return fault
        return None
