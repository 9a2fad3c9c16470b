"""The numbers of the ``podresources`` package, measured in processes of their own against a real socket."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from urllib.request import urlopen

from podresources.wire import v1_pb2 as wire
from tests.bench.core import Benchmark
from tests.support.podresources_server import capacity, kubelet, large_listing, says

ROOT = Path(__file__).resolve().parents[2]
REPEATS = 7


def benchmarks() -> list[Benchmark]:
    """All of this area."""
    return [
        Benchmark("podresources_list_500x4096_ms", "ms", 60, list_500x4096_ms),
        Benchmark("podresources_cli_s", "s", 0.45, cli_s),
        Benchmark("podresources_exporter_rss_mib", "MiB", 45, exporter_rss_mib),
        Benchmark("podresources_import_ms", "ms", 150, import_ms),
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
    with serving(large_listing(pods=110, devices=64)) as path, _exporter(path) as (process, port):
        for _ in range(10):
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
                assert response.read().count(b"\npodresources_device_allocation_info{") == 64
        return _resident_mib(process.pid)


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
def _exporter(path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "podresources", "export", "--listen", "127.0.0.1:0", "--interval", "1"]
    process = subprocess.Popen([*command, "--socket", str(path)], stderr=subprocess.PIPE, text=True, env=_environment())
    try:
        assert process.stderr is not None
        yield process, int(process.stderr.readline().rsplit(maxsplit=1)[1])
    finally:
        process.terminate()
        process.communicate(timeout=10)


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


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
