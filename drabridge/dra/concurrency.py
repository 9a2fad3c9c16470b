"""Run one piece of work at a time for each claim or device, to its end even if the caller gives up.

grpc.aio cancels a handler when the client's deadline passes; work with side effects must not stop half-way. No other
process has to be considered: without the ledger's lock, no claims are served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from drabridge.errors import PeerError

T = TypeVar("T")


class KeyedLocks:
    """A lock for each key, for as long as somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, key: str) -> asyncio.Lock:
        """Return the key's lock, for ``async with``."""
        return self._locks.get(key) or self._locks.setdefault(key, asyncio.Lock())


async def join(tasks: dict[str, asyncio.Task[T]], key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Wait for the key's task in ``tasks``; start it if there is none. The task outlives the caller."""
    task = tasks.get(key)
    if task is None:
        task = tasks[key] = asyncio.create_task(work())
        task.add_done_callback(lambda done: _forget(tasks, key, done))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise PeerError("cancelled: kubelet unprepared the claim meanwhile, or the agent is stopping") from None
        raise


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for ``work`` to end, however often the caller is cancelled; cancel the caller only then."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    task.result()


def _forget(tasks: dict[str, asyncio.Task[T]], key: str, task: asyncio.Task[T]) -> None:
    if tasks.get(key) is task:
        del tasks[key]
    if not task.cancelled():
        task.exception()  # marked as retrieved: the caller may be gone
