"""A node of a simulated cluster with the agent in it: only its edges are replaced.

Everything of the agent runs that runs in production, with the simulated kubelet, scheduler and API server. Replaced are
hardware (a fixed list of devices), sockets (:mod:`tests.glue.memory_grpc`), HTTP (:mod:`tests.glue.api_connection`),
threads and the clock (:mod:`tests.glue.processes`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc.aio

from drabridge.agent.endpoints import Answer, Views
from drabridge.agent.main import Agent
from drabridge.agent.options import Options
from drabridge.config.schema import Config
from drabridge.coordinator.main import Coordinator
from drabridge.errors import DrabridgeError
from drabridge.inventory.devices import Device, Snapshot
from drabridge.inventory.event_source import EventKind, EventSource
from drabridge.inventory.identity import KnownIdentities
from drabridge.kube.claim_hints import LEASES, lock_name
from drabridge.kube.leader_election import Election
from drabridge.ledger.entries import Ledger
from drabridge.ledger.lock import LedgerLockedError, Lock
from drabridge.ledger.service import LedgerService
from drabridge.sim.apiserver.garbage_collector import collect
from drabridge.sim.cluster import ClusterNode, ClusterTimings, SimCluster
from drabridge.sim.kubelet.timings import Timings
from drabridge.sim.scheduler.scheduler import SchedulerTimings
from drabridge.system.port import Port
from tests.glue.api_connection import Connection, Trouble
from tests.glue.memory_grpc import Wire
from tests.glue.processes import PROCESS, Process
from tests.glue.truth import OF_ANOTHER_PLUGIN, Promises, TrueRuntime
from tests.glue.worlds import CONTROL, DRIVER, NODE, World
from tests.support.kubelet_peers import Plugin, device

LOCK_LOOK_SECONDS = 0.02
STOP_SECONDS = 3.0  # what the agent promises


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

    def __init__(self, views: Views, requests: Mapping[tuple[str, str], Answer], *_: Any) -> None:
        self.requests = requests
        self.service: LedgerService = requests["POST", "/drain"].__self__.ledger_service  # type: ignore[attr-defined]
        AGENTS[PROCESS.get()] = self
        self.service.subscribe(_Endpoints.ledger_changed)

    @staticmethod
    def ledger_changed(ledger: Ledger, effects: object) -> None:
        """The node of the story replaces it."""

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
            node = ClusterNode(self.api.objects, self.api.faults, kubelet, self.timings.sync_seconds)
            self._tasks.append(asyncio.create_task(node.run(), name=f"node {name}"))
        self._tasks.append(asyncio.create_task(self.scheduler.run(), name="scheduler"))
        self._tasks.append(asyncio.create_task(collect(self.api.objects), name="garbage collector"))


async def _wait_for_lock(directory: Path) -> Lock:
    """In place of a thread that waits in the kernel."""
    while True:
        with contextlib.suppress(LedgerLockedError):
            return Lock(directory)
        await asyncio.sleep(LOCK_LOOK_SECONDS)


class CompetingPlugin(Plugin):
    """Another plugin for a resource of ours. What it gives is its own affair: it asks no agent."""

    async def Allocate(self, request: Any, context: Any) -> Any:
        answer = await super().Allocate(request, context)
        for one in answer.container_responses:
            one.envs[OF_ANOTHER_PLUGIN] = "1"
        return answer


class Node:
    """One node, from :meth:`open` to :meth:`close`."""

    def __init__(self, root: Path, world: World, dice: random.Random) -> None:
        self.root = root
        self._world = world
        self.trouble = Trouble(dice)
        self.wire = Wire(lambda: dice.uniform(0.0005, 0.002) + (dice.random() < 0.05) * dice.uniform(0.0, 0.1))
        self._config = root / "config.yaml"
        self._config.write_text(world.config)
        self._boot_id = root / "boot_id"
        self._boot_id.write_text("boot-1\n")
        patience = dice.choice((8.0, 40.0, 600.0))  # bindingTimeout of the scheduler's configuration; 600 by default
        scheduler = SchedulerTimings(binding_timeout_seconds=patience, binding_poll_seconds=dice.choice((1.0, 5.0)))
        timings = ClusterTimings(Timings(), scheduler, sync_seconds=0.2)
        self.runtime = TrueRuntime({one.name: one.root for one in world.devices}, shareable=world.shareable)
        self.cluster = _Cluster(root, timings=timings, runtime=lambda _: self.runtime, seed=dice.getrandbits(32))
        self.runtime.objects = self.cluster.api.objects
        self.kubelet = self.cluster.kubelets[NODE]
        self.promises = Promises(self.cluster.api.objects, self.kubelet)
        self.agents: list[tuple[Process, asyncio.Task[None]]] = []  # the oldest first
        self._coordinator: Process | None = None
        self._plugin: CompetingPlugin | None = None
        self._stops: dict[Process, Callable[[], None]] = {}
        self._stack = contextlib.ExitStack()

    async def open(self) -> None:
        """Start the cluster, no agent yet."""
        FixedInventory.listed = self._world.devices
        self._stack.enter_context(self.wire.in_place())
        self._stack.enter_context(self._edges())
        await self.cluster.start()

    async def close(self) -> None:
        while self.agents:
            await self.kill_agent()
        await self.kill_coordinator()
        await self.stop_plugin()
        await self.cluster.stop()
        self._stack.close()
        AGENTS.clear()

    @contextlib.contextmanager
    def _edges(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name, stand_in in (
                ("drabridge.kube.connection.connect", self._connect),
                ("drabridge.agent.standby.connect", self._connect),
                ("drabridge.agent.standby._wait_for_lock", _wait_for_lock),
                ("drabridge.agent.standby.Inventory", FixedInventory),
                ("drabridge.agent.standby.Watcher", _Watcher),
                ("drabridge.agent.components.Inventory", FixedInventory),
                ("drabridge.agent.components.Endpoints", _Endpoints),
                ("drabridge.agent.serving.release_memory_of_start", lambda: None),
                ("drabridge.legacy.manager.Watcher", _Watcher),
                ("drabridge.coordinator.main.lead", _lead),
                ("tests.glue.node._Endpoints.ledger_changed", self.promises.ledger_changed),
            ):
                stack.enter_context(patch(name, stand_in))
            yield

    # --- another plugin

    async def start_plugin(self, resource: str, ids: Iterable[str]) -> None:
        """Register another plugin for a resource, with these ids, unless one runs or kubelet is away."""
        if self._plugin is not None or not self.kubelet.is_running:
            return
        self._plugin = plugin = CompetingPlugin(self.root / NODE, "vendor.sock", map(device, ids), resource)
        self.promises.theirs = {(resource, one) for one in ids}
        await plugin.serve()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await plugin.register()

    async def stop_plugin(self) -> None:
        if self._plugin is not None:
            plugin, self._plugin = self._plugin, None
            await plugin.stop()

    # --- the agents

    def start_agent(self) -> None:
        """Start an agent; beside another one it is its standby."""
        process = Process(f"agent {len(self.agents)}")
        options = Options(self._config, NODE, self.root / NODE, cdi=self.root / "cdi", listen="", boot_id=self._boot_id)

        async def run() -> None:
            agent = Agent(options, now=time.time)
            self._stops[process] = agent.stop
            await agent.run()

        self.agents.append((process, process.start(run())))

    async def kill_agent(self) -> None:
        """End the oldest agent at once."""
        process, task = self.agents.pop(0)
        await process.kill()
        await asyncio.gather(task, return_exceptions=True)

    async def stop_agent(self) -> None:
        """Ask the oldest agent to end, and wait for it."""
        process, task = self.agents.pop(0)
        self._stops[process]()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await task
        finally:
            await process.kill()

    # --- the coordinator

    def start_coordinator(self) -> None:
        self._coordinator = process = Process("coordinator")
        connections: Any = (self._connect(), self._connect())

        async def run() -> None:
            election = Election(lock_name(DRIVER), CONTROL, "the only one")
            await Coordinator(connections, DRIVER, election, lambda: connections[0], Port("")).run()

        process.start(run())

    async def kill_coordinator(self) -> None:
        if self._coordinator is not None:
            await self._coordinator.kill()

    def _connect(self, *_: Any) -> Connection:
        return Connection(self.cluster.api.objects, self.trouble)

    # --- what the agent that has the ledger says

    @property
    def _serving(self) -> _Endpoints | None:
        found = [AGENTS[process] for process, _ in self.agents if process in AGENTS]
        return found[-1] if found else None

    @property
    def serves(self) -> bool:
        """Whether an agent has the ledger."""
        return self._serving is not None

    async def ask(self, what: str, **body: Any) -> None:
        """Send a control request, if an agent has the ledger. Raises DrabridgeError."""
        if self._serving is not None:
            await self._serving.requests["POST", f"/{what}"](json.dumps(body).encode())

    @property
    def service(self) -> LedgerService:
        """The ledger's service of the agent that has it."""
        assert self._serving is not None
        return self._serving.service

    @property
    def ledger(self) -> Ledger:
        return self._serving.service.ledger if self._serving is not None else Ledger()

    def faults(self) -> list[str]:
        """What ended an agent that nobody ended."""
        over = [task for _, task in self.agents if task.done()]
        return [f"{task.get_name()} ended: {task.exception()!r}" for task in over if not task.cancelled()]


async def _lead(
    election: Election, load: Callable[[], Any], started: Callable[[], None], healthy: Any, heard: Callable[[], None]
) -> None:
    """In place of the client library's election: there is one coordinator, and it renews its Lease."""
    body: dict[str, Any] = {"metadata": {"name": election.name, "namespace": election.namespace}}
    leads = False
    for turn in itertools.count():
        with contextlib.suppress(DrabridgeError):
            spec = {"holderIdentity": election.identity, "renewTime": str(turn)}
            await load().apply(LEASES, {**body, "spec": spec}, manager="election", namespace=election.namespace)
            heard()
            if not leads:
                leads = True
                started()
        await asyncio.sleep(election.retry_seconds)
