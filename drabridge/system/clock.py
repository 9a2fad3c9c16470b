"""Give wall time that nobody can set while the agent runs.

The ledger counts seconds between stamps: how young a hold is, for how long a pod was not seen, until when a new kubelet
is not believed. A clock that is set back would hold devices for as long as the step was. A clock that is set forward
would skip those waits; time servers do that minutes after a boot, just when kubelet does not know all pods yet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

TOLD_SECONDS = 5.0  # smaller steps are what time servers do, and nothing here is that exact
NEVER_SET = 1_577_836_800.0  # 2020-01-01: an earlier clock has no battery


def boot_seconds() -> float:
    """Return the seconds since the boot, suspended ones too; nobody can set them (clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Call it for wall seconds: those at its making, plus what has passed since. A step is logged once.

    A clock that was plainly never set (``NEVER_SET``) is followed once it is set: stamps of 1970 until the next start
    help nobody.
    """

    def __init__(self, wall: Callable[[], float] = time.time, boot: Callable[[], float] = boot_seconds) -> None:
        self._wall = wall
        self._boot = boot
        self._anchor = wall() - boot()
        self._told = 0.0  # the step that was said already

    def __call__(self) -> float:
        now = self._anchor + self._boot()
        step = self._wall() - now
        if abs(step - self._told) <= TOLD_SECONDS:
            return now
        self._told = step
        followed = now < NEVER_SET
        if followed:
            self._anchor += step
            self._told = 0.0
            now += step
        log.warning(
            "node clock set",
            extra={"step_seconds": round(step, 1), "followed": "yes" if followed else "from the next start on"},
        )
        return now
