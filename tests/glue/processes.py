"""Run programs of a node side by side on one loop whose clock jumps, and kill them; what they do is repeatable."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import secrets
import selectors
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, ContextVar
from typing import Any, TypeVar
from unittest.mock import patch
from weakref import WeakKeyDictionary, WeakSet

from tests.glue import clock  # isort: skip
from drabridge.errors import HostError
from drabridge.system.io_thread import IoThread, Job

T = TypeVar("T")
START_SECONDS = 1_000.0  # of the clock that counts from the boot


class Process:
    """A program with its tasks. What it began after :meth:`kill` reaches nobody, not even the disk."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.at_kill: list[Callable[[], object]] = []

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin ``work`` as this program; so is all that it begins."""
        context = Context()
        context.run(PROCESS.set, self)
        return asyncio.get_running_loop().create_task(work, name=self.name, context=context)

    async def kill(self) -> None:
        """End it at once, as SIGKILL does: no file is written any more, no peer hears a word."""
        self.alive = False
        for tell in self.at_kill:
            tell()
        tasks = [task for task in self.tasks if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=600.0) if tasks else None


PROCESS: ContextVar[Process] = ContextVar("process", default=Process("the world"))  # noqa: B039


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: when no file is ready, the time of the next timer has come."""

    now = START_SECONDS

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("every task waits for another one: nothing would happen ever again")
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop on which hours pass in moments."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self.set_task_factory(_task)

    def time(self) -> float:
        return self._jumping.now

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        """Signals are for real processes."""


def _task(loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None, **more: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, context=context, **more)
    process = context.get(PROCESS) if context is not None else PROCESS.get()
    (process or PROCESS.get()).tasks.add(task)
    return task


class Disk:
    """The disk of the node: each call takes up to ``slow_seconds``, one after the other in each thread."""

    def __init__(self) -> None:
        self.slow_seconds = 0.0
        self._free_at: WeakKeyDictionary[IoThread, float] = WeakKeyDictionary()

    def is_free(self, thread: IoThread) -> bool:
        return not self.slow_seconds and self.seconds(thread) <= 0.0

    def seconds(self, thread: IoThread) -> float:
        """How long the calls take that the thread has now."""
        return self._free_at.get(thread, 0.0) - asyncio.get_running_loop().time()

    def occupy(self, thread: IoThread) -> float:
        """Let one more call take its time; returns when it is over."""
        begin = max(self._free_at.get(thread, 0.0), asyncio.get_running_loop().time())
        self._free_at[thread] = begin + random.uniform(1e-6, max(self.slow_seconds, 2e-6))
        return self._free_at[thread]


DISK = Disk()


def _submit(self: IoThread, call: Callable[[], T]) -> Job[T]:
    """Make the call at once, or later on a slow disk: threads would make stories that cannot be told again."""
    if self._stopped:
        raise RuntimeError("the thread was stopped")
    process = PROCESS.get()

    def unless_killed() -> T:
        if not process.alive:
            raise HostError("the process was killed")
        return call()

    job = Job(unless_killed)
    if DISK.is_free(self):
        job.run()
    else:
        asyncio.get_running_loop().call_at(DISK.occupy(self), job.run)
    return job


async def _wait_all(self: IoThread) -> None:
    if self._stopped:
        raise RuntimeError("the thread was stopped")
    await asyncio.sleep(0 if DISK.is_free(self) else DISK.seconds(self) + 1e-6)


async def _to_thread(call: Callable[..., T], *args: Any, **more: Any) -> T:
    return call(*args, **more)


def _flock(file: int, operation: int) -> None:
    """Lock a file; the lock goes with the process, as the kernel has it."""
    _real_flock(file, operation)
    if operation & fcntl.LOCK_EX:
        place, process = os.fstat(file).st_ino, PROCESS.get()

        def unlock() -> None:
            with contextlib.suppress(OSError):  # closed since, or another file
                if os.fstat(file).st_ino == place:
                    _real_flock(file, fcntl.LOCK_UN)

        process.at_kill.append(unlock)


_real_flock = fcntl.flock


def run(seed: int, story: Callable[[random.Random], Coroutine[Any, Any, T]]) -> T:
    """Run a story to its end. One seed is one story, if ``PYTHONHASHSEED`` is the same as well."""
    loop = JumpingLoop()
    dice = random.Random(seed)
    with _repeatable(loop, random.Random(seed + 1)):
        try:
            return loop.run_until_complete(story(dice))
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            with contextlib.suppress(RuntimeError):
                loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


@contextlib.contextmanager
def _repeatable(loop: JumpingLoop, dice: random.Random) -> Iterator[None]:
    """Put the loop's clock and ``dice`` in place of the machine's."""

    class Dice(random.Random):
        def __init__(self, seed: Any = None) -> None:
            super().__init__(dice.getrandbits(64) if seed is None else seed)

    random.seed(dice.getrandbits(64))
    with contextlib.ExitStack() as stack:
        for owner, name, stand_in in (
            (random, "Random", Dice),
            (uuid, "uuid4", lambda: uuid.UUID(int=dice.getrandbits(128), version=4)),
            (secrets, "token_hex", lambda count=32: f"{dice.getrandbits(8 * count):0{2 * count}x}"),
            (secrets, "choice", dice.choice),
            (secrets, "randbelow", dice.randrange),
            (asyncio, "to_thread", _to_thread),
            (os, "fsync", lambda file: None),
            (fcntl, "flock", _flock),
            (IoThread, "submit", _submit),
            (IoThread, "wait_all", _wait_all),
        ):
            stack.enter_context(patch.object(owner, name, stand_in))
        clock.follow(loop.time)
        stack.callback(clock.follow, None)
        stack.callback(setattr, DISK, "slow_seconds", 0.0)
        yield
