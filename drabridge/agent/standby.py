"""Wait for another agent to end, with everything but the ledger ready, and take over within milliseconds.

A DaemonSet with ``maxSurge`` starts the successor beside the agent that it replaces. Until the successor has the
ledger's lock it touches nothing of the other agent's: it grants nothing, registers no resource, and creates no files
but its own sockets (control socket, relay). It has its imports, its devices and its watches of the API server. It
answers requests for status, and those of the operator, with the words that it is a standby. ``/readyz`` succeeds once
it can take over: otherwise the rollout would not go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deviceplugin import Watcher
from drabridge.agent.api_watches import ApiWatches
from drabridge.agent.options import Options
from drabridge.agent.standby_sockets import SOCKETS, remove_dead
from drabridge.config.schema import Config
from drabridge.dra.lifecycle import ClaimSide
from drabridge.errors import HostError
from drabridge.inventory.host import HostPaths
from drabridge.inventory.identity import KnownIdentities
from drabridge.inventory.identity_store import IdentityStore
from drabridge.inventory.inventory import Inventory
from drabridge.inventory.observer import Fact, Reconciled, SourceChanged
from drabridge.kube.api import Cluster
from drabridge.kube.connection import connect
from drabridge.ledger.entries import Owner
from drabridge.ledger.lock import Lock, holder
from drabridge.ledger.store import read_if_possible
from drabridge.system.http import Handler, HttpServer, Request, Response
from drabridge.system.io_thread import IoThread
from drabridge.system.paths import Paths
from drabridge.system.port import Port
from drabridge.system.supervise import end, forever
from drabridge.telemetry.metrics import Metrics, Sample

if TYPE_CHECKING:
    from drabridge.dra.standby_relay import Relay

log = logging.getLogger(__name__)

REGISTER_SECONDS = 5.0  # kubelet looks for sockets once a second (pkg/kubelet/pluginmanager)
RELAY_SECONDS = 30.0  # kubelet registers a socket within 1 s; after 30 s without one it deletes the driver's slices
FORGET_SECONDS = 1.0  # until kubelet has noticed the end of the relay's health stream, and forgotten the health
POLL_SECONDS = 0.1


class Standby:
    """What an agent has ready before the ledger is its own. Use it on one loop; :meth:`close` ends what is left.

    ``watcher`` watches kubelet's directory. It is started early: its threads take longer to start than a registration.
    ``cluster`` is the API server that the standby talks to; None without one.
    """

    def __init__(
        self, options: Options, config: Config, paths: Paths, port: Port, on_snapshot: Callable[[], None]
    ) -> None:
        """``on_snapshot`` is called after every change of the devices, even after the agent took the inventory over."""
        self._options = options
        self._config = config
        self._paths = paths
        self._port = port
        self._on_snapshot = on_snapshot
        self._control = HttpServer({})
        self._metrics = Metrics(self._samples)
        ledger = read_if_possible(paths.state, node=options.node_name)
        held = {} if ledger is None else ledger.entries
        self._held: Callable[[str], bool] = lambda name: name in held and held[name].owner is not Owner.NONE
        self._on_fact: Callable[[Fact], None] = lambda fact: None
        self._facts: dict[type[Fact], Fact] = {}  # the newest fact of each kind that describes a state
        known = IdentityStore(paths.state).load(config)
        self._inventory = Inventory(
            config,
            held=lambda name: self._held(name),
            known=known,
            paths=HostPaths(cdi=paths.cdi_specs),
            on_fact=self._take_fact,
        )
        self._inventory_task: asyncio.Task[None] | None = None
        self.watcher = Watcher()
        self._watching = self.watcher.subscribe(paths.device_plugins, lambda: None)
        self.cluster: Cluster | None = None
        self._watches: ApiWatches | None = None
        self._ready = False  # can take over, except that devices may still be unknown
        self._relay: Relay | None = None  # passes kubelet's calls for claims on to the serving agent
        self._relay_task: asyncio.Task[None] | None = None

    @property
    def words(self) -> str:
        """Return a sentence for people: this is a standby, and what it waits for."""
        pid = holder(self._paths.state)
        return f"standby: waiting for the ledger's lock held by pid {pid} in {self._paths.state}"

    async def wait(self, stop: asyncio.Event) -> Lock | None:
        """Get ready, and wait for the ledger's lock. None: stopped while waiting.

        Raises HostError if the lock cannot be waited for, ConfigError for an address that cannot be listened on.
        """
        log.warning("standby: waiting for another agent to end", extra={"reason": self.words})
        waiting = asyncio.ensure_future(_wait_for_lock(self._paths.state))
        stopped = asyncio.ensure_future(stop.wait())
        tasks: list[asyncio.Future[Any]] = [waiting, stopped]
        try:
            await self._get_ready()
            tasks.append(asyncio.ensure_future(self._wait_for_relay()))
            await asyncio.wait({waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            await end(*tasks)

    async def _get_ready(self) -> None:
        inventory = self._inventory
        self._inventory_task = asyncio.create_task(
            forever("inventory", lambda: inventory.run(lambda _: self._on_snapshot())), name="inventory"
        )
        routes: dict[tuple[str, str], Handler] = {
            ("GET", "/healthz"): lambda _: Response("ok\n"),
            ("GET", "/"): self._readyz,  # somebody may forward a port to this pod during a rollout, to see the page
            ("GET", "/readyz"): self._readyz,
            ("GET", "/metrics"): self._exposition,
        }
        self._port.serve(routes)
        await self._port.bind_unless_taken()  # on the host's network the other agent has it until it ends
        self._control.routes, self._control.otherwise = routes, self._refuse
        await self._open_control()
        self.cluster = connect(self._config, self._options.kubeconfig)
        if self.cluster is not None:
            self._watches = ApiWatches(self.cluster, self._options.node_name, self._config.driver, self._resources)
            self._watches.begin()
            self._relay_claims()

    def _resources(self) -> frozenset[str]:
        return frozenset(resource.name for resource in self._inventory.config.resources)

    def _relay_claims(self) -> None:
        """Import the DRA side (this saves 0.2 s at the takeover), and open the relay for kubelet's calls."""
        import drabridge.dra.driver  # noqa: F401
        from drabridge.dra.standby_relay import Relay

        try:
            self._relay = relay = Relay(self._paths.kubelet, self._config.driver)
        except HostError as error:  # the path is too long with a token in it
            log.warning("calls for claims not passed on", extra={"reason": str(error)})
            return
        self._relay_task = asyncio.create_task(relay.run(), name="relay")

    async def _wait_for_relay(self) -> None:
        """Become ready once kubelet has registered the relay, or after 5 s: kubelet may be away."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REGISTER_SECONDS):
                if self._relay is not None:
                    await self._relay.decided()
        self._ready = True

    async def _open_control(self) -> None:
        """Open a control socket beside the other agent's, so that people and that agent see the standby."""
        remove_dead(self._paths.state)
        path = self._paths.state / SOCKETS.replace("*", secrets.token_hex(2))
        try:
            await self._control.listen_unix(path)
        except OSError as error:  # the path is too long, or the disk full; the standby can work without this socket
            log.warning("no control socket for the standby", extra={"path": str(path), "reason": str(error)})
            return
        log.info("listening", extra={"address": self._port.address, "control": str(path)})

    # --- handing over -----------------------------------------------------------------------------------------------

    def inventory_for(
        self,
        config: Config,
        known: KnownIdentities,
        held: Callable[[str], bool],
        on_fact: Callable[[Fact], None],
    ) -> Inventory | None:
        """Return the inventory if a new one would find the same; else None.

        It is None if the other agent has named devices meanwhile (``known``), if the configuration differs, or if the
        first enumeration has not ended.
        """
        inventory = self._inventory
        if config is not self._config or not inventory.current.complete or inventory.identities() != known:
            return None
        self._held, self._on_fact = held, on_fact
        for fact in self._facts.values():
            on_fact(fact)
        return inventory

    def take_inventory_task(self, inventory: Inventory) -> asyncio.Task[None] | None:
        """Hand over the task that runs the inventory; None if ``inventory`` is not this standby's."""
        if inventory is not self._inventory:
            return None
        task, self._inventory_task = self._inventory_task, None
        return task

    def take_watches(self) -> ApiWatches | None:
        """Hand over the watches of the API server; None if there are none."""
        watches, self._watches = self._watches, None
        return watches

    async def step_aside(self) -> None:
        """Close the standby's control socket; end the inventory if the agent that now serves did not take it over."""
        if self._inventory_task is not None:
            await end(self._inventory_task)
        await self._control.close()

    async def retire_relay(self, claims: ClaimSide) -> None:
        """End the relay once kubelet has registered the agent, or after 30 s. Until then kubelet calls the relay."""
        if self._relay is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELAY_SECONDS):
                while not ((state := claims.state) is not None and state.registration.registered):
                    await asyncio.sleep(POLL_SECONDS)
        await self._relay.idle()  # a call takes 45 s at most
        await self._end_relay()
        await asyncio.sleep(FORGET_SECONDS)
        if claims.driver is not None:
            claims.driver.repeat_health()

    async def _end_relay(self) -> None:
        if self._relay_task is not None:
            await end(self._relay_task)

    async def close(self) -> None:
        """End the parts that the agent did not take over."""
        await self._end_relay()
        self._watching.close()
        if (watches := self.take_watches()) is not None:
            await watches.end()
        await self.step_aside()

    def _take_fact(self, fact: Fact) -> None:
        if isinstance(fact, SourceChanged | Reconciled):
            self._facts[type(fact)] = fact
        self._on_fact(fact)

    # --- routes -----------------------------------------------------------------------------------------------------

    def _readyz(self, _: Request) -> Response:
        if not self._ready or not self._inventory.current.complete:
            text = f"not ready: {self.words}; it does not have all that it needs to take over yet\n"
            return Response(text, HTTPStatus.SERVICE_UNAVAILABLE)
        return Response(f"{self.words}\n")

    def _exposition(self, _: Request) -> Response:
        return Response(self._metrics.exposition(), content_type="text/plain; version=0.0.4; charset=utf-8")

    def _refuse(self, _: Request) -> Response:
        active = self._paths.control_socket
        error = f"this agent is a {self.words}. It does not know who holds what: ask the other one, on {active}"
        return Response.json({"error": error}, HTTPStatus.CONFLICT)

    def _samples(self) -> Iterator[Sample]:
        yield "standby", (), 1.0


async def _wait_for_lock(directory: Path) -> Lock:
    """Wait in a thread for the directory's lock. Raises HostError.

    If the caller is cancelled and the thread gets the lock later, it releases the lock at once. A thread that still
    waits ends with the process.
    """
    thread = IoThread("ledger-lock")
    job = thread.submit(lambda: Lock(directory, wait=True))
    try:
        await thread.wait_all()
    except asyncio.CancelledError:
        thread.submit(lambda: job.result().close())
        raise
    finally:
        thread.stop()
    return job.result()
