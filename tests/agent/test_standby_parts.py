"""What a standby has ready and hands over, on this machine's devices: one in this process, beside a ledger's lock."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec.structs import replace

from drabridge.agent import standby
from drabridge.agent.options import Options
from drabridge.agent.standby import Standby
from drabridge.agent.standby_sockets import standbys
from drabridge.config.loader import load
from drabridge.config.schema import Config
from drabridge.inventory.identity import KnownIdentities
from drabridge.inventory.identity_store import IdentityStore
from drabridge.inventory.inventory import Inventory
from drabridge.inventory.observer import EventSeen, Fact, Reconciled, SourceChanged
from drabridge.ledger.entries import Entry, Hold, Ledger, LedgerDevice, Owner
from drabridge.ledger.lock import LedgerLockedError, Lock
from drabridge.ledger.store import Store
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.system.io_thread import IoThread
from drabridge.system.paths import Paths
from drabridge.system.port import Port
from drabridge.wire import health_v1_pb2, health_v1_pb2_grpc
from tests.support.active_dra import Active
from tests.support.agent_process import CONFIG, IDS, fetch
from tests.support.standby import asked
from tests.support.waiting import short_directory, until

NODE = "node-a"


class Beside:
    """A standby, and the lock of the agent that serves."""

    def __init__(self, root: Path, api: SimApiServer | None) -> None:
        self.root = root
        self.config: Config = load(CONFIG)
        self.options = Options(
            root / "config.yaml",
            NODE,
            root,
            cdi=root / "cdi",
            cdi_specs=(root / "cdi",),
            kubeconfig=None if api is None else api.kubeconfig(root / "kubeconfig"),
        )
        self.paths = Paths.of(self.config.driver, kubelet=root, cdi=root / "cdi", cdi_specs=(root / "cdi",))
        self.paths.state.mkdir(parents=True)
        self.paths.device_plugins.mkdir()
        (root / "plugins_registry").mkdir()
        self.lock = Lock(self.paths.state)
        self.port = Port("127.0.0.1:0")
        self.snapshots = 0
        self.stop = asyncio.Event()
        self.standby: Standby
        self.waiting: asyncio.Task[Lock | None]

    def begin(self) -> None:
        self.standby = Standby(self.options, self.config, self.paths, self.port, self._snapshot)
        self.waiting = asyncio.create_task(self.standby.wait(self.stop))

    def _snapshot(self) -> None:
        self.snapshots += 1

    async def page(self, path: str) -> tuple[int, str]:
        status, _, body = await fetch(self.port.address, path)
        return status, body.decode()

    async def ready(self) -> bool:
        if self.waiting.done():
            self.waiting.result()  # what has failed
        return bool(self.port.address) and (await self.page("/readyz"))[0] == 200

    @property
    def sockets(self) -> list[Path]:
        return sorted(self.paths.state.glob("standby-*.sock"))


async def free_lock(directory: Path) -> Lock:
    """Take the lock that a standby which was told to end may get, and then gives back at once."""
    found: list[Lock] = []

    def taken() -> bool:
        with contextlib.suppress(LedgerLockedError):
            found.append(Lock(directory))
        return bool(found)

    await until(taken, 10, "the lock")
    return found[0]


@contextlib.asynccontextmanager
async def beside(api: SimApiServer | None = None) -> AsyncIterator[Beside]:
    with short_directory() as root:
        one = Beside(root, api)
        before = asyncio.all_tasks()
        try:
            yield one
        finally:
            one.stop.set()
            one.lock.close()
            with contextlib.suppress(asyncio.CancelledError):
                (lock,) = await asyncio.gather(one.waiting)
                if lock is not None:
                    lock.close()
            await one.standby.close()
            await one.port.close()
        assert one.sockets == []
        assert {task.get_name() for task in asyncio.all_tasks() - before} <= {"sim-connection"}


async def test_it_is_ready_once_it_knows_the_devices_and_refuses_what_it_does_not_know() -> None:
    async with beside() as one:
        one.begin()
        known = one.standby._inventory.identities()
        assert one.standby.inventory_for(one.config, known, lambda name: False, lambda fact: None) is None
        while not one.port.address:
            await one.ready()
            await asyncio.sleep(0)
        status, text = await one.page("/readyz")
        if status != 200:
            assert status == 503
            assert text.startswith(f"not ready: {one.standby.words}; ")
        await until(one.ready, 30, "the devices")
        assert one.snapshots
        for path in ("/readyz", "/"):
            assert await one.page(path) == (200, f"{one.standby.words}\n")
        assert (await one.page("/healthz")) == (200, "ok\n")
        assert "\ndrabridge_standby 1.0\n" in (await one.page("/metrics"))[1]
        headers = {name.lower(): value for name, value in (await fetch(one.port.address, "/metrics"))[1].items()}
        assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        (control,) = one.sockets
        code, text = await asked(control, "/status")
        assert (code, one.standby.words in json.loads(text)["error"]) == (409, True)
        assert (await asked(control, "/metrics"))[0] == 200
        assert not one.waiting.done()


async def test_it_is_not_ready_while_it_looks_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    may_look, look = asyncio.Event(), Inventory.run

    async def late(self: Inventory, on_snapshot: Any) -> None:
        await may_look.wait()
        await look(self, on_snapshot)

    monkeypatch.setattr(Inventory, "run", late)
    async with beside() as one:
        one.begin()
        await until(lambda: one.sockets and one.port.address, 30, "its sockets")
        await asyncio.sleep(0.2)
        assert (await one.page("/readyz"))[0] == 503
        may_look.set()
        await until(one.ready, 30, "the devices")


async def test_a_dead_standby_s_socket_is_removed_and_a_live_one_s_stays() -> None:
    async with beside() as one:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(one.paths.state / "standby-dead.sock"))
        with socket.socket(socket.AF_UNIX) as live:
            live.bind(str(one.paths.state / "standby-live.sock"))
            live.listen()
            assert standbys(one.paths.state) == ["standby-live.sock"]
            one.begin()
            await until(one.ready, 30, "the devices")
            names = {path.name for path in one.sockets}
            assert "standby-live.sock" in names
            assert len(names) == 2
            assert "standby-dead.sock" not in names
        (one.paths.state / "standby-live.sock").unlink()


async def test_it_waits_for_the_lock_and_hands_over_what_it_found() -> None:
    async with beside() as one:
        one.begin()
        await until(one.ready, 30, "the devices")
        assert not one.waiting.done()
        one.lock.close()
        lock = await asyncio.wait_for(one.waiting, 10)
        assert lock is not None
        facts: list[Fact] = []
        uevent = EventSeen("udev", "mem", "add")
        one.standby._take_fact(uevent)
        known, inventory_for = one.standby._inventory.identities(), one.standby.inventory_for
        assert inventory_for(replace(one.config), known, lambda name: False, facts.append) is None
        assert inventory_for(one.config, KnownIdentities(), lambda name: False, facts.append) is None
        assert facts == []
        inventory = inventory_for(one.config, known, lambda name: name == "zero", facts.append)
        assert inventory is not None
        assert {type(fact) for fact in facts} == {Reconciled, SourceChanged}
        assert {device.name for device in inventory.current.devices} == set(IDS)
        assert uevent not in facts, "it was counted when it came"
        told = len(facts)
        inventory.refresh()
        await until(lambda: len(facts) > told, 10, "a new look")
        assert one.standby._held("zero")
        assert one.standby.take_inventory_task(object()) is None  # type: ignore[arg-type]
        task = one.standby.take_inventory_task(inventory)
        assert task is not None
        await one.standby.step_aside()
        assert one.sockets == []
        assert not task.done(), "it goes on for the agent"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(one.standby.retire_relay(object()), 10)  # type: ignore[arg-type]  # it has none
        assert "ledger-lock" not in {thread.name for thread in threading.enumerate()}
        lock.close()


async def test_a_device_that_was_held_when_it_began_keeps_its_name_under_another_configuration() -> None:
    async with beside() as one:
        one.begin()
        await until(one.ready, 30, "the devices")
        known = one.standby._inventory.identities()
        one.stop.set()
        await one.waiting
        await one.standby.close()
        await one.port.close()
        one.lock.close()
        (zero,) = (device for device in one.standby._inventory.current.devices if device.name == "zero")
        store = Store(one.paths.state, node=NODE, lock=await free_lock(one.paths.state))
        held = Entry(LedgerDevice.of(zero), Owner.LEGACY, hold=Hold(zero.units))
        store.rewrite(Ledger.of([held, Entry(LedgerDevice("null", "r"))]))
        store.close()
        one.lock, files = await free_lock(one.paths.state), IoThread("identities")
        IdentityStore(one.paths.state, files).save(known)
        await files.finish(10.0)
        one.config = load(CONFIG.replace('id: ["{sysname}"]', 'id: ["new-{sysname}"]'))
        one.stop, one.port = asyncio.Event(), Port("127.0.0.1:0")
        one.begin()
        await until(one.ready, 30, "the devices")
        names = {device.name for device in one.standby._inventory.current.devices}
        assert names == {"zero", "new-null", "new-full", "new-random"}


async def test_an_inventory_that_the_agent_does_not_take_ends() -> None:
    async with beside() as one:
        one.begin()
        await until(one.ready, 30, "the devices")
        await one.standby.step_aside()
        assert "inventory" not in {task.get_name() for task in asyncio.all_tasks()}
        assert one.standby.take_watches() is None, "there is no API server"


async def test_one_that_is_told_to_end_gets_no_lock_and_leaves_it_to_others() -> None:
    async with beside() as one:
        one.begin()
        await until(one.ready, 30, "the devices")
        one.stop.set()
        assert await asyncio.wait_for(one.waiting, 10) is None
        one.lock.close()
        (await free_lock(one.paths.state)).close()


async def test_it_follows_the_node_and_its_pods_before_it_takes_over_and_hands_that_on() -> None:
    async with SimApiServer() as api, beside(api) as one:
        one.begin()
        await until(one.ready, 30, "the devices")
        await until(lambda: {"nodes", "pods"} <= {it.resource for it in api.requests if it.verb == "watch"}, 10)
        watches = one.standby.take_watches()
        assert watches is not None
        assert one.standby.take_watches() is None
        await watches.end()


@pytest.mark.parametrize("seconds", [60.0, 0.1])
async def test_it_is_ready_once_kubelet_would_call_it_or_after_a_while(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout then ends the agent that serves: kubelet's next call must find somebody."""
    monkeypatch.setattr(standby, "REGISTER_SECONDS", seconds)
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(beside(await stack.enter_async_context(SimApiServer())))
        await stack.enter_async_context(Active("pool").served(one.root))
        one.begin()
        state, inventory = one.paths.state, one.standby._inventory
        await until(lambda: inventory.current.complete and [*state.glob("dra-*.sock")], 30, "its endpoint")
        if seconds > 1.0:
            await asyncio.sleep(0.3)
            assert (await one.page("/readyz"))[0] == 503
            (path,) = state.glob("dra-*.sock")
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"unix://{path}"))
            request = health_v1_pb2.NodeWatchResourcesRequest()
            stream: Any = health_v1_pb2_grpc.DRAResourceHealthStub(channel).NodeWatchResources(request)
            assert (await stream.read()).devices[0].device.pool_name == "pool"
        await until(one.ready, 30, "the standby")


@pytest.mark.parametrize("listen", ["taken", ""])
async def test_a_port_of_the_agent_that_serves_is_left_to_it(listen: str) -> None:
    async with beside() as one:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            one.port = Port(f"127.0.0.1:{taken.getsockname()[1]}" if listen else "")
            one.begin()
            while not one.sockets:
                await one.ready()
                await asyncio.sleep(0)
            assert one.port.address == ""
            code, _ = await asked(one.sockets[0], "/healthz")
            assert code == 200
