"""Wall time that nobody can set while the agent runs.

The ledger counts seconds between stamps: how young a hold is, for how long a pod was not seen, until when a new kubelet
is not believed. A clock that is set back would hold devices for as long as the step was; one that is set forward, as
time servers do minutes after a boot, just when kubelet does not know all pods yet, would skip those waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

TOLD_SECONDS = 5.0  # a smaller step is what time servers do, and nothing here is that exact
NEVER_SET = 1_577_836_800.0  # 2020-01-01: earlier than any node that runs this, so the clock had no battery


def boot_seconds() -> float:
    """Seconds since the boot, suspended ones too; nobody can set it (clock_gettime(2), CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Call it for wall seconds: those of its making, and what has passed since. A step is said once, in the log.

    A clock that was plainly never set is followed once it is: stamps of 1970 until the next start help nobody.
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
            "the clock of this node was set",
            extra={"step_seconds": round(step, 1), "followed": "yes" if followed else "from the next start on"},
        )
        return now
