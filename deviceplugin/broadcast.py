"""Publish a versioned value to many readers: each sees the newest at once, and slow ones skip older versions."""

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
    """A published value.

    Call it from one event loop only (other threads use ``loop.call_soon_threadsafe``).

    Nothing is queued for a reader, so no reader misses the newest value, and none delays another. (Some plugins have
    one channel for all streams: there one stream takes the event that another needed.)
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
        """Make ``value`` the newest and return its version. An equal value keeps its version and wakes nobody."""
        if self._current is not None and self._current.value == value:
            return self._current.version
        return self._advance(value)

    def resend(self) -> int:
        """Give the same value a new version, so that every reader takes it again. Returns the version.

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
        """Call ``wake()`` after each new version, for as long as the context lives."""
        key = object()
        self._wakers[key] = wake
        try:
            yield
        finally:
            del self._wakers[key]

    async def next(self, after: int) -> Versioned[T]:
        """Wait for a version greater than ``after`` and return the newest."""
        changed = asyncio.Event()
        with self.subscribe(changed.set):
            while self._current is None or self._current.version <= after:
                await changed.wait()
                changed.clear()
            return self._current
