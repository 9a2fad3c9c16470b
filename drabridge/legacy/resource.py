"""Serve one extended resource to kubelet: its device list, its allocations, its preferences."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

import deviceplugin
from deviceplugin import AllocationError, Broadcast, ContainerAllocation, DeviceList, DeviceSpec, ListedHealth
from deviceplugin.preference import ReplicaPolicy, Unit, prefer
from drabridge.config.schema import Inject, Resource
from drabridge.containers.cdi_spec import ContainerEdits
from drabridge.containers.cdi_store import CdiStore
from drabridge.containers.hooks import run_hook
from drabridge.containers.together import joined_env, one_path_for_two, placed, too_many
from drabridge.errors import HostError
from drabridge.inventory.devices import Device, Presence
from drabridge.lanes.plan import packing_order
from drabridge.ledger import events
from drabridge.ledger.effects import Decision
from drabridge.ledger.entries import Entry
from drabridge.ledger.service import LedgerService, PendingStep
from drabridge.legacy.ids import KubeletIds
from drabridge.offers.device_list import legacy_list, of_resource, surplus
from drabridge.system.io_thread import PATIENCE_SECONDS, Job

log = logging.getLogger(__name__)


async def _all_there(names: Collection[str]) -> None:
    pass


async def _not_bound(device: Device) -> None:
    pass


class LegacyContext(Struct, frozen=True):
    """What every resource of the legacy side needs of the agent.

    ``devices`` returns the inventory's current records by name. ``resolve`` reads a device's nodes again from its
    stable identity (stat calls only), because a number may have changed since the last event. ``confirm_cdi`` looks for
    CDI devices of other programs, and raises HostError for one that is in no file. ``bind`` binds a device to vfio-pci
    if its resource asks for that, and raises HostError. ``now`` returns wall seconds. ``kept`` returns the devices that
    are kept for claims, ``paused`` those that no new holder gets for now, each with the reason.
    """

    ledger_service: LedgerService
    cdi: CdiStore
    devices: Callable[[], Mapping[str, Device]]
    resolve: Callable[[Device], Device]
    confirm_cdi: Callable[[Collection[str]], Awaitable[None]] = _all_there
    bind: Callable[[Device], Awaitable[None]] = _not_bound
    now: Callable[[], float] = time.time
    kept: Callable[[], Collection[str]] = tuple
    paused: Callable[[], Mapping[str, str]] = dict


CdiNames = list[tuple[str, ...]]  # for each device the names that kubelet is told


class LegacyResource:
    """Implements every interface of :mod:`deviceplugin.api` for one resource of the configuration."""

    def __init__(self, config: Resource, inject: Inject, context: LegacyContext) -> None:
        self.config = config
        self._inject = config.inject or inject
        self._agent = context
        self._list: DeviceList = Broadcast()
        self._ids = KubeletIds()
        self._refused: set[str] = set()  # units refused while nothing can be granted, as on a full disk
        self._units: tuple[Unit, ...] = ()
        self._last_given = frozenset[str]()  # the units of the last Allocate that was answered
        self._hook = asyncio.Lock()  # so that a hook never runs twice at once

    @property
    def resource(self) -> str:
        return self.config.name

    def reconfigure(self, config: Resource, inject: Inject) -> bool:
        """Take a changed configuration. Return False if kubelet must be told, which needs a new server."""
        if _needs_pre_start(config) != self.pre_start_required:
            return False
        self.config, self._inject = config, config.inject or inject
        return True

    def devices(self) -> DeviceList:
        return self._list

    def follow_inventory(self, recent: Collection[str] = ()) -> None:
        """Take the inventory's devices, then :meth:`follow_ledger`. Not needed when only owners changed.

        ``recent``: ids that kubelet asked about a short while ago; they must not leave the list.
        """
        entries, keep_seconds = (
            of_resource(self._agent.ledger_service.ledger, self.resource),
            self._agent.ledger_service.policy.tombstone_seconds,
        )
        self._ids.follow(entries, self._agent.now())
        self._ids.forget(entries, self._agent.now(), keep_seconds=keep_seconds, recent=recent)
        self._units = tuple(self._describe(self._agent.devices()))
        self.follow_ledger()

    def follow_ledger(self) -> None:
        """Bring the device list up to date with the ledger. An unchanged list is not sent."""
        ledger, at = self._agent.ledger_service.ledger, self._agent.now()
        if not self._cannot_grant:
            self._refused.clear()
        self._ids.follow((entry for entry in ledger.entries.values() if entry.device.resource == self.resource), at)
        listed = legacy_list(
            ledger,
            self._agent.devices(),
            self.resource,
            at=at,
            policy=self._agent.ledger_service.policy,
            former=self._ids.former(),
            refused=self._refused if self._cannot_grant else None,
            kept=self._agent.kept(),
            paused=self._agent.paused(),
        )
        self._list.publish(
            tuple(
                deviceplugin.ListedDevice(
                    entry.id, ListedHealth.HEALTHY if entry.healthy else ListedHealth.UNHEALTHY, entry.numa_nodes
                )
                for entry in listed
            )
        )

    def allocate(self, ids: Sequence[str]) -> ContainerAllocation | Coroutine[Any, Any, ContainerAllocation]:
        """Ask the ledger for the devices and answer once the grant is on disk; return a coroutine if that takes long.

        Raises AllocationError to refuse.
        """
        units = self._allowed(ids)
        pending = self._agent.ledger_service.submit(events.Allocate(units, self._agent.now(), self.resource))
        # This is done while the disk works. Nobody gets a file's names before the grant is on disk. If the grant fails,
        # the next sweep, or a start, removes the file.
        begun = self._begin(units) if pending.at_once else None
        decision = self._agent.ledger_service.settle(pending)
        if decision is None:
            return self._allocate_slowly(pending, units)
        self._require_granted(decision, units)
        devices, writing = begun or self._begin(units)
        if self._inject != "cdi":
            return self._given(units, _by_nodes(devices))
        if writing is None or not writing.over(PATIENCE_SECONDS):
            return self._allocate_slowly(pending, units)
        try:
            return self._given(units, _by_cdi(writing.result(), devices))
        except HostError as error:
            raise self._unavailable(error, units) from error

    async def _allocate_slowly(self, pending: PendingStep, units: Mapping[str, Sequence[str]]) -> ContainerAllocation:
        """Answer once the grant is on disk, the CDI devices of other programs were found, and ours are written.

        Whatever :meth:`_begin` began is done again: meanwhile the device may have changed, or a sweep that did not know
        of this grant may have removed the file. Kubelet repeats the names of other programs' devices for the pod's
        whole life, so these are looked for first. If they are gone, a device with a fallback is given by its fallback.
        """
        self._require_granted(await pending.answer, units)
        try:
            devices = self._look_at(units)
            if self._inject != "cdi":
                return self._given(units, _by_nodes(devices))
            if any(device.cdi_devices for device in devices):
                try:
                    await self._agent.confirm_cdi([name for device in devices for name in device.cdi_devices])
                except HostError:
                    await self._agent.confirm_cdi(
                        [name for device in self._look_at(units) for name in device.cdi_devices]
                    )
                devices = self._look_at(units)  # the node may have changed: waiting for the disk may take long
            names = await self._agent.cdi.thread.promptly(lambda: self._write_cdi(devices))
            return self._given(units, _by_cdi(names, devices))
        except HostError as error:
            raise self._unavailable(error, units) from error

    def _given(self, units: Mapping[str, Sequence[str]], answer: ContainerAllocation) -> ContainerAllocation:
        self._last_given = frozenset(unit for some in units.values() for unit in some)
        return answer

    def _allowed(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return device name -> its units among ``ids``. Raises AllocationError.

        This checks what needs no answer of the ledger: the configuration, the list, and what the container would get.
        """
        limit = self.config.replicas.max_per_request
        if limit is not None and len(ids) > limit:
            raise AllocationError(
                "INVALID_ARGUMENT",
                f"{len(ids)} shares of {self.resource} were asked for, a container may have {limit} at most",
                hint=f"several shares are no more of the device than one: set limits to {limit}"
                + (" or less" if limit > 1 else ""),
            )
        units = self._by_device(ids)
        if self._ids.former():
            self._refuse_surplus(ids)
        self._refuse_paused(units)
        self._refuse_one_path(units)
        return units

    def _require_granted(self, decision: Decision, units: Mapping[str, Sequence[str]]) -> None:
        if not decision.accepted:
            self._mark_if_cannot_grant(units)
            raise AllocationError("FAILED_PRECONDITION", "; ".join([str(decision), *self._reasons(units)]))

    def _begin(self, units: Mapping[str, Sequence[str]]) -> tuple[Sequence[Device], Job[CdiNames] | None]:
        """Look at the devices, and begin to write their CDI files unless those of other programs come first."""
        try:
            devices = self._look_at(units)
        except HostError as error:  # the grant stays, and evidence ends the hold later
            raise self._unavailable(error, units) from error
        if self._inject != "cdi" or any(device.cdi_devices for device in devices):
            return devices, None
        return devices, self._agent.cdi.thread.submit(lambda: self._write_cdi(devices))

    def _look_at(self, names: Iterable[str]) -> list[Device]:
        return [self._current(name) for name in sorted(names)]

    def _write_cdi(self, devices: Sequence[Device]) -> CdiNames:
        """Write the devices' files, in the thread of the CDI directory. Raises HostError."""
        positions: Sequence[int | None] = range(len(devices)) if len(devices) > 1 else (None,)
        return [*map(self._agent.cdi.write_legacy, devices, positions)]

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Prefer near devices.

        Units of devices that shall leave the lane come late, or the move could wait forever. Units that a pod may still
        have come last.
        """
        must, policy = frozenset(must_include), ReplicaPolicy(self.config.replicas.policy)
        leaving = {unit for unit in available if self._leaving(unit)} - must
        in_use = self._may_be_in_use(available) - must
        for late in (leaving | in_use, in_use, leaving, set[str]()):
            first = [unit for unit in available if unit not in late]
            if len(first) >= size:
                return prefer(self._units, first, must, size, policy)
        return ()

    def _may_be_in_use(self, units: Iterable[str]) -> set[str]:
        """Return the units that the last Allocate gave and that the ledger still holds.

        Kubelet forgets that it has given a device if somebody asks for its List during the Allocate, just after another
        pod has ended (kubernetes/kubernetes#137534). It knows it again when it next frees the devices of a pod. So it
        can only have forgotten what was given last.
        """
        return {unit for unit in self._last_given.intersection(units) if (entry := self._entry(unit)) and entry.hold}

    def _leaving(self, unit: str) -> bool:
        entry = self._entry(unit)
        return entry is not None and entry.move is not None

    def _entry(self, unit: str) -> Entry | None:
        return self._agent.ledger_service.ledger.entries.get(self._ids.owner.get(unit, ""))

    @property
    def pre_start_required(self) -> bool:
        return _needs_pre_start(self.config)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Bind each device to vfio-pci if configured, and run the configured hook, one device after the other."""
        if not self.pre_start_required:
            return
        for name in sorted(self._by_device(ids)):
            try:
                if self.config.vfio is not None:  # outside the lock, so that a driver that hangs delays no other device
                    await self._give_to_vfio(name)
                if self.config.pre_start is not None:
                    async with self._hook:
                        await run_hook(self.config.pre_start, self._agent.devices().get(name), name)
            except HostError as error:
                raise AllocationError("FAILED_PRECONDITION", error.message, hint=error.hint) from error

    async def _give_to_vfio(self, name: str) -> None:
        """Bind a device, and write the nodes that the bind made into its file. Raises HostError."""
        await self._agent.bind(self._current(name))
        if self._inject == "cdi":
            spec = self._agent.cdi.legacy_spec(self._current(name))
            await self._agent.cdi.thread.run(lambda: self._agent.cdi.write(spec))

    def _describe(self, devices: Mapping[str, Device]) -> Iterator[Unit]:
        """Yield our devices for the preference, from the end of the packing order.

        Claims take devices from the front of that order, so the two sides seldom want the same one.
        """
        ours = packing_order(device for device in devices.values() if device.resource == self.resource)
        for rank, device in enumerate(reversed(ours)):
            shared = device.id if device.replicas > 1 else ""
            for unit in device.units:
                yield Unit(unit, device.numa_nodes, device.pcie_root, device.root, rank, shared)

    def _by_device(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return device name -> those of ``ids`` that are its units. Raises AllocationError for an unknown id."""
        owner = self._ids.owner
        unknown = [unit for unit in ids if unit not in owner]
        if unknown:
            raise AllocationError(
                "NOT_FOUND",
                f"{self.resource} has no device {', '.join(unknown)} on this node (it has {len(owner)})",
                hint="it was probably unplugged after kubelet chose it; delete the pod, its replacement gets another",
            )
        found: dict[str, tuple[str, ...]] = {}
        for unit in ids:
            name = owner[unit]
            found[name] = (*found.get(name, ()), unit)
        return found

    def _refuse_surplus(self, ids: Sequence[str]) -> None:
        """Raise AllocationError for a unit that no longer exists.

        Kubelet chose it before it read the shorter list. A unit that a pod already has is allowed: an app container
        gets what the pod's init container had.
        """
        entries, owner = self._agent.ledger_service.ledger.entries, self._ids.owner
        for unit in ids:
            entry = entries.get(owner[unit])
            held = entry is not None and entry.hold is not None and unit in entry.hold.units
            if not held and (self._ids.is_former(unit) or (entry is not None and surplus(entry, unit))):
                raise AllocationError(
                    "NOT_FOUND",
                    f"{self.resource} has no share {unit} to give: {owner[unit]} has fewer replicas than before",
                    hint="kubelet chose it before it knew; delete the pod, its replacement gets another",
                )

    def _refuse_paused(self, units: Mapping[str, Sequence[str]]) -> None:
        """Raise AllocationError for a device that no new holder gets. Kubelet chose it before it knew that."""
        for name, sign in self._agent.paused().items():
            entry = self._agent.ledger_service.ledger.entries.get(name)
            held = entry.hold.units if entry is not None and entry.hold is not None else ()
            if not set(units.get(name, ())) <= set(held):
                raise AllocationError(
                    "FAILED_PRECONDITION",
                    f"{name} is given to nobody new because of {sign}",
                    hint="delete the pod, its replacement waits until that is over",
                )

    def _refuse_one_path(self, names: Iterable[str]) -> None:
        """Raise AllocationError for devices with one path in the container, which would get only one of them."""
        found = [device for name in sorted(names) if (device := self._agent.devices().get(name)) is not None]
        several = [ContainerEdits.given(device) for device in found]
        edits = [placed(one, index) for index, one in enumerate(several)]
        problem = one_path_for_two([(device.name, one) for device, one in zip(found, edits, strict=True)])
        if problem := problem or (too_many(several) if self._inject == "cdi" else ""):
            raise AllocationError("INVALID_ARGUMENT", f"{self.resource}: {problem}")

    def _reasons(self, names: Iterable[str]) -> list[str]:
        """Return why devices are faulty. People need to know, and only the inventory knows it."""
        found = [self._agent.devices().get(name) for name in names]
        return [f"{device.name}: {device.reason}" for device in found if device is not None and device.reason]

    @property
    def _cannot_grant(self) -> bool:
        """Tell whether every Allocate would fail now, because neither ledger nor CDI files can be written."""
        return not self._agent.ledger_service.health.ok or (self._inject == "cdi" and bool(self._agent.cdi.error))

    def _mark_if_cannot_grant(self, units: Mapping[str, Sequence[str]]) -> None:
        """List ``units`` as Unhealthy while nothing can be granted.

        Otherwise kubelet would try them with every new pod.
        """
        if self._cannot_grant:
            self._refused.update(unit for own in units.values() for unit in own)
            self.follow_ledger()

    def _unavailable(self, error: HostError, units: Mapping[str, Sequence[str]]) -> AllocationError:
        self._mark_if_cannot_grant(units)
        return AllocationError("UNAVAILABLE", error.message, hint=error.hint)

    def _current(self, name: str) -> Device:
        device = self._agent.devices().get(name)
        if device is None or device.presence is Presence.GONE:
            raise AllocationError(
                "UNAVAILABLE",
                f"{name} is gone: it was unplugged",
                hint="plug it in again, or delete the pod: its replacement gets another device",
            )
        return self._agent.resolve(device)


def _by_nodes(devices: Sequence[Device]) -> ContainerAllocation:
    """Return what a container gets without CDI."""
    several = [placed(ContainerEdits.of(device), index) for index, device in enumerate(devices)]
    return ContainerAllocation(
        envs=joined_env(one.env for one in several),
        mounts=tuple(
            deviceplugin.ContainerMount(mount.container_path, mount.host_path, mount.read_only)
            for mount in dict.fromkeys(mount for one in several for mount in one.mounts)
        ),
        devices=tuple(
            DeviceSpec(node.container_path, node.path, node.permissions)
            for node in dict.fromkeys(node for one in several for node in one.nodes)
        ),
    )


def _by_cdi(written: CdiNames, devices: Sequence[Device]) -> ContainerAllocation:
    """Return what a container gets by CDI. Variables of a single device are in its file, which follows the device."""
    envs: dict[str, str] = {}
    if len(devices) > 1:
        theirs, ours = ContainerEdits.of_fallback, ContainerEdits.of
        envs = joined_env(placed(theirs(one), n).env for n, one in enumerate(devices) if one.cdi_missing)
        envs |= joined_env(placed(ours(one), n).env for n, one in enumerate(devices))
    return ContainerAllocation(envs=envs, cdi_devices=tuple(name for of_one in written for name in of_one))


def _needs_pre_start(config: Resource) -> bool:
    """Whether something is done before each start of a container. A driver is not changed in an Allocate."""
    return config.pre_start is not None or config.vfio is not None
