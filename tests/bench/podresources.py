"""The numbers of the ``podresources`` package, measured in processes of their own against a real socket."""

from __future__ import annotations

import asyncio
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from urllib.request import urlopen

from podresources.model import SocketIdentity
from podresources.normalise import snapshot
from podresources.resolve.resolver import NodePaths, Resolver
from podresources.wire import v1_pb2 as wire
from tests.bench.core import Benchmark
from tests.bench.processes import anonymous_mib, resident_mib
from tests.podresources.resolve_node import NodeFiles
from tests.support.podresources_server import (
    capacity,
    claim,
    claim_device,
    container,
    kubelet,
    large_listing,
    listing,
    pod,
    says,
)

ROOT = Path(__file__).resolve().parents[2]
REPEATS = 7


def benchmarks() -> list[Benchmark]:
    """All of this area."""
    return [
        Benchmark("podresources_list_500x4096_ms", "ms", 60, list_500x4096_ms),
        Benchmark("podresources_cli_s", "s", 0.45, cli_s),
        Benchmark("podresources_exporter_rss_mib", "MiB", 45, exporter_rss_mib),
        Benchmark("podresources_exporter_anonymous_mib", "MiB", 28, exporter_anonymous_mib),
        Benchmark("podresources_import_ms", "ms", 150, import_ms),
        Benchmark("podresources_resolve_rss_mib", "MiB", 50, resolve_rss_mib),
        Benchmark("podresources_resolve_64_claims_ms", "ms", 150, resolve_64_claims_ms),
        Benchmark("podresources_20mb_peak_mib", "MiB", 170, twenty_mb_peak_mib),
    ]


def list_500x4096_ms() -> float:
    """One List of 500 pods with 4,096 devices, asked, parsed and normalised by a client that is connected: median."""
    program = """
import sys, time
from podresources import SyncClient
with SyncClient(sys.argv[1]) as client:
    client.list()
    for _ in range(int(sys.argv[2])):
        started = time.perf_counter()
        found = client.list()
        print((time.perf_counter() - started) * 1000)
        assert len(found.pods) == 500 and len(found.allocations) == 4096
"""
    with serving(large_listing()) as path:
        return statistics.median(map(float, _python("-c", program, str(path), str(REPEATS)).split()))


def cli_s() -> float:
    """``podresources list``, process start to end, on a node of 110 pods and 64 devices: median."""
    with serving(large_listing(pods=110, devices=64)) as path:

        def once() -> None:
            assert len(_python("-m", "podresources", "list", "--socket", str(path)).splitlines()) == 65

        return _median_seconds(once)


def exporter_rss_mib() -> float:
    """Resident memory of ``podresources export`` after ten scrapes of a full ordinary node.

    110 pods is kubelet's default limit (--max-pods); 64 devices is eight GPUs in seven MIG slices each, and network
    functions. Ten thousand samples more (500 pods with 4,096 devices) take about 20 MiB more.
    """
    return _exporter_memory()[0]


def exporter_anonymous_mib() -> float:
    """Of the same, the pages that no file backs."""
    return _exporter_memory()[1]


@functools.cache
def _exporter_memory() -> tuple[float, float]:
    """Resident and anonymous."""
    with serving(large_listing(pods=110, devices=64)) as path, _exporter(path) as (process, port):
        for _ in range(10):
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
                assert response.read().count(b"\npodresources_device_allocation_info{") == 64
        return resident_mib(process.pid), anonymous_mib(process.pid)


def resolve_rss_mib() -> float:
    """The same with ``--resolve``: 64 claims' GPUs of NVIDIA's driver, by its CDI files and ``/proc/driver/nvidia``."""
    with claims_node(64) as (root, response), serving(response) as path:
        with _exporter(path, "--resolve", "--host-root", str(root)) as (process, port):
            for _ in range(10):
                with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    assert answer.read().count(b'UUID="GPU-') == 64
            return resident_mib(process.pid)


