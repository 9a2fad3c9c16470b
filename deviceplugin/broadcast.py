"""A value with versions that many readers follow: each sees the newest at once, slow ones skip to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class Versioned(Struct, Generic[T], frozen=True):
    """A published value. Versions start at 1 and only grow."""

    version: int
    value: T


class Broadcast(Generic[T]):
    """Belongs to one event loop: call it from there (other threads use ``loop.call_soon_threadsafe``).

    Nothing is queued per reader, so a reader can neither miss the latest value nor hold anybody up (the defect of a
    channel shared by all streams: one stream eats the event of another).
    """

    def __init__(self) -> None:
        self._current: Versioned[T] | None = None
        self._wakers: dict[object, Callable[[], None]] = {}

    @property
    def current(self) -> Versioned[T] | None:
        """The newest value, or None before the first ``publish``."""
        return self._current

    @property
    def version(self) -> int:
        """The newest version, 0 before the first ``publish``."""
        return self._current.version if self._current else 0

    def publish(self, value: T) -> int:
        """Make ``value`` the newest; returns its version. An equal value keeps the version: readers are not woken."""
        if self._current is not None and self._current.value == value:
            return self._current.version
        return self._advance(value)

    def resend(self) -> int:
        """Give the same value a new version, so that every reader takes it again; returns the version.

        Raises RuntimeError before the first ``publish``.
        """
        if self._current is None:
            raise RuntimeError("nothing to send again: publish a value first")
        return self._advance(self._current.value)

    def _advance(self, value: T) -> int:
        self._current = Versioned(self.version + 1, value)
        for wake in tuple(self._wakers.values()):
            wake()
        return self._current.version

    @contextmanager
    def subscribe(self, wake: Callable[[], None]) -> Iterator[None]:
        """While the context lives, ``wake()`` is called after each new version."""
        key = object()
        self._wakers[key] = wake
        try:
            yield
        finally:
            del self._wakers[key]

    async def next(self, after: int) -> Versioned[T]:
        """The newest value whose version is greater than ``after``; waits for one."""
        poke = asyncio.Event()
        with self.subscribe(poke.set):
            while self._current is None or self._current.version <= after:
                await poke.wait()
                poke.clear()
            return self._current
