"""The phases that concern all nodes: with our agents' part that talks to the server, and with processes of Go."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from drabridge.kube.access import Access
from drabridge.kube.client import KubernetesCluster
from tests.bench.peers import programs
from tests.bench.processes import anonymous_mib, children, cpu_seconds
from tests.bench.real_api.server import GO, Server, serving, until
from tests.bench.real_api.tables import Phase
from tests.bench.scale import PODS_PER_NODE, ROLLING_AT_ONCE, ApiPart
from tests.support.dra_node import DRIVER


class Agent(Protocol):
    """One node's agent, or what is measured of it."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    @property
    def published(self) -> bool: ...


class GoHelper:
    """One ``dra-test-driver``, with directories of its own."""

    def __init__(self, root: Path, kubeconfig: Path, node: str, devices: int) -> None:
        self._root = root / node
        self._kubeconfig = kubeconfig
        self._node = node
        self._devices = devices
        self._process = contextlib.ExitStack()
        self._starts = 0
        self.socket = Path()

    @property
    def published(self) -> bool:
        """Whether it serves; it does not say what it has published."""
        return self.socket.exists()

    async def start(self) -> None:
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        self._starts += 1
        folder = self._root / str(self._starts)
        folder.mkdir(parents=True)
        self.socket = self._process.enter_context(
            programs.dra_test_driver(folder, self._kubeconfig, self._node, folder, self._devices)
        )

    async def stop(self) -> None:
        await asyncio.to_thread(self._process.close)


async def ours(nodes: int, devices: int, seconds: float) -> list[Phase]:
    """Measure our agents."""
    names = names_of(nodes)
    async with serving() as server:
        await server.add_nodes(names, PODS_PER_NODE)
        accesses = {name: await server.access(name, "drabridge") for name in names}
        agents = [ApiPart(partial(_connect, accesses[name]), name, devices) for name in names]

        def used() -> tuple[float, float]:
            return time.process_time(), anonymous_mib(os.getpid()) * 2**20

        return await _phases(server, DRIVER, names, agents, seconds, used)


def _connect(access: Access) -> KubernetesCluster:
    return KubernetesCluster(lambda: access)


async def go(nodes: int, devices: int, seconds: float) -> list[Phase]:
    """Measure as many processes of upstream's helper."""
    names = names_of(nodes)
    async with serving() as server:
        await server.add_nodes(names, PODS_PER_NODE)
        with tempfile.TemporaryDirectory(prefix="go") as directory:
            files = {name: await server.kubeconfig(name, GO) for name in names}
            agents = [GoHelper(Path(directory), files[name], name, devices) for name in names]

            def used() -> tuple[float, float]:
                found = [pid for pid, name in children(os.getpid()).items() if name.startswith("dra-test")]
                ended = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu = ended.ru_utime + ended.ru_stime + sum(cpu_seconds(pid) for pid in found)
                return cpu, sum(map(anonymous_mib, found)) * 2**20

            return await _phases(server, programs.DRIVER, names, agents, seconds, used)


async def _phases(
    server: Server,
    driver: str,
    names: Sequence[str],
    agents: Sequence[Agent],
    seconds: float,
    used: Callable[[], tuple[float, float]],
) -> list[Phase]:
    count = len(names)

    async def all_there() -> bool:
        """Whether each node has a slice that it did not have before the last wipe."""
        return len(await server.slices() - wiped) >= count

    wiped: set[str] = set()

    async def published(some: Sequence[Agent]) -> bool:
        return all(one.published for one in some)

    async def start() -> None:
        await asyncio.gather(*(one.start() for one in agents))
        await until(all_there, "every node's slices")

    async def roll() -> None:
        for first in range(0, count, ROLLING_AT_ONCE):
            batch = agents[first : first + ROLLING_AT_ONCE]
            await asyncio.gather(*(one.stop() for one in batch))
            await asyncio.gather(*(one.start() for one in batch))
            await until(partial(published, batch), "the batch's slices")
        await until(all_there, "every node's slices")

    async def wipe() -> None:
        wiped.update(await server.slices())
        for first in range(0, count, ROLLING_AT_ONCE):
            await server.wipe(driver, names[first : first + ROLLING_AT_ONCE])
        await until(all_there, "every node's slices")

    async def measured(name: str, work: Callable[[], Awaitable[None]], rest: float) -> Phase:
        cpu, memory = used()
        phase = await server.phase(name, count, work, rest=rest)
        now, more = used()
        return phase.of_agent(max(0.0, now - cpu) / count, (more - memory) / count)

    await server.learn_rest(10)
    try:
        found = [await measured("start of all at once", start, 6)]
        await asyncio.sleep(5)
        found.append((await measured("idle minute", lambda: asyncio.sleep(seconds), 0)).times(60 / seconds))
        found.append(await measured(f"rollout of the agent, {ROLLING_AT_ONCE} at a time", roll, 6))
        found.append(await measured("rollout of kubelet", wipe, 6))
        return found
    finally:
        await asyncio.gather(*(one.stop() for one in agents))


def names_of(count: int) -> list[str]:
    """Return names of nodes."""
    return [f"node-{index:05d}" for index in range(count)]
