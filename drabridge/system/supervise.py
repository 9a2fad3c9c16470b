"""Keep tasks running, and end them: a failed one is logged and started again after a back-off; the agent goes on."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

log = logging.getLogger(__name__)

FIRST_SECONDS = 0.5
MAX_SECONDS = 30.0
STABLE_SECONDS = 60.0  # after a task ran this long, the back-off starts from its first pause
REPEAT_SECONDS = 10.0  # the same trouble again within this time says nothing new
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


async def forever(name: str, work: Callable[[], Awaitable[None]], stopping: Callable[[], bool] = lambda: False) -> None:
    """Run ``work`` until cancelled: when it raises, or returns before ``stopping``, run it again."""
    loop = asyncio.get_running_loop()
    pause = FIRST_SECONDS
    while True:
        started = loop.time()
        try:
            await work()
            if stopping():
                return
            log.error("task ended, starting it again", extra={"task": name, "pause_seconds": pause})
        except Exception:
            log.exception("task failed, starting it again", extra={"task": name, "pause_seconds": pause})
        if loop.time() - started > STABLE_SECONDS:
            pause = FIRST_SECONDS
        await asyncio.sleep(pause * random.uniform(0.8, 1.2))
        pause = min(pause * 2, MAX_SECONDS)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class LoopErrors:
    """Handles errors of the event loop. Running out of file descriptors is logged once in ``REPEAT_SECONDS``.

    Then every accept fails, a hundred in a burst and again each second: one message is enough.
    """

    def __init__(self) -> None:
        self._said_at = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in OUT_OF_DESCRIPTORS:
            loop.default_exception_handler(context)
        elif loop.time() - self._said_at >= REPEAT_SECONDS:
            self._said_at = loop.time()
            log.error(
                "no connection can be accepted",
                extra={"reason": error.strerror, "hint": "raise the limit of open files (ulimit -n, LimitNOFILE)"},
            )


class WakeUp:
    """A wake-up that is kept while nobody waits. Several count as one: the woken task must look for changes."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until somebody sets it, for ``timeout_seconds`` at most; return whether it was set, and clear it."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True
