"""Run the DRA side as one object, which the agent starts, wakes and asks for its state."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from drabridge.config.schema import Config
from drabridge.containers.cdi_store import CdiStore
from drabridge.dra.claim_files import ClaimFiles
from drabridge.dra.claim_names import ClaimNames
from drabridge.dra.claim_objects import ClaimObjects
from drabridge.dra.claim_status import StatusWriter
from drabridge.dra.deallocation import Deallocations
from drabridge.dra.health_stream import HealthBoard
from drabridge.dra.leases import Leases
from drabridge.dra.metadata import MetadataFiles
from drabridge.dra.observer import ClaimHandled, ClaimOutcome, Fact
from drabridge.dra.planning import Planner
from drabridge.dra.ports import DraPorts
from drabridge.dra.prepare import Preparer
from drabridge.dra.publisher import Publisher, PublisherState
from drabridge.dra.records import ClaimRecords, RecordStore
from drabridge.dra.registration import RegistrationService, RegistrationState
from drabridge.dra.server import DraServers
from drabridge.dra.sockets import PluginSockets
from drabridge.errors import ClusterError, DrabridgeError
from drabridge.inventory.devices import Device, Snapshot
from drabridge.kube.api import Cluster, UnreachableError, backoff, served_version
from drabridge.kube.features import DEVICE_STATUS, HEALTH_IN_PODS, FeatureState
from drabridge.kube.watch import STEADY_SECONDS
from drabridge.ledger.entries import DRA_OWNERS
from drabridge.ledger.service import LedgerService
from drabridge.offers.pool import pool_of
from drabridge.offers.reported_health import health_of
from drabridge.offers.slices import DesiredSlices, Feature, desired_slices
from drabridge.system.io_thread import IoThread
from drabridge.system.paths import BOOT_ID, claim_records
from drabridge.system.supervise import WakeUp, forever

log = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 1.0  # for calls under way; those that do not end in time are rolled back
DISCOVERY_FIRST_SECONDS, DISCOVERY_MOST_SECONDS = 0.5, 60.0
HEALTH_STREAM_SECONDS = 30.0  # kubelet tries to open the stream every 5 s; if it has not by then, it does not want it
BUSY_SECONDS = 0.5  # until the files of a claim that was in work are looked at again


class DriverNode(Struct, frozen=True):
    """The node that the driver runs on."""

    name: str
    kubelet: Path  # kubelet's root directory
    state: Path  # our directory, with the records of claims
    boot_id: Path = BOOT_ID
    disk: IoThread = field(default_factory=lambda: IoThread("claims"))  # waits for the disk of ``state``


class DraState(Struct, frozen=True):
    """How far the driver has come, for readiness, status and metrics."""

    serving: bool
    registration: RegistrationState
    publisher: PublisherState
    api_version: str = ""  # version of resource.k8s.io; "" until the server has answered
    error: str = ""

    @property
    def ready(self) -> bool:
        """Whether kubelet accepts the plugin and the API server has our slices."""
        return self.serving and self.registration.registered and self.publisher.published


class DraDriver:
    """The DRA side, from kubelet's sockets to the slices.

    Runs beside the DevicePlugin side, on the same loop.
    """

    def __init__(
        self,
        config: Config,
        node: DriverNode,
        ledger_service: LedgerService,
        cluster: Cluster,
        cdi: CdiStore,
        ports: DraPorts,
    ) -> None:
        """Build the parts. Raises HostError when a socket's path would be too long."""
        self._config = config
        self._node = node.name
        self._ledger_service = ledger_service
        self._cluster = cluster
        self._ports = ports
        self.pool = config.dra.pool or node.name
        self.synced_seq = -1  # sequence number of the ledger from which the API server's slices follow
        self._desired_seq = -1
        self._serving = False
        self._version = ""
        self._error = ""
        sockets = PluginSockets.of(node.kubelet, config.driver)
        self.records = RecordStore(claim_records(node.state))
        records = ClaimRecords(self.records, node.disk, node.boot_id.read_text().strip())
        metadata = MetadataFiles(sockets.service.parent, cdi, config.driver) if config.dra.metadata else None
        ports = replace(ports, observer=self._observe)
        self._planner = Planner(config, self.pool, ports.lookup)
        self._files = ClaimFiles(self._planner, records, cdi, metadata, node.disk, ports)
        self._claims = ClaimObjects(cluster)
        names = ClaimNames(
            cluster,
            node.name,
            self._names_changed,
            driver=config.driver,
            pool=self.pool,
            coordinator=lambda: self._config.dra.leases.coordinator,
        )
        self._leases = Leases(
            ledger_service,
            self._claims,
            names,
            driver=config.driver,
            pool=self.pool,
            rules=lambda: self._config.dra.leases,
            supported=lambda: self.keeps_leases,
            release_in_the_way=lambda claim, refused: self.deallocations.release_in_the_way(claim, refused),
            synced_seq=lambda: self.synced_seq,
            observer=ports.observer,
        )
        self.deallocations = Deallocations(
            ledger_service,
            self._claims,
            ports,
            driver=config.driver,
            pool=self.pool,
            awaited=self._leases.awaited,
            denials=self._leases.denials,
        )
        self._preparer = Preparer(
            self._planner, records, self._files, ledger_service, self._claims, self.deallocations, ports
        )
        self._health = HealthBoard(self.pool)
        self._registration = RegistrationService(config.driver, sockets.service, self._ports.observer)
        self._server = DraServers(sockets, self._preparer, self._health, self._registration, self._ports.observer)
        self._status = StatusWriter(self._claims, records, config.driver, ports.observer)
        self._publisher: Publisher | None = None
        self._seen: Snapshot | None = None  # what _look() looked at last
        self._offered: dict[str, Device] = {}  # the devices of ``_seen`` that belong to resources for claims
        self._held_besides: tuple[str, ...] | None = None  # devices that claims have, but that are not offered
        self._renew_files = False  # files of prepared claims are missing, or old
        self._changed = WakeUp()
        self._looked = WakeUp()  # set after each _look()

    @property
    def state(self) -> DraState:
        """Return the present state."""
        published = self._publisher.state if self._publisher else PublisherState(error=self._error or "not started")
        return DraState(self._serving, self._registration.state, published, self._version, self._error)

    @property
    def keeps_leases(self) -> bool | None:
        """Whether the API server keeps what a lease needs; None until it was asked."""
        return self._keeps(Feature.LEASES)

    @property
    def features(self) -> Mapping[str, FeatureState]:
        """Return what is known of the features that the DRA side asks about."""
        found: dict[str, bool | None] = {feature: self._keeps(feature) for feature in Feature}
        found[DEVICE_STATUS] = self._claims.keeps_device_status
        found[HEALTH_IN_PODS] = self._health.opened or (False if self._is_long_registered() else None)
        return {name: FeatureState.of(one) for name, one in found.items()}

    def _keeps(self, feature: Feature) -> bool | None:
        kept = self._publisher.features if self._publisher else None
        return None if kept is None else feature in kept

    def _is_long_registered(self) -> bool:
        state = self._registration.state
        return state.registered and time.monotonic() - state.since >= HEALTH_STREAM_SECONDS

    def publish(self) -> None:
        """Look again: inventory, ledger or configuration changed. Cheap, never blocks."""
        self._changed.set()
        self.deallocations.wake()

    def repeat_health(self) -> None:
        """Tell kubelet the health of all devices again: kubelet forgets it when another stream of this driver ends."""
        self._health.repeat()

    def renew_files(self) -> None:
        """Write the files of prepared claims that somebody removed."""
        self._renew_files = True
        self._changed.set()

    def reconfigure(self, config: Config) -> None:
        """Take over a configuration whose driver, pool and metadata setting are the same as before."""
        self._config = config
        self._planner.config = config
        self._seen = None
        self.publish()

    async def withdrawn(self, names: Collection[str]) -> frozenset[str]:
        """Ask the API server now; return those of ``names`` that it shows in no slice. Raises ClusterError."""
        if self._publisher is None:
            raise UnreachableError(self._error or "the API server has not answered yet")
        return frozenset(names) - await self._publisher.shown(names)

    async def run(self) -> None:
        """Serve until cancelled.

        The sockets open once the inventory is complete; slices follow when the API server answers.
        Unprepare works without an API server, so kubelet may call before there is one. Raises HostError when the
        sockets cannot be bound.
        """
        try:
            while not self._ports.inventory().complete:
                await self._changed.wait()
            restored = self._ports.inventory().version  # a later one counts as a change
            try:
                await self._files.restore()
            except DrabridgeError as error:  # unprepare must work nevertheless
                log.error("files of prepared claims not restored", extra={"reason": str(error)})
            self._look()
            await self._server.start()
            self._serving = True
            async with asyncio.TaskGroup() as group:
                group.create_task(self._server.watch(), name="dra-sockets")
                # If one of these fails, the sockets still serve kubelet.
                parts = {
                    "follow": self._follow,
                    "files": lambda: self._keep_files(restored),
                    "releases": self.deallocations.run,
                    "leases": self._leases.run,
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
        """Close the sockets, then roll back.

        Slices stay: a successor that comes within kubelet's 30 s finds them.
        """
        await self._server.stop(STOP_GRACE_SECONDS)
        await self._preparer.stop()

    async def _follow(self) -> None:
        """After every change: bring health, status and slices up to date. Waits for no disk."""
        self._changed.set()
        while True:
            await self._changed.wait()
            self._look()
            self._looked.set()

    async def _keep_files(self, version: int) -> None:
        """After every change of the inventory since ``version``: refresh the files of prepared claims."""
        while True:
            await self._looked.wait(BUSY_SECONDS if self._renew_files else None)
            snapshot = self._ports.inventory()
            if snapshot.version != version or self._renew_files:
                version, self._renew_files = snapshot.version, False
                try:
                    self._renew_files |= not await self._files.refresh()
                except DrabridgeError as error:
                    log.error("files of prepared claims not refreshed", extra={"reason": str(error)})

    def _look(self) -> None:
        """Pass on changes of the inventory, and of the devices that claims hold but that are not offered."""
        snapshot, ledger = self._ports.inventory(), self._ledger_service.ledger
        if snapshot is not self._seen:
            self._seen = snapshot
            resources = {resource.name for resource in self._config.resources if resource.lanes.uses_dra}
            self._offered = {device.name: device for device in snapshot.devices if device.resource in resources}
            self._held_besides = None
            self._status.inventory_changed(snapshot)
        held_besides = tuple(
            entry.name
            for entry in ledger.entries.values()
            if entry.owner in DRA_OWNERS and entry.name not in self._offered
        )
        if held_besides != self._held_besides:
            self._held_besides = held_besides
            known = snapshot.by_name()
            more = [known[name] for name in held_besides if name in known]
            self._health.update(health_of((*self._offered.values(), *more), held_besides))
        if self._publisher is not None:
            self._publisher.wake()

    async def _publish_slices(self) -> None:
        loop, delays = asyncio.get_running_loop(), backoff(DISCOVERY_FIRST_SECONDS, DISCOVERY_MOST_SECONDS)
        while True:
            self._version = await self._discover()
            steady_at = loop.time() + STEADY_SECONDS
            self._claims.version = self._version
            self._publisher = Publisher(
                self._cluster,
                self._version,
                driver=self._config.driver,
                node=self._node,
                pool=self.pool,
                desired=self._desired,
                observer=self._ports.observer,
                on_synced=self._synced,
                on_features=self._features_found,
            )
            await self._publisher.run()
            self._version, self._error, self._publisher = "", self._publisher.state.error, None
            if loop.time() >= steady_at:
                delays = backoff(DISCOVERY_FIRST_SECONDS, DISCOVERY_MOST_SECONDS)
            await asyncio.sleep(next(delays))  # the servers of one cluster are upgraded one after the other

    async def _discover(self) -> str:
        """Return the version of resource.k8s.io to speak; wait for a server that has one."""
        for delay in backoff(DISCOVERY_FIRST_SECONDS, DISCOVERY_MOST_SECONDS):
            try:
                if version := await served_version(self._cluster):
                    self._error = ""
                    return version
                self._error = "the API server does not serve resource.k8s.io: DRA is switched off"
            except ClusterError as error:
                self._error = str(error)
            log.warning("slices not published", extra={"reason": self._error, "retry_seconds": round(delay, 1)})
            await asyncio.sleep(delay)
        raise AssertionError("backoff() does not end")

    def _synced(self) -> None:
        self.synced_seq = self._desired_seq
        self._leases.wake()
        self._ports.on_synced()

    def _features_found(self) -> None:
        self._leases.wake()
        self._ports.on_synced()

    def _names_changed(self) -> None:
        self._leases.wake()
        self.deallocations.wake()

    def _desired(self, features: frozenset[Feature]) -> DesiredSlices | None:
        snapshot = self._ports.inventory()
        if (
            not snapshot.complete or not self._server.listening
        ):  # the scheduler must not send pods to a driver that cannot serve
            return None
        self._desired_seq = self._ledger_service.ledger.seq
        unwell = bool(self.records.error or self._ports.unwell())
        known = snapshot, self._ledger_service.ledger, self._config
        kept, paused = self._ports.kept, self._ports.paused()
        pool = pool_of(*known, self._node, self._ports.clock(), unwell=unwell, kept=kept, paused=paused)
        return desired_slices(pool, features)

    def _observe(self, fact: Fact) -> None:
        if isinstance(fact, ClaimHandled) and fact.outcome is ClaimOutcome.OK:
            if fact.method == "prepare" and self._config.dra.claim_status:
                self._status.claim_prepared(fact.claim.uid)
            self.deallocations.wake()
        elif isinstance(fact, ClaimHandled) and fact.outcome is ClaimOutcome.FAILED:
            self.publish()  # a disk may have failed: then no claim can be granted, and the slices must say so
        self._ports.observer(fact)
