"""Name the claims that wait for a lease here: from a coordinator's hints while one works, else from nominated pods.

By this no agent has to watch all claims of the cluster. A name is only a hint: the claim itself is read.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from drabridge.errors import ClusterError
from drabridge.evidence.pod_objects import are_many, claim_names
from drabridge.kube.api import PODS, Cluster, NotFoundError
from drabridge.kube.claim_hints import (
    CONFIG_MAPS,
    LEASES,
    ClaimHint,
    HintsFields,
    hints_name,
    lock_name,
    read_hints,
)
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView, PodFields
from drabridge.kube.watch import follow
from drabridge.system.supervise import WakeUp, end, forever
from drabridge.system.untrusted import reading

log = logging.getLogger(__name__)

POLL_SECONDS = 30.0  # between looks at the coordinators' Lease; a quarter more or less, so that nodes spread out
PROOF_SECONDS = 5.0  # between the first look and the second: a leader renews every two seconds
DEAD_SECONDS = 60.0  # after this time without a change of the Lease, by this node's clock, no coordinator works
LOST_SECONDS = 10.0  # after this time without a watch of the ConfigMap, we watch pods instead
MOST_PODS = 1024  # pods nominated to one node (a node has 110 by default); claims of further pods get no lease
MOST_READ = 2  # pods of one hinted claim at a time: with the claim and its condition that makes four requests
READS_AT_ONCE = 4  # kubelet's claims are read on the same connection

ClaimKey = tuple[str, str]  # namespace and name


class WaitingPod(Struct, frozen=True):
    """A pod that waits to be bound with a claim."""

    uid: str
    namespace: str
    name: str
    scheduler: str
    claims: frozenset[str] = frozenset()  # names of all of its claims

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def waiting_pod(pod: Json) -> WaitingPod:
    """Read a pod of the API server."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    uid, namespace, name = (str(metadata.get(key) or "") for key in ("uid", "namespace", "name"))
    return WaitingPod(uid, namespace, name, str(spec.get("schedulerName") or ""), claim_names(pod))


def nominated_pod(pod: Json) -> WaitingPod:
    """Read a nominated pod; a pod with too many claims counts as one without claims."""
    found = waiting_pod(pod)
    return replace(found, claims=frozenset()) if are_many(found.claims) else found


NOMINATED = ObjectView(nominated_pod, PodFields)


def nominated_to(node: str) -> str:
    """Return the field selector of the pods that wait to be bound to a node."""
    return f"status.nominatedNodeName={node}"


class NominatedPods:
    """Names the claims of the pods that the scheduler has nominated to this node and has not bound yet.

    The scheduler nominates a node before it writes the allocations of the pod's claims, and while it waits for their
    binding conditions. While the watch is lost, the last known pods count.
    """

    comes_after_allocation = False  # whether a claim is named only after its allocation
    most_seconds = 5.0  # between looks at a claim that is not allocated yet, or after an error

    def __init__(self, cluster: Cluster, node: str, told: Callable[[], None]) -> None:
        """``told`` is called after every change."""
        self._cluster = cluster
        self._selector = nominated_to(node)
        self._told = told
        self._pods: dict[str, tuple[WaitingPod, int]] = {}  # UID -> pod, and the last change that showed it
        self._changes = 0
        self.lost_because = "the pods were not listed yet"  # "" while the watch lives
        self.view = NOMINATED

    async def run(self) -> None:
        """Follow the pods until cancelled. The last known pods count until the next run."""
        await follow(self._cluster, PODS, self._selector, self)

    @property
    def claims(self) -> Mapping[ClaimKey, frozenset[str]]:
        """Return the claims with the reasons to look at each. Claims that were settled for all of these are left alone.

        A pod that was denied and nominated again may look unchanged when it is next seen here. So every change of a pod
        is a new reason to look at its claims.
        """
        found: dict[ClaimKey, frozenset[str]] = {}
        for pod, seen in self._pods.values():
            for name in pod.claims:
                key = pod.namespace, name
                found[key] = found.get(key, frozenset()) | {f"{pod.uid} {seen}"}
        return found

    async def pods(self, key: ClaimKey, claim: Json) -> tuple[WaitingPod, ...]:
        """Return the nominated pods that wait with the claim ``key``; () if there are none."""
        namespace, name = key
        return tuple(pod for pod, _ in self._pods.values() if pod.namespace == namespace and name in pod.claims)

    def forget(self) -> None:
        """Forget the pods, because nobody follows them any more."""
        self._pods, self.lost_because = {}, "the pods are not followed"

    # The methods of kube.watch.Follower.

    def listed(self, objects: tuple[WaitingPod, ...]) -> None:
        self._changes += 1
        self._pods = {pod.uid: (pod, self._changes) for pod in [pod for pod in objects if pod.claims][:MOST_PODS]}
        self.lost_because = ""
        self._told()

    def changed(self, kind: str, obj: WaitingPod) -> None:
        if kind == "DELETED" or not obj.claims:
            self._pods.pop(obj.uid, None)
        elif obj.uid in self._pods or len(self._pods) < MOST_PODS:
            self._changes += 1
            self._pods[obj.uid] = obj, self._changes
        self._told()

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        """Drop the pod: its claims get no lease, and the scheduler gives up in the end."""
        self._pods.pop(str(identity.uid), None)
        self._told()

    def lost(self, error: ClusterError) -> None:
        self.lost_because = str(error)
        self._told()  # others must now ask about the claims that this watch served


