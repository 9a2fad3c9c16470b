"""The least that Allocate can take here: a ``grpc.aio`` server that does nothing, or makes 300 bytes durable.

``python -m tests.bench.peers.floor_server SOCKET [FILE]`` appends to FILE and calls fsync before each answer.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import grpc.aio

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc


class Floor(pb_grpc.DevicePluginServicer):
    """Answers every Allocate alike."""

    def __init__(self, file: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if file else -1
        container = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name="floor.example.com/device=one")])
        self._answer = pb.AllocateResponse(container_responses=[container])

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        if self._file >= 0:
            os.write(self._file, b"x" * 300)
            os.fsync(self._file)
        return self._answer

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions()


async def main(socket: str, file: str = "") -> None:
    server = grpc.aio.server()
    pb_grpc.add_DevicePluginServicer_to_server(Floor(file), server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
