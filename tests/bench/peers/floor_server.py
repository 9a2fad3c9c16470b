"""The least that Allocate can take here: a ``grpc.aio`` server that does nothing, or makes 300 bytes durable.

``python -m tests.bench.peers.floor_server SOCKET [FILE [thread]]`` appends to FILE and calls fsync before each answer:
on the loop, which a disk that hangs would stop, or in a thread that the loop waits for.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import grpc.aio

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc
from drabridge.system.io_thread import IoThread


class Floor(pb_grpc.DevicePluginServicer):
    """Answers every Allocate alike."""

    def __init__(self, file: str, place: str) -> None:
        self._thread = IoThread("floor") if place == "thread" else None
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if file else -1
        container = pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name="floor.example.com/device=one")])
        self._answer = pb.AllocateResponse(container_responses=[container])

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        if self._thread is not None:
            self._thread.submit(self._write).over(1.0)
        elif self._file >= 0:
            self._write()
        return self._answer

    def _write(self) -> None:
        os.write(self._file, b"x" * 300)
        os.fsync(self._file)

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions()


async def main(socket: str, file: str = "", place: str = "loop") -> None:
    server = grpc.aio.server()
    floor = Floor(file, place)  # type: ignore[abstract]  # nobody makes the other calls
    pb_grpc.add_DevicePluginServicer_to_server(floor, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
