"""A client of its own process, as kubelet is: ``python -m tests.bench.allocate_client SOCKET PROBE ID...``.

Prints one JSON list: for each id the seconds of Allocate, and of an fsync of a small append to PROBE just before it.

Kubelet's client is compiled and costs some hundredths of a millisecond; Python's costs 0.3 ms a call, about as much as
the agent's own work. So the frames of HTTP/2 are written by hand here (RFC 9113, and gRPC over HTTP2 for what is in
them), and the time is that from the first byte of the request to the last one of the answer. ``--grpcio`` before the
socket measures with Python's client instead.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable

import grpc

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc

DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK = END_STREAM = 1
END_HEADERS = 4


class Wire:
    """One connection to a gRPC server, one call at a time."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(5)
        self._socket.connect(path)
        self._buffer = b""
        self._stream = -1
        window = frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))  # enough for all answers together
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + window)

    def call(self, method: str, message: bytes) -> bytes:
        """The answer's bytes. Raises OSError for a refusal, which comes without a message."""
        self._stream += 2
        fields = {b":path": method.encode(), b":authority": b"localhost", b"te": b"trailers"}
        block = b"\x83\x86" + b"".join(map(literal, fields, fields.values()))  # :method POST, :scheme http
        block += literal(b"content-type", b"application/grpc")
        body = struct.pack(">BI", 0, len(message)) + message
        self._socket.sendall(
            frame(HEADERS, END_HEADERS, self._stream, block) + frame(DATA, END_STREAM, self._stream, body)
        )
        answer = b""
        while True:
            kind, flags, stream, payload = self._read()
            if kind == DATA:
                answer += payload
            if stream == self._stream and flags & END_STREAM and kind in (DATA, HEADERS):
                break
        if not answer:
            raise OSError(f"{method} was refused")
        return answer[5:]

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _read(self) -> tuple[int, int, int, bytes]:
        """(type, flags, stream, payload) of the next frame; what the connection itself asks is answered."""
        while len(self._buffer) < 9 or len(self._buffer) < 9 + int.from_bytes(self._buffer[:3]):
            if not (more := self._socket.recv(65_536)):
                raise OSError("the server closed the connection")
            self._buffer += more
        length = int.from_bytes(self._buffer[:3])
        kind, flags, stream = struct.unpack(">BBI", self._buffer[3:9])
        payload, self._buffer = self._buffer[9 : 9 + length], self._buffer[9 + length :]
        if kind in (SETTINGS, PING) and not flags & ACK:
            self._socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
        return kind, flags, stream, payload


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field, "without indexing" (RFC 7541, 6.2.2); both shorter than 127 bytes."""
    return bytes((0, len(name))) + name + bytes((len(value),)) + value


def by_hand(path: str) -> Callable[[bytes], bytes]:
    wire = Wire(path)
    wire.call("/v1beta1.DevicePlugin/GetPreferredAllocation", b"")  # not the first call: that one wakes everything
    return lambda request: wire.call("/v1beta1.DevicePlugin/Allocate", request)


def by_grpcio(path: str) -> Callable[[bytes], bytes]:
    channel = grpc.insecure_channel(f"unix:{path}", options=[("grpc.default_authority", "localhost")])
    stub = pb_grpc.DevicePluginStub(channel)
    stub.GetDevicePluginOptions(pb.Empty(), timeout=5)
    return lambda request: stub.Allocate(pb.AllocateRequest.FromString(request), timeout=5).SerializeToString()


def measure(allocate: Callable[[bytes], bytes], probe: str, ids: list[str]) -> list[tuple[float, float]]:
    """(Allocate, fsync) for each id."""
    descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    times = []
    for device_id in ids:
        container = pb.ContainerAllocateRequest(devices_ids=[device_id])
        request = pb.AllocateRequest(container_requests=[container]).SerializeToString()
        os.write(descriptor, b"x" * 300)
        started = time.perf_counter()
        os.fsync(descriptor)
        synced = time.perf_counter()
        answer = allocate(request)
        times.append((time.perf_counter() - synced, synced - started))
        assert len(pb.AllocateResponse.FromString(answer).container_responses) == 1
    return times


if __name__ == "__main__":
    connect, arguments = by_hand, sys.argv[1:]
    if arguments[0] == "--grpcio":
        connect, arguments = by_grpcio, arguments[1:]
    print(json.dumps(measure(connect(arguments[0]), arguments[1], arguments[2:])))
