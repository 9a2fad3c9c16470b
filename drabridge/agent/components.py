"""Build the parts of one agent and give each what it uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

import deviceplugin
from drabridge.agent.drain import ClaimsLeft, Drain, DriverFiles
from drabridge.agent.endpoints import ControlRequests, Endpoints, Views
from drabridge.agent.maintenance import CdiMaintenance, LedgerMaintenance, Maintenance
from drabridge.agent.manual_release import OperatorRelease
from drabridge.agent.options import Options
from drabridge.agent.startup_merge import StartupMerge
from drabridge.agent.status_reader import agent_state, status_document
from drabridge.coexistence.competing_plugins import CompetingPlugins
from drabridge.coexistence.ended_agents import EndedAgents
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
from drabridge.inventory.identity_store import IdentityStore
from drabridge.inventory.inventory import Inventory
from drabridge.inventory.model import Device
from drabridge.kube.api import Cluster
from drabridge.kube.connection import ApiServer
from drabridge.kube.events import Announcer
from drabridge.lanes.acknowledgements import ApiServerAcknowledgements, KubeletAcknowledgements
from drabridge.lanes.desired import DesiredLanes
from drabridge.lanes.mover import LaneMover
from drabridge.lanes.targets import LaneTargets
from drabridge.ledger.events import KubeletStarted
from drabridge.ledger.model import LedgerPolicy, Owner
from drabridge.ledger.service import LedgerService
from drabridge.legacy.cdi_files import LegacyCdiFiles
from drabridge.legacy.manager import LegacyManager
from drabridge.legacy.resource import LegacyContext
from drabridge.system.io_thread import IoThread
from drabridge.system.paths import Paths
from drabridge.system.port import Port
from drabridge.system.supervise import WakeUp
from drabridge.telemetry.gauges import samples
from drabridge.telemetry.metrics import Metrics
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
    state_worker: IoThread  # waits for the state directory's disk, the ledger aside
    snapshot_taken: WakeUp  # the inventory has another snapshot
    now: Callable[[], float]


class Current(Struct):
    """What is in use now, each replaced as a whole; and why something newer is not."""

    config: Config
    devices: Mapping[str, Device] = {}  # by name, of the newest snapshot that was taken to the ledger
    config_error: str = ""
    devices_error: str = ""


class Components(Struct, frozen=True):
    """The parts of one agent that owns the ledger. Only the agent itself and its status reader get all of them."""

    options: Options
    paths: Paths
    current: Current
    ledger_service: LedgerService
    inventory: Inventory
    identities: IdentityStore
    withheld: WithheldDevices
    legacy: LegacyManager
    legacy_files: LegacyCdiFiles
    podresources: Client
    kubelet: KubeletEvidence
    others: OtherEvidence
    evidence: EvidenceLoop
    merge: StartupMerge
    api_server: ApiServer
    events: Announcer
    claims: ClaimSide
    claim_demand: ClaimDemand
    claim_queries: ClaimQueries
    desired: DesiredLanes
    targets: LaneTargets
    mover: LaneMover
    lanes_changed: WakeUp  # ledger, inventory or desired lanes changed: lanes are looked at again
    competing: CompetingPlugins
    cdi_maintenance: CdiMaintenance
    maintenance: Maintenance
    endpoints: Endpoints
    sinks: Sinks
    started_at: float


class KubeletObserver:
    """Passes the DevicePlugin side's facts on, and tells the ledger of each kubelet that is seen."""

    def __init__(self, ledger_service: LedgerService, sinks: Sinks, paths: Paths) -> None:
        self._ledger_service = ledger_service
        self._sinks = sinks
        self._paths = paths
        self._telling: set[asyncio.Task[None]] = set()

    def observe(self, fact: deviceplugin.Fact) -> None:
        """Implement :class:`deviceplugin.Observer`."""
        self._sinks.observe(fact)
        stream = isinstance(fact, deviceplugin.StreamOpened) and fact.expected  # kubelet's, not a stranger's look
        if stream or isinstance(fact, deviceplugin.KubeletSeen):
            kubelet = deviceplugin.kubelet_process(self._paths.device_plugins)
            service = self._ledger_service
            task = asyncio.create_task(service.apply_until_accepted(KubeletStarted(service.now(), kubelet)))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)


