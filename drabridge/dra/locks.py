"""One worker on a claim at a time, in this process and in a second instance of the agent during a rolling update."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from weakref import WeakValueDictionary

from drabridge.errors import HostError

POLL_SECONDS = 0.05  # the other instance holds a lock for milliseconds, or for as long as a hook runs


class ClaimLocks:
    """Locks by claim UID: one byte of a lock file each, so that claims do not wait for each other.

    The kernel releases a dead process's locks. Within the process, where such locks exclude nobody, an asyncio lock
    does; the file is opened once, because closing any descriptor of it would release them all (fcntl(2)).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._local: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def hold(self, uid: str) -> AsyncIterator[None]:
        """Wait for the claim's lock; the caller's deadline ends the wait."""
        local = self._local.get(uid) or self._local.setdefault(uid, asyncio.Lock())
        async with local:
            descriptor = self._open()
            offset = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:7]) >> 1  # off_t is signed
            while True:
                try:
                    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
                    break
                except (BlockingIOError, PermissionError):  # EAGAIN or EACCES: both mean that it is locked
                    await asyncio.sleep(POLL_SECONDS)
            try:
                yield
            finally:
                fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, offset)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            try:
                self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise HostError(f"cannot open the lock file {self._path}: {error.strerror}") from error
        return self._descriptor
