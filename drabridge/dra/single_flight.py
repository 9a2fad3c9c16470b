"""One task for each key: whoever asks again meanwhile joins it, and nobody who gives up cuts it short.

grpc.aio cancels a handler when the client's deadline passes; work with side effects must not stop wherever it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from drabridge.errors import PeerError

T = TypeVar("T")


async def join(tasks: dict[str, asyncio.Task[T]], key: str, work: Callable[[], Awaitable[T]]) -> T:
    """Wait for the key's task, begun now or by an earlier call; the task outlives the caller."""
    task = tasks.get(key)
    if task is None:
        task = asyncio.ensure_future(_run(work))
        tasks[key] = task
        task.add_done_callback(lambda done: _forget(tasks, key, done))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if task.cancelled():
            raise PeerError("cancelled: kubelet unprepared the claim meanwhile, or the agent is stopping") from None
        raise


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that must be over before anybody else goes on, however often that is cancelled; then it is."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    task.result()


async def _run(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


def _forget(tasks: dict[str, asyncio.Task[T]], key: str, task: asyncio.Task[T]) -> None:
    if tasks.get(key) is task:
        del tasks[key]
    if not task.cancelled():
        task.exception()  # retrieved: the caller may be gone
