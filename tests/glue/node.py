"""A node of a simulated cluster with the agent in it: only its edges are replaced.

Everything of the agent runs that runs in production, with the simulated kubelet, scheduler and API server. Replaced are
hardware (a fixed list of devices), sockets (:mod:`tests.glue.memory_grpc`), HTTP (:mod:`tests.glue.api_connection`),
threads and the clock (:mod:`tests.glue.processes`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from drabridge.agent.endpoints import ControlRequests, Views
from drabridge.agent.main import Agent
from drabridge.agent.options import Options
from drabridge.config.schema import Config
from drabridge.inventory.event_source import EventKind, EventSource
from drabridge.inventory.identity import KnownIdentities
from drabridge.inventory.model import Device, Snapshot
from drabridge.ledger.lock import LedgerLockedError, Lock
from drabridge.ledger.model import Ledger
from drabridge.sim.apiserver.garbage_collector import collect
from drabridge.sim.cluster import ClusterNode, ClusterTimings, NodeTimings, SimCluster
from drabridge.sim.kubelet.timings import Timings
from drabridge.sim.scheduler.scheduler import SchedulerTimings
from tests.glue.api_connection import Connection, Trouble
from tests.glue.memory_grpc import Wire
from tests.glue.processes import EPOCH_SECONDS, PROCESS, Process
from tests.glue.truth import TrueRuntime

NODE = "node-a"
LOCK_LOOK_SECONDS = 0.02


class FixedInventory:
    """The devices that a story gives to its node. ``listed`` is the same for every agent of the node."""

    listed: tuple[Device, ...] = ()

    def __init__(self, config: Config, **_: Any) -> None:
        self.config = self.file = config
        self.current = Snapshot(0, complete=False)
        self.status = EventSource(EventKind.NONE, "devices of a story")
        self.notes = ()
        self.nvml_problem = ""
        self.health = self.cdi = self
        self._asleep = asyncio.Event()

    def reconfigure(self, config: Config) -> None:
        self.config = self.file = config

    def configs(self) -> list[Config]:
        return [self.config]

    def identities(self) -> KnownIdentities:
        return KnownIdentities()

    def released(self, names: Iterable[str]) -> None:
        """Nobody waits for a name."""

    def refresh(self) -> None:
        """There is nothing to look at."""

    def udev_device(self, name: str) -> None:
        return None

    def lookup(self, name: str) -> None:
        return None

    def resolve(self, device: Device) -> Device:
        return device

    async def confirm(self, names: Any) -> None:
        """No device has CDI devices of other programs."""

    async def run(self, on_snapshot: Callable[[Snapshot], None]) -> None:
        if not self.current.complete:
            self.current = Snapshot(1, self.listed)
            on_snapshot(self.current)
        await self._asleep.wait()


class _Watcher:
    """Wakes nobody, so what it watches is looked at now and then."""

    blind = True

    def subscribe(self, directory: Path, wake: Callable[[], None]) -> _Watcher:
        return self

    def refresh(self) -> None: ...

    def close(self) -> None: ...


class _Endpoints:
    """Keeps what the control socket would serve."""

    def __init__(self, views: Views, requests: ControlRequests, *_: Any) -> None:
        self.views, self.requests = views, requests
        AGENTS[PROCESS.get()] = self

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def beat(self) -> None: ...

    async def renew_control_socket(self) -> None: ...

    async def wait_for_port(self) -> None: ...


AGENTS: dict[Process, _Endpoints] = {}


class _Cluster(SimCluster):
    """The cluster without HTTP."""

    async def start(self) -> None:
        for name, kubelet in self.kubelets.items():
            await kubelet.start()
            node = ClusterNode(self.api.objects, self.api.faults, kubelet, self.timings.node)
            self._tasks.append(asyncio.create_task(node.run(), name=f"node {name}"))
        self._tasks.append(asyncio.create_task(self.scheduler.run(), name="scheduler"))
        self._tasks.append(asyncio.create_task(collect(self.api.objects), name="garbage collector"))


async def _wait_for_lock(directory: Path) -> Lock:
    """In place of a thread that waits in the kernel."""
    while True:
        with contextlib.suppress(LedgerLockedError):
            return Lock(directory)
        await asyncio.sleep(LOCK_LOOK_SECONDS)


class Node:
    """One node, from :meth:`open` to :meth:`close`."""

    def __init__(self, root: Path, config: str, devices: tuple[Device, ...], dice: random.Random) -> None:
        self._root = root
        self.dice = dice
        self.devices = devices
        self.trouble = Trouble(dice)
        self.wire = Wire(lambda: dice.uniform(0.0005, 0.002) + (dice.random() < 0.05) * dice.uniform(0.0, 0.1))
        self._config = root / "config.yaml"
        self._config.write_text(config)
        self._boot_id = root / "boot_id"
        self._boot_id.write_text("boot-1\n")
        timings = ClusterTimings(Timings(), SchedulerTimings(), NodeTimings(sync_seconds=0.2))
        self.runtime = TrueRuntime({one.name: one.root for one in devices})
        self.cluster = _Cluster(root, timings=timings, runtime=lambda _: self.runtime, seed=dice.getrandbits(32))
        self.runtime.objects = self.cluster.api.objects
        self.kubelet = self.cluster.kubelets[NODE]
        self.agents: list[tuple[Process, asyncio.Task[None]]] = []  # the oldest first
        self._stack = contextlib.ExitStack()

    async def open(self) -> None:
        """Start the cluster, no agent yet."""
        FixedInventory.listed = self.devices
        self._stack.enter_context(self.wire.in_place())
        self._stack.enter_context(self._edges())
        await self.cluster.start()

    async def close(self) -> None:
        while self.agents:
            await self.kill_agent()
        await self.cluster.stop()
        self._stack.close()
        AGENTS.clear()

    @contextlib.contextmanager
    def _edges(self) -> Iterator[None]:
        def connect(*_: Any) -> Connection:
            return Connection(self.cluster.api.objects, self.trouble)

        with contextlib.ExitStack() as stack:
            for name, stand_in in (
                ("drabridge.kube.connection.connect", connect),
                ("drabridge.agent.standby.connect", connect),
                ("drabridge.agent.standby._wait_for_lock", _wait_for_lock),
                ("drabridge.agent.standby.Inventory", FixedInventory),
                ("drabridge.agent.standby.Watcher", _Watcher),
                ("drabridge.agent.components.Inventory", FixedInventory),
                ("drabridge.agent.components.Endpoints", _Endpoints),
                ("drabridge.agent.serving.release_memory_of_start", lambda: None),
                ("drabridge.legacy.manager.Watcher", _Watcher),
            ):
                stack.enter_context(patch(name, stand_in))
            yield

    # --- the agents

    def start_agent(self) -> None:
        """Start an agent; beside another one it is its standby."""
        process = Process(f"agent {len(self.agents)}")
        options = Options(
            self._config, NODE, self._root / NODE, cdi=self._root / "cdi", listen="", boot_id=self._boot_id
        )

        async def run() -> None:
            await Agent(options, now=lambda: EPOCH_SECONDS + asyncio.get_running_loop().time()).run()

        self.agents.append((process, process.start(run())))

    async def kill_agent(self) -> None:
        """End the oldest agent at once."""
        process, task = self.agents.pop(0)
        await process.kill()
        await asyncio.gather(task, return_exceptions=True)

    async def stop_agent(self) -> None:
        """Ask the oldest agent to end, and wait for it."""
        process, task = self.agents.pop(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await process.kill()

    @property
    def requests(self) -> ControlRequests | None:
        """The control requests of the agent that has the ledger."""
        found = [AGENTS[process] for process, _ in self.agents if process in AGENTS]
        return found[-1].requests if found else None

    async def ask(self, what: str, **body: Any) -> Mapping[str, Any]:
        """Send a control request. Raises DrabridgeError."""
        assert self.requests is not None
        answer: Mapping[str, Any] = await getattr(self.requests, what)(json.dumps(body).encode())
        return answer

    @property
    def ledger(self) -> Ledger:
        found = [AGENTS[process] for process, _ in self.agents if process in AGENTS]
        return found[-1].views.state().ledger if found else Ledger()

    def status(self) -> Mapping[str, Any]:
        found = [AGENTS[process] for process, _ in self.agents if process in AGENTS]
        return found[-1].views.document() if found else {}

    def faults(self) -> list[str]:
        """What ended a part of the cluster, or an agent that nobody ended."""
        over = [task for _, task in self.agents if task.done()]
        return [f"{task.get_name()} ended: {task.exception()!r}" for task in over if not task.cancelled()]
