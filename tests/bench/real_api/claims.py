"""Claims at a rate: made, allocated, prepared, unprepared, deallocated and deleted, on one node's devices.

The benchmark does what a user, the scheduler and kubelet do; the whole driver answers, with its ledger and files.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from msgspec.structs import replace

from drabridge.kube.client import KubernetesCluster
from drabridge.wire import dra_v1_pb2, dra_v1_pb2_grpc
from tests.bench.peers import programs
from tests.bench.real_api.many_nodes import GoHelper
from tests.bench.real_api.server import GO, NAMESPACE, Server, serving, until
from tests.bench.real_api.tables import Phase
from tests.support.dra_node import DRIVER, NODE, DraNode, gpu
from tests.support.waiting import short_directory

DEVICES = 256  # ours: a device is free again when its claim is seen to be deallocated, which is asked with back-off
GO_DEVICES = 128  # it publishes one slice, which may have so many
LIFE_SECONDS = 1.0  # of a pod: long enough for a claim's status to be written
PREPARES = 40
RETRY_SECONDS = 1.0  # kubelet syncs a pod again after a second or more
RATE = 50.0
SECONDS = 30.0
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
REQUEST = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
TERM = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}


async def ours() -> Phase:
    """Measure our driver."""
    async with serving() as server:
        await server.add_nodes([NODE], 0)
        access = await server.access(NODE, "drabridge")
        with short_directory() as root:
            node = DraNode(root, None, devices=tuple(map(gpu, range(DEVICES))))
            await node.start(cluster=KubernetesCluster(lambda: access))
            try:
                await _has_slices(server)
                return await _Load(server, DRIVER, node.stub, [f"gpu-{n}" for n in range(DEVICES)]).measured()
            finally:
                await node.stop()


async def go() -> Phase:
    """Measure upstream's helper."""
    async with serving() as server:
        await server.add_nodes([NODE], 0)
        file = await server.kubeconfig(NODE, GO)
        with tempfile.TemporaryDirectory(prefix="go") as directory:
            helper = GoHelper(Path(directory), file, NODE, GO_DEVICES)
            await helper.start()
            try:
                await _has_slices(server)
                slices = (await server.json("GET", "/apis/resource.k8s.io/v1/resourceslices"))["items"]
                devices = [device["name"] for one in slices for device in one["spec"]["devices"]]
                options: list[tuple[str, Any]] = [("grpc.default_authority", "localhost")]
                async with grpc.aio.insecure_channel(f"unix:{helper.socket}", options) as channel:
                    stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
                    return await _Load(server, programs.DRIVER, stub, devices).measured()
            finally:
                await helper.stop()


async def _has_slices(server: Server) -> None:
    async def there() -> bool:
        return bool(await server.slices())

    await until(there, "slices")


class _Load:
    def __init__(self, server: Server, driver: str, stub: Any, devices: Sequence[str]) -> None:
        self._server = server
        self._driver = driver
        self._stub = stub
        self._free: asyncio.Queue[str] = asyncio.Queue()
        for device in devices:
            self._free.put_nowait(device)
        self._done = self._refused = 0

    async def measured(self) -> Phase:
        await self._server.learn_rest(10)
        whole = await self._server.phase("a claim", 1, self._run, rest=8)
        rate = self._done / whole.seconds
        print(f"{self._done} claims, {self._refused} refusals", file=sys.stderr, flush=True)
        return replace(whole.times(1 / self._done), name=f"a claim, at {rate:.0f} a second", live_bytes=0)

    async def _run(self) -> None:
        began, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while (now := time.monotonic() - began) < SECONDS:
                await asyncio.sleep(max(0.0, number / RATE - now))
                group.create_task(self._one(f"claim-{number}", await self._free.get()))
                number += 1

    async def _one(self, name: str, device: str) -> None:
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [REQUEST]}}}
        claim = await self._server.json("POST", CLAIMS, body)
        result = {"request": "gpu", "driver": self._driver, "pool": NODE, "device": device}
        selector = {"nodeSelectorTerms": [TERM]}
        claim["status"] = {"allocation": {"devices": {"results": [result]}, "nodeSelector": selector}}
        await self._server.ask("PUT", f"{CLAIMS}/{name}/status", claim)
        asked = dra_v1_pb2.Claim(namespace=NAMESPACE, name=name, uid=claim["metadata"]["uid"])
        await self._prepare(asked)
        await asyncio.sleep(LIFE_SECONDS)
        unprepared = await self._stub.NodeUnprepareResources(dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[asked]))
        _no_error(unprepared.claims[asked.uid])
        del claim["metadata"]["resourceVersion"]  # the agent may have written the status meanwhile
        await self._server.ask("PUT", f"{CLAIMS}/{name}/status", {**claim, "status": {}})
        await self._server.ask("DELETE", f"{CLAIMS}/{name}")
        self._done += 1
        self._free.put_nowait(device)

    async def _prepare(self, claim: dra_v1_pb2.Claim) -> None:
        """Prepare until it works, as kubelet does: an agent may not know yet that the device's last claim is gone."""
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[claim])
        for _ in range(PREPARES):
            answer = (await self._stub.NodePrepareResources(request)).claims[claim.uid]
            if not answer.error:
                return
            self._refused += 1
            await asyncio.sleep(RETRY_SECONDS)
        _no_error(answer)


def _no_error(answer: Any) -> None:
    if answer.error:
        raise RuntimeError(answer.error)
