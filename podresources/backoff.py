"""Decide how long to wait before the next try. Pure; the random source is passed in."""

from __future__ import annotations

import random

from msgspec import Struct

from podresources.errors import KubeletUnavailable, PodResourcesError, RateLimited, SocketMissing

RATE_LIMIT_FLOOR_SECONDS = 1.0
"""Kubelet's bucket (100 a second, burst 10; pkg/kubelet/apis/grpc/ratelimit.go) is shared by every client of the node:
a client that was refused leaves the others a full second."""


class Backoff(Struct, frozen=True):
    """Exponential back-off: after try ``n`` (from 0) it waits ``initial * factor**n``, less the jitter.

    It never waits for more than ``maximum_seconds``.

    0.1 s is well above what kubelet needs between bind and rename of its socket, and 2 s keeps a restart (3 to 10 s on
    a real node) from costing more than one needless wait.
    """

    initial_seconds: float = 0.1
    factor: float = 2.0
    maximum_seconds: float = 2.0
    jitter: float = 0.5
    """Share of the wait that is random, so that agents that ended together do not come back together."""

    def delay(self, attempt: int, random_source: random.Random) -> float:
        """Return the seconds to wait after try ``attempt``; the first try is 0."""
        full = min(self.maximum_seconds, self.initial_seconds * self.factor ** min(attempt, 32))
        return full * (1.0 - self.jitter * random_source.random())

    def delay_after(self, error: PodResourcesError, attempt: int, random_source: random.Random) -> float | None:
        """Return the seconds to wait after ``error``, or None when trying again cannot help."""
        match error:
            case RateLimited():
                return RATE_LIMIT_FLOOR_SECONDS + self.delay(attempt, random_source)
            case KubeletUnavailable() | SocketMissing():
                return self.delay(attempt, random_source)
            case _:
                return None
