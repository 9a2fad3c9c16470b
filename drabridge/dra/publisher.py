"""Keep the node's ResourceSlices as they should be, by comparison with what the server has.

Kubelet deletes all slices of a node when it starts, and a driver's when the plugin was away for 30 s; people edit and
delete objects; Nodes are recreated. None of these has code of its own: whatever the cause, the difference between
desired and actual slices is written; without a difference nothing is. Nothing is deleted at shutdown: a successor that
comes within 30 s finds its slices as they were.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection

from msgspec import Struct

from drabridge.dra.observer import Observer, PublishFailed, SlicesPublished
from drabridge.errors import ClusterError
from drabridge.kube.api import (
    NODES,
    Cluster,
    DeniedError,
    InvalidError,
    UnreachableError,
    UnservedError,
    backoff,
    resource_slices,
)
from drabridge.kube.feature_questions import slice_features
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView
from drabridge.kube.versions import slice_from_v1, slice_to_v1
from drabridge.kube.watch import follow
from drabridge.offers.slice_writes import (
    Accepted,
    SliceOwner,
    Verb,
    Write,
    accept,
    canonical_spec,
    dropped,
    plan,
)
from drabridge.offers.slices import ALL_FEATURES, OFF_BY_DEFAULT, DesiredSlices, Feature
from drabridge.system.supervise import WakeUp
from drabridge.system.untrusted import reading

log = logging.getLogger(__name__)

DELETED_PAUSE_SECONDS = (0.05, 0.4)
"""After somebody deleted a slice: kubelet deletes one after the other, and 5,000 nodes may do so at once."""
LOOK_SECONDS = 5.0  # between looks at the desired slices without a wake-up: taints depend on time; no request is made
RELIST_SECONDS = 600.0  # a list even if the watch is silent, in case an event was lost
RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS = 0.5, 60.0
INVALID_RETRY_SECONDS = 300.0  # the server will answer the same, unless somebody changes the server


def slice_view(version: str) -> ObjectView[Json]:
    """Read slices of a server that serves ``version``, in v1's form."""
    return ObjectView(lambda obj: _read_slice(obj, version))


def _read_slice(obj: Json, version: str) -> Json:
    """Return a slice in v1's form. Malformed data raises any exception."""
    found = slice_to_v1(obj, version)
    spec = found["spec"]
    devices = spec.get("devices") or []
    parts = [found["metadata"], spec, spec["pool"], *devices]
    texts = [found["metadata"]["name"], *(device["name"] for device in devices)]
    if not (all(isinstance(part, dict) for part in parts) and all(isinstance(text, str) for text in texts)):
        raise TypeError("this is no slice")
    canonical_spec(spec)
    return found


async def send(cluster: Cluster, version: str, write: Write) -> Json | None:
    """Send one write of slices; return the slice as the server has it now, None for a deletion. Raises ClusterError."""
    kind = resource_slices(version)
    if write.verb is Verb.DELETE:
        await cluster.delete(kind, write.name, uid=write.uid, resource_version=write.resource_version)
        return None
    assert write.body is not None
    request = cluster.create if write.verb is Verb.CREATE else cluster.replace
    answer = await request(kind, slice_from_v1(write.body, version))
    with reading("the answer to a slice", UnreachableError):
        return _read_slice(answer, version)


class PublisherState(Struct, frozen=True):
    """How far publishing has come. ``published``: the server had everything at the last look."""

    published: bool = False
    slices: int = 0
    error: str = "no slices have been published yet"
    notes: tuple[str, ...] = ()


