"""The DRA side: a prepare over the socket, slice plans, and a real agent process beside the simulated API server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from drabridge.containers.cdi_store import CdiStore
from drabridge.inventory.devices import PCI_BUS_ID, PCIE_ROOT, Attribute, Device, Semver
from drabridge.kube.api import NotFoundError, UnreachableError
from drabridge.offers.slice_writes import plan
from drabridge.offers.slices import Offer, Pool, desired_slices
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.timings import Timings
from drabridge.wire import dra_v1_pb2
from tests.bench.core import Benchmark, awaited
from tests.bench.processes import resident_mib
from tests.support.agent_process import AgentProcess
from tests.support.dra_node import DRIVER, NODE, DraNode, a_node, add_node, gpu
from tests.support.hardware import loop_devices
from tests.support.waiting import short_directory, until

PREPARES = 200
DEVICES = 1000
IDLE_SECONDS = 20.0
CONFIG = """\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: bench.example.com
resources:
- name: bench.example.com/device
  match: [{{subsystem: {subsystem}, sysname: "{sysname}"}}]
  id: ["{{sysname}}"]
  lanes: {{legacy: 0, dra: "*"}}
"""
TTYS = CONFIG.format(subsystem="tty", sysname="tty[0-9]*")


class InstantCluster:
    """An API server that answers in no time, so that the rest can be measured: claims from a table, nothing else."""

    def __init__(self) -> None:
        self.claims: dict[str, dict[str, Any]] = {}

    async def get(self, kind: Any, name: str, *, namespace: str = "") -> dict[str, Any]:
        if name not in self.claims:
            raise NotFoundError(name)
        return self.claims[name]

    def allocate(self, index: int) -> dra_v1_pb2.Claim:
        uid = f"34553fd1-cf06-469c-b877-{index:012}"
        result = {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": f"gpu-{index}"}
        self.claims[f"cl{index}"] = {
            "metadata": {"name": f"cl{index}", "namespace": "default", "uid": uid},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
        return dra_v1_pb2.Claim(namespace="default", name=f"cl{index}", uid=uid)

    async def read(self, path: str) -> dict[str, Any]:
        raise UnreachableError(path)

    async def apply(self, *args: Any, **options: Any) -> dict[str, Any]:
        raise UnreachableError("status")

    def close(self) -> None:
        pass


async def prepare_p50_ms() -> float:
    """NodePrepareResources as a Python client of another task sees it, records and ledger on a disk, no API server."""
    logging.getLogger("drabridge.dra.driver").setLevel(logging.ERROR)  # it warns of the server that is not there
    times = []
    with (
        tempfile.TemporaryDirectory(prefix="dra", dir="/tmp") as directory,
        tempfile.TemporaryDirectory(prefix="dra", dir="/dev/shm") as memory,  # /var/run/cdi is a tmpfs, too
    ):
        node = DraNode(Path(directory), None, devices=tuple(map(gpu, range(PREPARES))))
        node.cdi = CdiStore(Path(memory), node.config.driver)
        cluster = InstantCluster()
        await node.start(cluster=cluster)
        try:
            for index in range(PREPARES):
                claim = cluster.allocate(index)
                begin = time.perf_counter()
                assert not (await node.prepare(claim))[claim.uid].error
                times.append(time.perf_counter() - begin)
        finally:
            await node.stop()
    return statistics.median(times) * 1000


def _gpu(index: int) -> Device:
    attributes: dict[str, Attribute] = {
        "productName": "NVIDIA H200",
        "driverVersion": Semver("580.95.5"),
        "uuid": f"GPU-{index:08}",
    }
    standard = {PCI_BUS_ID: f"0000:{index % 256:02x}:00.0", PCIE_ROOT: "pci0000:00"}
    device = replace(gpu(index), attributes=attributes, capacity={"memory": 141 * 2**30})
    return replace(device, standard=standard, numa_nodes=(index % 2,))


def slices_1000_plan_ms() -> float:
    """Lay out 1,000 devices and compare them with what a server has; the median of nine."""
    offers = tuple(Offer(_gpu(index)) for index in range(DEVICES))
    first = desired_slices(Pool(DRIVER, NODE, offers))
    stored = [dict(write.body or {}) for write in plan(first.slices, [], pool=NODE)]
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        assert plan(desired_slices(Pool(DRIVER, NODE, offers)).slices, stored, pool=NODE) == ()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1000


async def slices_unchanged_writes() -> float:
    """Writes of slices after a restart with the same 1,000 devices, and after a hundred wake-ups."""
    async with a_node(devices=tuple(map(_gpu, range(DEVICES)))) as node:
        await until(lambda: node.driver.state.publisher.published, 30, "slices")
        before = node.writes()
        await node.restart()
        await until(lambda: node.driver.state.publisher.published, 30, "the look after a restart")
        for _ in range(100):
            node.driver.publish()
            await asyncio.sleep(0.002)
        return float(node.writes() - before)


@contextlib.asynccontextmanager
async def agent(config: str = TTYS) -> AsyncIterator[tuple[AgentProcess, SimApiServer]]:
    """A real agent process whose slices are published; server and kubelet are simulated in this process."""
    with short_directory() as root:
        async with SimApiServer() as api:
            add_node(api)
            kubelet = SimKubelet(root, timings=Timings.fast())
            await kubelet.start()
            arguments = ("--kubeconfig", str(api.kubeconfig(root / "kubeconfig")))
            process = AgentProcess(root, config, "bench.example.com", arguments)
            await process.start()
            try:
                await until(lambda: api.objects.peek("resourceslices"), 30, process.text)
                yield process, api
            finally:
                await process.stop()
                await kubelet.stop()


async def dra_rss_mib() -> float:
    """Resident memory of the agent with both sides, slices published, after some idle seconds."""
    async with agent() as (process, _):
        await asyncio.sleep(3)
        assert process.process is not None
        return resident_mib(process.process.pid)


async def uevent_to_slice_write_ms() -> float:
    """From the ioctl that adds a loop device to the write of the slice with it; the median of seven."""
    times = []
    with loop_devices() as loops:
        async with agent(CONFIG.format(subsystem="block", sysname=loops.pattern)) as (_, api):
            for index in range(7):
                begin = time.perf_counter()
                name = loops.add(index)

                def there(name: str = name) -> bool:
                    slices = api.objects.peek("resourceslices")
                    return any(d["name"] == name for s in slices for d in s["spec"].get("devices", ()))

                while not there():
                    assert time.perf_counter() - begin < 20, f"{name} is in no slice"
                    await asyncio.sleep(0.001)
                times.append(time.perf_counter() - begin)
                await asyncio.sleep(0.5)
    return statistics.median(times) * 1000


async def wipe_to_slices_back_s() -> float:
    """From the deletion of all slices to their being back; the worst of five."""
    times = []
    async with agent() as (_, api):
        for _ in range(5):
            await asyncio.sleep(1)
            begin = time.perf_counter()
            for slice_ in list(api.objects.peek("resourceslices")):
                api.objects.delete("resourceslices", slice_["metadata"]["name"])
            while not api.objects.peek("resourceslices"):
                assert time.perf_counter() - begin < 20, "the slices do not come back"
                await asyncio.sleep(0.001)
            times.append(time.perf_counter() - begin)
    return max(times)


async def idle_api_requests_per_minute() -> float:
    """Requests that an idle agent makes, watches aside."""
    async with agent() as (_, api):
        await asyncio.sleep(3)
        before = len(api.requests)
        await asyncio.sleep(IDLE_SECONDS)
        return sum(r.verb != "watch" for r in api.requests[before:]) * 60 / IDLE_SECONDS


def benchmarks() -> list[Benchmark]:
    """The budgets of the DRA side."""
    return [
        Benchmark("prepare_p50_ms", "ms", 5, awaited(prepare_p50_ms)),
        Benchmark("slices_1000_plan_ms", "ms", 100, slices_1000_plan_ms),
        Benchmark("slices_unchanged_writes", "writes", 0, awaited(slices_unchanged_writes)),
        Benchmark("dra_rss_mib", "MiB", 52, awaited(dra_rss_mib)),
        Benchmark("uevent_to_slice_write_ms", "ms", 150, awaited(uevent_to_slice_write_ms)),
        Benchmark("wipe_to_slices_back_s", "s", 2, awaited(wipe_to_slices_back_s)),
        Benchmark("idle_api_requests_per_minute", "1/min", 2, awaited(idle_api_requests_per_minute)),
    ]
