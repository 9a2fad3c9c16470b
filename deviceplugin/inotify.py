"""Wake readers up when a directory changes, by inotify (the package watchdog).

A wake-up only says "look". What has changed is found by ``LevelCheck.look`` in kubelet_restart.py, which
``PluginServer.run`` in server.py calls after each wake-up.

A directory and its parent are watched, because inotify stays with a deleted directory and is silent about the one that
takes its place. Without inotify (no instances left, an exotic file system) only speed is lost: readers poll faster
while ``Subscription.blind`` is set.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deviceplugin.sockets import identify_directory

if TYPE_CHECKING:
    from watchdog.observers.api import BaseObserver, ObservedWatch

log = logging.getLogger("deviceplugin")

Place = tuple[int, int]  # (device, inode) of a directory


class Watcher:
    """One inotify observer for all servers of a process. Not thread-safe: belongs to one event loop."""

    def __init__(self) -> None:
        self._observer: BaseObserver | None = None
        self._directories: dict[Path, _Watched] = {}
        self._complained = False

    def subscribe(self, directory: Path, wake: Callable[[], None]) -> Subscription:
        """Call ``wake()`` on the running loop after each change in ``directory``, until it is closed."""
        watched = self._directories.setdefault(directory, _Watched(directory))
        subscription = Subscription(self, watched, asyncio.get_running_loop(), wake)
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
                self._unschedule(watched.watches.pop(path)[1])
                known = None
            if known is None and place is not None:
                watch = self._schedule(watched, path)
                if watch is not None:
                    watched.watches[path] = (place, watch)
            complete = complete and path in watched.watches
        return complete

    def release(self, subscription: Subscription) -> None:
        """Forget a subscription; the last one stops the observer's threads."""
        watched = subscription.watched
        with contextlib.suppress(ValueError):
            watched.subscriptions.remove(subscription)
        if watched.subscriptions:
            return
        for _, watch in watched.watches.values():
            self._unschedule(watch)
        watched.watches.clear()
        self._directories.pop(watched.directory, None)
        if not self._directories and self._observer is not None:
            observer, self._observer = self._observer, None
            observer.stop()
            with contextlib.suppress(RuntimeError):
                observer.join(1.0)

    def _schedule(self, watched: _Watched, path: Path) -> ObservedWatch | None:
        try:
            from watchdog.events import (  # here, not above: it takes 75 ms, needless in a process without servers
                DirCreatedEvent,
                DirDeletedEvent,
                DirMovedEvent,
                FileCreatedEvent,
                FileDeletedEvent,
                FileMovedEvent,
            )
            from watchdog.observers import Observer

            if self._observer is None:
                self._observer = Observer()
                self._observer.start()
            wanted = [
                DirCreatedEvent,
                DirDeletedEvent,
                DirMovedEvent,
                FileCreatedEvent,
                FileDeletedEvent,
                FileMovedEvent,
            ]
            return self._observer.schedule(_Handler(watched, path), str(path), event_filter=wanted)  # type: ignore[arg-type]
        except FileNotFoundError:
            return None
        except (OSError, RuntimeError, ImportError) as error:
            if not self._complained:
                self._complained = True
                log.warning(
                    "directory cannot be watched, polling instead",
                    extra={"path": str(path), "reason": str(error), "hint": "see fs.inotify.max_user_instances"},
                )
            return None

    def _unschedule(self, watch: ObservedWatch) -> None:
        if self._observer is None:
            return
        with contextlib.suppress(KeyError, OSError, RuntimeError):
            self._observer.unschedule(watch)


class _Watched:
    """A directory with its watches and its readers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.watches: dict[Path, tuple[Place, ObservedWatch]] = {}
        self.subscriptions: list[Subscription] = []


class Subscription:
    """One reader's interest in a directory."""

    def __init__(
        self, watcher: Watcher, watched: _Watched, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]
    ) -> None:
        self._watcher = watcher
        self.watched = watched
        self._loop = loop
        self._wake = wake
        self.blind = False

    def refresh(self) -> None:
        """Follow the directory if it was replaced. Call it before each level check; it costs two stat calls."""
        self.blind = not self._watcher.refresh(self.watched)

    def wake_from_thread(self) -> None:
        """Take an event, in watchdog's thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to wake
            self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """Stop the wake-ups."""
        self._watcher.release(self)


class _Handler:
    """Passes events on, in watchdog's thread.

    An exception would end that thread, so nothing here can raise.
    """

    def __init__(self, watched: _Watched, path: Path) -> None:
        self._watched = watched
        self._is_parent = path != watched.directory
        self._directory = str(watched.directory)

    def dispatch(self, event: Any) -> None:
        if self._is_parent and self._directory not in (event.src_path, event.dest_path):
            return  # a neighbour of the directory
        for subscription in tuple(self._watched.subscriptions):
            subscription.wake_from_thread()
