"""The DevicePlugin side: a real agent process on this machine's ttys, a simulated kubelet, times seen by kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc

from deviceplugin import Broadcast, DeviceList, ListedDevice, PluginServer
from deviceplugin.preference import Unit, prefer
from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.timings import Timings
from tests.bench.core import Benchmark, awaited
from tests.bench.processes import cpu_seconds, resident_mib
from tests.support.agent_process import AgentProcess
from tests.support.waiting import until

# About 64 virtual consoles: enough devices to hand each one out once, on every Linux machine.
RESOURCE = "bench.example.com/tty"
CONFIG = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: bench.example.com
resources:
- name: {RESOURCE}
  match: [{{subsystem: tty, sysname: "tty[0-9]*"}}]
  id: ["{{sysname}}"]
"""
LOOP = "bench.example.com/loop"
LOOP_NUMBER = 977
LOOP_CONFIG = CONFIG.replace(RESOURCE, LOOP).replace(
    'subsystem: tty, sysname: "tty[0-9]*"', f"subsystem: block, sysname: loop{LOOP_NUMBER}"
)


@contextlib.asynccontextmanager
async def node(
    config: str = CONFIG, resource: str = RESOURCE, *, base: str = "/tmp", healthy: int | None = None
) -> AsyncIterator[tuple[AgentProcess, SimKubelet]]:
    """Kubelet and agent, registered; everything below ``base``, but CDI files on a tmpfs, as /var/run/cdi is."""
    with (
        tempfile.TemporaryDirectory(prefix="dra", dir=base) as directory,
        tempfile.TemporaryDirectory(prefix="cdi", dir="/dev/shm") as cdi,
    ):
        kubelet = SimKubelet(Path(directory), timings=Timings.fast())
        await kubelet.start()
        agent = AgentProcess(Path(directory), config, "bench.example.com", ("--cdi-dir", cdi))
        await agent.start()
        try:
            await kubelet.wait_for_resource(resource, healthy=healthy, timeout=20)
            yield agent, kubelet
        finally:
            await agent.stop()
            await kubelet.stop()


def _pid(agent: AgentProcess) -> int:
    assert agent.process is not None
    return agent.process.pid


def _ids(kubelet: SimKubelet, resource: str = RESOURCE) -> list[str]:
    return sorted(kubelet.resources[resource].healthy)


async def _allocate_times(agent: AgentProcess, ids: list[str]) -> list[tuple[float, float]]:
    """Seconds of Allocate and of an fsync before it, for each id, as a client in a process of its own sees them.

    The fsync is on the disk wherever the agent's state is: so kubelet keeps its checkpoint between two of its calls.
    """
    socket = next((agent.root / "device-plugins").glob("drabridge-*"))
    with tempfile.NamedTemporaryFile(prefix="probe", dir="/tmp") as probe:
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.allocate_client", str(socket), probe.name, *ids),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        )
        output, _ = await client.communicate()
    return [(allocate, fsync) for allocate, fsync in json.loads(output)]


async def _legacy_rss() -> float:
    async with node() as (agent, kubelet):
        await _allocate_times(agent, _ids(kubelet)[:20])
        await asyncio.sleep(1)
        return resident_mib(_pid(agent))


async def _start_to_register() -> float:
    times = []
    for _ in range(5):
        with tempfile.TemporaryDirectory(prefix="dra", dir="/tmp") as directory:
            kubelet = SimKubelet(Path(directory), timings=Timings.fast())
            await kubelet.start()
            agent = AgentProcess(Path(directory), CONFIG, "bench.example.com")
            started = time.monotonic()
            await agent.start()
            await until(lambda kubelet=kubelet: kubelet.calls.of("Register"), 20)  # type: ignore[misc]
            times.append(kubelet.calls.of("Register")[0].at - started)
            await kubelet.wait_for_resource(RESOURCE, timeout=20)
            await agent.stop()
            await kubelet.stop()
    return statistics.median(times)


async def _allocate_p50() -> float:
    """Without the disk: the state lies on a tmpfs. What the disk adds is ``durable_allocate_over_fsync_ms``."""
    return statistics.median([allocate for allocate, _ in await _of_three_agents("/dev/shm")]) * 1000


async def _durable_over_fsync() -> float:
    """On the disk, with an fsync of the same file system between every two calls."""
    return statistics.median([allocate - fsync for allocate, fsync in await _of_three_agents("/tmp")]) * 1000


async def _of_three_agents(base: str) -> list[tuple[float, float]]:
    """Every device of each is allocated once: a device that was allocated before takes another way."""
    times = []
    for _ in range(3):
        async with node(base=base) as (agent, kubelet):
            times += await _allocate_times(agent, _ids(kubelet))
    return times