def build(base: Foundation, config: Config, ledger_service: LedgerService, standby: Standby | None) -> Components:
    """Build every part. What ``standby`` has ready is used. Call on the loop that the agent runs on."""
    options, paths, current = base.options, base.paths, Current(config)
    lanes_changed = WakeUp()
    metrics = Metrics(lambda: samples(agent_state(parts), sinks.reconciled_at))
    sinks = Sinks(metrics, lambda device: resource_of(ledger_service, device), base.now)

    # What exists, and what holds it.
    identities = IdentityStore(paths.state, base.state_worker)
    inventory = _inventory(config, ledger_service, identities, standby, sinks)
    cdi = CdiStore(paths.cdi, config.driver)
    legacy_files = LegacyCdiFiles(cdi)
    podresources = Client(paths.podresources_socket, observe=sinks.asked)
    context = LegacyContext(
        ledger_service=ledger_service,
        cdi=cdi,
        devices=lambda: current.devices,
        resolve=lambda device: replace(device, nodes=inventory.resolve_nodes(device)),
        now=base.now,
    )
    observer = KubeletObserver(ledger_service, sinks, paths)
    watcher = standby.watcher if standby is not None else None
    legacy = LegacyManager(paths.device_plugins, context, observer, watcher)
    kubelet = KubeletEvidence(
        podresources, paths.device_plugins, legacy.resend, base.now, legacy.wait_answered, config.driver
    )
    others = OtherEvidence(
        lambda: ledger_service.ledger, lambda: current.devices, lambda: probed_resources(inventory.configs())
    )
    evidence = EvidenceLoop(ledger_service, kubelet, enrich=others.enrich)

    # Lanes and claims.
    api_server = ApiServer(lambda: current.config, options.kubeconfig, standby.cluster if standby is not None else None)

    def desired_changed() -> None:
        lanes_changed.set()
        claims.wake()

    desired = DesiredLanes(
        paths.state,
        lambda: current.config,
        desired_changed,
        follows_node=api_server.cluster is not None,
        off=lambda: api_server.claims_off,
        files=base.state_worker,
    )
    demand = ClaimDemand(
        lambda: current.config, options.node_name, ledger_service, desired, api_server, paths.claim_records
    )

    def new_driver(cluster: Cluster) -> DraDriver:
        from drabridge.dra.driver import DraDriver, DriverNode
        from drabridge.dra.planning import device_lookup
        from drabridge.dra.ports import DraPorts

        ports = DraPorts(
            inventory=lambda: base.withheld.shown(inventory.current),
            observer=sinks.dra,
            lookup=lambda device: inventory.lookup(device.name) or device_lookup(device),
            in_use=others.in_use,
            pods=lambda: others.pods,
            unwell=lambda: ledger_service.health.error or cdi.error,
            on_synced=lanes_changed.set,
            clock=base.now,
        )
        node = DriverNode(options.node_name, paths.kubelet, paths.state, options.boot_id, base.state_worker)
        return DraDriver(current.config, node, ledger_service, cluster, cdi, ports)

    async def acknowledged(seconds: float) -> bool:
        return await legacy.delivered([resource.name for resource in current.config.resources], seconds)

    claims = ClaimSide(lambda: current.config, demand, api_server, new_driver, acknowledged, base.state_worker)
    queries = ClaimQueries(
        api_server, config.driver, options.node_name, lambda: claims.pool, lambda: claims.api_version
    )
    competing = CompetingPlugins(legacy, podresources, kubelet, ledger_service, lambda: current.devices)
    targets = LaneTargets(
        lambda: current.config, lambda: current.devices, inventory, ledger_service, desired, api_server
    )
    acknowledgements = (
        KubeletAcknowledgements(ledger_service, legacy, kubelet, evidence.hurry),
        ApiServerAcknowledgements(ledger_service, claims, api_server, queries.allocated),
    )
    mover = LaneMover(ledger_service, targets, desired, claims, acknowledgements, competing.found, lanes_changed)

    # What people ask for, and what is due by time.
    async def forget(device: str, uids: Iterable[str]) -> None:
        ledger = ledger_service.ledger
        await base.state_worker.promptly(lambda: forget_device(paths.claim_records, cdi, ledger, device, uids))

    release = OperatorRelease(ledger_service, evidence, kubelet, others, claims, queries, forget)
    claims_left = ClaimsLeft(ledger_service, claims, queries, kubelet)
    drain = Drain(
        lambda: current.config,
        options.node_name,
        ledger_service,
        desired,
        claims_left,
        DriverFiles(cdi, legacy_files),
    )
    endpoints = Endpoints(
        Views(lambda: agent_state(parts), lambda: status_document(parts), metrics.exposition),
        ControlRequests(desired.set, release.request, drain.request),
        base.port,
        paths.control_socket,
        options.page,
    )

    def cdi_written_again() -> None:
        claims.wake()
        claims.renew_files()

    cdi_maintenance = CdiMaintenance(
        lambda: current.config,
        lambda: current.devices,
        cdi,
        legacy_files,
        ledger_service,
        api_server,
        cdi_written_again,
    )
    ledger_maintenance = LedgerMaintenance(ledger_service, inventory, legacy, others)
    ended = EndedAgents(base.withheld, ledger_service, kubelet, others, queries.allocated_by)

    async def look_for_competing_plugins() -> None:
        before = set(competing.found)
        await competing.look()
        if competing.found:  # whom the other plugin serves must be a holder soon
            evidence.hurry()
        if before - competing.found.keys():
            lanes_changed.set()

    parts = Components(
        options=options,
        paths=paths,
        current=current,
        ledger_service=ledger_service,
        inventory=inventory,
        identities=identities,
        withheld=base.withheld,
        legacy=legacy,
        legacy_files=legacy_files,
        podresources=podresources,
        kubelet=kubelet,
        others=others,
        evidence=evidence,
        merge=StartupMerge(ledger_service, kubelet, cdi, paths, options.boot_id),
        api_server=api_server,
        events=Announcer(
            api_server.cluster,
            options.node_name,
            config.driver,
            base.now,
            lambda: metrics.count("events_dropped"),
        ),
        claims=claims,
        claim_demand=demand,
        claim_queries=queries,
        desired=desired,
        targets=targets,
        mover=mover,
        lanes_changed=lanes_changed,
        competing=competing,
        cdi_maintenance=cdi_maintenance,
        maintenance=Maintenance(
            [
                endpoints.beat,
                endpoints.renew_control_socket,
                ledger_maintenance.retry,
                ledger_maintenance.end_lingering,
                ledger_maintenance.forget_gone,
                cdi_maintenance.sweep,
                cdi_maintenance.restore,
                claims.retry_records,
                look_for_competing_plugins,
                base.withheld.restore_file,
                ended.look,
            ]
        ),
        endpoints=endpoints,
        sinks=sinks,
        started_at=base.now(),
    )
    return parts


def _inventory(
    config: Config,
    ledger_service: LedgerService,
    identities: IdentityStore,
    standby: Standby | None,
    sinks: Sinks,
) -> Inventory:
    def held(device: str) -> bool:
        entry = ledger_service.head.entries.get(device)
        return entry is not None and entry.owner is not Owner.NONE

    known = identities.load(config)
    ready = standby and standby.inventory_for(config, known, held, sinks.inventory)
    return ready or Inventory(config, held=held, known=known, on_fact=sinks.inventory)


def resource_of(ledger_service: LedgerService, device: str) -> str:
    """Return the resource of a device that the ledger knows; "" for another."""
    entry = ledger_service.ledger.entries.get(device)
    return entry.device.resource if entry else ""


def release_policy(config: Config) -> LedgerPolicy:
    """Return the ledger's rules as the configuration has them."""
    return LedgerPolicy(**config.safety.model_dump())


def probed_resources(configs: Iterable[Config]) -> frozenset[str]:
    """Return the resources whose device nodes are looked at before a device counts as let go."""
    return frozenset(resource.name for config in configs for resource in config.resources if resource.probe_open)
