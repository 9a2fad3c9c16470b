"""Tell what happens, and wait for what others do."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

from msgspec import Struct

from drabridge.errors import ClusterError
from drabridge.kube.api import ConflictError, ExpiredError, UnreachableError

POLL_SECONDS = 1.0
POLL_MOST_SECONDS = 5.0  # a large cluster answers in seconds


class Event(Struct, frozen=True):
    """Something that was done, or is waited for. ``waited``: seconds; None of what is done."""

    step: str
    object: str
    message: str
    waited: float | None = None


Tell = Callable[[Event], None]


class Waiting:
    """Waits for one step. ``seconds``: how long for each thing."""

    def __init__(self, step: str, tell: Tell, seconds: float) -> None:
        self._step = step
        self._tell = tell
        self._seconds = seconds

    def say(self, what: str, message: str) -> None:
        self._tell(Event(self._step, what, message))

    async def until(
        self,
        what: str,
        lacking: Callable[[], Awaitable[str]],
        *,
        hint: str = "Mend that",
        at_most_seconds: float = math.inf,
    ) -> None:
        """Ask until ``lacking`` returns "": it says what is still waited for. An API server that is away is waited for.

        ``at_most_seconds``: where less than the step's time is enough. Raises ClusterError when it took too long, with
        ``hint`` and how to go on.
        """
        loop = asyncio.get_running_loop()
        began, pause = loop.time(), POLL_SECONDS
        most = min(self._seconds, at_most_seconds)
        while True:
            try:
                words = await lacking()
            except (UnreachableError, ExpiredError, ConflictError) as error:
                words = error.message
            if not words:
                return
            waited = loop.time() - began
            if waited > most:
                raise ClusterError(
                    f"{what}: {words}, after {waited:.0f} s",
                    hint=f"{hint}. The same command goes on here; drabridge migrate rollback goes back",
                )
            self._tell(Event(self._step, what, words, waited))
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, POLL_MOST_SECONDS)
