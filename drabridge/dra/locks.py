"""One worker at a time on a claim, or on a device. In this process: who has not the ledger serves no claims."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class Locks:
    """A lock for each key, for as long as somebody has it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def hold(self, key: str) -> asyncio.Lock:
        """To be used with ``async with``."""
        return self._locks.get(key) or self._locks.setdefault(key, asyncio.Lock())
