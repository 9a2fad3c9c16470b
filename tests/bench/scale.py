"""``python -m tests.bench.scale``: what many agents cost an API server, counted by the simulated one.

Each node runs the part of the agent that talks to the API server (discovery, slices, its Node, its pods) with the real
client over HTTP; sockets, ledger and hardware are left out. The phases are those that hit a server with all nodes at
once. A request of one node is about that node alone, so more nodes are a multiplication; the table says which is which.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from drabridge.dra.publisher import Publisher
from drabridge.evidence.apiserver_pods import PodWatch
from drabridge.inventory.devices import PCI_BUS_ID, PCIE_ROOT, Semver
from drabridge.kube.client import KubernetesCluster
from drabridge.kube.node_annotation import NodeAnnotationWatch
from drabridge.kube.versions import RESOURCE_GROUP, choose_version
from drabridge.offers.slices import Offer, Pool, desired_slices
from drabridge.sim.apiserver.server import SimApiServer
from tests.support.dra_node import DRIVER, DraNode, add_node, gpu
from tests.support.waiting import short_directory, until

CLUSTER_NODES = 5000
ROLLING_AT_ONCE = 20  # restarts at a time; a DaemonSet's maxUnavailable of 10 % at the default 200 nodes
PODS_PER_NODE = 10
POD_BYTES = 4000  # what a pod with its status and managed fields has; most of it does not matter to the agent
WATCHES = 3  # slices, the Node, its pods; a phase is over only when each node has begun that many
WAIT_SECONDS = 60.0


class ApiPart:
    """The requests of one node's agent."""

    def __init__(self, connect: Callable[[], KubernetesCluster], node: str, devices: int) -> None:
        self._connect = connect
        self._node = node
        self._devices = devices
        self._tasks: list[asyncio.Task[None]] = []
        self._cluster: KubernetesCluster | None = None
        self._publisher: Publisher | None = None

    @property
    def published(self) -> bool:
        return self._publisher is not None and self._publisher.state.published

    async def start(self) -> None:
        cluster = self._cluster = self._connect()
        group = await cluster.read(f"/apis/{RESOURCE_GROUP}")
        version = choose_version([entry["version"] for entry in group["versions"]])
        assert version is not None
        attributes = {"productName": "NVIDIA H200", "driverVersion": Semver("580.95.5"), "uuid": "GPU-0123456789abcdef"}
        one = {"attributes": attributes, "capacity": {"memory": 141 * 2**30}}
        places = [{PCI_BUS_ID: f"0000:{i:02x}:00.0", PCIE_ROOT: "pci0000:00"} for i in range(self._devices)]
        offers = tuple(Offer(gpu(index, standard=place, **one)) for index, place in enumerate(places))
        self._publisher = Publisher(
            cluster,
            version,
            driver=DRIVER,
            node=self._node,
            pool=self._node,
            desired=lambda features: desired_slices(Pool(DRIVER, self._node, offers), features),
            observer=lambda fact: None,
            on_synced=lambda: None,
            on_features=lambda: None,
        )
        work = (
            self._publisher.run(),
            NodeAnnotationWatch(cluster, self._node, DRIVER, lambda value: None).run(),
            PodWatch(cluster, self._node, lambda: None).run(),
        )
        self._tasks = [asyncio.create_task(one) for one in work]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._cluster is not None:
            self._cluster.close()
        self._publisher = None


@dataclass(frozen=True, slots=True)
class Count:
    """What a server has seen since it began."""

    writes: int = 0
    reads: int = 0
    watches: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    events: int = 0

    @classmethod
    def of(cls, api: SimApiServer) -> Count:
        kinds = Counter("write" if r.is_write else "watch" if r.verb == "watch" else "read" for r in api.requests)
        return cls(
            kinds["write"],
            kinds["read"],
            kinds["watch"],
            sum(r.received_bytes for r in api.requests),
            sum(r.sent_bytes for r in api.requests),
            sum(r.events for r in api.requests),
        )

    def __sub__(self, other: Count) -> Count:
        return Count(*(getattr(self, name) - getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Phase:
    """A row of the table; ``per`` is how many nodes, or claims, it is about."""

    name: str
    seconds: float
    per: int
    count: Count
    verbs: Counter[str]


async def measured(name: str, api: SimApiServer, per: int, work: Callable[[], Awaitable[None]]) -> Phase:
    print(f"{name} ...", file=sys.stderr, flush=True)
    before, first, began = Count.of(api), len(api.requests), time.monotonic()
    await work()
    await asyncio.sleep(0.5)  # what was answered late
    verbs = Counter(f"{r.verb} {r.resource or r.path}" for r in api.requests[first:])
    return Phase(name, time.monotonic() - began, per, Count.of(api) - before, verbs)


def populate(api: SimApiServer, nodes: Iterable[str]) -> None:
    """Nodes, each with some pods that have nothing to do with devices."""
    for node in nodes:
        add_node(api, node)
        for index in range(PODS_PER_NODE):
            meta = {"name": f"{node}-{index}", "namespace": "default", "annotations": {"padding": "x" * POD_BYTES}}
            spec = {"nodeName": node, "containers": [{"name": "main", "image": "x"}]}
            api.objects.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}, namespace="default")


