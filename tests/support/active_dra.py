"""The claim side of an agent that serves, as a standby sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from drabridge.wire import dra_v1_pb2, dra_v1_pb2_grpc, health_v1_pb2, health_v1_pb2_grpc
from tests.support.agent_process import DRIVER

Context = grpc.aio.ServicerContext[Any, Any]


class Active(dra_v1_pb2_grpc.DRAPluginServicer, health_v1_pb2_grpc.DRAResourceHealthServicer):
    """The agent that serves: its answers wait for ``go``. It reports on the devices of the pools ``healthy``."""

    def __init__(self, *healthy: str) -> None:
        self.asked: list[str] = []
        self.go = asyncio.Event()
        self.healthy = healthy

    async def NodeWatchResources(self, request: Any, context: Context) -> AsyncIterator[Any]:
        for pool in self.healthy:
            device = health_v1_pb2.DeviceIdentifier(pool_name=pool, device_name="d")
            yield health_v1_pb2.NodeWatchResourcesResponse(devices=[health_v1_pb2.DeviceHealth(device=device)])
        await asyncio.Event().wait()

    async def NodePrepareResources(
        self, request: dra_v1_pb2.NodePrepareResourcesRequest, context: Context
    ) -> dra_v1_pb2.NodePrepareResourcesResponse:
        self.asked += [claim.uid for claim in request.claims]
        await self.go.wait()
        if request.claims[0].uid == "bad":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this one is bad")
        response = dra_v1_pb2.NodePrepareResourcesResponse()
        response.claims[request.claims[0].uid].error = "by the active one"
        return response

    async def NodeUnprepareResources(
        self, request: dra_v1_pb2.NodeUnprepareResourcesRequest, context: Context
    ) -> dra_v1_pb2.NodeUnprepareResourcesResponse:
        return dra_v1_pb2.NodeUnprepareResourcesResponse()

    @contextlib.asynccontextmanager
    async def served(self, root: Path) -> AsyncIterator[None]:
        server = grpc.aio.server()
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(self, server)
        health_v1_pb2_grpc.add_DRAResourceHealthServicer_to_server(self, server)
        server.add_insecure_port(f"unix://{root}/plugins/{DRIVER}/dra.sock")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)
