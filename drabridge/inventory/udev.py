"""Read devices and events from libudev. The only module that imports pyudev.

Use everything here only in the event loop's thread: libudev's contexts and monitors are not thread-safe. No pyudev
object leaves this module: a ``pyudev.Device`` reads sysfs lazily, so after an unplug it answers wrongly or raises. What
the agent needs is copied into a :class:`~drabridge.inventory.udev_device.UdevDevice` at once.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import pyudev

from drabridge.errors import HostError
from drabridge.inventory import amdgpu, sriov
from drabridge.inventory.events import Uevent
from drabridge.inventory.topology import ATTRIBUTES_READ, LINKS_READ, numa_nodes
from drabridge.inventory.udev_device import UdevDevice, clean
from drabridge.inventory.udev_scope import UdevScope

NVME_SUBSYSTEM = "nvme-subsystem"

DRAIN_LIMIT = 1024
"""Events taken at once, so that a flood cannot keep the loop from its other work (1024 events: about 30 ms)."""

RECEIVE_BUFFER_BYTES = 16 << 20
"""Size of the receive buffer if the socket has less: 5000 unread events fit into 4 MiB (measured)."""


class Monitor:
    """A started netlink socket in one of the two uevent groups (``udev``, ``kernel``)."""

    def __init__(self, context: pyudev.Context, group: str, subsystems: Iterable[str]) -> None:
        try:
            self._monitor: Any = pyudev.Monitor.from_netlink(context, source=group)
            for subsystem in sorted(subsystems):
                self._monitor.filter_by(subsystem)
            self._monitor.start()
        except OSError as error:
            raise HostError(f"cannot listen to {group} uevents: {error}") from error
        self.group = group
        self._enlarge()

    def _enlarge(self) -> None:
        with socket.socket(fileno=os.dup(self.fileno())) as view:
            if view.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= RECEIVE_BUFFER_BYTES:
                return
        with contextlib.suppress(OSError):  # EPERM without CAP_NET_ADMIN: the size stays; resync finds what is lost
            self._monitor.set_receive_buffer_size(RECEIVE_BUFFER_BYTES)

    def fileno(self) -> int:
        return int(self._monitor.fileno())

    def drain(self) -> list[Uevent]:
        """Take all waiting events, at most ``DRAIN_LIMIT``.

        Raises ``OSError`` when events were lost. Then close and replace the monitor: pyudev checks POLLERR before it
        reads, so the pending ENOBUFS is never consumed, and every later poll fails as well (pyudev issue 194).
        """
        events: list[Uevent] = []
        while len(events) < DRAIN_LIMIT and (device := self._monitor.poll(0)) is not None:
            with contextlib.suppress(UnicodeDecodeError):  # the timer's enumeration still finds such a device
                events.append(
                    Uevent(
                        seqnum=device.sequence_number,
                        action=device.action or "",
                        syspath=device.sys_path,
                        subsystem=device.subsystem or "",
                        group=self.group,
                    )
                )
        return events

    def close(self) -> None:
        """Close the socket. Remove it from the loop first."""
        self._monitor = None  # pyudev has no close(): the last reference closes


class Pass:
    """A cache for one pass over devices: the parent of siblings, and AMD's topology, are read once."""

    def __init__(self) -> None:
        self.devices: dict[str, UdevDevice | None] = {}

    @functools.cached_property
    def amdgpu(self) -> amdgpu.Topology:
        """What AMD's driver says; read only if there is an AMD GPU."""
        return amdgpu.read_topology()


