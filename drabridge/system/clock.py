"""Give wall time that nobody can set while the agent runs.

The ledger compares time stamps: how young a hold is, how long a pod was not seen, until when a new kubelet is not
believed. If the clock were set back, devices would stay held longer by the length of the step. If it were set forward,
those waits would be skipped; time servers do that minutes after a boot, when kubelet does not know all pods yet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

TOLD_SECONDS = 5.0  # smaller steps are normal with time servers, and do not matter here
NEVER_SET = 1_577_836_800.0  # 2020-01-01: an earlier clock has no battery


def boot_seconds() -> float:
    """Return the seconds since the boot, suspended ones too; nobody can set them (clock_gettime(2))."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """A call returns wall-clock seconds: the time of its creation plus the seconds since. A step is logged once.

    A clock that was never set before (``NEVER_SET``) is followed when it is set: stamps of 1970 until the next start
    would be useless.
    """

    def __init__(self, wall: Callable[[], float] = time.time, boot: Callable[[], float] = boot_seconds) -> None:
        self._wall = wall
        self._boot = boot
        self._anchor = wall() - boot()
        self._told = 0.0  # the step that was logged last

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
