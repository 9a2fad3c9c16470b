"""Run calls that may take long or hang (a disk, an API server) in one thread, while the loop goes on.

Not ``ThreadPoolExecutor``: here it takes half as long to hand a call over and to wait for it on the spot, which counts
beside an fsync of a tenth of a millisecond. And the thread is a daemon: a call that hangs does not keep the process
from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.001  # a small file takes less on a quick disk; nobody notices a loop that waits for so long

T = TypeVar("T")


class Job(Generic[T]):
    """A call that was handed to an :class:`IoThread`."""

    __slots__ = ("_call", "_result", "_running", "error")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call: Callable[[], T] | None = call
        self._running = threading.Lock()
        self._running.acquire()
        self.error: BaseException | None = None
        """Why it failed; None if it did not, or is not over."""

    @classmethod
    def failed(cls, error: Exception) -> Job[T]:
        """Make a job that is over and has failed."""

        def fail() -> T:
            raise error

        job = cls(fail)
        job.run()
        return job

    def run(self) -> None:
        """Make the call; in the thread."""
        try:
            assert self._call is not None
            self._result = self._call()
        except BaseException as error:  # in any case the call must not look done
            self.error = error
        finally:
            self._call = None
            self._running.release()

    def over(self, seconds: float = 0.0) -> bool:
        """Tell whether it is over; wait for that on the spot, for ``seconds`` at most."""
        if self._running.acquire(timeout=seconds):
            self._running.release()
            return True
        return False

    def result(self) -> T:
        """Return what the call returned, or raise what it raised. Only for a job that is over."""
        if self.error is not None:
            raise self.error
        return self._result


class IoThread:
    """One thread that runs calls in the order in which they come. Use it from one loop."""

    def __init__(self, name: str) -> None:
        """Do not start the thread yet: the first call does. ``name`` is what tools for threads show."""
        self._jobs: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._stopped = False
        self._quick = True  # how the last call was that somebody waited for
        self._newest: dict[str, tuple[object, Callable[[], object]]] = {}
        self._newest_lock = threading.Lock()  # of the line above, for a moment

    def submit(self, call: Callable[[], T]) -> Job[T]:
        """Hand a call over. Raises RuntimeError after :meth:`stop`."""
        if self._stopped:
            raise RuntimeError(f"the thread {self._thread.name} was stopped")
        if self._thread.ident is None:
            self._thread.start()
        job = Job(call)
        self._jobs.put(job.run)
        return job

    async def wait_all(self) -> None:
        """Wait until every call that was handed over so far is over. Raises RuntimeError after :meth:`stop`."""
        loop = asyncio.get_running_loop()
        here: asyncio.Future[None] = loop.create_future()

        def arrive() -> None:
            if not here.done():
                here.set_result(None)

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(arrive)

        self.submit(tell)
        await here

    async def run(self, call: Callable[[], T]) -> T:
        """Make a call and return its result. Cancelling the caller does not stop the call; its timeouts do."""
        job = self.submit(call)
        await self.wait_all()
        return job.result()

    async def promptly(self, call: Callable[[], T]) -> T:
        """Do :meth:`run`, but wait on the spot while calls are quick: turns of the loop would take longer."""
        job = self.submit(call)
        if self._quick and job.over(PATIENCE_SECONDS):
            return job.result()
        self._quick, began = False, time.monotonic()
        await self.wait_all()
        self._quick = time.monotonic() - began < PATIENCE_SECONDS
        return job.result()

    def submit_latest(self, key: str, call: Callable[[], object]) -> None:
        """Hand over a call that nobody waits for.

        Of several with one ``key`` that wait, only the last is made.

        What it raises is logged. Nothing happens after :meth:`stop`.
        """
        mark = object()
        with self._newest_lock:
            self._newest[key] = mark, call

        def run() -> None:
            with self._newest_lock:
                if self._newest.get(key, (None,))[0] is not mark:
                    return
                _, newest = self._newest.pop(key)
            try:
                newest()
            except Exception:
                log.exception("file not written", extra={"file": key})

        with contextlib.suppress(RuntimeError):
            self.submit(run)

    async def finish(self, seconds: float) -> None:
        """Take no more calls; wait for those that were handed over, for ``seconds`` at most: a disk may hang."""
        if self._thread.ident is not None and not self._stopped:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.wait_all()
        self.stop()

    def stop(self) -> None:
        """Take no more calls; what was handed over is still done. Does not wait."""
        self._stopped = True
        self._jobs.put(None)

    def _work(self) -> None:
        while (run := self._jobs.get()) is not None:
            run()
            del run  # what it refers to must not live until the next one comes
