"""Callers of the agent's sockets that are not kubelet: valid requests at the wrong time, and noise."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc
from tests.support.waiting import PATIENCE

CALL_SECONDS = 10.0 * PATIENCE
FLOOD = 1000  # connections; what a scanner or a client in a loop makes of a node in a moment

# HTTP/2 by hand (RFC 9113, 7541): gRPC's own client always takes 64 KiB off the wire, read or not.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS, _HEADERS, _DATA = 4, 1, 0
_END_STREAM, _END_HEADERS = 1, 4
_INITIAL_WINDOW_SIZE = 4


async def allocate(path: Path, ids: list[str]) -> tuple[str, str]:
    """Allocate on a resource's socket: the name of the status code, and its text."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        try:
            await pb_grpc.DevicePluginStub(channel).Allocate(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
    return "OK", ""


async def call(path: Path, method: str, body: bytes) -> str:
    """Any method with any bytes: the name of the status code. A call that is not answered is DEADLINE_EXCEEDED."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        try:
            # Without serializers bytes go as they are, which the stubs' types do not know.
            await channel.unary_unary(method)(body, timeout=CALL_SECONDS)  # type: ignore[arg-type]
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return "OK"


def connect(family: int, target: Any, count: int = FLOOD) -> list[socket.socket]:
    """As many silent connections as the backlog takes, ``count`` at most; who is refused tries no further."""
    clients = []
    for _ in range(count):
        client = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            client.connect(target)
        except BlockingIOError:
            if family == socket.AF_UNIX:  # the backlog is full: what a caller would wait for
                client.close()
                continue
        except OSError:
            client.close()
            continue
        clients.append(client)
    return clients


async def frozen_stream(path: Path) -> asyncio.StreamWriter:
    """A ListAndWatch whose flow-control window is zero: the server's first write already waits, for ever."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/v1beta1.DevicePlugin/ListAndWatch",
        ":authority": "localhost",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
    settings = _INITIAL_WINDOW_SIZE.to_bytes(2, "big") + (0).to_bytes(4, "big")
    writer.write(
        _PREFACE
        + _frame(_SETTINGS, 0, 0, settings)
        + _frame(_HEADERS, _END_HEADERS, 1, block)
        + _frame(_DATA, _END_STREAM, 1, b"\0" * 5)  # an empty message
    )
    await writer.drain()
    assert await asyncio.wait_for(reader.read(9), CALL_SECONDS), "the server hung up"
    return writer


def _text(text: str) -> bytes:
    """A string literal without Huffman code; shorter than 127 bytes."""
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body