class Udev:
    """Read devices within ``scope``, which may be replaced between two calls."""

    def __init__(self, scope: UdevScope | None = None) -> None:
        try:
            self._context: Any = pyudev.Context()
        except (ImportError, OSError) as error:
            raise HostError(
                f"libudev cannot be used: {error}", hint="Install libudev1 (it comes with udev)."
            ) from error
        self.scope = scope or UdevScope()

    def monitor(self, group: str) -> Monitor:
        """Return a started monitor of ``group`` (``udev`` or ``kernel``), filtered by the scope's subsystems."""
        return Monitor(self._context, group, self.scope.subsystems)

    def enumerate(self) -> dict[str, UdevDevice]:
        """Return every device of the scope's subsystems, by syspath, sorted by syspath."""
        devices = self._context.list_devices()
        for subsystem in sorted(self.scope.subsystems):
            devices.match_subsystem(subsystem)
        shared = Pass()
        copies = (self._copy(device, shared) for device in devices)
        return {copy.syspath: copy for copy in sorted(filter(None, copies), key=lambda copy: copy.syspath)}

    def read(self, syspath: str, shared: Pass | None = None) -> UdevDevice | None:
        """Return the device at ``syspath`` now, with its ancestors; None when it is not there.

        ``shared`` keeps what was read in the same pass.
        """
        try:
            device = pyudev.Devices.from_sys_path(self._context, syspath)
        except (pyudev.DeviceNotFoundError, OSError):
            return None
        return self._copy(device, shared or Pass())

    def find(self, devnode: str) -> UdevDevice | None:
        """Return the device of a node under /dev; None when there is none."""
        try:
            device = pyudev.Devices.from_device_file(self._context, devnode)
        except (pyudev.DeviceNotFoundError, OSError, ValueError):
            return None
        return self._copy(device, Pass())

    def attribute_names(self, syspath: str) -> tuple[str, ...]:
        """Return the names of all sysfs attributes of a device. Slow: for ``drabridge suggest`` and ``record`` only."""
        try:
            device = pyudev.Devices.from_sys_path(self._context, syspath)
            return tuple(sorted(device.attributes.available_attributes))
        except (pyudev.DeviceNotFoundError, OSError, UnicodeDecodeError):
            return ()

    def attribute(self, syspath: str, name: str) -> bytes | None:
        """Return all bytes of an attribute's file (libudev stops at the first NUL); None if it cannot be read."""
        try:
            with open(os.path.join(syspath, name), "rb") as file:
                return file.read()
        except OSError:
            return None

    def _copy(self, device: Any, shared: Pass) -> UdevDevice | None:
        try:
            syspath = device.sys_path
            if syspath in shared.devices:
                return shared.devices[syspath]
            sysname, subsystem = clean(device.sys_name), clean(device.subsystem)
            if subsystem == "block" and device.attributes.get("hidden") == b"1":
                return None  # one path to an NVMe disk, as nvme0c0n1: nobody opens it, and it has the disk's serial
            above = self._above(device, sysname, shared)
            properties = self._list(device, "properties")
            if subsystem == "drm" and above is not None and amdgpu.is_render_node(sysname) and _is_amdgpu(above):
                properties |= amdgpu.properties_of(sysname, above.syspath, shared.amdgpu)
            links = _links(syspath, LINKS_READ | self.scope.links)
            if subsystem == "pci" and "physfn" in links:
                properties |= sriov.properties_of(syspath, links["physfn"])
            copy = UdevDevice(
                syspath=syspath,
                sysname=sysname,
                subsystem=subsystem,
                devtype=clean(device.device_type),
                driver=clean(device.driver),
                devnode=device.device_node or "",
                devnum=_devnum(device),
                devlinks=tuple(sorted(self._list(device, "devlinks"))),
                tags=tuple(sorted(self._list(device, "tags"))),
                properties=MappingProxyType(properties),
                attributes=MappingProxyType(self._attributes(device, shared)),
                links=MappingProxyType(links),
                initialized=bool(device.is_initialized),
                above=above,
            )
        except (OSError, UnicodeDecodeError):  # unplugged between two reads, or its name is not text
            return None
        shared.devices[syspath] = copy
        return copy

    def _above(self, device: Any, sysname: str, shared: Pass) -> UdevDevice | None:
        """Return the parent in sysfs.

        For the platform device of an AMD partition this is its GPU (None while unused). For an NVMe disk with one path
        it is its controller: the disk itself is below /sys/devices/virtual/nvme-subsystem.
        """
        if amdgpu.is_partition(sysname):
            gpu = amdgpu.gpu_of_partition(device.sys_path, shared.amdgpu)
            if not gpu:
                return None
            return self.read(os.path.realpath(amdgpu.PCI_DEVICES / gpu), shared)
        parent = device.parent
        if parent is None:
            return None
        if parent.subsystem == NVME_SUBSYSTEM and len(controllers := _controllers(parent.sys_path)) == 1:
            return self.read(controllers[0], shared)
        return self._copy(parent, shared)

    def _list(self, device: Any, kind: str) -> dict[str, str]:
        """Return one of libudev's lists, cleaned. pyudev's own accessors decode strictly and raise on one bad byte."""
        library = self._context._libudev
        entry = getattr(library, f"udev_device_get_{kind}_list_entry")(device)
        found = {}
        while entry:
            found[clean(library.udev_list_entry_get_name(entry))] = clean(library.udev_list_entry_get_value(entry))
            entry = library.udev_list_entry_get_next(entry)
        return found

    def _attributes(self, device: Any, shared: Pass) -> dict[str, str]:
        found = {}
        for name in ATTRIBUTES_READ | self.scope.attributes:
            with contextlib.suppress(OSError):
                if (value := device.attributes.get(name)) is not None:
                    found[name] = clean(value)
        if device.subsystem == NVME_SUBSYSTEM:  # there are several controllers, each with a place of its own
            controllers = [self.read(path, shared) for path in _controllers(device.sys_path)]
            nodes = {numa_nodes(controller) if controller else () for controller in controllers}
            if len(nodes) == 1 and (own := nodes.pop()):
                found["numa_node"] = str(own[0])
        return found


def _is_amdgpu(holder: UdevDevice) -> bool:
    """Whether a render node's holder is a GPU of AMD's driver, or a partition of one."""
    return holder.driver == "amdgpu" or amdgpu.is_partition(holder.sysname)


def _devnum(device: Any) -> tuple[int, int] | None:
    number = device.device_number
    return (os.major(number), os.minor(number)) if number else None


def _controllers(subsystem: str) -> list[str]:
    """Return the paths of an NVMe subsystem's controllers."""
    found = sorted(name for name in os.listdir(subsystem) if re.fullmatch("nvme[0-9]+", name))
    return [os.path.realpath(f"{subsystem}/{name}") for name in found]


def _links(syspath: str, names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        path = os.path.join(syspath, name)
        with contextlib.suppress(OSError):
            found[name] = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    return found
