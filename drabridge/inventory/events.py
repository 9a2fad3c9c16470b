"""What uevents mean for the list of devices: order, pace, and the checks still owed. Pure: time is passed in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct, field

BURST = 8
"""Wake-ups that are acted on at once. Plugging one device in makes two to four events (the device, its children)."""

INTERVAL_SECONDS = 0.02
"""In a longer burst, one round each interval: kubelet rewrites a checkpoint file for every list that it gets."""

SHARE = 4
"""A round that took long is followed by a pause of so many times as long: a flood may not fill the loop."""


class Pacer(Struct):
    """Immediate leading edge, then coalescing: a bucket of ``BURST`` tokens, refilled one each interval."""

    tokens: float = BURST
    last: float = float("-inf")
    interval_seconds: float = INTERVAL_SECONDS

    def delay(self, now: float) -> float:
        """Seconds to wait before the next round; 0 when it may run at once."""
        return max(0.0, 1 - self._tokens(now)) * self.interval_seconds

    def spend(self, now: float, seconds: float = 0.0) -> None:
        """A round began ``now`` and took ``seconds``."""
        self.tokens = max(0.0, self._tokens(now) - 1)
        self.last = now
        self.interval_seconds = max(INTERVAL_SECONDS, SHARE * seconds)

    def _tokens(self, now: float) -> float:
        return min(float(BURST), self.tokens + max(0.0, now - self.last) / self.interval_seconds)


class Uevent(Struct, frozen=True):
    """One uevent. It only says where to look; ``remove`` alone is believed as it stands (the kernel sends it before the
    directory is gone).
    """

    seqnum: int
    action: str
    syspath: str
    subsystem: str
    group: str  # "udev" or "kernel": who sent it


class PendingRecheck(Struct, frozen=True):
    """Look at ``syspath`` at ``when``. ``seqnum`` is the kernel event that udevd has not answered yet, else 0."""

    when: float
    syspath: str
    seqnum: int = 0


class RecheckQueue(Struct):
    """Syspaths that have to be looked at (again) later, because an event may be early, missing or wrong."""

    debts: set[PendingRecheck] = field(default_factory=set)

    def add(self, syspath: str, when: float, seqnum: int = 0) -> None:
        """Look at ``syspath`` at ``when``."""
        self.debts.add(PendingRecheck(when, syspath, seqnum))

    def answered(self, syspath: str, seqnum: int) -> None:
        """udevd has reported this event, or a later one of the same device: nothing is owed for it."""
        self.debts -= {debt for debt in self.debts if debt.syspath == syspath and 0 < debt.seqnum <= seqnum}

    def take(self, now: float) -> set[PendingRecheck]:
        """What is due; it is owed no longer."""
        due = {debt for debt in self.debts if debt.when <= now}
        self.debts -= due
        return due

    def next(self) -> float | None:
        """When the next one is due."""
        return min((debt.when for debt in self.debts), default=None)


def latest_per_device(events: Iterable[Uevent]) -> Mapping[str, Uevent]:
    """The newest event of every device, in the order of SEQNUM: what came before it no longer matters.

    The two groups number alike (udevd forwards the kernel's number), so a queue filled from both sorts correctly.
    """
    newest: dict[str, Uevent] = {}
    for event in sorted(events, key=lambda event: event.seqnum):
        newest.pop(event.syspath, None)
        newest[event.syspath] = event
    return newest
