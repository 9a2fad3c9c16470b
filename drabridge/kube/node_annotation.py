"""Follow this node's Node object: annotations about lanes and cordoned devices, and who wrote which label."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from drabridge.errors import ClusterError
from drabridge.kube.api import NODES, Cluster
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView
from drabridge.kube.node_labels import LabelsSeen, labels_of
from drabridge.kube.watch import follow


class NodeAnnotationWatch:
    """Calls ``take`` with each value of the annotation ``<driver>/lanes``; with None if there is none.

    ``take_cordons`` gets the value of ``<driver>/cordoned`` in the same way. ``take_labels`` gets the Node's labels at
    each change of the Node; None when it is deleted. ``take_allocatable`` gets resource -> number of
    devices in ``status.allocatable``.
    """

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        driver: str,
        take: Callable[[str | None], None],
        take_labels: Callable[[LabelsSeen | None], None] = lambda labels: None,
        take_allocatable: Callable[[Mapping[str, int]], None] = lambda numbers: None,
        take_cordons: Callable[[str | None], None] = lambda value: None,
    ) -> None:
        self._cluster = cluster
        self._selector = f"metadata.name={node}"
        self._keys = f"{driver}/lanes", f"{driver}/cordoned"
        self._take = take
        self._take_labels = take_labels
        self._take_allocatable = take_allocatable
        self._take_cordons = take_cordons

    async def run(self) -> None:
        """Follow until cancelled."""
        await follow(self._cluster, NODES, self._selector, self)

    # of watch.Follower

    @property
    def view(self) -> ObjectView[_Annotated]:
        lanes, cordoned = self._keys
        return ObjectView(
            lambda node: _Annotated(
                _annotation(node, lanes), _annotation(node, cordoned), labels_of(node), _allocatable(node)
            )
        )

    def listed(self, objects: tuple[_Annotated, ...]) -> None:
        for node in objects:
            self._seen(node)
        if not objects:
            self._take_labels(None)

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
        self._take(node.lanes)
        self._take_cordons(node.cordoned)
        self._take_labels(node.labels)
        self._take_allocatable(node.allocatable)


class _Annotated(Struct, frozen=True):
    lanes: str | None
    cordoned: str | None
    labels: LabelsSeen
    allocatable: Mapping[str, int]


def _annotation(node: Json, key: str) -> str | None:
    value = ((node.get("metadata") or {}).get("annotations") or {}).get(key)
    return value if isinstance(value, str) else None


def _allocatable(node: Json) -> Mapping[str, int]:
    """Read resource -> number from ``status.allocatable``; amounts with a unit, such as memory, are left out."""
    status = node.get("status")
    amounts = status.get("allocatable") if isinstance(status, dict) else None
    if not isinstance(amounts, dict):
        return {}
    return {name: int(amount) for name, amount in amounts.items() if isinstance(amount, str) and amount.isdecimal()}