async def cluster_phases(nodes: int, devices: int, seconds: float) -> list[Phase]:
    """The phases that concern all nodes."""
    names = [f"node-{index:05d}" for index in range(nodes)]
    with tempfile.TemporaryDirectory() as directory:
        async with SimApiServer() as api:
            populate(api, names)
            connect = partial(KubernetesCluster.from_kubeconfig, api.kubeconfig(Path(directory, "kubeconfig")))
            parts = [ApiPart(connect, name, devices) for name in names]
            slices = -(-devices // 64)

            async def settled() -> None:
                await until(lambda: all(part.published for part in parts), WAIT_SECONDS, "every node to publish")
                await until(
                    lambda: len(api.objects.peek("resourceslices")) == nodes * slices, WAIT_SECONDS, "every slice"
                )
                begun = WATCHES * nodes * generations
                await until(lambda: sum(r.verb == "watch" for r in api.requests) >= begun, WAIT_SECONDS, "every watch")

            generations = 1

            async def start() -> None:
                await asyncio.gather(*(part.start() for part in parts))
                await settled()

            async def roll() -> None:
                nonlocal generations
                generations = 2
                for first in range(0, nodes, ROLLING_AT_ONCE):
                    batch = parts[first : first + ROLLING_AT_ONCE]
                    await asyncio.gather(*(part.stop() for part in batch))
                    await asyncio.gather(*(part.start() for part in batch))
                await settled()

            async def wipe() -> None:
                for one in list(api.objects.peek("resourceslices")):
                    api.objects.delete("resourceslices", one["metadata"]["name"])
                await settled()

            try:
                found = [
                    await measured("start", api, nodes, start),
                    await measured("idle minute", api, nodes, lambda: asyncio.sleep(seconds)),
                    await measured("rolling update", api, nodes, roll),
                    await measured("kubelet upgrade", api, nodes, wipe),
                ]
            finally:
                await asyncio.gather(*(part.stop() for part in parts))
    return found


def has_status(node: DraNode, claim: str) -> bool:
    return bool(node.claims.get(claim)["status"].get("devices"))


async def claim_phase(claims: int) -> Phase:
    """Prepare and unprepare, with the claim's status and the question whether it was deallocated."""
    with short_directory() as root:
        async with SimApiServer() as api:
            add_node(api)
            node = DraNode(root, api)
            await node.start()
            await until(lambda: node.driver.state.publisher.published, why="slices")

            async def work() -> None:
                for index in range(claims):
                    claim = node.claims.add(f"cl{index}", "gpu-0")
                    await node.prepared(claim)
                    await until(partial(has_status, node, f"cl{index}"), why="status")
                    await node.unprepare(claim)
                    node.claims.delete(f"cl{index}")
                    await until(lambda: not node.ledger_service.ledger.by_claim, why="the release")

            try:
                return await measured("claim", api, claims, work)
            finally:
                await node.stop()


def report(phases: list[Phase], claim: Phase, nodes: int) -> str:
    """Two tables in Markdown: as measured, and multiplied."""
    lines = [
        f"Measured with {nodes} nodes:",
        "",
        "| phase | per | writes | reads | watches begun | KiB in | KiB out | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for phase in (*phases, claim):
        c, n = phase.count, phase.per
        numbers = (c.writes / n, c.reads / n, c.watches / n, c.bytes_in / n / 1024, c.bytes_out / n / 1024)
        row = " | ".join(f"{number:.2f}" for number in numbers)
        lines.append(f"| {phase.name} | {'claim' if phase is claim else 'node'} | {row} | {phase.seconds:.1f} |")
    lines += [
        "",
        f"Multiplied to {CLUSTER_NODES} nodes ({WATCHES} open watches each):",
        "",
        "| phase | writes | reads | MiB in | MiB out | open watches |",
        "|---|---|---|---|---|---|",
    ]
    factor = CLUSTER_NODES / nodes
    for phase in phases:
        c = phase.count
        lines.append(
            f"| {phase.name} | {c.writes * factor:,.0f} | {c.reads * factor:,.0f} | {c.bytes_in * factor / 2**20:.1f} "
            f"| {c.bytes_out * factor / 2**20:.1f} | {WATCHES * CLUSTER_NODES:,} |"
        )
    lines += ["", "Requests of each phase:"]
    lines += [
        f"- {p.name}: {', '.join(f'{n} x {verb}' for verb, n in p.verbs.most_common())}" for p in (*phases, claim)
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.scale",
        description="Count what many agents ask of one (simulated) API server, and multiply it.",
        epilog="example: python -m tests.bench.scale --nodes 200 --devices 8",
    )
    parser.add_argument("--nodes", type=int, default=200, help="how many agents to run (threads: four each)")
    parser.add_argument("--devices", type=int, default=8, help="devices of a node")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to watch them do nothing")
    parser.add_argument("--claims", type=int, default=20, help="how many claims to prepare and unprepare")
    parser.add_argument("--real", action="store_true", help="measure a real API server beside Kubernetes' Go helper")
    parser.add_argument("--parts", default="ours,go,claims,large", help="with --real: what to measure anew")
    parser.add_argument("--sizes", default="50,100,200", help="with --real: how many agents, one after the other")
    arguments = parser.parse_args()
    if arguments.real:
        from tests.bench.real_api import command

        sizes = [int(size) for size in arguments.sizes.split(",")]
        print(command.run(arguments.parts.split(","), sizes, arguments.nodes, arguments.devices, arguments.seconds))
        return 0
    gc.freeze()
    phases = asyncio.run(cluster_phases(arguments.nodes, arguments.devices, arguments.seconds))
    idle = replace(phases[1], count=_scaled(phases[1].count, 60.0 / arguments.seconds))
    claim = asyncio.run(claim_phase(arguments.claims))
    print(report([phases[0], idle, *phases[2:]], claim, arguments.nodes))
    return 0


def _scaled(count: Count, factor: float) -> Count:
    return Count(*(round(getattr(count, name) * factor) for name in Count.__slots__))


if __name__ == "__main__":
    sys.exit(main())
