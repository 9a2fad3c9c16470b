"""Decide what uevents mean: their order, their pace, and what to look at again. Pure: time is passed in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

BURST = 8
"""Wake-ups that are acted on at once. Plugging in one device causes two to four events (device, children)."""

INTERVAL_SECONDS = 0.02
"""In a longer burst, one round each interval: kubelet rewrites a checkpoint file for every list that it gets."""

PAUSE_FACTOR = 4
"""After a round the loop pauses for this multiple of the round's length: a flood of events must not fill the loop."""


class Pacer(Struct):
    """Limit how often rounds run: a bucket of ``BURST`` tokens, refilled with one token per interval."""

    tokens: float = BURST
    last: float = float("-inf")
    interval_seconds: float = INTERVAL_SECONDS

    def delay(self, now: float) -> float:
        """Return the seconds to wait before the next round; 0 when it may run at once."""
        return max(0.0, 1 - self._tokens(now)) * self.interval_seconds

    def spend(self, now: float, seconds: float = 0.0) -> None:
        """Take a token for a round that began at ``now`` and took ``seconds``."""
        self.tokens = max(0.0, self._tokens(now) - 1)
        self.last = now
        self.interval_seconds = max(INTERVAL_SECONDS, PAUSE_FACTOR * seconds)

    def _tokens(self, now: float) -> float:
        return min(float(BURST), self.tokens + max(0.0, now - self.last) / self.interval_seconds)


class Uevent(Struct, frozen=True):
    """One uevent. It only says where to look; only ``remove`` is acted on without a look.

    The kernel sends ``remove`` before the device's directory is gone.
    """

    seqnum: int
    action: str
    syspath: str
    subsystem: str
    group: str  # "udev" or "kernel": who sent it


class PendingRecheck(Struct, frozen=True):
    """A device to look at again at ``when``. ``seqnum``: of the kernel event for which udevd's is missing; else 0."""

    when: float
    syspath: str
    seqnum: int = 0


class RecheckQueue(Struct):
    """Devices to look at later, because an event may be early, missing or wrong."""

    pending: set[PendingRecheck] = field(default_factory=set)

    def add(self, syspath: str, when: float, seqnum: int = 0) -> None:
        """Plan a look at ``syspath`` at ``when``."""
        self.pending.add(PendingRecheck(when, syspath, seqnum))

    def answered(self, syspath: str, seqnum: int) -> None:
        """Drop the rechecks of a device that wait for udevd, which has now reported event ``seqnum``."""
        self.pending -= {one for one in self.pending if one.syspath == syspath and 0 < one.seqnum <= seqnum}

    def take_due(self, now: float) -> set[PendingRecheck]:
        """Remove and return the due rechecks."""
        due = {one for one in self.pending if one.when <= now}
        self.pending -= due
        return due

    def next_due(self) -> float | None:
        """Return when the next recheck is due; None if there is none."""
        return min((one.when for one in self.pending), default=None)


def latest_per_device(events: Iterable[Uevent]) -> Mapping[str, Uevent]:
    """Return the newest event of every device, by syspath, in the order of SEQNUM; older ones no longer matter.

    Both groups have the same numbers (udevd forwards the kernel's), so a queue filled from both is sorted correctly.
    """
    newest: dict[str, Uevent] = {}
    for event in sorted(events, key=lambda event: event.seqnum):
        newest.pop(event.syspath, None)
        newest[event.syspath] = event
    return newest
