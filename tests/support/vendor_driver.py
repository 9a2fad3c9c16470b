"""A vendor's DRA driver as a process: ``python -m tests.support.vendor_driver KUBELET DRIVER``.

It stands in for NVIDIA's driver: it registers with kubelet under a driver name by Go's kubeletplugin library's paths,
keeps a checkpoint beside its socket, and prepares whatever claim it is asked for. It ends at SIGTERM and leaves its
checkpoint, as NVIDIA's does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from drabridge.wire import dra_v1_pb2 as wire
from drabridge.wire import dra_v1_pb2_grpc as rpc
from drabridge.wire import pluginregistration_pb2 as registration
from drabridge.wire import pluginregistration_pb2_grpc as registration_rpc
from tests.support.waiting import until

POOL, DEVICE = "node-a", "gpu-0"


class _Driver(rpc.DRAPluginServicer, registration_rpc.RegistrationServicer):
    def __init__(self, name: str, directory: Path) -> None:
        self._name = name
        self._directory = directory

    async def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        endpoint = str(self._directory / "dra.sock")
        return registration.PluginInfo(
            type="DRAPlugin", name=self._name, endpoint=endpoint, supported_versions=["v1.DRAPlugin"]
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> registration.RegistrationStatusResponse:
        return registration.RegistrationStatusResponse()

    async def NodePrepareResources(
        self, request: wire.NodePrepareResourcesRequest, context: Any
    ) -> wire.NodePrepareResourcesResponse:
        answer = wire.NodePrepareResourcesResponse()
        for claim in request.claims:
            device = answer.claims[claim.uid].devices.add()
            device.request_names.append("r")
            device.pool_name, device.device_name = POOL, DEVICE
            device.cdi_device_ids.append(f"k8s.{self._name}/claim={claim.uid}-{DEVICE}")
            (self._directory / "checkpoint.json").write_text(f'{{"prepared": "{claim.uid}"}}')
        return answer

    async def NodeUnprepareResources(
        self, request: wire.NodeUnprepareResourcesRequest, context: Any
    ) -> wire.NodeUnprepareResourcesResponse:
        answer = wire.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            answer.claims[claim.uid].SetInParent()
        return answer


async def _main(kubelet: Path, name: str) -> None:
    directory = kubelet / "plugins" / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "checkpoint.json").write_text("{}")
    servers = []
    for path in (directory / "dra.sock", kubelet / "plugins_registry" / f"{name}-reg.sock"):
        path.unlink(missing_ok=True)
        server = grpc.aio.server()
        rpc.add_DRAPluginServicer_to_server(_Driver(name, directory), server)
        registration_rpc.add_RegistrationServicer_to_server(_Driver(name, directory), server)
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        servers.append(server)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    for server in servers:
        await server.stop(0.2)


@contextlib.asynccontextmanager
async def vendor_driver(kubelet: Path, name: str) -> AsyncIterator[None]:
    """The process, while the block runs; its sockets are there when the block begins."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.vendor_driver", str(kubelet), name
    )
    try:
        await until((kubelet / "plugins_registry" / f"{name}-reg.sock").is_socket, 20)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        assert await process.wait() == 0


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2]))