class HintedClaims:
    """Names the claims that a coordinator hints at in one ConfigMap. While the watch is lost, the last hints count."""

    comes_after_allocation = True
    most_seconds = 30.0  # so that nobody can make this agent ask all the time

    def __init__(self, cluster: Cluster, driver: str, pool: str, namespace: str, told: Callable[[], None]) -> None:
        """``told`` is called after every change."""
        self._cluster = cluster
        self._node = pool  # the pool of a node has its name
        self._namespace = namespace
        self._name = hints_name(driver, pool)
        self._told = told
        self._hints: tuple[ClaimHint, ...] = ()
        self._next: dict[ClaimKey, int] = {}  # where to begin among the pods of a claim whose first pods are gone
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self.lost_because = "the hints were not listed yet"  # "" while the watch lives
        self.lost_at: float | None = time.monotonic()
        self.view = ObjectView(read_hints, HintsFields)

    async def run(self) -> None:
        """Follow the ConfigMap until cancelled."""
        selector = f"metadata.name={self._name}"
        await follow(self._cluster, CONFIG_MAPS, selector, self, namespace=self._namespace)

    @property
    def claims(self) -> Mapping[ClaimKey, frozenset[str]]:
        """Return the claims, each with a text that differs for every wait of the claim."""
        return {(one.namespace, one.name): frozenset({f"{one.uid} {one.resource_version}"}) for one in self._hints}

    async def pods(self, key: ClaimKey, claim: Json) -> tuple[WaitingPod, ...]:
        """Read ``MOST_READ`` of the pods that the claim is reserved for.

        If all of these are gone, the next call reads others.

        One pod of a listed scheduler is enough. A pod of another scheduler that is not read here may be bound before
        the lease is granted. It gains nothing: the ledger refuses to prepare a device that is not leased. If the claim
        is reserved for something else, for example a PodGroup (KEP-5729), the nominated pods that name the claim count.
        Raises ClusterError.
        """
        with reading(f"the pods of claim {'/'.join(key)}"):
            reserved = claim["status"].get("reservedFor") or ()
            users = [one for one in reserved if one.get("resource") == "pods"]
        found = await self._nominated(key) if len(users) < len(reserved) else []
        start = self._next.pop(key, 0) % max(len(users), 1)
        for user in [*users[start:], *users[:start]][:MOST_READ]:
            try:
                async with self._reads:
                    pod = await self._cluster.get(PODS, str(user.get("name") or ""), namespace=key[0])
            except NotFoundError:
                continue
            with reading(f"pod {user.get('name')}"):
                if pod["metadata"]["uid"] == user.get("uid"):
                    found.append(waiting_pod(pod))
        if not found:
            self._next[key] = start + MOST_READ
        return tuple(found)

    async def _nominated(self, key: ClaimKey) -> list[WaitingPod]:
        """List the pods that wait to be bound here and name the claim."""
        namespace, name = key
        async with self._reads:
            listing = await self._cluster.list(
                PODS, namespace=namespace, field_selector=nominated_to(self._node), view=NOMINATED
            )
        return [pod for pod in listing.items if name in pod.claims]

    # The methods of kube.watch.Follower.

    def listed(self, objects: tuple[tuple[ClaimHint, ...], ...]) -> None:
        self._now(objects[0] if objects else ())

    def changed(self, kind: str, obj: tuple[ClaimHint, ...]) -> None:
        self._now(() if kind == "DELETED" else obj)

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        """Treat the hints as lost: they may be of another version, and then pods must be watched."""
        self.lost(ClusterError("the hints cannot be read"))

    def lost(self, error: ClusterError) -> None:
        if self.lost_at is None:
            self.lost_at = time.monotonic()
        self.lost_because = str(error)
        self._told()

    def _now(self, hints: tuple[ClaimHint, ...]) -> None:
        self._hints, self.lost_because, self.lost_at = hints, "", None
        self._next = {key: start for key, start in self._next.items() if key in self.claims}
        self._told()


