"""Wake readers up when a directory changes, by inotify(7).

A wake-up only says "look". What has changed is found by ``LevelCheck.look`` in kubelet_restart.py, which
``PluginServer.run`` in server.py calls after each wake-up.

A directory and its parent are watched, because inotify stays with a deleted directory and is silent about the one that
takes its place. Without inotify (no instances left, an exotic file system) only speed is lost: readers poll faster
while ``Subscription.blind`` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from deviceplugin.sockets import identify_directory

log = logging.getLogger("deviceplugin")

# linux/inotify.h
IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x40, 0x80, 0x100, 0x200
IN_Q_OVERFLOW, IN_IGNORED, IN_ONLYDIR = 0x4000, 0x8000, 0x1000000
_WANTED = IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_ONLYDIR
_HEADER = struct.Struct("iIII")  # watch, mask, cookie, length of the name
_READ_BYTES = 64 * 1024

Place = tuple[int, int]  # (device, inode) of a directory


class _Inotify:
    """One inotify instance, read by the event loop. Each event is passed to ``take`` as (watch, mask, name)."""

    def __init__(self, take: Callable[[int, int, str], None]) -> None:
        """Begin to read events. Raises OSError."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._take = take
        self._descriptor = _checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._read)

    def watch(self, path: Path) -> int:
        """Watch a directory; the same number for the same directory. Raises OSError."""
        return _checked(self._libc.inotify_add_watch(self._descriptor, os.fsencode(path), _WANTED))

    def forget(self, watch: int) -> None:
        """End a watch. The kernel has ended that of a deleted directory itself."""
        self._libc.inotify_rm_watch(self._descriptor, watch)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError, InterruptedError):
            for event in _events(os.read(self._descriptor, _READ_BYTES)):
                self._take(*event)


class Watcher:
    """One inotify instance for all servers of a process. Not thread-safe: belongs to one event loop."""

    def __init__(self) -> None:
        self._inotify: _Inotify | None = None
        self._directories: dict[Path, _Watched] = {}
        self._complained = False

    def subscribe(self, directory: Path, wake: Callable[[], None]) -> Subscription:
        """Call ``wake()`` on the running loop after each change in ``directory``, until it is closed."""
        watched = self._directories.setdefault(directory, _Watched(directory))
        subscription = Subscription(self, watched, wake)
        watched.subscriptions.append(subscription)
        subscription.refresh()
        return subscription

    def refresh(self, watched: _Watched) -> bool:
        """Watch the directory and the parent that are there now; tell whether both are watched."""
        complete = True
        for path in (watched.directory, watched.directory.parent):
            place = identify_directory(path)
            known = watched.watches.get(path)
            if known is not None and known[0] != place:
                del watched.watches[path]
                self._forget(known[1])
                known = None
            if known is None and place is not None:
                watch = self._watch(path)
                if watch is not None:
                    watched.watches[path] = (place, watch)
            complete = complete and path in watched.watches
        return complete

    def release(self, subscription: Subscription) -> None:
        """Forget a subscription; the last one closes the inotify instance."""
        watched = subscription.watched
        with contextlib.suppress(ValueError):
            watched.subscriptions.remove(subscription)
        if watched.subscriptions:
            return
        self._directories.pop(watched.directory, None)
        for _, watch in watched.watches.values():
            self._forget(watch)
        watched.watches.clear()
        if not self._directories and self._inotify is not None:
            inotify, self._inotify = self._inotify, None
            inotify.close()

    def _watch(self, path: Path) -> int | None:
        try:
            if self._inotify is None:
                self._inotify = _Inotify(self._take)
            return self._inotify.watch(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning(
                    "directory cannot be watched, polling instead",
                    extra={"path": str(path), "reason": str(error), "hint": "see fs.inotify.max_user_instances"},
                )
            return None

    def _forget(self, watch: int) -> None:
        """End a watch that nobody uses any more: a directory may be the parent of another one."""
        used = {number for watched in self._directories.values() for _, number in watched.watches.values()}
        if self._inotify is not None and watch not in used:
            self._inotify.forget(watch)

    def _take(self, watch: int, mask: int, name: str) -> None:
        for watched in tuple(self._directories.values()):
            if mask & IN_Q_OVERFLOW or watched.concerns(watch, name):
                watched.wake()
            if mask & IN_IGNORED:
                watched.lose(watch)


class _Watched:
    """A directory with its watches and its readers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.watches: dict[Path, tuple[Place, int]] = {}
        self.subscriptions: list[Subscription] = []

    def concerns(self, watch: int, name: str) -> bool:
        """Tell whether an event is about the directory: something in it, or itself in its parent."""
        return any(
            number == watch and (path == self.directory or name == self.directory.name)
            for path, (_, number) in self.watches.items()
        )

    def lose(self, watch: int) -> None:
        """Forget a watch that the kernel has ended, because its directory was deleted."""
        self.watches = {path: known for path, known in self.watches.items() if known[1] != watch}

    def wake(self) -> None:
        for subscription in tuple(self.subscriptions):
            subscription.wake()


class Subscription:
    """One reader's interest in a directory. ``wake`` says that something has changed."""

    def __init__(self, watcher: Watcher, watched: _Watched, wake: Callable[[], None]) -> None:
        self._watcher = watcher
        self.watched = watched
        self.wake = wake
        self.blind = False

    def refresh(self) -> None:
        """Follow the directory if it was replaced. Call it before each level check; it costs two stat calls."""
        self.blind = not self._watcher.refresh(self.watched)

    def close(self) -> None:
        """Stop the wake-ups."""
        self._watcher.release(self)


def _checked(result: int) -> int:
    """Return the result of a system call. Raises OSError."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _events(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield (watch, mask, name) of each event in what was read from an inotify instance."""
    at = 0
    while at < len(data):
        watch, mask, _, length = _HEADER.unpack_from(data, at)
        at += _HEADER.size + length
        yield watch, mask, os.fsdecode(data[at - length : at].rstrip(b"\0"))
