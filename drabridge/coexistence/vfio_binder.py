"""Bind the functions of held devices to vfio-pci, and give them back to their drivers afterwards.

The ledger says who holds a device; a file says which functions were taken from which driver. The file is on disk before
the first function is touched. So after a crash each function gets, by what sysfs shows, the right driver: vfio-pci at
the holder's next start, or its former driver if there is no holder. Other devices at or below a taken function are
given to nobody until the function is back. After a reboot nothing is given back: the kernel has bound the drivers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from drabridge.coexistence.host_use import IommuGroups, in_the_way, to_bind
from drabridge.config.schema import Config
from drabridge.config.vfio import Vfio
from drabridge.errors import HostError, host_errors
from drabridge.inventory.devices import Device
from drabridge.inventory.vfio import VFIO
from drabridge.ledger.entries import Owner
from drabridge.ledger.service import LedgerService
from drabridge.system.files import read_if_there, write_atomically
from drabridge.system.io_thread import IoThread, Job
from drabridge.system.pci_driver import VFIO_PCI, Binding, Step, binding_before, next_step

log = logging.getLogger(__name__)

FILE = "vfio.json"
NVIDIA = "10de"
BIND_SECONDS = 20.0  # kubelet waits 30 s for PreStartContainer, 45 s for a claim; a driver's remove may wait for ever
CLOSE_SECONDS = 5.0  # how long to wait until the last holder, or our own NVML process, closes a device
LOOK_SECONDS = 0.2
SEEN_SECONDS = 10.0  # how long to wait until the inventory has a new node of a bind: a busy udevd took over 3 s


class Taken(Struct, frozen=True):
    """A function that was taken from its driver. ``device``: for which it was last taken; ``place``: its syspath."""

    driver: str
    override: str
    device: str
    group: str
    place: str


class _File(Struct, frozen=True):
    version: Literal[1]
    boot_id: str  # the file does not count in another boot
    functions: dict[str, Taken]  # address -> function


class _Worker:
    """The thread of one IOMMU group: a driver that hangs blocks no other group."""

    def __init__(self, group: str) -> None:
        self.thread = IoThread(f"vfio-{group}")
        self.job: Job[None] | None = None
        self.step = ""  # what the thread's job does now, for people
        self.late = ""  # what people are told about a job that takes too long

    @property
    def busy(self) -> bool:
        return self.job is not None and not self.job.over()


class VfioBinder:
    """:meth:`bind` before a device's holder starts, :meth:`give_back` every few seconds. Use from one loop."""

    def __init__(
        self,
        state: Path,
        boot_id: Path,
        groups: IommuGroups,
        config: Callable[[], Config],
        ledger_service: LedgerService,
        devices: Callable[[], Mapping[str, Device]],
        pause_nvml: Callable[[str], None],
    ) -> None:
        """``boot_id``: the file with the id of this boot. ``pause_nvml``: see ``NvmlClient.pause``."""
        self._path = state / FILE
        self._boot_id = boot_id
        self._groups = groups
        self._config = config
        self._ledger_service = ledger_service
        self._devices = devices
        self._pause_nvml = pause_nvml
        self._workers: dict[str, _Worker] = {}
        self._writing = threading.Lock()
        self._nvml_paused_by: set[str] = set()  # groups that need NVML paused
        self._stays: dict[str, str] = {}  # group -> why its functions cannot go back
        self.error = ""
        self._taken: Mapping[str, Taken] = self._load()

    def _load(self) -> Mapping[str, Taken]:
        try:
            data = read_if_there(self._path)
            if not data:
                return {}
            file = msgspec.json.decode(data, type=_File)
            return file.functions if file.boot_id == self._boot_id.read_text().strip() else {}
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self.error = (
                f"{self._path} is not readable ({error}): functions that it named stay bound to vfio-pci, and none is "
                "bound. Give them back to their drivers, or reboot the node, and remove the file"
            )
            log.error("taken functions not known", extra={"reason": self.error})
            return {}

    # --- what others ask ------------------------------------------------------------------------------------------

    @property
    def notes(self) -> list[str]:
        """Return sentences for people."""
        return [*filter(None, [self.error]), *self._stays.values()]

    def paused(self, devices: Mapping[str, Device]) -> dict[str, str]:
        """Return device name -> reason, for devices that no new holder gets because their function was taken."""
        if not self._taken:
            return {}
        found = {}
        for name, device in devices.items():
            if self.rule(device.resource) is None:
                places = [f"{place}/" for place in (device.syspath, *device.also_at)]
                for address, taken in self._taken.items():
                    if any(place.startswith(f"{taken.place}/") for place in places):
                        found[name] = f"{address}, which is bound to vfio-pci for {taken.device}"
        return found

    def rule(self, resource: str) -> Vfio | None:
        """Return the ``vfio`` rule of a resource; None if its devices are not bound to vfio-pci."""
        try:
            return self._config().resource(resource).vfio
        except KeyError:
            return None

    def why_not(self, devices: Iterable[Device], held: Callable[[str], bool]) -> dict[str, str]:
        """Return device name -> why it could not be bound now, "" if it could, for unheld devices with ``vfio``.

        Call it in a thread: it reads some hundred files.
        """
        found = {}
        for device in devices:
            if (rule := self.rule(device.resource)) is not None and not held(device.name):
                worker = self._workers.get(_group(device))
                hangs = worker.late if worker is not None and worker.busy else ""
                address = os.path.basename(device.syspath)
                found[device.name] = self.error or hangs or self._groups.why_not(address, rule)
        return found

    # --- bind -----------------------------------------------------------------------------------------------------

    async def bind(self, device: Device) -> None:
        """Bind the functions of a held device. Does nothing if the device is not for vfio-pci, or is bound already.

        Raises HostError.
        """
        rule, group = self.rule(device.resource), _group(device)
        if rule is None:
            return
        if self.error or not group:
            raise HostError(f"{device.name} cannot be bound to vfio-pci: {self.error or 'it is in no IOMMU group'}")
        if self._groups.drivers.read(os.path.basename(device.syspath), "vendor") == f"0x{NVIDIA}":
            self._nvml_paused_by.add(group)
            self._pause_nvml(f"{device.name} goes to a virtual machine")
        try:
            await self._run(group, lambda: self._bind(device, rule, group))
        finally:
            self._end_pauses()
        await self._seen(device)

    async def _run(self, group: str, call: Callable[[], None]) -> None:
        """Make a call in the group's thread, after the earlier calls. Raises HostError if it takes too long."""
        worker = self._workers.setdefault(group, _Worker(group))
        try:
            async with asyncio.timeout(BIND_SECONDS):
                if worker.busy:
                    await worker.thread.wait_all()
                worker.step = worker.late = ""
                job = worker.job = worker.thread.submit(call)
                await worker.thread.wait_all()
        except TimeoutError:
            doing = worker.step or "looking at it"
            worker.late = f"IOMMU group {group}: {doing} has not ended within {BIND_SECONDS:g} s"
            hint = "a driver waits until nobody has its device open; the kernel's log may say more"
            raise HostError(worker.late, hint=hint) from None
        try:
            job.result()
        except OSError as error:  # a kernel file that vanished between two reads
            raise HostError(f"IOMMU group {group}: {error}") from error

    def _bind(self, device: Device, rule: Vfio, group: str) -> None:
        """Take the necessary functions and bind them; runs in the thread. A part may already be done."""
        address = os.path.basename(device.syspath)
        end = time.monotonic() + CLOSE_SECONDS
        while True:
            functions = self._groups.read(address)
            chosen = [one for one in to_bind(functions, address) if one.driver != VFIO_PCI]
            if why := in_the_way(functions, address, rule):
                raise HostError(f"{device.name} cannot be bound to vfio-pci: {'; '.join(why)}")
            if not (opened := self._groups.opened(chosen)):
                break
            if time.monotonic() > end:
                raise HostError(f"{device.name} cannot be bound to vfio-pci: {opened}", hint="end that process")
            time.sleep(LOOK_SECONDS)
        if not functions:
            raise HostError(f"{device.name} is unplugged")
        found = {one.address: self._groups.drivers.binding(one.address) for one in functions}
        bindings = {address: binding for address, binding in found.items() if binding is not None}
        places = self._groups.places(bindings)
        with self._writing:
            before = self._taken
            ours = {address for address in bindings if address in before} | {one.address for one in chosen}
            made = {
                one: _taken(before.get(one), bindings[one], device.name, group, places[one]) for one in sorted(ours)
            }
            self._taken = {**before, **made}
            if not self._held(device.name):  # checked after ``_taken`` is set, so that a concurrent release sees it
                raise HostError(f"{device.name} is not held any more")
            if self._taken != before:
                self._save()
        for one in made:
            self._bring(group, one, Binding(VFIO_PCI, VFIO_PCI))
        if chosen:
            log.info("bound to vfio-pci", extra={"device": device.name, "functions": list(made)})

    def _bring(self, group: str, address: str, wanted: Binding, *, reset: bool = False) -> None:
        """Bring a function to a binding, step by step. Does nothing if the function is gone. Raises HostError."""
        done: set[Step] = set()
        while (now := self._groups.drivers.binding(address)) is not None:
            step = next_step(now, wanted)
            if step is None:
                return
            self._workers[group].step = f"{address}: {step}"
            if step in done:
                found = f"it has {now.driver or 'no driver'}, not {wanted.driver or 'none'}"
                raise HostError(f"{address}: {step} had no effect: {found}", hint="the kernel's log may say why")
            done.add(step)
            self._groups.drivers.do(address, step, wanted)
            if reset and step is Step.UNBIND:
                try:
                    self._groups.drivers.reset(address)
                except HostError as error:
                    log.warning("function not reset", extra={"function": address, "reason": str(error)})

    async def _seen(self, device: Device) -> None:
        """Wait until the inventory has the function's own node, if the kernel makes one; ``SEEN_SECONDS`` at most."""
        nodes = self._groups.own_nodes(os.path.basename(device.syspath))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEEN_SECONDS):
                while nodes - {node.path for node in self._devices().get(device.name, device).nodes}:
                    await asyncio.sleep(LOOK_SECONDS)

    # --- give back ------------------------------------------------------------------------------------------------

    async def give_back(self) -> None:
        """Give functions without a holder back to their drivers. Raises no HostError: a failure is tried again."""
        self._end_pauses()
        if not self._ledger_service.ledger.node.merged:
            return
        groups = {taken.group for taken in self._taken.values()}
        self._stays = {group: why for group, why in self._stays.items() if group in groups}
        await asyncio.gather(*(self._give_back(group) for group in sorted(groups) if self._unheld(group)))

    async def _give_back(self, group: str) -> None:
        if self._is_busy(group):
            return
        try:
            await self._run(group, lambda: self._return(group))
            self._stays.pop(group, None)
        except HostError as error:
            why = f"functions of IOMMU group {group} stay bound to vfio-pci: {error}"
            if self._stays.get(group) != why:
                log.warning("functions not given back", extra={"reason": why})
            self._stays[group] = why

    def _return(self, group: str) -> None:
        """Give a group's functions back; runs in the thread."""
        if not self._unheld(group):
            return
        if user := self._groups.group_user(group):
            raise HostError(f"it is in use although no pod has it: {user}")
        of_group = {address: taken for address, taken in self._taken.items() if taken.group == group}
        for address, taken in of_group.items():
            if self._groups.group_of(address) != group:  # unplugged: another function is at its address now
                continue
            if (now := self._groups.drivers.binding(address)) is not None:
                before = binding_before(now, Binding(taken.driver, taken.override))
                self._bring(group, address, before, reset=now.driver == VFIO_PCI)
        with self._writing:
            self._taken = {address: taken for address, taken in self._taken.items() if address not in of_group}
            self._save()
        log.info("functions given back", extra={"group": group, "functions": sorted(of_group)})

    def _unheld(self, group: str) -> bool:
        """Whether nobody holds a group's taken functions, in the ledger on disk and in the one about to be written."""
        names = {taken.device for taken in self._taken.values() if taken.group == group}
        return all(owner is Owner.NONE for name in names for owner in self._owners(name))

    def _held(self, name: str) -> bool:
        """Whether somebody holds the device, both in the ledger on disk and in the one about to be written."""
        return Owner.NONE not in self._owners(name)

    def _owners(self, name: str) -> list[Owner]:
        """Return who holds the device: in the ledger on disk, and in the one about to be written."""
        ledgers = (self._ledger_service.ledger, self._ledger_service.head)
        return [entry.owner if (entry := one.entries.get(name)) else Owner.NONE for one in ledgers]

    def _save(self) -> None:
        """Write the file. Raises HostError: then no function may be touched."""
        with host_errors(f"{self._path} cannot be written"):
            file = _File(1, self._boot_id.read_text().strip(), dict(self._taken))
            write_atomically(self._path, msgspec.json.encode(file))

    def _end_pauses(self) -> None:
        """Resume NVML once no function is being bound. NVML would open the GPU that must be unbound."""
        if self._nvml_paused_by:
            self._nvml_paused_by = {group for group in self._nvml_paused_by if self._is_busy(group)}
            if not self._nvml_paused_by:
                self._pause_nvml("")

    def _is_busy(self, group: str) -> bool:
        worker = self._workers.get(group)
        return worker is not None and worker.busy


def _taken(before: Taken | None, now: Binding, device: str, group: str, place: str) -> Taken:
    """Return from what a function is taken. If it was already taken in part, keep the former driver and override."""
    driver, override = now.driver, now.override
    if before is not None and driver in ("", VFIO_PCI):
        driver = before.driver
    if before is not None and override == VFIO_PCI:
        override = before.override
    return Taken(driver, override, device, group, place)


def _group(device: Device) -> str:
    return next((place.removeprefix(VFIO) for place in device.also_at if place.startswith(VFIO)), "")
