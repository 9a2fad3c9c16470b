"""A token bucket (``golang.org/x/time/rate``), pure: the clock is an argument."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TokenBucket:
    """``rate`` tokens per second, at most ``burst`` saved; starts full."""

    rate: float
    burst: int
    _tokens: float = -1.0
    _last: float = 0.0

    def take(self, now: float) -> bool:
        """Whether a call at ``now`` seconds is allowed; a refused call costs nothing."""
        if self._tokens < 0:
            self._tokens, self._last = float(self.burst), now
        self._tokens = min(float(self.burst), self._tokens + (now - self._last) * self.rate)
        self._last = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