class CoordinatorLife:
    """Whether a coordinator leads, judged by the Lease, which the leader changes every two seconds."""

    def __init__(self, cluster: Cluster, driver: str, namespace: str) -> None:
        self._cluster = cluster
        self._driver = driver
        self._namespace = namespace
        self._version: str | None = None
        self._changed_at = float("-inf")
        self._proven = False
        self.next_seconds = PROOF_SECONDS

    async def look(self) -> str:
        """Look at the Lease once. Returns why there is no leader; "" if there is one."""
        now = time.monotonic()
        self.next_seconds = POLL_SECONDS * random.uniform(0.75, 1.25)
        try:
            lease = await self._cluster.get(LEASES, lock_name(self._driver), namespace=self._namespace)
            version = str((lease.get("metadata") or {}).get("resourceVersion") or "")
        except NotFoundError:
            self._version, self._changed_at = None, float("-inf")
            return "there is no Lease of a coordinator"
        except ClusterError as error:
            return "" if now - self._changed_at < DEAD_SECONDS else str(error)
        if version != self._version:
            self._proven, self._version, self._changed_at = self._version is not None, version, now
            if not self._proven:  # perhaps an old Lease: believed until the next look, which is soon
                self.next_seconds = PROOF_SECONDS
            return ""
        if not self._proven or now - self._changed_at >= DEAD_SECONDS:
            self._proven = False
            return "the coordinator does not renew its Lease"
        return ""


class ClaimNames:
    """Chooses who names the claims: ``chosen``.

    The hints of a configured coordinator are always watched, pods only while they are chosen.
    """

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        told: Callable[[], None],
        *,
        driver: str,
        pool: str,
        coordinator: Callable[[], str],
    ) -> None:
        """``told`` is called when other claims may be named.

        ``coordinator`` returns the namespace where the coordinator writes, as configured now; "" without a coordinator.
        """
        self._cluster = cluster
        self._pods = NominatedPods(cluster, node, told)
        self._told = told
        self._driver = driver
        self._pool = pool
        self._coordinator = coordinator
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._look = WakeUp()
        self.chosen: NominatedPods | HintedClaims = self._pods

    async def run(self) -> None:
        """Follow hints or pods until cancelled."""
        try:
            while True:
                if namespace := self._coordinator():
                    await self._with_coordinator(namespace)
                else:
                    self._follow_pods("")
                    await self._look.wait(POLL_SECONDS)
        finally:
            tasks, self._tasks = self._tasks, {}
            await end(*tasks.values())

    async def _with_coordinator(self, namespace: str) -> None:
        """Follow the hints and the Lease in ``namespace``, until another namespace is configured."""
        life = CoordinatorLife(self._cluster, self._driver, namespace)
        hints = HintedClaims(self._cluster, self._driver, self._pool, namespace, self._hints_changed)
        self._tasks["hints"] = asyncio.create_task(forever("claim-hints", hints.run))
        why, due = await life.look(), time.monotonic() + life.next_seconds
        try:
            while self._coordinator() == namespace:
                if time.monotonic() >= due:
                    why, due = await life.look(), time.monotonic() + life.next_seconds
                if why or (hints.lost_at is not None and time.monotonic() - hints.lost_at >= LOST_SECONDS):
                    self._follow_pods(why or hints.lost_because)
                elif not hints.lost_because or "pods" not in self._tasks:  # or neither hints nor pods are known yet
                    await self._follow_hints(hints)
                wait = max(0.0, due - time.monotonic())
                await self._look.wait(min(wait, LOST_SECONDS) if hints.lost_because else wait)
        finally:
            await end(self._tasks.pop("hints"))

    def _hints_changed(self) -> None:
        self._look.set()
        self._told()

    def _follow_pods(self, why: str) -> None:
        if "pods" not in self._tasks:
            if why:
                log.warning("no coordinator, nominated pods are watched", extra={"reason": why})
            self._tasks["pods"] = asyncio.create_task(forever("nominated-pods", self._pods.run))
        if self.chosen is not self._pods:
            self.chosen = self._pods
            self._told()

    async def _follow_hints(self, hints: HintedClaims) -> None:
        if self.chosen is not hints:
            log.info("the coordinator names the claims")
            self.chosen = hints
            self._told()
        if "pods" in self._tasks:
            await end(self._tasks.pop("pods"))
            self._pods.forget()
