"""Following this node's object in the API server, for the annotation that says how lanes are to be divided."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from drabridge.clusterapi import NODES, Cluster, ExpiredError, Json, backoff
from drabridge.errors import ClusterError

log = logging.getLogger(__name__)

LEAST_WATCH_SECONDS = 1.0  # a server that ends every watch at once is not asked in a tight loop


class NodeWatch:
    """``follow`` gets the value of the annotation ``<driver>/lanes``, None when there is none."""

    def __init__(self, cluster: Cluster, node: str, driver: str, follow: Callable[[str | None], None]) -> None:
        self._cluster = cluster
        self._selector = f"metadata.name={node}"
        self._key = f"{driver}/lanes"
        self._follow = follow

    async def run(self) -> None:
        """List, watch, list again when the watch has expired; back off while the server does not answer."""
        delays = backoff(0.5, 60.0)
        while True:
            try:
                listing = await self._cluster.list(NODES, field_selector=self._selector)
                for node in listing.items:
                    self._take(node)
                delays = backoff(0.5, 60.0)
                await self._watch(listing.resource_version)
            except ExpiredError:
                continue
            except ClusterError as error:
                delay = next(delays)
                log.warning("this Node cannot be watched", extra={"reason": str(error), "retry_seconds": round(delay)})
                await asyncio.sleep(delay)

    async def _watch(self, version: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            events = self._cluster.watch(NODES, field_selector=self._selector, resource_version=version)
            async with contextlib.aclosing(events):
                async for event in events:
                    version = event.resource_version or version
                    if event.type in ("ADDED", "MODIFIED"):
                        self._take(event.object)
            await asyncio.sleep(max(0.0, began + LEAST_WATCH_SECONDS - loop.time()))

    def _take(self, node: Json) -> None:
        annotations = node.get("metadata", {}).get("annotations") or {}
        value = annotations.get(self._key)
        self._follow(value if isinstance(value, str) else None)
