"""Serve one watch: first events, replay from history, live changes, bookmarks, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from drabridge.sim.apiserver.kinds import Resource
from drabridge.sim.apiserver.selectors import Predicate
from drabridge.sim.apiserver.status import JSON, expired
from drabridge.sim.apiserver.store import Change, Store

BOOKMARK_SECONDS = 60.0
"""About once a minute (watch cache ``defaultBookmarkFrequency``)."""
LAST_BOOKMARK_SECONDS = 1.0
"""Before the end of a watch with a time limit."""
DEFAULT_TIMEOUT_SECONDS = 1800.0
"""``--min-request-timeout``: how long a watch without timeoutSeconds lives; the real server may double it."""

Event = tuple[str, JSON]
"""(type, object in storage version without kind and apiVersion)."""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    resource: Resource
    wanted: Predicate
    revision: str = ""
    """resourceVersion as given: empty or "0" begins with the current objects."""
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    bookmarks: bool = False


def selected(change: Change, wanted: Predicate) -> Event | None:
    """Return what a watch with a selector sees of a change.

    An object that enters the selection is added, one that leaves it is deleted.
    """
    before = change.previous is not None and wanted(change.previous)
    if change.type == "DELETED":
        return ("DELETED", change.object) if before else None
    after = wanted(change.object)
    if after:
        return ("MODIFIED" if before else "ADDED", change.object)
    if before and change.previous is not None:
        revision = change.object["metadata"]["resourceVersion"]
        return (
            "DELETED",
            {**change.previous, "metadata": {**change.previous["metadata"], "resourceVersion": revision}},
        )
    return None


async def watch(
    store: Store, options: WatchOptions, lag_seconds: Callable[[], float] = lambda: 0.0
) -> AsyncGenerator[Event, None]:
    """Yield events until the time limit.

    A revision that is no longer in the history yields one ERROR event, as recorded.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + options.timeout_seconds
    queue: asyncio.Queue[tuple[float, Change]] = asyncio.Queue()

    def noticed(change: Change) -> None:
        if change.resource is options.resource:
            queue.put_nowait((loop.time(), change))

    unsubscribe = store.subscribe(noticed)
    try:
        seen = store.revision
        for event in _beginning(store, options):
            yield event
            if event[0] == "ERROR":
                return
        marks: list[float] = []
        if options.bookmarks:
            steps = range(1, int(options.timeout_seconds / BOOKMARK_SECONDS) + 1)
            marks = [loop.time() + step * BOOKMARK_SECONDS for step in steps]
            marks = sorted([*marks, max(deadline - LAST_BOOKMARK_SECONDS, loop.time())])
        while loop.time() < deadline:
            item = await _next(queue, min([deadline, *marks[:1]]) - loop.time())
            if item is None:
                # Observed on 1.36.2: a kind without objects gets no bookmarks, because its revision does not change.
                if marks and marks.pop(0) < deadline and store.count(options.resource):
                    # The queue is empty, so this watch is also past every change of other resources.
                    seen = max(seen, store.revision)
                    yield "BOOKMARK", {"metadata": {"resourceVersion": str(seen)}}
                continue
            written, change = item
            if change.revision <= seen:
                continue
            if (wait := written + lag_seconds() - loop.time()) > 0:
                await asyncio.sleep(wait)
            seen = change.revision
            event_or_none = selected(change, options.wanted)
            if event_or_none is not None:
                yield event_or_none
    finally:
        unsubscribe()


async def _next(queue: asyncio.Queue[tuple[float, Change]], seconds: float) -> tuple[float, Change] | None:
    if not queue.empty():  # without a timer: a timer for each event would be most of the work
        return queue.get_nowait()
    try:
        async with asyncio.timeout(max(seconds, 0.0)):  # wait_for of Python 3.11 may swallow a cancellation
            return await queue.get()
    except TimeoutError:
        return None


def _beginning(store: Store, options: WatchOptions) -> list[Event]:
    """Return the events that a new watch sends at once."""
    resource, wanted = options.resource, options.wanted
    given = int(options.revision or 0)
    if given == 0:
        return [("ADDED", obj) for obj in store.listed(resource) if wanted(obj)]
    if given < store.compacted:
        return [("ERROR", expired(f"too old resource version: {given} ({store.compacted})").body)]
    found = [selected(change, wanted) for change in store.since(resource, given)]
    return [event for event in found if event is not None]
