"""The DRA side as one object: what the agent starts, wakes and asks for its state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from drabridge.config.schema import Config
from drabridge.containers.cdi_store import CdiStore
from drabridge.dra.claim_files import ClaimFiles, ClaimFilesUpkeep
from drabridge.dra.claim_objects import ClaimObjects
from drabridge.dra.claim_status import StatusWriter
from drabridge.dra.deallocation import Deallocations
from drabridge.dra.facts import ClaimHandled, ClaimOutcome, Fact, Observer
from drabridge.dra.health_stream import HealthBoard
from drabridge.dra.metadata import MetadataFiles
from drabridge.dra.planning import LookupOf, Planner, device_lookup
from drabridge.dra.ports import ClaimPods, DraPorts, InUse, _no_pods, _none_open
from drabridge.dra.prepare import Preparer
from drabridge.dra.publisher import Publisher, PublisherState
from drabridge.dra.records import ClaimRecords, RecordStore
from drabridge.dra.registration import RegistrationService, RegistrationState
from drabridge.dra.server import DraServers
from drabridge.dra.sockets import PluginSockets
from drabridge.errors import ClusterError, DrabridgeError
from drabridge.inventory.model import Device, Snapshot
from drabridge.kube.api import Cluster, UnreachableError, backoff, resource_versions
from drabridge.kube.versions import choose_version
from drabridge.kube.watch import STEADY_SECONDS
from drabridge.ledger.model import DRA_OWNERS, ClaimRef, LedgerPolicy
from drabridge.ledger.service import LedgerService
from drabridge.offers.pool import pool_of
from drabridge.offers.reported_health import health_of
from drabridge.offers.slices import DesiredSlices, Feature, desired_slices
from drabridge.system.io_thread import IoThread
from drabridge.system.paths import BOOT_ID, claim_records
from drabridge.system.supervise import WakeUp, forever

log = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 1.0  # for calls in flight; what has not committed by then is rolled back
DISCOVERY_FIRST_SECONDS, DISCOVERY_MOST_SECONDS = 0.5, 60.0
BUSY_SECONDS = 0.5  # between looks at the files of a claim that is being worked on


class DraPaths(Struct, frozen=True):
    """``kubelet``: its root directory. ``state``: ours, with the records of claims."""

    kubelet: Path
    state: Path
    boot_id: Path = BOOT_ID

    @property
    def claims(self) -> Path:
        return claim_records(self.state)


class DraState(Struct, frozen=True):
    """For readiness, status and metrics."""

    serving: bool
    registration: RegistrationState
    publisher: PublisherState
    api_version: str = ""  # of resource.k8s.io; "" until the server has answered
    error: str = ""

    @property
    def ready(self) -> bool:
        """Kubelet accepts the plugin, and the API server has our slices."""
        return self.serving and self.registration.registered and self.publisher.published


class DraDriver:
    """Runs beside the DevicePlugin side, on the same loop."""

    def __init__(
        self,
        *,
        config: Config,
        inventory: Callable[[], Snapshot],
        ledger_service: LedgerService,
        cluster: Cluster,
        cdi: CdiStore,
        paths: DraPaths,
        node_name: str,
        observer: Observer = lambda fact: None,
        policy: Callable[[], LedgerPolicy] = LedgerPolicy,
        lookup: LookupOf = device_lookup,
        on_synced: Callable[[], None] = lambda: None,
        in_use: InUse = _none_open,
        pods: Callable[[], ClaimPods | None] = _no_pods,
        unwell: Callable[[], str] = str,
        clock: Callable[[], float] = time.time,
        files: IoThread | None = None,
    ) -> None:
        """``inventory`` gives the current snapshot, ``policy`` the ledger's current rules; ``on_synced`` is called
        when the API server has what it should have; ``unwell`` says why a claim could not be granted now; ``files``
        is whose thread waits for disks. Raises HostError when a socket's path would be too long.
        """
        self._config = config
        self._ports = DraPorts(
            inventory=inventory,
            observer=observer,
            in_use=in_use,
            pods=pods,
            unwell=unwell,
            on_synced=on_synced,
            clock=clock,
        )
        self._ledger_service = ledger_service
        self._cluster = cluster
        self._node = node_name
        self.pool = config.dra.pool or node_name
        self.synced_seq = -1  # the API server has the slices that follow from the ledger as it was then
        self._desired_seq = -1
        self._policy = policy
        self._serving = False
        self._version = ""
        self._error = ""
        disk = files or IoThread("claims")
        sockets = PluginSockets.of(paths.kubelet, config.driver)
        self.records = RecordStore(paths.claims)
        records = ClaimRecords(self.records, disk, paths.boot_id.read_text().strip())
        metadata = MetadataFiles(sockets.service.parent, cdi, config.driver) if config.dra.metadata else None
        claim_files = ClaimFiles(cdi, metadata, disk)
        ports = replace(self._ports, observer=self._observe)
        self._planner = Planner(config, self.pool, lookup)
        self._claims = ClaimObjects(cluster)
        self._deallocations = Deallocations(ledger_service, self._claims, ports, driver=config.driver, pool=self.pool)
        self._preparer = Preparer(
            self._planner, records, claim_files, ledger_service, self._claims, self._deallocations, ports
        )
        self._upkeep = ClaimFilesUpkeep(self._planner, records, claim_files, ports)
        self._health = HealthBoard(self.pool)
        self._registration = RegistrationService(config.driver, sockets.service, observer)
        self._server = DraServers(sockets, self._preparer, self._health, self._registration, observer)
        self._status = StatusWriter(self._claims, records, config.driver)
        self._publisher: Publisher | None = None
        self._seen: Snapshot | None = None  # what _look() looked at last
        self._offered: dict[str, Device] = {}
        self._others: tuple[str, ...] | None = None
        self._renew = False  # files of prepared claims are missing, or old
        self._changed = WakeUp()
        self._looked = WakeUp()  # at what changed

    @property
    def state(self) -> DraState:
        """A value; ask again for a newer one."""
        published = self._publisher.state if self._publisher else PublisherState(error=self._error or "not started")
        return DraState(self._serving, self._registration.state, published, self._version, self._error)

    def publish(self) -> None:
        """The inventory, the ledger or the configuration changed: look again. Cheap, never blocks."""
        self._changed.set()
        self._deallocations.wake()

    def repeat_health(self) -> None:
        """Another stream of this driver has ended: kubelet is to hear it all again."""
        self._health.repeat()

    def renew_files(self) -> None:
        """Somebody removed files of prepared claims: write those that are missing."""
        self._renew = True
        self._changed.set()

    def reconfigure(self, config: Config) -> None:
        """Take over a configuration whose driver, pool and metadata setting are the same as before."""
        self._config = config
        self._planner.config = config
        self._seen = None
        self.publish()

    async def release_if_deallocated(self, claim: ClaimRef) -> bool:
        """Ask the API server about a claim: see :meth:`Deallocations.release_if_deallocated`."""
        return await self._deallocations.release_if_deallocated(claim)

    async def withdrawn(self, names: Collection[str]) -> frozenset[str]:
        """Those of these devices that the API server shows in no slice, asked now. Raises ClusterError."""
        if self._publisher is None:
            raise UnreachableError(self._error or "the API server has not answered yet")
        return frozenset(names) - await self._publisher.shown(names)

    async def run(self) -> None:
        """Serve until cancelled. The sockets open once the inventory is complete; slices follow when the API answers.

        Unprepare works without an API server, so kubelet may call before there is one. Raises HostError when the
        sockets cannot be bound.
        """
        try:
            while not self._ports.inventory().complete:
                await self._changed.wait()
            restored = self._ports.inventory().version  # what comes while the sockets are bound is a change
            try:
                await self._upkeep.restore()
            except DrabridgeError as error:  # unprepare must work all the same
                log.error("files of prepared claims not restored", extra={"error": str(error)})
            self._look()
            await self._server.start()
            self._serving = True
            async with asyncio.TaskGroup() as group:
                group.create_task(self._server.watch(), name="dra-sockets")
                # A defect in one of these is no reason to leave kubelet without its sockets.
                parts = {
                    "follow": self._follow,
                    "files": lambda: self._keep_files(restored),
                    "releases": self._deallocations.run,
                    "slices": self._publish_slices,
                }
                if self._config.dra.claim_status:
                    parts["status"] = self._status.run
                for name, run in parts.items():
                    group.create_task(forever(f"dra-{name}", run), name=f"dra-{name}")
        finally:
            self._serving = False
            await asyncio.shield(self._stop())

    async def _stop(self) -> None:
        """Slices stay: a successor that comes within kubelet's 30 s finds them unchanged."""
        await self._server.stop(STOP_GRACE_SECONDS)
        await self._preparer.stop()

    async def _follow(self) -> None:
        """Health, status and slices, after every change. Waits for no disk."""
        self._changed.set()
        while True:
            await self._changed.wait()
            self._look()
            self._looked.set()

    async def _keep_files(self, version: int) -> None:
        """The files of prepared claims, after every change of the inventory since ``version``."""
        while True:
            await self._looked.wait(BUSY_SECONDS if self._renew else None)
            snapshot = self._ports.inventory()
            if snapshot.version != version or self._renew:
                version, renew, self._renew = snapshot.version, self._renew, False
                try:
                    self._renew |= not await self._upkeep.refresh(missing=renew)
                except DrabridgeError as error:
                    log.error("files of prepared claims not brought up to date", extra={"error": str(error)})

    def _look(self) -> None:
        """Health and status follow the inventory; the ledger matters to them only for devices outside of our list."""
        snapshot, ledger = self._ports.inventory(), self._ledger_service.ledger
        if snapshot is not self._seen:
            self._seen = snapshot
            resources = {resource.name for resource in self._config.resources if resource.lanes.uses_dra}
            self._offered = {device.name: device for device in snapshot.devices if device.resource in resources}
            self._others = None
            self._status.inventory_changed(snapshot)
        others = tuple(
            entry.name
            for entry in ledger.entries.values()
            if entry.owner in DRA_OWNERS and entry.name not in self._offered
        )
        if others != self._others:
            self._others = others
            known = snapshot.by_name()
            more = [known[name] for name in others if name in known]
            self._health.update(health_of((*self._offered.values(), *more), others))
        if self._publisher is not None:
            self._publisher.wake()

    async def _publish_slices(self) -> None:
        loop, delays = asyncio.get_running_loop(), backoff(DISCOVERY_FIRST_SECONDS, DISCOVERY_MOST_SECONDS)
        while True:
            self._version = await self._discover()
            steady_at = loop.time() + STEADY_SECONDS
            self._claims.version = self._version
            self._publisher = Publisher(
                cluster=self._cluster,
                version=self._version,
                driver=self._config.driver,
                node=self._node,
                pool=self.pool,
                desired=self._desired,
                observer=self._ports.observer,
                on_synced=self._synced,
            )
            await self._publisher.run()
            self._version, self._error, self._publisher = "", self._publisher.state.error, None
            if loop.time() >= steady_at:
                delays = backoff(DISCOVERY_FIRST_SECONDS, DISCOVERY_MOST_SECONDS)
            await asyncio.sleep(next(delays))  # the servers of one cluster are upgraded one after the other

    async def _discover(self) -> str:
        """The version of the API to speak; waits for a server that has one."""
        for delay in backoff(DISCOVERY_FIRST_SECONDS, DISCOVERY_MOST_SECONDS):
            try:
                served = await resource_versions(self._cluster)
                version = choose_version(served)
                self._error = "the API server serves no version of resource.k8s.io that is known (1.32 to 1.37 do)"
                if not served:
                    self._error = "the API server does not serve resource.k8s.io: DRA is switched off"
            except ClusterError as error:
                version, self._error = None, str(error)
            if version is not None:
                self._error = ""
                return version
            log.warning("no slices can be published", extra={"error": self._error, "retry_seconds": round(delay, 1)})
            await asyncio.sleep(delay)
        raise AssertionError("backoff() does not end")

    def _synced(self) -> None:
        self.synced_seq = self._desired_seq
        self._ports.on_synced()

    def _desired(self, features: frozenset[Feature]) -> DesiredSlices | None:
        snapshot = self._ports.inventory()
        if not snapshot.complete or not self._server.listening:  # nobody may be sent to a driver that cannot serve
            return None
        self._desired_seq = self._ledger_service.ledger.seq
        unwell = bool(self.records.error or self._ports.unwell())
        known = snapshot, self._ledger_service.ledger, self._policy(), self._config
        return desired_slices(pool_of(*known, self._node, self._ports.clock(), unwell=unwell), features)

    def _observe(self, fact: Fact) -> None:
        if isinstance(fact, ClaimHandled) and fact.outcome is ClaimOutcome.OK:
            if fact.method == "prepare" and self._config.dra.claim_status:
                self._status.claim_prepared(fact.claim.uid)
            self._deallocations.wake()
        elif isinstance(fact, ClaimHandled) and fact.outcome is ClaimOutcome.FAILED:
            self.publish()  # perhaps because of a disk, and then others would fail as well
        self._ports.observer(fact)
