"""Run the agent that owns the ledger: record devices in it, begin to serve after the merge, pass on changes.

Order of the start: the inventory; the merge with what kubelet and the CDI directory say; the DevicePlugin side; when
kubelet has taken the lists, the DRA side. Nothing is granted before the merge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from drabridge.agent.components import Components, Foundation, release_policy
from drabridge.coexistence.vendor_software import LOOK_SECONDS
from drabridge.config.follower import ConfigFollower
from drabridge.config.schema import Config
from drabridge.inventory.devices import Collision, Snapshot
from drabridge.kube.node_annotation import NodeSeen
from drabridge.ledger.effects import Effect, Notify, Readvertise, Released
from drabridge.ledger.entries import Ledger
from drabridge.ledger.events import NodeBooted
from drabridge.system.memory import release_memory_of_start
from drabridge.system.supervise import WakeUp, end, forever

if TYPE_CHECKING:
    from drabridge.agent.api_watches import ApiWatches
    from drabridge.agent.standby import Standby

log = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 1.5  # for calls in flight at SIGTERM; the whole stop must end within 3 s
REFRESH_SECONDS = 0.01  # lets Allocate be answered first, and several calls cause one list
MEMORY_SECONDS = 1.0  # after the parts have started: registration has ended by then, or waits for kubelet
REFUSALS = frozenset({"AllocateRefused", "DeviceRefused"})  # reasons of a Notify with a refusal as its message

Work = Callable[[], Awaitable[None]]


class ServingAgent:
    """One agent from the moment that the ledger is its own. :meth:`run` returns after ``stop`` is set."""

    def __init__(
        self, base: Foundation, parts: Components, standby: Standby | None, stop: asyncio.Event, reload: WakeUp
    ) -> None:
        """``standby`` is what this agent was before; ``reload`` asks to read the configuration file again."""
        self._parts = parts
        self._port = base.port
        self._standby = standby
        self._stop = stop
        self._snapshot_taken = base.snapshot_taken
        self._follower = ConfigFollower(
            base.options.config,
            parts.current.config,
            reload,
            self._reconfigure,
            self._config_refused,
            parts.claim_demand.refusal,
        )
        self._rebooted = False  # whether the node has booted since the ledger was written
        self._boot_recorded = False  # whether the ledger has this boot's id
        self._serving = False  # whether the ledger knows enough: by the merge, or from an earlier run
        self._behind = False  # whether the ledger lacks the newest snapshot, or the merge, because its disk is full
        self._configuring = asyncio.Lock()
        self._collisions: tuple[Collision, ...] = ()  # the logged ones
        self._refresh: asyncio.TimerHandle | None = None
        self._watches: ApiWatches | None = None
        self._tasks: list[asyncio.Task[None]] = []  # ended first when the agent ends

    async def run(self) -> None:
        """Serve until stopped. Streams end before the ledger's lock is released."""
        parts = self._parts
        unsubscribe = parts.ledger_service.subscribe(self._ledger_changed)
        await self._open_endpoints()
        self._spawn("devices", self._follow_inventory)
        self._spawn("configuration", self._follower.run)
        self._spawn("maintenance", parts.maintenance.run)
        looking = self._standby.take_inventory_task(parts.inventory) if self._standby is not None else None
        if self._standby is not None:
            await self._standby.step_aside()
        if looking is not None:
            self._tasks.append(looking)
        else:
            self._spawn("inventory", lambda: parts.inventory.run(lambda _: self._snapshot_taken.set()))
        try:
            await self._stop.wait()
            log.info("stopping")
        finally:
            await self._end_watches()
            await end(*self._tasks)
            unsubscribe()
            await parts.endpoints.close()
            await parts.podresources.close()
            # The last step before the ledger is released: from now on pods are refused until a successor has
            # registered.
            await parts.legacy.close(STOP_GRACE_SECONDS)
            log.info("stopped")

    async def _open_endpoints(self) -> None:
        """Listen. A taken port is an error, but a former standby waits for it: its predecessor may still have it."""
        if self._standby is None:
            await self._port.bind()
        await self._parts.endpoints.open()
        if not self._port.bound:
            self._spawn("port", self._parts.endpoints.wait_for_port, lambda: self._port.bound)

    def _spawn(self, name: str, work: Work, stopping: Callable[[], bool] = lambda: False) -> None:
        self._tasks.append(asyncio.create_task(forever(name, work, stopping), name=name))

    # --- devices ----------------------------------------------------------------------------------------------------

    async def _follow_inventory(self) -> None:
        try:
            await self._take_snapshots()
        except Exception as error:  # shown until the next try succeeds
            self._parts.current.devices_error = str(error) or repr(error)
            raise

    async def _take_snapshots(self) -> None:
        """Record every snapshot in the ledger, and tell kubelet; after the first one, merge."""
        parts = self._parts
        service = parts.ledger_service
        boot_id, node = parts.options.boot_id.read_text().strip(), service.ledger.node
        if not self._boot_recorded:  # the boot id in a lost ledger is that of an older copy and proves nothing
            self._rebooted |= not node.lost and node.boot_id not in ("", boot_id)
        while True:
            if not self._boot_recorded:  # otherwise a later start would see a reboot that did not happen
                self._boot_recorded = (await service.apply(NodeBooted(boot_id, service.now()))).accepted
            if not self._serving:
                await parts.vendor.look()
            if (snapshot := parts.inventory.current).complete and not self._stands_back:
                await self._take(snapshot)
                if self._serving and service.ledger.node.merged:
                    parts.legacy_files.follow_soon(service.ledger, parts.current.devices)
                else:
                    await self._merge()
                parts.legacy.follow_inventory()
                parts.claims.wake()
                parts.lanes_changed.set()
                parts.node_labels.follow()
                parts.current.devices_error = ""
            await self._snapshot_taken.wait(LOOK_SECONDS if self._stands_back else parts.withheld.again_seconds)

    @property
    def _stands_back(self) -> bool:
        """Whether serving must wait because the vendor's own software, whose driver name is used here, still runs."""
        return bool(self._parts.vendor.found) and not self._serving

    async def _take(self, snapshot: Snapshot) -> None:
        parts = self._parts
        if parts.inventory.config is not parts.current.config:  # a device with a new templated resource name appeared
            await self._use(parts.inventory.config)
        mounted = [resource.name for resource in parts.current.config.resources if resource.offer_mounted]
        snapshot = await parts.withheld.update(snapshot, parts.ledger_service.head, mounted, parts.vfio.why_not)
        first = parts.targets.first_lanes(snapshot)
        parts.current.devices = snapshot.by_name()
        config = parts.current.config
        cordoned = parts.cordons.devices_with({device.id: device.name for device in snapshot.devices})
        self._behind = not await parts.merge.discover(config, snapshot, first, cordoned, rebooted=self._rebooted)
        parts.identities.save(parts.inventory.identities())
        for collision in snapshot.collisions:
            if collision not in self._collisions:
                log.error("devices with one identity are not offered", extra={"collision": str(collision)})
        self._collisions = snapshot.collisions

    async def _merge(self) -> None:
        """Merge and begin to serve. While the disk is full, begin only if the ledger is whole from an earlier run."""
        parts = self._parts
        service = parts.ledger_service
        merged = False
        if self._boot_recorded and not self._behind:
            names = [resource.name for resource in parts.inventory.file.resources]
            merged = await parts.merge.merge(parts.current.config, names, rebooted=self._rebooted)
        if merged:
            parts.legacy_files.restore_soon(service.ledger, parts.current.devices)
        self._behind = not merged  # is tried again when the disk works
        if not self._serving and (merged or service.ledger.node.whole):
            self._serving = True
            await parts.legacy.configure(parts.current.config)
            self._begin_to_serve()

    def _begin_to_serve(self) -> None:
        """Start the parts that may run once the ledger knows enough, and the watches of the API server."""
        parts = self._parts
        self._spawn("evidence", parts.evidence.run)
        self._spawn("lanes", parts.mover.run)
        self._spawn("claims", parts.claims.run)
        self._spawn("events", parts.events.run)
        self._spawn("node labels", parts.node_labels.writer.run)
        self._join_cluster()
        if self._standby is not None:
            self._tasks.append(asyncio.create_task(self._standby.retire_relay(parts.claims), name="relay"))
        asyncio.get_running_loop().call_later(MEMORY_SECONDS, release_memory_of_start)

    # --- the API server ---------------------------------------------------------------------------------------------

    def _join_cluster(self) -> None:
        """Follow what the API server says of this node; called again when a reload allows the API server."""
        parts, cluster = self._parts, self._parts.api_server.cluster
        if cluster is None or self._watches is not None:
            return
        from drabridge.agent.api_watches import ApiWatches  # not without an API server: it takes memory

        watches = self._standby.take_watches() if self._standby is not None else None
        watches = watches or ApiWatches(cluster, parts.options.node_name, parts.current.config.driver, self._resources)
        watches.pods.slack = lambda: parts.ledger_service.policy.absent_seconds
        watches.begin()
        watches.notify(parts.evidence.hurry, self._node_seen, self._resources)
        parts.turns.watches = watches
        parts.others.pods = watches.pods
        parts.others.claims = parts.claim_queries.allocated
        self._watches = watches

    async def _leave_cluster(self) -> None:
        """Disconnect from the API server, as the new configuration says. What it said last no longer counts."""
        await self._end_watches()
        self._parts.api_server.disconnect()
        self._parts.others.pods = self._parts.others.claims = None
        self._parts.desired.forget_annotation()
        self._parts.cordons.forget_annotation()
        self._node_seen(None)

    async def _end_watches(self) -> None:
        watches, self._watches = self._watches, None
        if watches is not None:
            await watches.end()

    def _node_seen(self, node: NodeSeen | None) -> None:
        """Take the Node's state. None: it is no longer known, and what its annotations said stays in force."""
        if node is not None:
            self._parts.desired.annotate(node.lanes)
            self._parts.cordons.annotate(node.cordoned)
        labels = node.labels if node is not None else None
        self._parts.node_labels.writer.seen(labels)
        self._parts.vendor_managers.take(labels)

    def _resources(self) -> frozenset[str]:
        """Return the resource names under which pods may have a known device. Any thread may call it."""
        entries = self._parts.ledger_service.ledger.entries.values()
        return frozenset(name for entry in entries for name in (entry.device.resource, *entry.counted_as)) | {
            resource.name for resource in self._parts.current.config.resources
        }

    # --- changes ----------------------------------------------------------------------------------------------------

    def _ledger_changed(self, ledger: Ledger, effects: tuple[Effect, ...]) -> None:
        """Pass on the effects of a step of the ledger, and update the offers soon."""
        del ledger
        parts = self._parts
        if parts.ledger_service.health.lost:
            self._stop.set()  # the agent then starts again as the other agent's standby
        refused = next((e.message for e in effects if isinstance(e, Notify) and e.reason in REFUSALS), "")
        for effect in effects:
            parts.sinks.effect(effect, refused)
            if isinstance(effect, Notify):
                parts.events.tell(effect)
            elif isinstance(effect, Readvertise):
                parts.legacy.resend_soon({parts.resource_of(device) for device in effect.devices})
                parts.evidence.hurry()
        parts.inventory.released(effect.device for effect in effects if isinstance(effect, Released))
        if self._refresh is None:
            self._refresh = asyncio.get_running_loop().call_later(REFRESH_SECONDS, self._follow_ledger)

    def _follow_ledger(self) -> None:
        """Update offers, moves and questions to kubelet after one or more changes of the ledger."""
        parts = self._parts
        self._refresh = None
        parts.turns.follow()
        parts.follow_holds()
        if self._behind and parts.ledger_service.health.ok:
            self._snapshot_taken.set()
        parts.evidence.changed()
        parts.look_again()

    async def _reconfigure(self, config: Config) -> None:
        self._parts.current.config_error = ""
        self._parts.inventory.reconfigure(config)
        await self._use(self._parts.inventory.config)

    async def _use(self, config: Config) -> None:
        """Serve by a new configuration; the file or the devices have changed it. Calls run one at a time."""
        async with self._configuring:
            await self._configure(config)

    async def _configure(self, config: Config) -> None:
        parts = self._parts
        parts.current.config = config
        parts.ledger_service.policy = release_policy(config)
        if self._serving:  # otherwise serving begins later, with the configuration then in use
            await parts.legacy.configure(config)
            parts.legacy.follow_inventory()
            parts.node_labels.follow()
        if config.dra.enabled is False:
            await self._leave_cluster()
        elif parts.api_server.connect() and self._serving:
            self._join_cluster()
        parts.desired.reconfigured()
        parts.claims.reconfigure(config)
        parts.lanes_changed.set()

    def _config_refused(self, faults: str) -> None:
        self._parts.current.config_error = faults
