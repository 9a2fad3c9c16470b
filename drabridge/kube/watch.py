"""Follow objects of the API server: list, watch, list again when a watch expires, back off on errors.

A watch that the server ends, or that is cut off, is no error (``response.py``): the next one continues at its version.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import Protocol, TypeVar

from drabridge.errors import ClusterError
from drabridge.kube.api import Cluster, Kind, UnreachableError, backoff
from drabridge.kube.json_reader import ObjectIdentity, ObjectView

log = logging.getLogger(__name__)

LEAST_WATCH_SECONDS = 1.0  # between the starts of two watches: no tight loop if a server ends each at once
FIRST_SECONDS, MOST_SECONDS = 0.5, 60.0  # between attempts without an answer; client-go's reflector waits 60 at most
STEADY_SECONDS = 10.0
"""After a watch of this length the pauses are short again; an answered LIST alone does not prove that watches work.
client-go takes two minutes: with a proxy that cuts idle connections after one, objects would be unknown half the
time."""


T = TypeVar("T")


class Follower(Protocol[T]):
    """Takes the objects and their changes, on the loop."""

    @property
    def view(self) -> ObjectView[T]:
        """How an object is read."""

    def listed(self, objects: tuple[T, ...]) -> None:
        """Take all objects that could be read, as they are now."""

    def changed(self, kind: str, obj: T) -> None:
        """Take a change of one object. ``kind``: ADDED, MODIFIED or DELETED."""

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        """Take a change of an unreadable object; after :meth:`listed` also each unreadable object of the list."""

    def lost(self, error: ClusterError) -> None:
        """Take the error; until the next :meth:`listed` the objects are not known."""


async def follow(
    cluster: Cluster,
    kind: Kind,
    field_selector: str,
    follower: Follower[T],
    *,
    namespace: str = "",
    alone: asyncio.Lock | None = None,
) -> None:
    """Tell ``follower`` about the selected objects, until cancelled.

    ``alone`` is held while a list is under way: for a follower that writes the same objects.
    """
    loop = asyncio.get_running_loop()
    delays = backoff(FIRST_SECONDS, MOST_SECONDS)
    while True:
        steady_at = math.inf
        try:
            async with alone or contextlib.nullcontext():
                listing = await cluster.list(
                    kind, namespace=namespace, field_selector=field_selector, view=follower.view
                )
                follower.listed(listing.items)
                for identity in listing.unreadable:
                    follower.unreadable("ADDED", identity)
            steady_at = loop.time() + STEADY_SECONDS
            await _watch(cluster, kind, namespace, field_selector, follower, listing.resource_version)
        except Exception as error:  # an ExpiredError as well: a server may say 410 to every watch
            if not isinstance(error, ClusterError):
                log.exception("API server's answer not understood", extra={"kind": str(kind)})
                error = UnreachableError(f"what the API server sent is not understood: {type(error).__name__}: {error}")
            follower.lost(error)
            if loop.time() >= steady_at:
                delays = backoff(FIRST_SECONDS, MOST_SECONDS)
            delay = next(delays)
            fields = {"kind": str(kind), "reason": str(error), "retry_seconds": round(delay, 1)}
            log.warning("objects not followed", extra=fields)
            await asyncio.sleep(delay)


async def _watch(
    cluster: Cluster, kind: Kind, namespace: str, field_selector: str, follower: Follower[T], version: str
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        events = cluster.watch(
            kind, namespace=namespace, field_selector=field_selector, resource_version=version, view=follower.view
        )
        async with contextlib.aclosing(events):
            async for event in events:
                version = event.resource_version or version
                if event.object is not None:
                    follower.changed(event.type, event.object)
                elif event.type != "BOOKMARK":
                    follower.unreadable(event.type, event.identity)
        await asyncio.sleep(max(0.0, began + LEAST_WATCH_SECONDS - loop.time()))
