"""A client of its own process, as kubelet is: ``python -m tests.bench.allocate_client SOCKET PROBE ID...``.

Prints one JSON list: for each id the seconds of Allocate, and of an fsync of a small append to PROBE just before it.
"""

from __future__ import annotations

import json
import os
import sys
import time

import grpc

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc


def measure(socket: str, probe: str, ids: list[str]) -> list[tuple[float, float]]:
    """(Allocate, fsync) for each id."""
    descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        stub = pb_grpc.DevicePluginStub(channel)
        stub.GetDevicePluginOptions(pb.Empty(), timeout=5)
        times = []
        for device_id in ids:
            request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[device_id])])
            os.write(descriptor, b"x" * 300)
            started = time.perf_counter()
            os.fsync(descriptor)
            synced = time.perf_counter()
            stub.Allocate(request, timeout=5)
            times.append((time.perf_counter() - synced, synced - started))
        return times


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], sys.argv[3:])))