def resolve_64_claims_ms() -> float:
    """Resolving them for the first time, every file read and parsed: median."""
    times = []
    with claims_node(64) as (root, response):
        held = snapshot(response, SocketIdentity(1, 2, 3)).allocations
        for _ in range(REPEATS):
            resolver = Resolver(NodePaths(root))
            started = time.perf_counter()
            found = resolver.resolve(held)
            times.append((time.perf_counter() - started) * 1000)
            assert all(found.of(one).facts.uuid for one in held)
    return statistics.median(times)


def twenty_mb_peak_mib() -> float:
    """The largest that a client ever was, which asked ten times for 20 MB of repeated devices (kubernetes #141335)."""
    program = """
import re, sys
from podresources import SyncClient
with SyncClient(sys.argv[1], timeout_seconds=60) as client:
    for _ in range(10):
        assert len(client.list().allocations) == 8
with open("/proc/self/status") as status:
    print(int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) / 1024)
"""
    name = "k8s.gpu.nvidia.com/claim=c8593c85-440d-4156-b199-aea592ff83df-gpu"
    devices = [claim_device(f"gpu-{n}", *(f"{name}-{k}" for k in range(n + 1))) for n in range(8)]
    many = claim("c", *(one for _ in range(8_000) for one in devices))
    with serving(listing(pod("p", container("c", claims=(many,))))) as path:
        return float(_python("-c", program, str(path)))


@contextmanager
def claims_node(count: int) -> Iterator[tuple[Path, wire.ListPodResourcesResponse]]:
    """A node's files with ``count`` GPUs, each held by a claim of NVIDIA's driver, and kubelet's List of it."""
    with tempfile.TemporaryDirectory() as folder:
        node = NodeFiles(Path(folder))
        response = wire.ListPodResourcesResponse()
        for number in range(count):
            uid = f"c8593c85-440d-4156-b199-{number:012x}"
            address, uuid = f"0000:{number:02x}:00.0", f"GPU-5f9a3c1e-0000-4000-8000-{number:012x}"
            text = f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n"
            node.write(f"proc/driver/nvidia/gpus/{address}/information", text)
            node.nvidia_claim(uid, number)
            node.logs("default", f"p{number}", f"0b6ad0a3-3bd6-4f8e-9a0c-{number:012x}")
            device = claim_device(
                f"gpu-{number}", f"k8s.gpu.nvidia.com/claim={uid}-gpu-{number}", driver="gpu.nvidia.com"
            )
            response.pod_resources.append(pod(f"p{number}", container("c", claims=(claim(f"c{number}", device),))))
        yield Path(folder), response


def import_ms() -> float:
    """Importing the whole public API (both clients, watch, exporter) after gRPC itself: median of fresh processes."""
    program = """
import grpc, time
started = time.perf_counter()
import podresources.client, podresources.sync, podresources.watch, podresources.exporter
print((time.perf_counter() - started) * 1000)
"""
    return statistics.median(float(_python("-c", program)) for _ in range(REPEATS))


@contextmanager
def serving(response: wire.ListPodResourcesResponse) -> Iterator[Path]:
    """A kubelet's socket that gives this List, and all its devices as capacity, from a thread with its own loop."""
    entries = (entry for pod in response.pod_resources for found in pod.containers for entry in found.devices)
    answers = {"List": says(response), "GetAllocatableResources": says(capacity(*entries))}
    ready, stop = Event(), Event()
    paths: list[Path] = []

    async def serve() -> None:
        async with kubelet(answers) as server:
            paths.append(server.path)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        if not ready.wait(10):
            raise RuntimeError("the server did not start within 10 s")
        yield paths[0]
    finally:
        stop.set()
        thread.join()


@contextmanager
def _exporter(path: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "podresources", "export", "--listen", "127.0.0.1:0", "--interval", "1", *more]
    process = subprocess.Popen([*command, "--socket", str(path)], stderr=subprocess.PIPE, text=True, env=_environment())
    try:
        assert process.stderr is not None
        yield process, int(process.stderr.readline().rsplit(maxsplit=1)[1])
    finally:
        process.terminate()
        process.communicate(timeout=10)


def _median_seconds(once: Callable[[], None]) -> float:
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        once()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _python(*arguments: str) -> str:
    """What it printed. Its notes are not for who reads the table; they are told when it fails."""
    done = subprocess.run([sys.executable, *arguments], env=_environment(), capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"{arguments} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}
