"""Kubelet's calls on the wire: Allocate beside ``sample-device-plugin``, claims beside ``dra-test-driver``.

Ours does what it does on a node: every grant is on the disk before its answer. The sample plugin writes nothing of what
it allocates. Both drivers read each claim from one real API server over TLS and write its CDI file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path

from deviceplugin.wire import v1beta1_pb2 as pb
from drabridge.kube.client import KubernetesCluster
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.timings import Timings
from drabridge.wire import dra_v1_pb2
from tests.bench.core import Benchmark
from tests.bench.dra import TTYS
from tests.bench.legacy import node
from tests.bench.peers import programs
from tests.bench.peers.api_server import api_server
from tests.cluster.bed import CLAIMS, NODES, SLICES
from tests.support.agent_process import AgentProcess
from tests.support.waiting import until

AGENTS = 3  # each device of each is given once: what was given before takes another way
PAUSE_SECONDS = 0.005  # between two calls: the log line of the one before is written by then
CLAIM_PAUSE_SECONDS = 0.03  # and the claim's status
ALLOCATE = "/v1beta1.DevicePlugin/Allocate"
OPTIONS = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
PREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
UNPREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources"
DRIVER = "bench.example.com"
NODE = "node-a"
NAMESPACE = "default"
OURS, GO = "ours", "Go"
# The floor: see floor_server.py.
NOTHING, FSYNC, THREAD = "grpc.aio alone", "grpc.aio and an fsync", "grpc.aio and an fsync in a thread"

Times = dict[str, list[float]]
Rounds = list[list[tuple[str, bytes]]]


async def in_turns(
    servers: dict[str, tuple[Path, str]],
    rounds: Rounds,
    *,
    pause: float,
    warm: dict[str, str],
    check: Callable[[bytes], None],
) -> Times:
    """Seconds of each call of ``rounds``, by server; ``check`` raises for an answer that refuses."""
    with tempfile.NamedTemporaryFile(prefix="probe", dir="/tmp") as probe:
        asked = {
            "probe": probe.name,
            "pause": pause,
            "warm": warm,
            "servers": {name: (str(socket), method) for name, (socket, method) in servers.items()},
            "rounds": [[(name, message.hex()) for name, message in calls] for calls in rounds],
        }
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.peers.turns"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        )
        output, _ = await client.communicate(json.dumps(asked).encode())
    times: Times = {}
    for name, calls in json.loads(output).items():
        for _, answer in calls:
            check(bytes.fromhex(answer))
        times[name] = [seconds for seconds, _ in calls]
    return times


def ratio(times: Times) -> float:
    """Our median as a multiple of the other one."""
    return statistics.median(times[OURS]) / statistics.median(times[GO])


def _merge(all_times: Times, more: Times) -> None:
    for name, times in more.items():
        all_times.setdefault(name, []).extend(times)


# --- Allocate


def _allocate(device_id: str) -> bytes:
    container = pb.ContainerAllocateRequest(devices_ids=[device_id])
    return pb.AllocateRequest(container_requests=[container]).SerializeToString()


def _allocated(answer: bytes) -> None:
    assert len(pb.AllocateResponse.FromString(answer).container_responses) == 1


async def allocate_times(*, floors: bool = False) -> Times:
    """Seconds of Allocate; our state is on the disk of /tmp. ``floors``: also of servers that do next to nothing."""
    programs.find("sample-device-plugin")
    found: Times = {}
    for _ in range(AGENTS):
        with tempfile.TemporaryDirectory(prefix="dra", dir="/tmp") as directory:
            async with node(base="/tmp") as (agent, kubelet):
                root, ours = Path(directory), next((agent.root / "device-plugins").glob("drabridge-*"))
                ids = sorted(next(iter(kubelet.resources.values())).healthy)
                with contextlib.ExitStack() as stack:
                    sockets = {OURS: ours, GO: stack.enter_context(programs.sample_device_plugin(root))}
                    if floors:
                        sockets[NOTHING] = stack.enter_context(_floor(root / "nothing.sock"))
                        sockets[FSYNC] = stack.enter_context(_floor(root / "fsync.sock", str(root / "file")))
                        words = str(root / "other"), "thread"
                        sockets[THREAD] = stack.enter_context(_floor(root / "thread.sock", *words))
                    other = _allocate(programs.DEVICES[0])
                    rounds = [[(name, _allocate(one) if name == OURS else other) for name in sockets] for one in ids]
                    servers = {name: (socket, ALLOCATE) for name, socket in sockets.items()}
                    warm = dict.fromkeys(servers, OPTIONS)
                    times = await in_turns(servers, rounds, pause=PAUSE_SECONDS, warm=warm, check=_allocated)
        _merge(found, times)
    return found


@contextlib.contextmanager
def _floor(socket: Path, *words: str) -> Iterator[Path]:
    log = socket.with_suffix(".log")
    with programs.running([sys.executable, "-m", "tests.bench.peers.floor_server", socket, *words], log):
        yield programs.wait_for(lambda: socket if socket.exists() else None, log)


# --- Prepare and unprepare


def _prepared(answer: bytes) -> None:
    claims = dra_v1_pb2.NodePrepareResourcesResponse.FromString(answer).claims
    assert claims, "an answer without a claim"
    for claim in claims.values():
        assert claim.devices, claim.error


def _unprepared(answer: bytes) -> None:
    claims = dra_v1_pb2.NodeUnprepareResourcesResponse.FromString(answer).claims
    assert [claim.error for claim in claims.values()] == [""]


async def _allocated_claim(api: KubernetesCluster, name: str, driver: str, device: str) -> dra_v1_pb2.Claim:
    """A claim as the scheduler leaves it."""
    spec = {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "none"}}]}}
    metadata = {"name": name, "namespace": NAMESPACE}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    made = await api.create(CLAIMS, {**head, "metadata": metadata, "spec": spec}, namespace=NAMESPACE)
    result = {"request": "one", "driver": driver, "pool": NODE, "device": device}
    body = {**head, "metadata": metadata, "status": {"allocation": {"devices": {"results": [result]}}}}
    await api.apply(CLAIMS, body, manager="scheduler", namespace=NAMESPACE, subresource="status")
    return dra_v1_pb2.Claim(namespace=NAMESPACE, name=name, uid=made["metadata"]["uid"])


async def _devices(api: KubernetesCluster, driver: str) -> list[str]:
    slices = (await api.list(SLICES, field_selector=f"spec.driver={driver}")).items
    return sorted(device["name"] for one in slices for device in one["spec"].get("devices", ()))


@contextlib.asynccontextmanager
async def _our_driver(directory: Path, kubeconfig: Path, cdi: Path) -> AsyncIterator[Path]:
    """The socket of an agent that offers this machine's virtual consoles to claims."""
    kubelet = SimKubelet(directory, timings=Timings.fast())
    await kubelet.start()
    agent = AgentProcess(directory, TTYS, DRIVER, ("--kubeconfig", str(kubeconfig), "--cdi-dir", str(cdi)))
    await agent.start()
    try:
        await agent.ready()
        yield next((directory / "plugins" / DRIVER).glob("dra*.sock"))
    finally:
        await agent.stop()
        await kubelet.stop()


