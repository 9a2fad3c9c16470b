"""Put a clock in place of the machine's, before anything else is imported: defaults of functions keep what they find.

Import this first. Until :func:`follow` is called the machine's clock counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

EPOCH_SECONDS = 1_790_000_000.0  # what the wall says is so much more than the loop's time

_real_monotonic, _real_time = time.monotonic, time.time
_now: Callable[[], float] | None = None


def follow(now: Callable[[], float] | None) -> None:
    """Show the time that ``now`` returns; None: the machine's again."""
    global _now
    _now = now


def _monotonic() -> float:
    return _real_monotonic() if _now is None else _now()


def _time() -> float:
    return _real_time() if _now is None else EPOCH_SECONDS + _now()


time.monotonic, time.time = _monotonic, _time