async def _reregister() -> float:
    """p99 of 20 kubelet restarts: from the new kubelet.sock to Register answered."""
    async with node() as (_, kubelet):
        times = []
        for _ in range(20):
            before = len(kubelet.calls.of("Register"))
            await kubelet.restart()
            appeared = time.monotonic()
            await until(lambda before=before: len(kubelet.calls.of("Register")) > before, 10)  # type: ignore[misc]
            call = kubelet.calls.of("Register")[-1]
            await until(lambda call=call: call.seconds is not None, 10)  # type: ignore[misc]
            times.append(call.at + (call.seconds or 0) - appeared)
            await kubelet.wait_for_resource(RESOURCE, timeout=10)
        return max(times) * 1000


async def _uevent_to_list() -> float:
    """p99 of 40 hotplugs of a loop device: from the ioctl's return to kubelet having the new list. Root only."""
    if os.geteuid() != 0:
        raise PermissionError("loop devices need root")
    async with node(LOOP_CONFIG, LOOP, healthy=0) as (_, kubelet):
        times = []
        for round_number in range(40):
            plug = round_number % 2 == 0
            await asyncio.to_thread(_loop_control, plug)
            started = time.monotonic()
            await until_quick(lambda plug=plug: len(kubelet.resources[LOOP].healthy) == int(plug))  # type: ignore[misc]
            times.append(time.monotonic() - started)
            await asyncio.sleep(0.4)
        return sorted(times)[-1] * 1000


async def until_quick(condition: Callable[[], bool]) -> None:
    """As ``until``, but looks every 0.2 ms."""
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the list never changed")
        await asyncio.sleep(0.0002)


def _loop_control(plug: bool) -> None:
    descriptor = os.open("/dev/loop-control", os.O_RDWR)
    try:
        fcntl.ioctl(descriptor, 0x4C80 if plug else 0x4C81, LOOP_NUMBER)
    finally:
        os.close(descriptor)


async def _list_4096() -> float:
    """A list of 4,096 devices: from ``publish`` to the whole message read by the client."""

    class Plugin:
        resource = "bench.example.com/many"

        def __init__(self) -> None:
            self.list: DeviceList = Broadcast()

        def devices(self) -> DeviceList:
            return self.list

    plugin = Plugin()
    many = [ListedDevice(f"device-{n:04}-{'x' * 40}", numa_nodes=(n % 2,)) for n in range(4096)]
    plugin.list.publish(tuple(many[:1]))
    with tempfile.TemporaryDirectory(prefix="dra", dir="/tmp") as directory:
        server = PluginServer(plugin, directory=Path(directory), name="bench")
        task = asyncio.create_task(server.run())
        await until(lambda: list(Path(directory).glob("*.sock")))
        socket = next(Path(directory).glob("*.sock"))
        times = []
        options: list[tuple[str, Any]] = [("grpc.default_authority", "localhost")]
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
            call = pb_grpc.DevicePluginStub(channel).ListAndWatch(pb.Empty())
            await call.read()
            for n in range(10):
                started = time.perf_counter()
                plugin.list.publish((*many, ListedDevice(f"extra-{n}")))
                await call.read()
                times.append(time.perf_counter() - started)
            call.cancel()
        await server.stop()
        await task
        return statistics.median(times) * 1000


def _prefer_4096() -> float:
    """The hardest request of 4,096 ids: half of them, all different, on 64 NUMA nodes."""
    units = [Unit(f"x{i}", (i % 64, (i * 7) % 64), f"r{i}", f"g{i}", i) for i in range(4096)]
    available = [unit.id for unit in units]
    times = []
    for _ in range(7):
        started = time.perf_counter()
        prefer(units, available, available[:1], 2048)
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


async def _idle_cpu() -> float:
    """Processor time of an idle, registered agent over 20 s, in percent of one core."""
    async with node() as (agent, _):
        await asyncio.sleep(3)
        before = cpu_seconds(_pid(agent))
        started = time.monotonic()
        await asyncio.sleep(20)
        return 100 * (cpu_seconds(_pid(agent)) - before) / (time.monotonic() - started)


def benchmarks() -> list[Benchmark]:
    return [
        Benchmark("legacy_rss_mib", "MiB", 45, awaited(_legacy_rss)),
        Benchmark("start_to_register_s", "s", 0.6, awaited(_start_to_register)),
        Benchmark("allocate_p50_ms", "ms", 1.0, awaited(_allocate_p50)),
        Benchmark("durable_allocate_over_fsync_ms", "ms", 1.0, awaited(_durable_over_fsync)),
        Benchmark("reregister_ms", "ms", 50, awaited(_reregister)),
        Benchmark("uevent_to_list_p99_ms", "ms", 20, awaited(_uevent_to_list)),
        Benchmark("list_4096_ms", "ms", 60, awaited(_list_4096)),
        Benchmark("prefer_4096_ms", "ms", 50, _prefer_4096),
        Benchmark("idle_cpu_percent", "%", 0.3, awaited(_idle_cpu)),
    ]
