"""Choose who names the claims: the coordinator while it works, otherwise nominated pods."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping

from drabridge.dra.claim_names import ClaimKey, ClaimNames, WaitingPod
from drabridge.dra.hinted_claims import HintedClaims
from drabridge.dra.nominated_pods import NominatedPods
from drabridge.errors import ClusterError
from drabridge.kube.api import Cluster, NotFoundError
from drabridge.kube.claim_hints import LEASES, lock_name
from drabridge.kube.json_reader import Json
from drabridge.system.supervise import WakeUp, forever

log = logging.getLogger(__name__)

POLL_SECONDS = 30.0  # between looks at the coordinators' Lease; a quarter more or less, so that nodes spread out
PROOF_SECONDS = 5.0  # after the first look: a leader renews every two seconds
DEAD_SECONDS = 60.0  # without a change of the Lease, by this node's own clock
LOST_SECONDS = 10.0  # without the ConfigMap: a watch that begins again is no reason to watch pods


class CoordinatorLife:
    """Whether coordinators lead, judged by their Lease: the one who leads changes it every two seconds."""

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
            if not self._proven:  # it may be an old one: believed until the next look, which is soon
                self.next_seconds = PROOF_SECONDS
            return ""
        if not self._proven or now - self._changed_at >= DEAD_SECONDS:
            self._proven = False
            return "the coordinator does not renew its Lease"
        return ""


class ChosenNames:
    """Names claims as the coordinator or nominated pods do, one of them at a time."""

    def __init__(
        self,
        cluster: Cluster,
        pods: NominatedPods,
        changed: Callable[[], None],
        *,
        driver: str,
        pool: str,
        coordinator: Callable[[], str],
    ) -> None:
        """``coordinator``: the namespace where it writes, as configured now; "" for none."""
        self._cluster = cluster
        self._pods = pods
        self._changed = changed
        self._driver = driver
        self._pool = pool
        self._coordinator = coordinator
        self._hints: HintedClaims | None = None
        self._chosen: ClaimNames = pods
        self._look = WakeUp()

    async def run(self) -> None:
        """Follow one of the two until cancelled."""
        tasks: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                namespace = self._coordinator()
                if namespace:
                    await self._with_coordinator(namespace, tasks)
                else:
                    self._follow_pods(tasks, "")
                    await self._look.wait(POLL_SECONDS)
        finally:
            await _end(*tasks.values())

    async def _with_coordinator(self, namespace: str, tasks: dict[str, asyncio.Task[None]]) -> None:
        """Until the namespace is another one."""
        life = CoordinatorLife(self._cluster, self._driver, namespace)
        hints = self._hints = HintedClaims(self._cluster, self._driver, self._pool, namespace, self._told)
        tasks["hints"] = asyncio.create_task(forever("claim-hints", hints.run))
        why, due = await life.look(), time.monotonic() + life.next_seconds
        try:
            while self._coordinator() == namespace:
                if time.monotonic() >= due:
                    why, due = await life.look(), time.monotonic() + life.next_seconds
                lost = hints.lost_at is not None and time.monotonic() - hints.lost_at
                if why or (lost is not False and lost >= LOST_SECONDS):
                    self._follow_pods(tasks, why or hints.lost_because)
                elif not hints.lost_because:
                    await self._follow_hints(tasks, hints)
                elif self._chosen is not hints and "pods" not in tasks:
                    self._choose(hints)  # which were not listed yet
                wait = max(0.0, due - time.monotonic())
                await self._look.wait(min(wait, LOST_SECONDS) if hints.lost_because else wait)
        finally:
            self._hints = None
            await _end(tasks.pop("hints"))

    def _told(self) -> None:
        self._look.set()
        self._changed()

    def _follow_pods(self, tasks: dict[str, asyncio.Task[None]], why: str) -> None:
        if "pods" not in tasks:
            if why:
                log.warning("no coordinator, nominated pods are watched", extra={"reason": why})
            tasks["pods"] = asyncio.create_task(forever("nominated-pods", self._pods.run))
        if self._chosen is not self._pods:
            self._chosen = self._pods
            self._changed()

    def _choose(self, hints: HintedClaims) -> None:
        log.info("the coordinator names the claims")
        self._chosen = hints

    async def _follow_hints(self, tasks: dict[str, asyncio.Task[None]], hints: HintedClaims) -> None:
        if self._chosen is not hints:
            self._choose(hints)
            self._changed()
        if "pods" in tasks:
            await _end(tasks.pop("pods"))
            self._pods.forget()

    # The rest of ClaimNames, as the chosen one says.

    @property
    def claims(self) -> Mapping[ClaimKey, frozenset[str]]:
        return self._chosen.claims

    @property
    def lost_because(self) -> str:
        return self._chosen.lost_because

    @property
    def comes_after_allocation(self) -> bool:
        return self._chosen.comes_after_allocation

    @property
    def most_seconds(self) -> float:
        return self._chosen.most_seconds

    async def pods(self, key: ClaimKey, claim: Json) -> tuple[WaitingPod, ...]:
        return await self._chosen.pods(key, claim)


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
