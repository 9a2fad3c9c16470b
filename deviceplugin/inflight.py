"""Remember which device ids kubelet asks about now, or asked about a moment ago."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable


class Inflight:
    """The ids of requests.

    Ask here before an id leaves the list: kubelet 1.36 crashes if an Allocate of that id is under way.

    ``clock`` counts seconds and never goes back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._last_seen: dict[str, float] = {}

    def enter(self, ids: Iterable[str]) -> None:
        """Note that a request for ``ids`` begins."""
        for device_id in ids:
            self._running[device_id] += 1
            self._last_seen[device_id] = self._clock()

    def leave(self, ids: Iterable[str]) -> None:
        """Note that the request is over, the work behind it included."""
        for device_id in ids:
            self._running[device_id] -= 1
            if self._running[device_id] <= 0:
                del self._running[device_id]
            self._last_seen[device_id] = self._clock()

    @property
    def ids(self) -> frozenset[str]:
        """The ids of requests that are under way."""
        return frozenset(self._running)

    @property
    def idle_seconds(self) -> float:
        """How long no request has been under way: 0 while one is, infinite before the first."""
        return 0.0 if self._running else self._clock() - max(self._last_seen.values(), default=-math.inf)

    def recent(self, seconds: float) -> frozenset[str]:
        """Return the ids of requests under way, or over for less than ``seconds``. Older ids are forgotten."""
        oldest = self._clock() - seconds
        self._last_seen = {i: at for i, at in self._last_seen.items() if at >= oldest or i in self._running}
        return frozenset(self._last_seen)
