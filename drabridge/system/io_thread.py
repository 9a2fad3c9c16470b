"""Run calls that may take long or hang (a disk, an API server) in one thread, while the loop goes on.

Why not ``ThreadPoolExecutor``: here it takes half as long to hand over a call and to block until it is done, which
matters beside an fsync of 0.1 ms. And the thread is a daemon: a call that hangs does not keep the process
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

PATIENCE_SECONDS = 0.001  # a quick disk writes a small file in less; so short a block of the loop does no harm

T = TypeVar("T")


class Job(Generic[T]):
    """A call that was handed to an :class:`IoThread`."""

    __slots__ = ("_call", "_result", "_running", "error")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call: Callable[[], T] | None = call
        self._running = threading.Lock()
        self._running.acquire()
        self.error: BaseException | None = None
        """Why the call failed; None if it did not, or has not ended."""

    @classmethod
    def failed(cls, error: Exception) -> Job[T]:
        """Return a job that has ended with ``error``."""

        def fail() -> T:
            raise error

        job = cls(fail)
        job.run()
        return job

    def run(self) -> None:
        """Make the call; runs in the thread."""
        try:
            assert self._call is not None
            self._result = self._call()
        except BaseException as error:  # the call must never look successful
            self.error = error
        finally:
            self._call = None
            self._running.release()

    def over(self, seconds: float = 0.0) -> bool:
        """Return whether the call has ended; block ``seconds`` at most for that."""
        if self._running.acquire(timeout=seconds):
            self._running.release()
            return True
        return False

    def result(self) -> T:
        """Return what the call returned, or raise what it raised. Only after the call has ended."""
        if self.error is not None:
            raise self.error
        return self._result


class IoThread:
    """One thread that runs calls in the order in which they come. Use it from one loop."""

    def __init__(self, name: str) -> None:
        """Prepare the thread; the first call starts it. ``name``: the thread's name in tools."""
        self._jobs: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._stopped = False
        self._quick = True  # the last call of :meth:`promptly` was quick
        self._newest: dict[str, tuple[object, Callable[[], object]]] = {}
        self._newest_lock = threading.Lock()  # guards ``_newest``; held for moments only

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
        """Do :meth:`run`, but block the loop while calls are quick: a switch back to the loop would take longer."""
        return await self.settle(self.submit(call))

    async def settle(self, job: Job[T]) -> T:
        """Wait for a call as :meth:`promptly` does, for a caller that had something else to do meanwhile."""
        if self._quick and job.over(PATIENCE_SECONDS):
            return job.result()
        self._quick, began = False, time.monotonic()
        await self.wait_all()
        self._quick = time.monotonic() - began < PATIENCE_SECONDS
        return job.result()

    def submit_latest(self, key: str, call: Callable[[], object]) -> None:
        """Hand over a call that nobody waits for.

        Of several waiting calls with one ``key``, only the last is made. Its exceptions are logged. After :meth:`stop`
        nothing is made.
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
        """Take no more calls; wait ``seconds`` at most for those that were handed over: a disk may hang."""
        if self._thread.ident is not None and not self._stopped:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.wait_all()
        self.stop()

    def stop(self) -> None:
        """Take no more calls; those that were handed over are still made. Does not wait."""
        self._stopped = True
        self._jobs.put(None)

    def _work(self) -> None:
        while (run := self._jobs.get()) is not None:
            run()
            del run  # objects of this call must not live until the next one comes
