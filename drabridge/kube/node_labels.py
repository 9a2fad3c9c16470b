"""Write labels of this node's Node object by server-side apply: only if they differ, and only our own.

The API server records who wrote which label (``metadata.managedFields``). Labels of other managers, for example of
NVIDIA's GPU Feature Discovery through NFD, stay as they are. Labels that we wrote and no longer want are removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct

from drabridge.errors import ClusterError
from drabridge.kube.api import NODES, DeniedError, backoff
from drabridge.kube.connection import ApiServer
from drabridge.kube.json_reader import Json
from drabridge.system.supervise import WakeUp
from drabridge.system.untrusted import reading

log = logging.getLogger(__name__)

COALESCE_SECONDS = 1.0  # devices that appear together when a driver starts cause one write
FIRST_SECONDS, MOST_SECONDS = 0.5, 60.0  # between attempts
WRITE_RIGHT = "the chart grants it while config.nodeLabels is there; to remove labels make it {} before it is left out"


class LabelsSeen(Struct, frozen=True):
    """A Node's labels, and who wrote them. ``managers``: label -> each (manager, operation) that owns it."""

    uid: str  # of the Node
    labels: Mapping[str, str]
    managers: Mapping[str, Sequence[tuple[str, str]]]
    taints: frozenset[str] = frozenset()  # the keys of its taints


class LabelPlan(Struct, frozen=True):
    """What to do. ``ours``: all labels that we shall own. ``left``: wanted label -> who else has written it."""

    ours: Mapping[str, str]
    left: Mapping[str, str]
    differs: bool  # ``ours`` is not what we own now


def labels_of(node: Json) -> LabelsSeen:
    """Read a Node's labels and their managers."""
    metadata = node.get("metadata") or {}
    managers: dict[str, list[tuple[str, str]]] = {}
    for entry in metadata.get("managedFields") or ():
        fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:labels") or {}
        owner = (str(entry.get("manager") or ""), str(entry.get("operation") or ""))
        for field in fields:
            if field.startswith("f:"):
                managers.setdefault(field[2:], []).append(owner)
    uid = str(metadata.get("uid") or "")
    taints = frozenset(str(taint.get("key")) for taint in (node.get("spec") or {}).get("taints") or ())
    labels = {str(key): str(value) for key, value in (metadata.get("labels") or {}).items()}
    return LabelsSeen(uid, labels, managers, taints)


def plan(seen: LabelsSeen, wanted: Mapping[str, str], manager: str) -> LabelPlan:
    """Compare what a Node has with what it shall have. ``manager``: who we are. Pure."""
    us = (manager, "Apply")
    left = {}
    for name in wanted.keys() & seen.labels.keys():
        others = [who for who, operation in seen.managers.get(name, ()) if (who, operation) != us]
        if others or us not in seen.managers.get(name, ()):
            left[name] = ", ".join(others) or "somebody"
    ours = {name: value for name, value in wanted.items() if name not in left}
    have = {name: seen.labels.get(name) for name, owners in seen.managers.items() if us in owners}
    return LabelPlan(ours, left, ours != have)


class NodeLabelWriter:
    """Writes the wanted labels of one Node. It reads nothing: a watch gives the Node's labels to :meth:`seen`."""

    def __init__(self, api_server: ApiServer, node: str, manager: str) -> None:
        self._api_server = api_server
        self._node = node
        self._manager = manager
        self._wanted: Mapping[str, str] | None = None  # None: not known yet, so nothing is removed
        self._seen: LabelsSeen | None = None
        self._left: Mapping[str, str] = MappingProxyType({})
        self._changed = WakeUp()

    def want(self, labels: Mapping[str, str]) -> None:
        """Set the labels that the Node shall have from us. Cheap, never blocks."""
        if labels != self._wanted:
            self._wanted = labels
            self._changed.set()

    def seen(self, labels: LabelsSeen | None) -> None:
        """Take the Node's labels as they are now; None: they are not known any more."""
        if labels != self._seen:
            self._seen = labels
            self._changed.set()

    async def run(self) -> None:
        """Write until cancelled; after an error try again, with growing pauses."""
        delays = backoff(FIRST_SECONDS, MOST_SECONDS)
        while True:
            await self._changed.wait()
            await asyncio.sleep(COALESCE_SECONDS)
            try:
                await self._write()
                delays = backoff(FIRST_SECONDS, MOST_SECONDS)
            except ClusterError as error:
                delay = next(delays)
                fields = {"reason": str(error), "retry_seconds": round(delay, 1)}
                hint = {"hint": WRITE_RIGHT} if isinstance(error, DeniedError) else {}
                log.warning("labels of the Node not written", extra={**fields, **hint})
                await asyncio.sleep(delay)
                self._changed.set()

    async def _write(self) -> None:
        cluster, seen, wanted = self._api_server.cluster, self._seen, self._wanted
        if cluster is None or seen is None or wanted is None:
            return
        found = plan(seen, wanted, self._manager)
        if found.left != self._left:
            self._left = found.left
            if found.left:
                whose = "; ".join(f"{name} ({who})" for name, who in sorted(found.left.items()))
                log.warning("labels of the Node that others have written are left to them", extra={"labels": whose})
        if not found.differs:
            return
        # The UID keeps us from writing to another Node of that name, and from creating one.
        metadata = {"name": self._node, "uid": seen.uid, **({"labels": dict(found.ours)} if found.ours else {})}
        body = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        written = await cluster.apply(NODES, body, manager=self._manager, force=False)
        with reading(f"node {self._node}", ClusterError):
            now = labels_of(written)
        if self._seen is seen:  # else the watch has reported a later change already
            self._seen = now  # else it would be written again until the watch reports it
        log.info("labels of the Node written", extra={"labels": len(found.ours)})
