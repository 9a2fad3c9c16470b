"""The DRA manager of the simulated kubelet (``pkg/kubelet/cm/dra/manager.go``)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from drabridge.errors import ClusterError
from drabridge.sim.kubelet import checkpoint, dra_claims
from drabridge.sim.kubelet.dra_claims import ClaimInfo, PreparedDevice
from drabridge.sim.kubelet.dra_client import DraClient
from drabridge.sim.kubelet.dra_plugins import DraPlugins
from drabridge.sim.kubelet.go_grpc import PluginCallError
from drabridge.sim.kubelet.node import ClusterApi, Node
from drabridge.sim.kubelet.pods import PodRecord, PodSpec


class PrepareError(Exception):
    """Claims cannot be prepared now; the text is the event's. The pod stays Pending and is tried again."""


class DraManager:
    """Prepares and unprepares claims; lives as long as one kubelet process, its state file longer."""

    def __init__(self, node: Node, api: ClusterApi | None) -> None:
        self.plugins = DraPlugins(node, api)
        self.cache: dict[dra_claims.Key, ClaimInfo] = {}
        self._node = node
        self._api = api
        self._known: Mapping[str, PodRecord] | None = None

    # -- life

    def restore(self) -> None:
        """Read the claims back, with their devices and without the prepared flag.

        Raises ValueError: the kubelet cannot start.
        """
        path = self._node.root / dra_claims.FILE_NAME
        if path.exists():
            self.cache = dra_claims.decode(path.read_text())

    def sources_ready(self, known: Mapping[str, PodRecord]) -> None:
        """Let the reconcile loop unprepare claims whose pods are all unknown, from now on."""
        self._known = known

    async def reconcile(self) -> None:
        """reconcileLoop: pods that were deleted while no kubelet ran, or by force."""
        while True:
            await asyncio.sleep(self._node.timings.dra_reconcile_seconds)
            if self._known is None:
                continue
            active = {uid for uid, record in self._known.items() if record.active}
            for uid in {uid for info in self.cache.values() for uid in info.pods} - active:
                await self._unprepare([i for i in self.cache.values() if uid in i.pods], uid)

    # -- prepare

    async def prepare(self, pod: PodSpec) -> None:
        """Prepare every claim of the pod, one call per driver (PrepareResources).

        Raises PrepareError with the event's text.
        """
        try:
            await self._prepare(pod)
        except (PluginCallError, ClusterError) as error:
            raise PrepareError(f"prepare dynamic resources: {error}") from error

    async def _prepare(self, pod: PodSpec) -> None:
        batches: dict[str, list[ClaimInfo]] = {}
        infos = []
        for name in pod.claim_names():
            claim = await self._fetch(pod, name)
            uid, drivers = claim["metadata"]["uid"], dra_claims.drivers_of(claim)
            for driver in drivers:
                self._client(driver)
            info = self.cache.setdefault((pod.namespace, name), ClaimInfo(pod.namespace, name, uid))
            if info.uid != uid:
                raise PluginCallError(
                    f"old ResourceClaim with same name {name} and different UID {info.uid} still exists "
                    "(previous pod force-deleted?!)"
                )
            info.pods.add(pod.uid)
            infos.append(info)
            if info.prepared:
                continue
            for driver in drivers:
                info.drivers.setdefault(driver, [])
                batches.setdefault(driver, []).append(info)
        self._save()  # before the calls: after a crash it must be known that they may have happened
        order = sorted(batches)
        self._node.rng.shuffle(order)
        for driver in order:
            await self._prepare_driver(driver, batches[driver])
        for info in infos:
            info.prepared = True
        self._save()

    async def _fetch(self, pod: PodSpec, name: str) -> Mapping[str, Any]:
        if self._api is None:
            raise PluginCallError(f"fetch ResourceClaim {pod.namespace}/{name}: this kubelet has no API server")
        claim = await self._api.get_claim(pod.namespace, name)
        if claim is None:
            raise PluginCallError(
                f"failed to fetch ResourceClaim {name} referenced by pod {pod.name}: "
                f'resourceclaims.resource.k8s.io "{name}" not found'
            )
        if not dra_claims.is_reserved_for(claim, pod.uid):
            uid = claim["metadata"]["uid"]
            raise PluginCallError(f"pod {pod.name} ({pod.uid}) is not allowed to use resource claim {name} ({uid})")
        return claim

    async def _prepare_driver(self, driver: str, batch: Sequence[ClaimInfo]) -> None:
        answer = await self._client(driver).call("NodePrepareResources", batch)
        by_uid = {info.uid: info for info in batch}
        for uid, prepared in answer.items():
            info = by_uid.get(uid)
            if info is None:
                raise PluginCallError(f"NodePrepareResources returned result for unknown claim UID {uid}")
            if prepared.error:
                raise PluginCallError(f"NodePrepareResources failed for ResourceClaim {info.name}: {prepared.error}")
            known = info.drivers[driver] if self._node.release.prepare_appends else []
            info.drivers[driver] = known + [PreparedDevice.from_wire(device) for device in prepared.devices]
        if missing := len(by_uid.keys() - answer.keys()):
            raise PluginCallError(f"NodePrepareResources skipped {missing} ResourceClaims")

    def _client(self, driver: str) -> DraClient:
        client = self.plugins.get(driver)
        if client is None:
            raise PluginCallError(f"DRA driver {driver} is not registered")
        return client

    # -- unprepare

    async def unprepare(self, pod: PodSpec) -> bool:
        """Unprepare claims that no other pod of the node uses (UnprepareResources).

        False if something must be tried again.
        """
        named = [info for name in pod.claim_names() if (info := self.cache.get((pod.namespace, name)))]
        if not self._node.release.unprepares_for_strangers:
            named = [info for info in named if pod.uid in info.pods]
        return await self._unprepare(named, pod.uid)

    async def _unprepare(self, infos: Sequence[ClaimInfo], pod_uid: str) -> bool:
        batches: dict[str, list[ClaimInfo]] = {}
        last = []
        for info in infos:
            if len(info.pods) > 1:
                info.pods.discard(pod_uid)
                continue
            last.append((info, {pod_uid, *info.pods}))  # of others only with unprepares_for_strangers
            info.prepared = False  # a pod that comes while the driver is busy asks it again
            for driver in info.drivers:
                batches.setdefault(driver, []).append(info)
        self._save()
        for driver, batch in sorted(batches.items()):
            try:
                await self._unprepare_driver(driver, batch)
            except PluginCallError:
                return False
        for info, users in last:
            info.pods -= users
            if not info.pods:
                self.cache.pop((info.namespace, info.name), None)
        self._save()
        return True

    async def _unprepare_driver(self, driver: str, batch: Sequence[ClaimInfo]) -> None:
        answer = await self._client(driver).call("NodeUnprepareResources", batch)
        for info in batch:
            if info.uid not in answer:
                raise PluginCallError("NodeUnprepareResources skipped 1 ResourceClaims")
            if error_text := answer[info.uid].error:
                raise PluginCallError(f"NodeUnprepareResources failed for ResourceClaim {info.name}: {error_text}")

    def _save(self) -> None:
        """Write the state file. It is not written before the first claim."""
        path = self._node.root / dra_claims.FILE_NAME
        if self.cache or path.exists():
            text = dra_claims.encode(self.cache.values(), share_ids=self._node.release.share_ids)
            checkpoint.write(self._node.root, text, dra_claims.FILE_NAME)
