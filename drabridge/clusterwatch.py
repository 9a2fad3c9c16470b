"""Following objects of the API server: list, watch, list again when a watch expires, back off while it is away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

from drabridge.clusterapi import Cluster, ExpiredError, Json, Kind, backoff
from drabridge.errors import ClusterError

log = logging.getLogger(__name__)

LEAST_WATCH_SECONDS = 1.0  # a server that ends every watch at once is not asked in a tight loop
FIRST_SECONDS, MOST_SECONDS = 0.5, 60.0  # between attempts while it does not answer; client-go's reflector goes to 60


class Follower(Protocol):
    """Who is told, on the loop."""

    def listed(self, objects: tuple[Json, ...]) -> None:
        """All of them, now."""

    def changed(self, kind: str, obj: Json) -> None:
        """``kind``: ADDED, MODIFIED or DELETED."""

    def lost(self) -> None:
        """From now on nothing is known, until :meth:`listed`."""


async def follow(cluster: Cluster, kind: Kind, field_selector: str, follower: Follower) -> None:
    """Until cancelled."""
    delays = backoff(FIRST_SECONDS, MOST_SECONDS)
    while True:
        try:
            listing = await cluster.list(kind, field_selector=field_selector)
            follower.listed(listing.items)
            delays = backoff(FIRST_SECONDS, MOST_SECONDS)
            await _watch(cluster, kind, field_selector, follower, listing.resource_version)
        except ExpiredError:
            continue
        except ClusterError as error:
            follower.lost()
            delay = next(delays)
            log.warning("cannot be watched", extra={"kind": str(kind), "reason": str(error), "retry_seconds": delay})
            await asyncio.sleep(delay)


async def _watch(cluster: Cluster, kind: Kind, field_selector: str, follower: Follower, version: str) -> None:
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        events = cluster.watch(kind, field_selector=field_selector, resource_version=version)
        async with contextlib.aclosing(events):
            async for event in events:
                version = event.resource_version or version
                if event.type != "BOOKMARK":
                    follower.changed(event.type, event.object)
        await asyncio.sleep(max(0.0, began + LEAST_WATCH_SECONDS - loop.time()))
