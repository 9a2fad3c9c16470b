"""Keep objects by key, one counter of revisions, and the recent history that watches replay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from drabridge.sim.apiserver.kinds import RESOURCES, Resource
from drabridge.sim.apiserver.status import JSON

Key = tuple[str, str]
"""(namespace, name); the namespace of cluster-scoped objects is empty."""
ChangeType = Literal["ADDED", "MODIFIED", "DELETED"]

FIRST_REVISION = 1000
"""Above 1, so that a watch from revision 1 is too old, as on any cluster that is not new."""
HISTORY = 10_000
"""Changes kept for replay; etcd compacts every five minutes, a bounded window does the same job here."""


@dataclass(frozen=True, slots=True)
class Change:
    """One revision: the object as it became, and as it was before."""

    revision: int
    type: ChangeType
    resource: Resource
    object: JSON
    previous: JSON | None


def key_of(obj: JSON) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


Listener = Callable[[Change], None]


class Store:
    """The stored objects. They are never changed in place: a write puts a new dict, so readers may keep the old one."""

    def __init__(self) -> None:
        self.revision = FIRST_REVISION
        self._objects: dict[str, dict[Key, JSON]] = {resource.plural: {} for resource in RESOURCES}
        self._uids: dict[str, tuple[Resource, Key]] = {}
        self._history: deque[Change] = deque()
        self._limit = HISTORY
        self.compacted = FIRST_REVISION
        """The oldest revision that can still be watched from."""
        self.unread: dict[str, tuple[int, list[JSON]]] = {}
        """Token -> the rest of a list that is read page by page, and the list's revision."""
        self._listeners: list[Listener] = []

    def get(self, resource: Resource, key: Key) -> JSON | None:
        return self._objects[resource.plural].get(key)

    def has_uid(self, uid: str) -> bool:
        return uid in self._uids

    def everything(self) -> Iterable[tuple[Resource, JSON]]:
        for resource in RESOURCES:
            for obj in list(self._objects[resource.plural].values()):
                yield resource, obj

    def count(self, resource: Resource) -> int:
        return len(self._objects[resource.plural])

    def oldest(self, resource: Resource) -> JSON:
        """Return the object that was created first (a dict keeps the order of insertion, updates do not move a key)."""
        return next(iter(self._objects[resource.plural].values()))

    def listed(self, resource: Resource) -> list[JSON]:
        """Return all objects in key order."""
        objects = self._objects[resource.plural]
        return [objects[key] for key in sorted(objects)]

    def since(self, resource: Resource, revision: int) -> list[Change]:
        """Return the changes after ``revision``, oldest first."""
        return [change for change in self._history if change.revision > revision and change.resource is resource]

    def put(self, resource: Resource, obj: JSON) -> JSON:
        """Write with a new resourceVersion; ``obj`` belongs to the store afterwards."""
        self.revision += 1
        key = key_of(obj)
        previous = self._objects[resource.plural].get(key)
        stored = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.revision)}}
        self._objects[resource.plural][key] = stored
        self._uids[stored["metadata"]["uid"]] = (resource, key)
        self._record(Change(self.revision, "MODIFIED" if previous else "ADDED", resource, stored, previous))
        return stored

    def remove(self, resource: Resource, key: Key) -> JSON:
        """Delete; the answer carries the revision of the deletion, as the real server's does."""
        self.revision += 1
        previous = self._objects[resource.plural].pop(key)
        self._uids.pop(previous["metadata"]["uid"], None)
        gone = {**previous, "metadata": {**previous["metadata"], "resourceVersion": str(self.revision)}}
        self._record(Change(self.revision, "DELETED", resource, gone, previous))
        return gone

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` for each change, in order, from the writer's own stack; the answer unsubscribes."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def _record(self, change: Change) -> None:
        self._history.append(change)
        if len(self._history) > self._limit:
            self.compacted = self._history.popleft().revision
        for listener in list(self._listeners):
            listener(change)
