"""Follow this node's Node object: annotations about lanes and cordoned devices, and who wrote which label."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from drabridge.errors import ClusterError
from drabridge.kube.api import NODES, Cluster
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView
from drabridge.kube.node_labels import LabelsSeen, labels_of
from drabridge.kube.watch import follow


class NodeSeen(Struct, frozen=True):
    """What a Node says. ``lanes`` and ``cordoned``: the values of its annotations; None if it has none.

    ``allocatable``: resource -> number of devices in ``status.allocatable``, which the scheduler uses.
    """

    lanes: str | None
    cordoned: str | None
    labels: LabelsSeen
    allocatable: Mapping[str, int]


class NodeAnnotationWatch:
    """Calls ``take`` with what the Node says, at each change of it; with None when it is deleted."""

    def __init__(self, cluster: Cluster, node: str, driver: str, take: Callable[[NodeSeen | None], None]) -> None:
        self._cluster = cluster
        self._selector = f"metadata.name={node}"
        self._keys = f"{driver}/lanes", f"{driver}/cordoned"
        self._take = take

    async def run(self) -> None:
        """Follow until cancelled."""
        await follow(self._cluster, NODES, self._selector, self)

    # of watch.Follower

    @property
    def view(self) -> ObjectView[NodeSeen]:
        lanes, cordoned = self._keys
        return ObjectView(
            lambda node: NodeSeen(
                _annotation(node, lanes), _annotation(node, cordoned), labels_of(node), _allocatable(node)
            )
        )

    def listed(self, objects: tuple[NodeSeen, ...]) -> None:
        self._take(objects[0] if objects else None)

    def changed(self, kind: str, obj: NodeSeen) -> None:
        self._take(None if kind == "DELETED" else obj)

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        """Keep the last value, so the desired lanes stay."""

    def lost(self, error: ClusterError) -> None:
        """Keep the last value, so the desired lanes stay."""


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
