"""PodResources: its socket, its rate limit, its texts, its releases and its faults."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from drabridge.sim.kubelet.go_grpc import unix_channel
from drabridge.sim.kubelet.timings import Timings
from podresources.wire import v1_pb2 as pb
from podresources.wire import v1_pb2_grpc as rpc
from tests.sim.kubelet.gpu_pods import pod
from tests.sim.kubelet.podresources_client import PodResourcesClient, shape
from tests.support.kubelet_peers import GPU, Plugin, device, running, serving, short_dir

import grpc  # isort: skip
import grpc.aio  # isort: skip

IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x80, 0x100, 0x200


@contextmanager
def inotify(directory: Path) -> Iterator[Callable[[], list[tuple[int, str]]]]:
    """Yields a function that returns every (mask, name) seen so far."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    libc.inotify_add_watch(descriptor, os.fsencode(directory), IN_MOVED_TO | IN_CREATE | IN_DELETE)
    seen: list[tuple[int, str]] = []

    def events() -> list[tuple[int, str]]:
        with suppress(BlockingIOError):
            data = os.read(descriptor, 65536)
            while data:
                _, mask, _, length = struct.unpack_from("iIII", data)
                seen.append((mask, data[16 : 16 + length].rstrip(b"\0").decode()))
                data = data[16 + length :]
        return seen

    try:
        yield events
    finally:
        os.close(descriptor)


async def test_the_limit_is_a_burst_of_ten_and_then_a_hundred_a_second() -> None:  # PR14
    assert (Timings().podresources_burst, Timings().podresources_qps) == (10, 100)
    slowly = Timings.fast(podresources_qps=10)  # than which any machine is quicker
    async with short_dir() as root, running(root, timings=slowly) as kubelet:
        async with unix_channel(kubelet.node.podresources_socket) as channel:
            stub = rpc.PodResourcesListerStub(channel)

            async def call() -> str:
                try:
                    await stub.List(pb.ListPodResourcesRequest())
                except grpc.aio.AioRpcError as error:
                    return f"{error.code().name} {error.details()}"
                return "ok"

            await call()
            await asyncio.sleep(0.15)
            begin = time.monotonic()
            results = await asyncio.gather(*(call() for _ in range(60)))
            elapsed = time.monotonic() - begin
            assert results[0] == "ok"
            assert set(results) == {"ok", "RESOURCE_EXHAUSTED rejected by rate limit"}
            assert 10 <= results.count("ok") <= 11 + elapsed * 10
            await asyncio.sleep(0.3)
            assert await call() == "ok", "tokens come back"


async def test_allocatable_is_what_is_healthy_whether_held_or_not() -> None:
    async with short_dir() as root, running(root) as kubelet:
        client = PodResourcesClient(root)
        plugin = Plugin(root, "p.sock", [device("d0"), device("d1"), device("d2", "Unhealthy")])
        async with serving(plugin):
            await plugin.register()
            await kubelet.wait_for_resource(GPU, healthy=2)
            await kubelet.run_pod(pod("p", 1))
            answer = await client.allocatable()
            assert shape(answer.devices) == [(GPU, "d0", None), (GPU, "d1", None)]
            assert list(answer.cpu_ids) == []
        await kubelet.wait_for(lambda: not kubelet.resources[GPU].healthy, what="the plugin to go")
        assert list((await client.allocatable()).devices) == []
        assert len((await client.list()).pod_resources[0].containers[0].devices) == 1, "allocations stay"


async def test_the_socket_is_renamed_into_place_and_kubelet_sock_is_plainly_bound() -> None:
    async with short_dir() as root, running(root) as kubelet:
        await kubelet.stop()
        with inotify(kubelet.node.podresources_socket.parent) as renamed, inotify(root / "device-plugins") as bound:
            await kubelet.start()
            assert (IN_MOVED_TO, "kubelet.sock") in renamed()
            assert (IN_CREATE, "kubelet.sock") not in renamed()
            assert (IN_CREATE, "kubelet.sock") in bound()
            before = list(bound())
            await kubelet.stop()
            assert bound() == before, "the end of a kubelet makes no event"
