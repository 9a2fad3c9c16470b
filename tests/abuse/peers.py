"""Callers of the agent's sockets that are not kubelet: good requests at the wrong time, and no requests at all."""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc

CALL_SECONDS = 10.0


async def allocate(socket: Path, ids: list[str]) -> tuple[str, str]:
    """Allocate on a resource's socket: the name of the status code, and its text."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        try:
            await pb_grpc.DevicePluginStub(channel).Allocate(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
    return "OK", ""


async def call(socket: Path, method: str, body: bytes) -> str:
    """Any method with any bytes: the name of the status code. A call that is not answered is DEADLINE_EXCEEDED."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        try:
            # Without serializers bytes go as they are, which the stubs' types do not know.
            await channel.unary_unary(method)(body, timeout=CALL_SECONDS)  # type: ignore[arg-type]
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "OK"
