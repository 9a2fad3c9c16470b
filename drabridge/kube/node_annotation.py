"""Follow this node's Node object: the annotation that says how lanes are to be divided, and who wrote which label."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from drabridge.errors import ClusterError
from drabridge.kube.api import NODES, Cluster
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView
from drabridge.kube.node_labels import LabelsSeen, labels_of
from drabridge.kube.watch import follow


class NodeAnnotationWatch:
    """Gives ``take`` each value of the annotation ``<driver>/lanes``; None when there is none.

    ``take_labels`` gets the Node's labels with each of its changes; None when the Node is gone.
    """

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        driver: str,
        take: Callable[[str | None], None],
        take_labels: Callable[[LabelsSeen | None], None] = lambda labels: None,
    ) -> None:
        self._cluster = cluster
        self._selector = f"metadata.name={node}"
        self._key = f"{driver}/lanes"
        self._take = take
        self._take_labels = take_labels

    async def run(self) -> None:
        """Follow until cancelled."""
        await follow(self._cluster, NODES, self._selector, self)

    # of watch.Follower

    @property
    def view(self) -> ObjectView[_Annotated]:
        key = self._key
        return ObjectView(lambda node: _Annotated(_annotation(node, key), labels_of(node)))

    def listed(self, objects: tuple[_Annotated, ...]) -> None:
        for node in objects:
            self._seen(node)

    def changed(self, kind: str, obj: _Annotated) -> None:
        if kind == "DELETED":
            self._take_labels(None)
        else:
            self._seen(obj)

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        """Keep the last value: lanes stay as they are desired."""

    def lost(self, error: ClusterError) -> None:
        """Keep the last value: lanes stay as they are desired."""

    def _seen(self, node: _Annotated) -> None:
        self._take(node.value)
        self._take_labels(node.labels)


class _Annotated(Struct, frozen=True):
    value: str | None
    labels: LabelsSeen


def _annotation(node: Json, key: str) -> str | None:
    value = ((node.get("metadata") or {}).get("annotations") or {}).get(key)
    return value if isinstance(value, str) else None
