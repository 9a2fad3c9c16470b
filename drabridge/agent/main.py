"""The agent: wires inventory, ledger and both sides together, and owns the life cycle.

One process, one loop. What starts when: configuration; the ledger's lock; the inventory; the merge with what kubelet
and the CDI directory say; the DevicePlugin side; and only when kubelet has taken its lists, the DRA side. Nothing is
granted before the merge.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

import deviceplugin
from drabridge.agent.api_watches import Watches
from drabridge.agent.drain import clean, unneeded
from drabridge.agent.endpoints import Pages
from drabridge.agent.maintenance import Housekeeping
from drabridge.agent.reload import ConfigFollower, identity_of
from drabridge.agent.runtime import Options, Runtime, policy_of, probed
from drabridge.agent.standby import Standby, standbys
from drabridge.agent.startup_merge import discover, merge
from drabridge.coexistence.driver_rename import refuse_another_name
from drabridge.coexistence.other_agents import OtherAgents
from drabridge.coexistence.withheld import Guard
from drabridge.config.advice import advice
from drabridge.config.loader import load
from drabridge.config.schema import Config
from drabridge.containers.cdi_store import CdiStore
from drabridge.dra.lifecycle import ClaimSide, connect, with_pool_in_use
from drabridge.evidence.kubelet import KubeletEvidence
from drabridge.evidence.loop import EvidenceLoop
from drabridge.evidence.other_sources import OtherEvidence
from drabridge.inventory.identity_store import IdentityStore
from drabridge.inventory.inventory import Inventory
from drabridge.inventory.model import Snapshot
from drabridge.kube.events import Announcer
from drabridge.lanes.desired import Wishes
from drabridge.lanes.mover import Transfers
from drabridge.ledger.effects import Effect, Notify, Readvertise, Released
from drabridge.ledger.events import KubeletStarted, NodeBooted
from drabridge.ledger.lock import LedgerLockedError
from drabridge.ledger.model import Ledger, Owner
from drabridge.ledger.service import LedgerService
from drabridge.ledger.store import Store
from drabridge.legacy.cdi_files import LegacyCdiFiles
from drabridge.legacy.manager import LegacyManager
from drabridge.system.clock import SteadyClock
from drabridge.system.io_thread import IoThread
from drabridge.system.memory import settle
from drabridge.system.paths import Paths
from drabridge.system.port import Port
from drabridge.system.supervise import LoopErrors, WakeUp, forever
from drabridge.telemetry.metrics import Metrics
from drabridge.telemetry.sinks import Sinks
from podresources import Client

log = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 1.5  # for calls in flight at SIGTERM; the whole stop is promised within 3 s
REFRESH_SECONDS = 0.01  # an Allocate is answered first; several that come together make one list
CLOSE_SECONDS = 0.5  # for what waits for the state directory's disk; of the 3 s
SETTLE_SECONDS = 1.0  # after the first list: registration is over by then, or waits for kubelet
REFUSALS = frozenset({"AllocateRefused", "DeviceRefused"})  # notices with a refusal's words


class Agent:
    """One agent on one node. :meth:`run` returns after :meth:`stop` or SIGTERM."""

    def __init__(self, options: Options, *, now: Callable[[], float] | None = None) -> None:
        """Raises ConfigError (every fault at once) before anything of the node is touched."""
        self._options = options
        self._now = now or SteadyClock()
        self._config_file = identity_of(options.config)  # before it is read
        self._config = load(options.config)
        self._paths = Paths.of(
            self._config.driver,
            kubelet=options.kubelet,
            device_plugins=options.device_plugins,
            state=options.state,
            cdi=options.cdi,
        )
        for hint in advice(self._config):
            log.warning("configuration", extra={"note": hint})
        self._stop = asyncio.Event()
        self._reload = WakeUp()  # SIGHUP, also before anybody follows the configuration
        self._snapshot = WakeUp()
        self._port = Port(options.listen)
        self._files = IoThread("files")  # of the state directory, the ledger aside
        self._guard = Guard(OtherAgents(self._paths, self._config.driver, options.node_name))
        self._standby: Standby | None = None  # what was ready while another agent had the ledger
        self._serving = False  # the ledger knows enough for it: from kubelet and the CDI files, or from before
        self._behind = False  # the ledger could not be told of the newest snapshot: its disk is full
        self._rebooted = False  # since the ledger was written
        self._booted = False  # the ledger has this boot's id
        self._refresh: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []  # ended first when the agent ends
        self._watches: list[asyncio.Task[None]] = []  # of the API server

    def stop(self) -> None:
        """End gracefully: streams first, sockets removed, CDI files left, everything known on disk."""
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped. Raises DrabridgeError only for what an operator must mend before it can start."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(LoopErrors())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        refuse_another_name(self._paths, self._config, self._options.node_name)
        try:
            if (store := await self._own_ledger()) is not None:
                await self._run_with(store)
        finally:
            if self._standby is not None:
                await self._standby.close()
            await self._port.close()

    async def _run_with(self, store: Store) -> None:
        ledger_service, asked = LedgerService(store, policy_of(self._config), self._now), self._config
        self._config = with_pool_in_use(asked, self._paths.state, self._options.node_name, ledger_service.ledger)
        if self._config != asked:  # the file is asked for again, and again, until it can be had
            self._reload.set()
        if ledger_service.loaded.message:
            log.error(
                "ledger",
                extra={"found": str(ledger_service.loaded.kind), "message_text": ledger_service.loaded.message},
            )
        ended = False
        try:
            await self._serve(self._assemble(ledger_service))
            ended = not ledger_service.health.lost
        finally:
            await self._guard.leave(ledger_service.head, ended=ended)
            await self._files.finish(CLOSE_SECONDS)
            await ledger_service.close(lambda: self._leave(ledger_service.ledger, ended=ended))

    def _leave(self, ledger: Ledger, *, ended: bool) -> None:
        """Last, under the ledger's lock: empty the state directory if nobody needs it, a waiting successor included."""
        if ended and unneeded(ledger, self._wishes) and not standbys(self._paths.state):
            clean(self._paths.state)

    async def _own_ledger(self) -> Store | None:
        """Be the one agent of this node; another one is told of, waited for, and not disturbed. None: stopped first."""
        state, node = self._paths.state, self._options.node_name
        try:
            return Store(state, node=node)
        except LedgerLockedError:
            self._standby = Standby(self._options, self._config, self._paths, self._port, self._snapshot.set)
        lock = await self._standby.wait(self._stop)
        if lock is None:
            return None
        refuse_another_name(self._paths, self._config, node)  # it may have begun since
        if identity_of(self._options.config) != self._config_file:
            self._reload.set()
        log.info("the other agent has ended, this one takes over")
        return Store(state, node=node, lock=lock)

    def _assemble(self, ledger_service: LedgerService) -> Runtime:
        paths, config = self._paths, self._config

        def held(device: str) -> bool:
            entry = ledger_service.head.entries.get(device)
            return entry is not None and entry.owner is not Owner.NONE

        metrics = Metrics(lambda: self._pages.samples())
        sinks = Sinks(metrics, lambda device: runtime.resource_of(device), self._now)
        self._identities = IdentityStore(paths.state, self._files)
        known = self._identities.load(config)
        ready = self._standby and self._standby.inventory_for(config, known, held, sinks.inventory)
        inventory = ready or Inventory(config, held=held, known=known, on_fact=sinks.inventory)
        cdi = CdiStore(paths.cdi, config.driver)
        client = Client(paths.podresources_socket, observe=sinks.asked)
        legacy = LegacyManager(
            directory=paths.device_plugins,
            ledger_service=ledger_service,
            cdi=cdi,
            devices=lambda: runtime.devices,
            resolve=lambda device: replace(device, nodes=inventory.resolve_nodes(device)),
            observer=self,
            watcher=self._standby.watcher if self._standby is not None else None,
            now=self._now,
        )
        kubelet_evidence = KubeletEvidence(
            client, paths.device_plugins, legacy.resend, self._now, legacy.quiet, config.driver
        )
        other_evidence = OtherEvidence(
            lambda: ledger_service.ledger, lambda: runtime.devices, lambda: probed(inventory.configs())
        )
        runtime = Runtime(
            options=self._options,
            paths=paths,
            config=config,
            ledger_service=ledger_service,
            inventory=inventory,
            cdi=cdi,
            files=LegacyCdiFiles(cdi),
            cluster=(self._standby and self._standby.cluster) or connect(self._options, config),
            legacy=legacy,
            podresources=client,
            kubelet_evidence=kubelet_evidence,
            evidence=EvidenceLoop(ledger_service, kubelet_evidence, enrich=other_evidence.enrich),
            other_evidence=other_evidence,
            guard=self._guard,
            metrics=metrics,
            sinks=sinks,
            now=self._now,
            started_at=self._now(),
            disk=self._files,
            beat=asyncio.get_running_loop().time(),
        )
        self._runtime = runtime
        self._wishes = Wishes(
            paths.state,
            lambda: runtime.config,
            self._wished,
            follows_node=runtime.cluster is not None,
            off=lambda: runtime.off,
            files=self._files,
        )
        self._claims = ClaimSide(runtime, self._wishes)
        self._announcer = Announcer(
            runtime.cluster,
            self._options.node_name,
            config.driver,
            self._now,
            lambda: metrics.count("events_dropped"),
        )
        self._transfers = Transfers(runtime, self._claims, self._wishes)
        self._pages = Pages(runtime, self._claims, self._wishes, self._port)
        taken = self._reconfigure, self._refused_config, self._claims.refusal
        self._follower = ConfigFollower(self._options.config, config, self._reload, *taken)
        return runtime

    async def _serve(self, runtime: Runtime) -> None:
        unsubscribe = runtime.ledger_service.subscribe(self._ledger_changed)
        await self._open_pages()
        work: dict[str, Callable[[], Awaitable[None]]] = {
            "devices": self._follow_inventory,
            "configuration": self._follower.run,
            "housekeeping": Housekeeping(runtime, self._claims, self._pages).run,
        }
        if self._standby is not None:
            self._tasks += self._standby.take_tasks(runtime.inventory)
            await self._standby.step_aside()
        if not any(task.get_name() == "inventory" for task in self._tasks):
            work["inventory"] = lambda: runtime.inventory.run(lambda _: self._snapshot.set())
        self._tasks += [asyncio.create_task(forever(name, start), name=name) for name, start in work.items()]
        try:
            await self._stop.wait()
            log.info("stopping")
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            unsubscribe()
            await self._pages.close()
            await runtime.podresources.close()
            # The last thing before the ledger is let go: from here until a successor has registered pods are refused.
            await runtime.legacy.close(STOP_GRACE_SECONDS)
            log.info("stopped")

    async def _open_pages(self) -> None:
        """A port that is taken is an operator's error, unless it may be the one of the agent before us."""
        if self._standby is None:
            await self._port.bind()
        await self._pages.open()
        if not self._port.bound:
            waiting = forever("port", self._pages.wait_for_port, lambda: self._port.bound)
            self._tasks.append(asyncio.create_task(waiting, name="port"))

    # --- devices ----------------------------------------------------------------------------------------------------

    async def _follow_inventory(self) -> None:
        try:
            await self._take_snapshots()
        except Exception as error:  # it is tried again; until that has gone well, this is why
            self._runtime.devices_error = str(error) or repr(error)
            raise

    async def _take_snapshots(self) -> None:
        """Every snapshot into the ledger, and from there to kubelet; after the first one, the merge."""
        runtime = self._runtime
        boot_id, node = self._options.boot_id.read_text().strip(), runtime.ledger_service.ledger.node
        if not self._booted:
            self._rebooted |= not node.lost and node.boot_id not in ("", boot_id)  # an older copy's may be long past
        while True:
            if not self._booted:  # again while the disk is full: a later start would take this boot for the last one
                self._booted = (await runtime.ledger_service.apply(NodeBooted(boot_id, self._now()))).accepted
            if (snapshot := runtime.inventory.current).complete:
                await self._take(snapshot)
                if self._serving and runtime.ledger_service.ledger.node.merged:
                    runtime.files.follow_soon(runtime.ledger_service.ledger, runtime.devices)
                else:
                    await self._merge()
                runtime.legacy.learn()
                self._claims.wake()
                runtime.changed.set()
                runtime.devices_error = ""
            await self._snapshot.wait(self._guard.again_seconds)

    async def _merge(self) -> None:
        """And begin to serve. While the disk is full that needs a ledger of before: else nobody knows who holds."""
        runtime = self._runtime
        merged = self._booted and not self._behind and await merge(runtime, rebooted=self._rebooted)
        self._behind = not merged  # again when the disk is well
        node = runtime.ledger_service.ledger.node
        if not self._serving and (merged or node.whole):
            self._serving = True
            await runtime.legacy.configure(runtime.config)
            self._begin_to_serve()

    def _begin_to_serve(self) -> None:
        """What may run once the ledger agrees with kubelet's view."""
        self._spawn("evidence", self._runtime.evidence.run)
        self._spawn("lanes", self._transfers.run)
        self._spawn("claims", self._claims.run)
        self._spawn("events", self._announcer.run)
        self._join_cluster()
        if self._standby is not None:
            self._tasks.append(asyncio.create_task(self._standby.retire_relay(self._claims), name="relay"))
        asyncio.get_running_loop().call_later(SETTLE_SECONDS, settle)

    def _join_cluster(self) -> None:
        """Follow what the API server says of this node. Also when a reload is the first to allow it."""
        cluster, node = self._runtime.cluster, self._options.node_name
        if cluster is None or self._runtime.other_evidence.pods is not None:
            return
        self._announcer.cluster = cluster
        watches = self._standby.take_watches() if self._standby is not None else None
        watches = watches or Watches(cluster, node, self._runtime.config.driver, self._resources)
        watches.pods.slack = lambda: self._runtime.ledger_service.policy.absent_seconds
        watches.begin()
        watches.tell(self._runtime.evidence.hurry, self._wishes.annotate, self._resources)
        self._runtime.other_evidence.pods = watches.pods
        self._runtime.other_evidence.claims = self._claims.allocated
        self._watches = watches.tasks
        self._tasks += self._watches

    def _resources(self) -> frozenset[str]:
        """The names under which pods may have a device that is known here. For any thread."""
        entries = self._runtime.ledger_service.ledger.entries.values()
        return frozenset(name for entry in entries for name in (entry.device.resource, *entry.counted_as)) | {
            resource.name for resource in self._runtime.config.resources
        }

    async def _leave_cluster(self) -> None:
        """A reload says that no API server is to be talked to. What it said last counts no more."""
        watches, self._watches = self._watches, []
        for task in watches:
            task.cancel()
            self._tasks.remove(task)
        await asyncio.gather(*watches, return_exceptions=True)
        self._runtime.cluster = self._announcer.cluster = None
        self._runtime.other_evidence.pods = self._runtime.other_evidence.claims = None
        self._wishes.forget_annotation()

    def _spawn(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = asyncio.create_task(forever(name, work), name=name)
        self._tasks.append(task)
        return task

    async def _take(self, snapshot: Snapshot) -> None:
        snapshot = await self._guard.without(snapshot, self._runtime.ledger_service.head)
        first = self._transfers.first_lanes(snapshot)
        self._behind = not await discover(self._runtime, snapshot, first, rebooted=self._rebooted)
        self._identities.save(self._runtime.inventory.identities())
        for collision in snapshot.collisions:
            log.error("devices with one identity are not offered", extra={"collision": str(collision)})

    # --- what others report -----------------------------------------------------------------------------------------

    def _ledger_changed(self, ledger: Ledger, effects: tuple[Effect, ...]) -> None:
        """After every step: offers follow from the ledger, facts go to their sinks."""
        del ledger
        if self._runtime.ledger_service.health.lost:
            self.stop()  # and begin anew, as the other agent's standby
        told = next((e.message for e in effects if isinstance(e, Notify) and e.reason in REFUSALS), "")
        for effect in effects:
            self._runtime.sinks.effect(effect, told)
            if isinstance(effect, Notify):
                self._announcer.tell(effect)
            elif isinstance(effect, Readvertise):
                self._runtime.legacy.repeat({self._runtime.resource_of(device) for device in effect.devices})
                self._runtime.evidence.hurry()
        self._runtime.inventory.released(effect.device for effect in effects if isinstance(effect, Released))
        if self._refresh is None:
            self._refresh = asyncio.get_running_loop().call_later(REFRESH_SECONDS, self._follow_ledger)

    def _follow_ledger(self) -> None:
        """Offers, moves and questions to kubelet after one change of the ledger or several."""
        self._refresh = None
        if self._behind and self._runtime.ledger_service.health.ok:
            self._snapshot.set()
        self._claims.wake()
        self._runtime.evidence.changed()
        self._runtime.changed.set()
        self._runtime.legacy.refresh()

    def _wished(self) -> None:
        """Other lanes are wanted than before."""
        self._runtime.changed.set()
        self._claims.wake()

    def observe(self, fact: deviceplugin.Fact) -> None:
        """Facts of the DevicePlugin side."""
        self._runtime.sinks.observe(fact)
        stream = isinstance(fact, deviceplugin.StreamOpened) and fact.expected  # kubelet's, not a stranger's look
        if stream or isinstance(fact, deviceplugin.KubeletSeen):
            kubelet = deviceplugin.kubelet_process(self._runtime.paths.device_plugins)
            task = asyncio.create_task(
                self._runtime.ledger_service.apply_until_accepted(KubeletStarted(self._now(), kubelet))
            )
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    # --- configuration ----------------------------------------------------------------------------------------------

    async def _reconfigure(self, config: Config) -> None:
        runtime = self._runtime
        runtime.config, runtime.config_error = config, ""
        runtime.ledger_service.policy = policy_of(config)
        runtime.inventory.reconfigure(config)
        if self._serving:  # else nothing is served yet, and it begins with the configuration of then
            await runtime.legacy.configure(config)
            runtime.legacy.learn()
        if config.dra.enabled is False:
            await self._leave_cluster()
        elif runtime.cluster is None and (cluster := connect(self._options, config)) is not None:
            runtime.cluster = cluster
            if self._serving:
                self._join_cluster()
        self._wishes.reconfigured()
        self._claims.reconfigure(config)
        runtime.changed.set()

    def _refused_config(self, faults: str) -> None:
        self._runtime.config_error = faults
