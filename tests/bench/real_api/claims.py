"""Claims at a rate: made, allocated, prepared, unprepared, deallocated and deleted, on the devices of several nodes.

The benchmark does what users, the scheduler and kubelets do; whole drivers answer, with their ledgers and files, in a
process of their own, or one process of Go for each node.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from msgspec.structs import replace

from drabridge.wire import dra_v1_pb2, dra_v1_pb2_grpc
from tests.bench.peers import programs
from tests.bench.real_api.drivers import DEVICES, drivers
from tests.bench.real_api.many_nodes import GoHelper, names_of
from tests.bench.real_api.server import GO, NAMESPACE, SLICES, Server, serving, until
from tests.bench.real_api.tables import Phase
from tests.support.dra_node import DRIVER

NODES = 200
LIFE_SECONDS = 3.0  # of a pod: long enough for a claim's status to be written
PREPARES = 40
RETRY_SECONDS = 1.0  # kubelet syncs a pod again after a second or more
RATE = 50.0
SECONDS = 30.0
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims"
REQUEST = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}


async def ours() -> Phase:
    """Measure our drivers."""
    async with serving() as server:
        names = names_of(NODES)
        await server.add_nodes(names, 0)
        async with drivers({name: await server.kubeconfig(name, "drabridge") for name in names}) as sockets:
            return await _measured(server, DRIVER, sockets)


async def go() -> Phase:
    """Measure upstream's helper."""
    async with serving() as server:
        names = names_of(NODES)
        await server.add_nodes(names, 0)
        with tempfile.TemporaryDirectory(prefix="go") as directory:
            helpers = {
                name: GoHelper(Path(directory), await server.kubeconfig(name, GO), name, DEVICES) for name in names
            }
            try:
                await asyncio.gather(*(helper.start() for helper in helpers.values()))
                sockets = {name: str(helper.socket) for name, helper in helpers.items()}
                return await _measured(server, programs.DRIVER, sockets)
            finally:
                await asyncio.gather(*(helper.stop() for helper in helpers.values()))


async def _measured(server: Server, driver: str, sockets: Mapping[str, str]) -> Phase:
    """Measure what serves on ``sockets`` (by node), once every node has a slice."""

    async def there() -> bool:
        return len(await server.slices()) >= len(sockets)

    await until(there, "slices")
    slices = (await server.json("GET", SLICES))["items"]
    options = [("grpc.default_authority", "localhost")]
    async with contextlib.AsyncExitStack() as stack:
        stubs = {
            node: dra_v1_pb2_grpc.DRAPluginStub(
                await stack.enter_async_context(grpc.aio.insecure_channel(f"unix:{socket}", options))
            )
            for node, socket in sockets.items()
        }
        columns = [
            [_Place(one["spec"]["nodeName"], device["name"]) for device in one["spec"]["devices"]] for one in slices
        ]
        rows = zip(*columns, strict=True)  # every node's first device, then every node's second
        return await _Load(server, driver, stubs, [place for row in rows for place in row]).run()


class _Place(NamedTuple):
    """A device that a claim may have."""

    node: str
    device: str


class _Load:
    def __init__(self, server: Server, driver: str, stubs: Mapping[str, Any], places: Iterable[_Place]) -> None:
        self._server = server
        self._driver = driver
        self._stubs = stubs
        self._free: asyncio.Queue[_Place] = asyncio.Queue()
        for place in places:
            self._free.put_nowait(place)
        self._done = self._refused = 0

    async def run(self) -> Phase:
        await self._server.learn_rest(10)
        whole = await self._server.phase("a claim", 1, self._all, rest=8)
        rate = self._done / (whole.seconds - LIFE_SECONDS)  # in the last seconds claims only end
        print(f"{self._done} claims, {self._refused} refusals", file=sys.stderr, flush=True)
        return replace(whole.times(1 / self._done), name=f"a claim, at {rate:.0f} a second", live_bytes=0)

    async def _all(self) -> None:
        began, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while (now := time.monotonic() - began) < SECONDS:
                await asyncio.sleep(max(0.0, number / RATE - now))
                group.create_task(self._one(f"claim-{number}", await self._free.get()))
                number += 1

    async def _one(self, name: str, place: _Place) -> None:
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [REQUEST]}}}
        claim = await self._server.json("POST", CLAIMS, body)
        result = {"request": "gpu", "driver": self._driver, "pool": place.node, "device": place.device}
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [place.node]}]}
        selector = {"nodeSelectorTerms": [term]}
        claim["status"] = {"allocation": {"devices": {"results": [result]}, "nodeSelector": selector}}
        await self._server.ask("PUT", f"{CLAIMS}/{name}/status", claim)
        asked = dra_v1_pb2.Claim(namespace=NAMESPACE, name=name, uid=claim["metadata"]["uid"])
        stub = self._stubs[place.node]
        await self._prepare(stub, asked)
        await asyncio.sleep(LIFE_SECONDS)
        unprepared = await stub.NodeUnprepareResources(dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[asked]))
        _no_error(unprepared.claims[asked.uid])
        del claim["metadata"]["resourceVersion"]  # the agent may have written the status meanwhile
        await self._server.ask("PUT", f"{CLAIMS}/{name}/status", {**claim, "status": {}})
        await self._server.ask("DELETE", f"{CLAIMS}/{name}")
        self._done += 1
        self._free.put_nowait(place)

    async def _prepare(self, stub: Any, claim: dra_v1_pb2.Claim) -> None:
        """Prepare until it works, as kubelet does: an agent may not know yet that the device's last claim is gone."""
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[claim])
        for _ in range(PREPARES):
            answer = (await stub.NodePrepareResources(request)).claims[claim.uid]
            if not answer.error:
                return
            self._refused += 1
            await asyncio.sleep(RETRY_SECONDS)
        _no_error(answer)


def _no_error(answer: Any) -> None:
    if answer.error:
        raise RuntimeError(answer.error)