async def claim_times() -> tuple[Times, Times]:
    """Seconds of NodePrepareResources and of NodeUnprepareResources for one claim each."""
    prepare: Times = {}
    unprepare: Times = {}
    with (
        tempfile.TemporaryDirectory(prefix="dra", dir="/tmp") as directory,
        api_server(Path(directory)) as kubeconfig,
    ):
        api = KubernetesCluster.from_kubeconfig(kubeconfig)
        try:
            await api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
            for _ in range(AGENTS):
                first, second = await _claims_of_one_agent(api, kubeconfig)
                _merge(prepare, first)
                _merge(unprepare, second)
        finally:
            api.close()
    return prepare, unprepare


async def _claims_of_one_agent(api: KubernetesCluster, kubeconfig: Path) -> tuple[Times, Times]:
    with (
        tempfile.TemporaryDirectory(prefix="dra", dir="/tmp") as directory,
        tempfile.TemporaryDirectory(prefix="cdi", dir="/dev/shm") as cdi,  # /var/run/cdi is a tmpfs, too
    ):
        root = Path(directory)
        async with _our_driver(root, kubeconfig, Path(cdi)) as ours:
            await until(lambda: _devices(api, DRIVER), 30, "our slices")
            devices = await _devices(api, DRIVER)
            with programs.dra_test_driver(root, kubeconfig, NODE, Path(cdi), len(devices)) as go:
                await until(lambda: _devices(api, programs.DRIVER), 30, "the test driver's slices")
                rounds: Rounds = []
                names = {OURS: (DRIVER, devices), GO: (programs.DRIVER, await _devices(api, programs.DRIVER))}
                for index in range(len(devices)):
                    calls = []
                    for name, (driver, known) in names.items():
                        claim = await _allocated_claim(api, f"claim-{uuid.uuid4()}", driver, known[index % len(known)])
                        # Both messages have the claims in the same field.
                        calls.append((name, dra_v1_pb2.NodePrepareResourcesRequest(claims=[claim]).SerializeToString()))
                    rounds.append(calls)
                found = []
                for method, check in ((PREPARE, _prepared), (UNPREPARE, _unprepared)):
                    servers = {OURS: (ours, method), GO: (go, method)}
                    found.append(await in_turns(servers, rounds, pause=CLAIM_PAUSE_SECONDS, warm={}, check=check))
                return found[0], found[1]


# --- The benchmarks


@cache
def claims_measured() -> tuple[Times, Times]:
    return asyncio.run(claim_times())


def _allocate_ratio() -> float:
    return ratio(asyncio.run(allocate_times()))


def benchmarks() -> list[Benchmark]:
    return [
        Benchmark("allocate_ratio_to_go", "x", 4, _allocate_ratio),
        Benchmark("prepare_ratio_to_go", "x", 3, lambda: ratio(claims_measured()[0])),
        Benchmark("unprepare_ratio_to_go", "x", 5, lambda: ratio(claims_measured()[1])),
    ]


def lines(what: str, times: Times) -> Iterator[str]:
    """What stands behind a ratio, for people: one line for each program."""
    for name, seconds in times.items():
        ordered = sorted(one * 1000 for one in seconds)
        yield (
            f"{what}, {name}: {len(ordered)} calls, median {statistics.median(ordered):.3f} ms, "
            f"fastest {ordered[0]:.3f} ms, p90 {ordered[int(len(ordered) * 0.9)]:.3f} ms; "
            f"{statistics.median(seconds) / statistics.median(times[GO]):.2f} x {GO}"
        )