class Publisher:
    """Publishes the slices of one pool with one version of the API."""

    def __init__(
        self,
        cluster: Cluster,
        version: str,
        *,
        driver: str,
        node: str,
        pool: str,
        desired: Callable[[frozenset[Feature]], DesiredSlices | None],
        observer: Observer,
        on_synced: Callable[[], None],
        on_features: Callable[[], None],
    ) -> None:
        """``desired`` gives the slices for the features that the server keeps; None: not known yet."""
        self.state = PublisherState()
        self._cluster = cluster
        self._version = version
        self._kind = resource_slices(version)
        self.view = slice_view(version)  # of watch.Follower
        self._driver = driver
        self._node = node
        self._pool = pool
        self._desired = desired
        self._observer = observer
        self._on_synced = on_synced
        self._on_features = on_features
        self.features: frozenset[Feature] | None = None  # features whose fields the server keeps; None: not asked
        self._ask_for_features = True
        # spec.pool.name, which Kubernetes 1.37 has, is not selected: a node has only one pool of ours, and the slices
        # of a renamed pool, which must be deleted, would be hidden. The watch cache has an index only for the node's
        # name (pkg/registry/resource/resourceslice/strategy.go).
        self._selector = f"spec.nodeName={node},spec.driver={driver}"
        self._actual: dict[str, Json] = {}
        self._listed = False  # whether ``_actual`` is what the server has: true from a list until the watch ends
        self._unserved = False
        self._in_request = ""  # the slice being written: the watch may report a later change before the answer comes
        self._accepted: dict[str, Accepted] = {}
        self._sent: DesiredSlices | None = None  # what the server should have after the last writes
        self._owner: SliceOwner | None = None
        self._due = WakeUp()
        self._relist = WakeUp()
        self._slice_deleted = False
        self._writes = asyncio.Lock()

    def wake(self) -> None:
        """Look again: the inventory or the ledger changed."""
        self._due.set()

    async def run(self) -> None:
        """Publish until the server no longer serves this version: it was upgraded or rolled back."""
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write(), name="slices-write")
            await self._follow()
            writing.cancel()

    # --- what the server has

    async def _follow(self) -> None:
        """Follow the slices; list again after a while, and when a write met something unexpected."""
        while not self._unserved:
            async with asyncio.TaskGroup() as group:
                work = follow(self._cluster, self._kind, self._selector, self, alone=self._writes)
                following = group.create_task(work)
                await self._relist.wait(RELIST_SECONDS * random.uniform(0.8, 1.2))
                following.cancel()

    # of watch.Follower

    def listed(self, objects: tuple[Json, ...]) -> None:
        self._actual = {item["metadata"]["name"]: item for item in objects}
        self._listed = True
        self._ask_for_features = True  # the server may be another one now, or have other gates
        self._due.set()

    def changed(self, kind: str, obj: Json) -> None:
        name = obj["metadata"]["name"]
        held = self._actual.get(name)
        if self._is_old(obj):
            return
        if kind == "DELETED":
            if held is not None:
                del self._actual[name]
                self._owner = None  # the Node may have been recreated: garbage collection took its slices
                self._slice_deleted = True
            if name == self._in_request:  # the answer does not tell which change came first
                self._doubt()
        elif held == obj:
            return
        else:
            self._actual[name] = obj
        self._due.set()

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        """Treat the slice as not desired, so that it is deleted: nobody knows what it offers."""
        metadata = {"name": str(identity.name), "uid": identity.uid, "resourceVersion": identity.resource_version}
        self.changed(kind, {"metadata": metadata, "spec": {}})

    def lost(self, error: ClusterError) -> None:
        self._listed = False
        self.state = PublisherState(False, len(self._actual), str(error), self.state.notes)
        if isinstance(error, UnservedError):
            self._unserved = True
            self._relist.set()

    async def shown(self, names: Collection[str]) -> frozenset[str]:
        """Ask the server now, because a watch may lag; return the devices of ``names`` in slices.

        Raises ClusterError.
        """
        listing = await self._cluster.list(self._kind, field_selector=self._selector, view=self.view)
        there = {device["name"] for item in listing.items for device in item["spec"].get("devices") or ()}
        found = frozenset(names) & there
        if found:
            self._doubt()
        return found

    def _doubt(self) -> None:
        """Do not trust what the server is believed to have: list before anything is written or reported."""
        self._listed = False
        self._relist.set()

    # --- what it should have

    async def _write(self) -> None:
        delays = backoff(RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS)
        while True:
            await self._due.wait(LOOK_SECONDS)
            if self._slice_deleted:
                await asyncio.sleep(random.uniform(*DELETED_PAUSE_SECONDS))
            self._slice_deleted = False
            try:
                async with self._writes:
                    if not self._listed:
                        continue
                    await self._sync()
                delays = backoff(RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS)
            except ClusterError as error:
                await self._failed(error, INVALID_RETRY_SECONDS if isinstance(error, InvalidError) else next(delays))

    async def _failed(self, error: ClusterError, delay: float) -> None:
        if not isinstance(error, InvalidError | DeniedError):  # then the server has certainly changed nothing
            self._doubt()
        log.error("slices not published", extra={"reason": str(error), "retry_seconds": round(delay, 1)})
        self.state = PublisherState(False, len(self._actual), str(error), self.state.notes)
        self._observer(PublishFailed(str(error)))
        if isinstance(error, InvalidError):
            await self._other_slices(delay)
        else:
            await asyncio.sleep(delay)
        self._due.set()

    async def _other_slices(self, seconds: float) -> None:
        """Wait until the desired slices differ from those that were refused, or the server has other ones."""
        end = time.monotonic() + seconds
        refused = self._sent, dict(self._actual)
        await asyncio.sleep(RETRY_FIRST_SECONDS)
        while not self._ask_for_features and (self._desired(self.features or frozenset()), self._actual) == refused:
            if not await self._due.wait(max(0.0, end - time.monotonic())):
                return

    async def _sync(self) -> None:
        """Compare once and write the difference; do it again if the server dropped fields that it should keep."""
        done = 0
        features = await self._kept_features()
        while (wanted := self._desired(features)) is not None:
            self._sent = wanted
            for write in await self._plan(wanted):
                try:
                    await self._send(write)
                except InvalidError:
                    if not features & OFF_BY_DEFAULT:
                        raise
                    self._found(features - OFF_BY_DEFAULT)  # a server without lists refuses the rest of the attribute
                    break
                done += 1
            if self.features == features:
                self._synced(wanted, done)
                return
            features = self.features or frozenset()

    async def _plan(self, wanted: DesiredSlices) -> tuple[Write, ...]:
        """Return the due writes; read the Node only if there are any."""
        for _ in range(2):
            writes = plan(
                wanted.slices, self._actual.values(), pool=self._pool, owner=self._owner, accepted=self._accepted
            )
            if not writes or self._owner is not None:
                break
            self._owner = await self._node_owner()
        return writes

    async def _kept_features(self) -> frozenset[Feature]:
        """Ask by a dry run for which features the server keeps the fields, before it gets any of them.

        If a device lost its taint or its binding condition, anybody could get it until the next write. This is asked
        again after each list: a stored slice keeps its fields when a gate is switched off, but they have no effect
        then.
        """
        if self.features is None or self._ask_for_features:
            answer = await slice_features(self._cluster, self._version, self._driver, self._node, self._pool)
            if answer.refused:
                log.warning("dry run of a slice refused", extra={"reason": answer.reason})
            self._ask_for_features = False
            self._found(answer.kept)
        return self.features or frozenset()

    def _found(self, features: frozenset[Feature]) -> None:
        if features != self.features:
            self.features = features
            self._on_features()
            if missing := tuple(sorted(ALL_FEATURES - OFF_BY_DEFAULT - features)):
                log.warning("the API server keeps no fields of these gates", extra={"gates": missing})

    def _synced(self, wanted: DesiredSlices, done: int) -> None:
        devices = sum(len(spec.get("devices") or ()) for spec in wanted.slices.values())
        if done:
            self._observer(SlicesPublished())
        if not self._listed:  # the slices are no longer followed, and others may have written since
            return
        if wanted.notes != self.state.notes:
            for note in wanted.notes:
                log.warning("%s", note)
        if done or not self.state.published:
            log.info("slices published", extra={"slices": len(self._actual), "devices": devices, "writes": done})
        self.state = PublisherState(True, len(self._actual), "", wanted.notes)
        self._on_synced()

    async def _send(self, write: Write) -> None:
        """Send one write; take the server's answer as the slice that it has now."""
        self._in_request = "" if write.verb is Verb.DELETE else write.name
        try:
            stored = await send(self._cluster, self._version, write)
        finally:
            self._in_request = ""
        if stored is None:
            self._actual.pop(write.name, None)
            return
        assert write.body is not None
        if not self._is_old(stored):
            self._actual[write.name] = stored
        self._found((self.features or frozenset()) - dropped(write.body, stored))
        self._accepted[write.name] = accept(write.body, stored)

    def _is_old(self, obj: Json) -> bool:
        """Whether a newer state of the slice is known: events and answers may overtake each other."""
        held = self._actual.get(obj["metadata"]["name"])
        return held is not None and _number(held) > _number(obj)

    async def _node_owner(self) -> SliceOwner:
        """Read the Node as it is now; its UID changes when somebody deletes and re-creates it."""
        node = await self._cluster.get(NODES, self._node)
        with reading(f"node {self._node}", UnreachableError):
            return SliceOwner(self._node, node["metadata"]["uid"])


def _number(obj: Json) -> int:
    """Resource versions are numbers that grow (KEP-5504); if they are not, every event counts."""
    text = str(obj["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
