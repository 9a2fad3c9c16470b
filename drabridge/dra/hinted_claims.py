"""Follow the claims that a coordinator names for this node's pool, in one ConfigMap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from drabridge.dra.claim_names import ClaimKey, WaitingPod
from drabridge.dra.nominated_pods import NOMINATED, nominated_to
from drabridge.errors import ClusterError
from drabridge.evidence.pod_objects import claim_names
from drabridge.kube.api import PODS, Cluster, NotFoundError
from drabridge.kube.claim_hints import CONFIG_MAPS, ClaimHint, HintsFields, hints_name, read_hints
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView
from drabridge.kube.watch import follow
from drabridge.system.untrusted import reading

MOST_SECONDS = 30.0  # between looks at one claim: nobody may make this agent ask all the time
MOST_PODS = 2  # of one claim are read at a time: with the claim and its condition that makes four requests
AT_A_TIME = 4  # reads: kubelet's claims are read on the same connection


class HintedClaims:
    """The claims that are hinted at. While the watch is lost, those that were known last count."""

    comes_after_allocation = True
    most_seconds = MOST_SECONDS

    def __init__(self, cluster: Cluster, driver: str, pool: str, namespace: str, changed: Callable[[], None]) -> None:
        """``changed`` is called after every change."""
        self._cluster = cluster
        self._node = pool  # the pool of a node has its name
        self._namespace = namespace
        self._name = hints_name(driver, pool)
        self._changed = changed
        self._hints: tuple[ClaimHint, ...] = ()
        self._next: dict[ClaimKey, int] = {}  # which pod to begin with, of a claim whose first ones are gone
        self._reads = asyncio.Semaphore(AT_A_TIME)
        self.lost_because = "the hints were not listed yet"  # "" while the watch lives
        self.lost_at: float | None = time.monotonic()
        self.view = ObjectView(read_hints, HintsFields)

    async def run(self) -> None:
        """Follow the ConfigMap until cancelled."""
        selector = f"metadata.name={self._name}"
        await follow(self._cluster, CONFIG_MAPS, selector, self, namespace=self._namespace)

    @property
    def claims(self) -> Mapping[ClaimKey, frozenset[str]]:
        """The claims, each with what tells this wait of it from an earlier one."""
        return {
            (hint.namespace, hint.name): frozenset((f"{hint.uid} {hint.resource_version}",)) for hint in self._hints
        }

    async def pods(self, key: ClaimKey, claim: Json) -> tuple[WaitingPod, ...]:
        """Read ``MOST_PODS`` of the pods that the claim is reserved for; if all are gone, others next time.

        One of a listed scheduler is enough. A pod of another one that is not read here may be bound before
        the lease is there, and gets nothing by that: the ledger refuses to prepare what is not leased. A claim that is
        reserved for something else, as a PodGroup (KEP-5729), is that of the nominated pods that name it.
        """
        with reading(f"the pods of claim {'/'.join(key)}"):
            reserved = claim["status"].get("reservedFor") or ()
            users = [one for one in reserved if one.get("resource") == "pods"]
        found = await self._nominated(key) if len(users) < len(reserved) else []
        start = self._next.pop(key, 0) % max(len(users), 1)
        for user in [*users[start:], *users[:start]][:MOST_PODS]:
            try:
                async with self._reads:
                    pod = await self._cluster.get(PODS, str(user.get("name") or ""), namespace=key[0])
            except NotFoundError:
                continue
            with reading(f"pod {user.get('name')}"):
                if pod["metadata"]["uid"] == user.get("uid"):
                    scheduler = pod["spec"].get("schedulerName") or ""
                    found.append(WaitingPod(key[0], pod["metadata"]["name"], scheduler, claim_names(pod)))
        if not found:
            self._next[key] = start + MOST_PODS
        return tuple(found)

    async def _nominated(self, key: ClaimKey) -> list[WaitingPod]:
        """List the pods that wait to be bound here and name the claim."""
        namespace, name = key
        async with self._reads:
            listing = await self._cluster.list(
                PODS, namespace=namespace, field_selector=nominated_to(self._node), view=NOMINATED
            )
        return [pod.waiting for pod in listing.items if name in pod.claims]

    # The methods of kube.watch.Follower.

    def listed(self, objects: tuple[tuple[ClaimHint, ...], ...]) -> None:
        self._now(objects[0] if objects else ())

    def changed(self, kind: str, obj: tuple[ClaimHint, ...]) -> None:
        self._now(() if kind == "DELETED" else obj)

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        """Another version, perhaps: then the pods must be asked."""
        self.lost(ClusterError("the hints cannot be read"))

    def lost(self, error: ClusterError) -> None:
        if self.lost_at is None:
            self.lost_at = time.monotonic()
        self.lost_because = str(error)
        self._changed()

    def _now(self, hints: tuple[ClaimHint, ...]) -> None:
        self._hints, self.lost_because, self.lost_at = hints, "", None
        self._next = {key: start for key, start in self._next.items() if key in self.claims}
        self._changed()
