"""Write Kubernetes Events where a person must know: a refusal, a conflict, a device gone while held.

Events are for people, so they may be lost. They are sent one at a time; an equal one is not written again for five
minutes; a full queue drops new ones. Nothing waits for them.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from msgspec import Struct, field

from drabridge.errors import ClusterError
from drabridge.kube.api import NODES, Cluster, Kind, served_version
from drabridge.kube.connection import ApiServer
from drabridge.kube.json_reader import Json
from drabridge.kube.versions import NEWEST_RESOURCE_VERSION, RESOURCE_GROUP
from drabridge.ledger.effects import Notify, Subject
from drabridge.system.untrusted import reading

log = logging.getLogger(__name__)

EVENTS = Kind("", "v1", "events")
QUEUE = 64  # a storm of refusals is one incident, not a thousand Events
MOST_REMEMBERED = 1024  # Events remembered; one that is forgotten may be written again
REPEAT_SECONDS = 300.0  # an equal Event is not written again within this time
# Every Event that the agent writes: reason -> (about, what it tells). `docs/reference/events.md` is made of it.
REASONS: dict[str, tuple[str, str]] = {
    "AllocateRefused": ("Node", "A pod's device was refused because somebody else holds it; names the holder."),
    "DeviceRefused": ("ResourceClaim", "The claim's device was refused because somebody else holds it."),
    "DeviceConflict": ("Node, Pod, ResourceClaim", "Kubelet shows a pod on a device that a claim holds. Stop one."),
    "DeviceAdopted": ("Node", "A pod was found on a device that the ledger did not know as held: it is now."),
    "LeaseDenied": ("ResourceClaim", "The claim was denied a shared device; says why. The scheduler chooses another."),
    "DeviceCordoned": ("Node", "A device is out of service, by a person's word; says why. Nobody new gets it."),
    "DeviceUncordoned": ("Node", "A device that was out of service is in service again."),
    "DriverFilesMissing": (
        "Node",
        "No libraries of their driver were found, so devices are not given out; says what to do.",
    ),
    "HeldDeviceUnavailable": ("Node", "A device became faulty or was unplugged while somebody holds it."),
    "DeviceLost": ("Pod", "The pod's device is gone or was exchanged, and the pod is evicted (`evictHolders`)."),
    "LedgerLost": (
        "Node",
        "Who holds what is not known (ledger unreadable, another plugin's pods): what looks free is quarantined.",
    ),
}

NODE_NAMESPACE = "default"  # where kubelet writes the Events of its Node


def reference() -> str:
    """Return the table of Events for ``docs/reference/events.md``, as Markdown."""
    rows = ["| reason | on | what it tells |", "|---|---|---|"]
    rows += [f"| `{reason}` | {about} | {text} |" for reason, (about, text) in REASONS.items()]
    return "\n".join(rows)


class Announcer(Struct):
    """Logs the notices of the ledger and, with an API server, writes them as Events."""

    api_server: ApiServer
    node: str
    component: str
    now: Callable[[], float]
    dropped: Callable[[], None] = lambda: None
    _queue: asyncio.Queue[Notify] = field(default_factory=lambda: asyncio.Queue(QUEUE))
    _told_at: dict[tuple[str, ...], float] = field(default_factory=dict)
    _node_uid: str = ""

    def tell(self, notice: Notify) -> None:
        """Log a notice now, and write it as an Event soon. Never blocks."""
        log.log(
            logging.WARNING if notice.warning else logging.INFO,
            notice.message,
            extra={"about": f"{notice.subject} {notice.namespace}/{notice.name}".strip(), "event": notice.reason},
        )
        if self.api_server.cluster is None or not self._is_new(notice):
            return
        try:
            self._queue.put_nowait(notice)
        except asyncio.QueueFull:
            self._drop(notice)

    async def run(self) -> None:
        """Write the queued notices as Events, until cancelled."""
        while True:
            notice = await self._queue.get()
            try:
                await self._write(notice)
            except ClusterError as error:
                self._drop(notice)
                log.info("Event not written", extra={"event": notice.reason, "reason": str(error)})

    def _drop(self, notice: Notify) -> None:
        """Count a notice that could not be written. It may be written when it comes again."""
        self._told_at.pop(_key(notice), None)
        self.dropped()

    def _is_new(self, notice: Notify) -> bool:
        key, now = _key(notice), self.now()
        if now - self._told_at.get(key, float("-inf")) < REPEAT_SECONDS:
            return False
        self._told_at = {k: at for k, at in self._told_at.items() if now - at < REPEAT_SECONDS}
        self._told_at[key] = now
        if len(self._told_at) > MOST_REMEMBERED:
            del self._told_at[next(iter(self._told_at))]  # the oldest
        return True

    async def _write(self, notice: Notify) -> None:
        cluster = self.api_server.cluster
        if cluster is None:  # a reload has switched DRA off meanwhile
            return
        if notice.subject is Subject.NODE and not self._node_uid:
            node = await cluster.get(NODES, self.node)
            with reading(f"node {self.node}", ClusterError):
                self._node_uid = str(node["metadata"]["uid"])
        event = self._event(notice, await _api_version(cluster, notice.subject))
        await cluster.create(EVENTS, event, namespace=event["metadata"]["namespace"])

    def _event(self, notice: Notify, api_version: str) -> Json:
        about_node = notice.subject is Subject.NODE
        namespace = NODE_NAMESPACE if about_node else notice.namespace
        name = self.node if about_node else notice.name
        stamp = datetime.fromtimestamp(self.now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        involved = {"apiVersion": api_version, "kind": str(notice.subject), "name": name}
        if uid := (self._node_uid if about_node else notice.uid):
            involved["uid"] = uid
        if not about_node:
            involved["namespace"] = namespace
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name[:200]}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
            "involvedObject": involved,
            "reason": notice.reason,
            "message": notice.message[:1024],  # the API's limit (events validation)
            "type": "Warning" if notice.warning else "Normal",
            "source": {"component": self.component, "host": self.node},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }


def _key(notice: Notify) -> tuple[str, ...]:
    return str(notice.subject), notice.namespace, notice.name, notice.uid, notice.reason, notice.message


async def _api_version(cluster: Cluster, subject: Subject) -> str:
    """Return the API version of the object that an Event is about, as this server has it.

    Raises ClusterError.
    """
    match subject:
        case Subject.NODE | Subject.POD:
            return NODES.version
        case Subject.CLAIM:
            return f"{RESOURCE_GROUP}/{await served_version(cluster) or NEWEST_RESOURCE_VERSION}"
