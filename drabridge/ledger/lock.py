"""Let one process write the ledger of a node: a lock file beside it, held for as long as the process lives.

A process that waits for the lock sleeps in flock(2). The kernel hands the lock over within microseconds when its holder
closes it or dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from drabridge.errors import HostError, host_errors

FILE = "ledger.lock"


class LedgerLockedError(HostError):
    """Another process is the ledger's writer."""


class Lock:
    """The lock of one directory.

    ``ran_before`` says whether an agent ran here before, as far as the directory shows. An agent that ended while we
    waited, and removed all of its files, does not count.
    """

    def __init__(self, directory: Path, *, wait: bool = False) -> None:
        """Take the lock; with ``wait``, block until it is free.

        Raises LedgerLockedError if another process has it, and HostError if the directory cannot be used.
        """
        self._path = directory / FILE
        self._fd: int | None
        self.ran_before, self._fd = _take(self._path, wait=wait)

    def renew(self) -> None:
        """Take the lock again if its file is no longer at its path.

        Raises LedgerLockedError, now and at every later call, if another agent has a lock there: what this process
        knows is out of date.
        """
        if self._fd is None:
            raise LedgerLockedError("the ledger was closed by this process", hint="another agent may have it by now")
        if not same_file(self._path, os.fstat(self._fd)):
            try:
                _, fd = _take(self._path, wait=False)
            except LedgerLockedError:
                self.close()
                raise
            self.close()
            self._fd = fd

    def close(self) -> None:
        """Let another process have the lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def same_file(path: Path, opened: os.stat_result) -> bool:
    """Whether the opened file is the one that the next process finds at ``path``."""
    try:
        there = os.stat(path)
    except OSError:
        return False
    return os.path.samestat(there, opened)


def holder(directory: Path) -> str:
    """Read the pid of the process that last took the lock, as in that process's PID namespace; "unknown" if none."""
    try:
        fd = os.open(directory / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return "unknown"
    try:
        return _read_pid(fd)
    finally:
        os.close(fd)


def _take(path: Path, *, wait: bool) -> tuple[bool, int]:
    """Take the lock; returns whether an agent ran here before, and the lock's file descriptor."""
    while True:
        hint = "it must be a directory on the node's own disk that root may write to"
        with host_errors(f"the ledger's directory {path.parent} cannot be used", hint=hint):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            before = path.exists()
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            other = _read_pid(fd)
            os.close(fd)
            raise LedgerLockedError(
                f"another agent (pid {other}) has the ledger in {path.parent}",
                hint="two agents must not grant the same devices: stop that one first",
            ) from error
        if same_file(path, os.fstat(fd)):
            break
        os.close(fd)  # its file was removed or replaced while we waited: try the one at the path now
    with contextlib.suppress(OSError):  # on a full disk the lock is taken, but its file does not say by whom
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return before, fd


def _read_pid(fd: int) -> str:
    with contextlib.suppress(OSError):
        return os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
    return "unknown"
