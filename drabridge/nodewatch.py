"""Following this node's object in the API server, for the annotation that says how lanes are to be divided."""

from __future__ import annotations

from collections.abc import Callable

from drabridge.clusterapi import NODES, Cluster, Json
from drabridge.clusterwatch import follow
from drabridge.errors import ClusterError


class NodeWatch:
    """``take`` gets the value of the annotation ``<driver>/lanes``, None when there is none."""

    def __init__(self, cluster: Cluster, node: str, driver: str, take: Callable[[str | None], None]) -> None:
        self._cluster = cluster
        self._selector = f"metadata.name={node}"
        self._key = f"{driver}/lanes"
        self._take = take

    async def run(self) -> None:
        """Until cancelled."""
        await follow(self._cluster, NODES, self._selector, self)

    def listed(self, objects: tuple[Json, ...]) -> None:
        for node in objects:
            self.changed("ADDED", node)

    def changed(self, kind: str, obj: Json) -> None:
        if kind != "DELETED":
            annotations = obj.get("metadata", {}).get("annotations") or {}
            value = annotations.get(self._key)
            self._take(value if isinstance(value, str) else None)

    def lost(self, error: ClusterError) -> None:
        """What was wanted last is still wanted."""
