"""Build the parts of one agent and give each what it uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict

import deviceplugin
from drabridge.agent.cordons import Cordons
from drabridge.agent.drain import ClaimsLeft, Drain, DriverFiles
from drabridge.agent.endpoints import Endpoints, Views
from drabridge.agent.evictions import Evictor
from drabridge.agent.history import History
from drabridge.agent.maintenance import CdiMaintenance, LedgerMaintenance, Maintenance, TurnKeeper
from drabridge.agent.manual_release import OperatorRelease
from drabridge.agent.node_labels import NodeLabels
from drabridge.agent.options import Options
from drabridge.agent.startup_merge import StartupMerge
from drabridge.agent.status_reader import agent_state, status_document
from drabridge.coexistence.competing_plugins import CompetingPlugins
from drabridge.coexistence.ended_agents import EndedAgents
from drabridge.coexistence.host_use import IommuGroups
from drabridge.coexistence.vendor_managers import NVIDIA, VendorManagers
from drabridge.coexistence.vendor_software import VendorSoftware
from drabridge.coexistence.vfio_binder import VfioBinder
from drabridge.coexistence.withheld import WithheldDevices
from drabridge.config.schema import Config
from drabridge.containers.cdi_store import CdiStore
from drabridge.dra.claim_demand import ClaimDemand
from drabridge.dra.claim_queries import ClaimQueries
from drabridge.dra.lifecycle import ClaimSide
from drabridge.dra.recorded_claims import forget_device
from drabridge.evidence.kubelet import KubeletEvidence
from drabridge.evidence.loop import EvidenceLoop
from drabridge.evidence.other_sources import OtherEvidence
from drabridge.inventory.devices import Device
from drabridge.inventory.host import HostPaths
from drabridge.inventory.identity_store import IdentityStore
from drabridge.inventory.inventory import Inventory
from drabridge.inventory.observer import Fact, FallbackGiven
from drabridge.kube.api import Cluster
from drabridge.kube.connection import ApiServer
from drabridge.kube.events import Announcer
from drabridge.kube.node_labels import NodeLabelWriter
from drabridge.lanes.acknowledgements import ApiServerAcknowledgements, KubeletAcknowledgements
from drabridge.lanes.desired import DesiredLanes
from drabridge.lanes.mover import LaneMover
from drabridge.lanes.targets import LaneTargets
from drabridge.ledger.effects import Notify, Subject
from drabridge.ledger.entries import ClaimRef, Owner
from drabridge.ledger.events import KubeletStarted
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.service import LedgerService
from drabridge.legacy.cdi_files import LegacyCdiFiles
from drabridge.legacy.manager import LegacyManager
from drabridge.legacy.resource import LegacyContext
from drabridge.system.io_thread import IoThread
from drabridge.system.paths import Paths
from drabridge.system.port import Port
from drabridge.system.supervise import WakeUp
from drabridge.telemetry import gpu_use
from drabridge.telemetry.gauges import samples
from drabridge.telemetry.holds import CLAIMS, Holding, Holds
from drabridge.telemetry.metrics import Metrics, Sample
from drabridge.telemetry.sinks import Sinks
from podresources import Client

if TYPE_CHECKING:
    from drabridge.agent.standby import Standby
    from drabridge.dra.driver import DraDriver


class Foundation(Struct, frozen=True):
    """What an agent has before the ledger is its own."""

    options: Options
    paths: Paths
    port: Port
    withheld: WithheldDevices
    state_worker: IoThread  # does the I/O in the state directory, except the ledger's
    snapshot_taken: WakeUp  # set when the inventory has a new snapshot
    now: Callable[[], float]


class Current(Struct):
    """Configuration and devices in use, each replaced as a whole, and why a newer version of them is not in use."""

    config: Config
    devices: Mapping[str, Device] = {}  # by name, of the newest complete snapshot
    config_error: str = ""
    devices_error: str = ""


class KubeletObserver:
    """Passes on the facts of the DevicePlugin side, and tells the ledger of each kubelet process that is seen."""

    def __init__(self, ledger_service: LedgerService, sinks: Sinks, paths: Paths, told: Callable[[], None]) -> None:
        """``told`` is called once the ledger knows the kubelet, so that its first list already takes that in."""
        self._told = told
        self._ledger_service = ledger_service
        self._sinks = sinks
        self._paths = paths
        self._telling: set[asyncio.Task[None]] = set()

    def observe(self, fact: deviceplugin.Fact) -> None:
        """Implement :class:`deviceplugin.Observer`."""
        self._sinks.observe(fact)
        stream = isinstance(fact, deviceplugin.StreamOpened) and fact.expected  # kubelet opened it, not another client
        if stream or isinstance(fact, deviceplugin.KubeletSeen):
            kubelet = deviceplugin.kubelet_process(self._paths.device_plugins)
            task = asyncio.create_task(self._tell(kubelet))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, kubelet: str) -> None:
        service = self._ledger_service
        await service.apply_until_accepted(KubeletStarted(service.now(), kubelet))
        self._told()


class Components:
    """The parts of one agent that owns the ledger. Only the agent itself and its status reader get all of them.

    ``lanes_changed`` is set when ledger, inventory or desired lanes changed: the mover then plans again.
    """

    def __init__(
        self, base: Foundation, config: Config, ledger_service: LedgerService, standby: Standby | None
    ) -> None:
        """Build every part, with what ``standby`` has ready. Call on the loop that the agent runs on."""
        self.options = options = base.options
        self.paths = paths = base.paths
        self.withheld = base.withheld
        self.ledger_service = ledger_service
        self.current = current = Current(config)
        self.started_at = base.now()
        self.lanes_changed = WakeUp()
        self._state_worker = base.state_worker
        metrics = Metrics(self._samples)
        self.holds = Holds(self._owner_of)
        self.history = History(paths.state, base.state_worker, self.holds)
        self.sinks = Sinks(metrics, self.resource_of, base.now)

        def config_in_use() -> Config:
            return current.config

        def devices() -> Mapping[str, Device]:
            return current.devices

        # What exists, and who holds it.
        self.identities = IdentityStore(paths.state, base.state_worker)
        self.inventory = inventory = self._inventory(config, standby)
        current.config = inventory.config
        self.vfio = vfio = VfioBinder(
            paths.state,
            options.boot_id,
            IommuGroups(),
            config_in_use,
            ledger_service,
            devices,
            self._pause_nvml,
        )
        self.turns = TurnKeeper(ledger_service, self.look_again)
        self._cdi = cdi = CdiStore(paths.cdi, config.driver)
        self.legacy_files = LegacyCdiFiles(cdi)
        self.podresources = Client(paths.podresources_socket, observe=self.sinks.asked)
        self.legacy = legacy = LegacyManager(
            paths.device_plugins,
            LegacyContext(
                ledger_service=ledger_service,
                cdi=cdi,
                devices=devices,
                resolve=inventory.resolve,
                confirm_cdi=inventory.cdi.confirm,
                bind=vfio.bind,
                now=base.now,
                kept=self.turns.kept_from_pods,
                paused=self.paused,
            ),
            KubeletObserver(ledger_service, self.sinks, paths, self._kubelet_known),
            standby.watcher if standby is not None else None,
        )
        self.kubelet = kubelet = KubeletEvidence(
            self.podresources, paths.device_plugins, legacy.resend, base.now, legacy.wait_answered, config.driver
        )
        self.others = others = OtherEvidence(ledger_service, devices, lambda: probed_resources(inventory.configs()))
        self.evidence = EvidenceLoop(ledger_service, kubelet, enrich=others.enrich)
        self.merge = StartupMerge(ledger_service, kubelet, cdi, paths, options.boot_id)

        # Lanes and claims.
        connected = standby.cluster if standby is not None else None
        self.api_server = api_server = ApiServer(config_in_use, options.kubeconfig, connected)
        self.events = Announcer(
            api_server, options.node_name, config.driver, base.now, partial(metrics.count, "events_dropped")
        )
        writer = NodeLabelWriter(api_server, options.node_name, config.driver)
        self.node_labels = NodeLabels(config_in_use, devices, inventory.lookup, writer, base.now)
        self.desired = desired = DesiredLanes(
            paths.state, config_in_use, self.look_again, api_server, base.state_worker
        )
        self.cordons = Cordons(
            paths.state, config_in_use, ledger_service, base.snapshot_taken.set, api_server, base.state_worker
        )
        self.claim_demand = ClaimDemand(
            config_in_use, options.node_name, ledger_service, desired, api_server, paths.claim_records
        )
        self.claims = claims = ClaimSide(
            config_in_use,
            self.claim_demand,
            api_server,
            self._new_driver,
            self._kubelet_has_lists,
            base.state_worker,
        )
        self.claim_queries = queries = ClaimQueries(api_server, config.driver, options.node_name, claims)
        self.vendor = VendorSoftware(paths, config.driver, claims)
        self.vendor_managers = VendorManagers(self._managers_changed)
        self.competing = CompetingPlugins(legacy, self.podresources, kubelet, ledger_service, devices)
        self.targets = LaneTargets(
            config_in_use,
            devices,
            inventory,
            ledger_service,
            desired,
            api_server,
            claims,
            self.turns.lent,
        )
        self.mover = LaneMover(
            ledger_service,
            self.targets,
            desired,
            claims,
            KubeletAcknowledgements(ledger_service, legacy, kubelet, self.evidence.hurry),
            ApiServerAcknowledgements(ledger_service, claims, api_server, queries.allocated),
            self.competing.found,
            self.lanes_changed,
        )

        # What people ask for, and what is due by time.
        release = OperatorRelease(ledger_service, self.evidence, kubelet, others, claims, queries, self._forget_device)
        drain = Drain(
            config_in_use,
            options.node_name,
            ledger_service,
            desired,
            ClaimsLeft(ledger_service, claims, queries, kubelet),
            DriverFiles(cdi, self.legacy_files),
        )
        self.endpoints = Endpoints(
            Views(partial(agent_state, self), partial(status_document, self), metrics.exposition),
            {
                ("POST", "/lanes"): desired.set,
                ("POST", "/release"): release.request,
                ("GET", "/drain"): drain.request,
                ("POST", "/drain"): drain.request,
                ("POST", "/cordon"): self.cordons.request,
                ("POST", "/history"): self.history.request,
            },
            base.port,
            paths.control_socket,
            options.page,
        )
        self.cdi_maintenance = CdiMaintenance(
            config_in_use, devices, cdi, self.legacy_files, ledger_service, api_server, claims.renew_files
        )
        self.evictor = Evictor(
            config_in_use,
            devices,
            ledger_service,
            api_server,
            others,
            claims,
            self.events.tell,
            partial(metrics.count, "evictions"),
            base.now,
        )
        ledger_maintenance = LedgerMaintenance(ledger_service, inventory, legacy, others)
        self.maintenance = Maintenance(
            [
                self.endpoints.beat,
                self.endpoints.renew_control_socket,
                self.turns.look,
                ledger_maintenance.retry,
                ledger_maintenance.end_lingering,
                ledger_maintenance.forget_gone,
                self.cdi_maintenance.sweep,
                self.cdi_maintenance.restore,
                claims.retry_records,
                self._look_for_competing_plugins,
                self.vendor.look,
                base.withheld.restore_file,
                self.node_labels.refresh,
                self.history.retry,
                self.evictor.look,
                vfio.give_back,
                EndedAgents(base.withheld, ledger_service, kubelet, others, queries.allocated_by).look,
            ]
        )

    def resource_of(self, device: str) -> str:
        """Return the resource of a device; "" if the ledger does not know the device."""
        entry = self.ledger_service.ledger.entries.get(device)
        return entry.device.resource if entry else ""

    def _samples(self) -> Iterator[Sample]:
        """Yield all values of metrics that are not counted."""
        state, pods = agent_state(self), self.others.pods
        yield from samples(state, self.sinks.reconciled_at)
        yield from self.holds.samples()
        names_of = pods.names_of if pods is not None else lambda uid, container: ("", "", "")
        use = self.inventory.nvml.use
        yield from gpu_use.samples(state.snapshot.devices, state.ledger, use, state.nvml_problem, names_of)

    def _owner_of(self, holding: Holding) -> str:
        pods = self.others.pods
        if pods is None:
            return ""
        if holding.api == CLAIMS:
            return pods.owner_of_claim(ClaimRef(holding.uid, holding.namespace, holding.name))
        return pods.owner(holding.namespace, holding.name)

    def follow_holds(self) -> None:
        """Count the holds of now for the metrics, and write the ended ones to the history."""
        service = self.ledger_service
        self.history.add(self.holds.follow(service.ledger, service.now()))

    def _inventory(self, config: Config, standby: Standby | None) -> Inventory:
        def held(device: str) -> bool:
            entry = self.ledger_service.head.entries.get(device)
            return entry is not None and entry.owner is not Owner.NONE

        known, on_fact = self.identities.load(config), self._take_fact
        ready = standby and standby.inventory_for(config, known, held, on_fact)
        where = HostPaths(cdi=self.paths.cdi_specs)
        return ready or Inventory(config, held=held, known=known, paths=where, on_fact=on_fact)

    def _take_fact(self, fact: Fact) -> None:
        """Pass on a fact of the inventory; write an Event if driver files are missing."""
        self.sinks.inventory(fact)
        if isinstance(fact, FallbackGiven) and fact.lacks:
            self.events.tell(Notify(Subject.NODE, "DriverFilesMissing", f"{fact.resource}: {fact.lacks}"))

    def _new_driver(self, cluster: Cluster) -> DraDriver:
        from drabridge.dra.driver import DraDriver, DriverNode
        from drabridge.dra.planning import device_lookup
        from drabridge.dra.ports import DraPorts

        options, paths, inventory, service = self.options, self.paths, self.inventory, self.ledger_service
        ports = DraPorts(
            inventory=lambda: self.withheld.shown(inventory.current),
            observer=self.sinks.dra,
            lookup=lambda device: inventory.lookup(device.name) or device_lookup(device),
            in_use=self.others.in_use,
            confirm_cdi=inventory.cdi.confirm,
            bind=self.vfio.bind,
            pods=lambda: self.others.pods,
            unwell=lambda: service.health.error or self._cdi.error,
            on_synced=self.lanes_changed.set,
            kept=self.turns.keeps_from_claims,
            paused=self.paused,
            clock=service.now,
        )
        node = DriverNode(options.node_name, paths.kubelet, paths.state, options.boot_id, self._state_worker)
        return DraDriver(self.current.config, node, service, cluster, self._cdi, ports)

    async def _kubelet_has_lists(self, seconds: float) -> bool:
        return await self.legacy.delivered([one.name for one in self.current.config.resources], seconds)

    async def _forget_device(self, device: str, uids: Iterable[str]) -> None:
        records, ledger = self.paths.claim_records, self.ledger_service.ledger
        await self._state_worker.promptly(lambda: forget_device(records, self._cdi, ledger, device, uids))

    def look_again(self) -> None:
        """Let moves and offers follow what has changed: ledger, desired lanes, turns. Cheap, never blocks."""
        self.lanes_changed.set()
        self.claims.wake()
        self.legacy.follow_ledger()

    def _kubelet_known(self) -> None:
        self.turns.follow()
        self.legacy.follow_ledger()
        self.evidence.hurry()  # kubelet now writes its checkpoint when it is sent a list, and that names the pods

    def paused(self) -> Mapping[str, str]:
        """Return device -> why no new holder gets it now: its vendor's manager is at work, or vfio-pci has it."""
        devices = self.current.devices
        return self.vendor_managers.paused(devices, self.inventory.udev_device) | self.vfio.paused(devices)

    def _pause_nvml(self, why: str) -> None:
        self.inventory.nvml.pause(why or self.vendor_managers.at_work.get(NVIDIA, ""))

    def _managers_changed(self) -> None:
        self._pause_nvml("")
        self.look_again()

    async def _look_for_competing_plugins(self) -> None:
        before = set(self.competing.found)
        await self.competing.look()
        if self.competing.found:  # pods that the other plugin serves must soon be in the ledger
            self.evidence.hurry()
        if before - self.competing.found.keys():
            self.lanes_changed.set()


def release_policy(config: Config) -> LedgerPolicy:
    """Return the ledger's rules as the configuration has them."""
    return LedgerPolicy(**asdict(config.safety))


def probed_resources(configs: Iterable[Config]) -> frozenset[str]:
    """Return the resources whose device nodes are looked at before a device counts as let go."""
    return frozenset(resource.name for config in configs for resource in config.resources if resource.probe_open)
