"""Tell whether the functions of an IOMMU group may be bound to vfio-pci, and if not, why.

The host comes first: a function that it uses, or may use, keeps its driver. Unknown counts as used.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from drabridge.coexistence.host_mounts import HostMounts, Number
from drabridge.config.vfio import Vfio
from drabridge.errors import HostError
from drabridge.evidence.open_files import find_open
from drabridge.inventory.devices import Device, DeviceNode
from drabridge.inventory.nvidia import parse_information
from drabridge.inventory.vfio import VFIO, does_dma
from drabridge.system.files import link_name, names_in
from drabridge.system.pci_driver import VFIO_PCI, PciDrivers

_IFF_UP = 0x1  # linux/if.h
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_NVIDIA_MAJOR = 195  # Linux Documentation/admin-guide/devices.txt
_OF_SEVERAL_DISKS = {"LVM2_member": "in a volume group", "zfs_member": "in a ZFS pool", "bcache": "a cache's"}
_BRIDGES = ("0x0604", "0x0607", "0x0609")  # PCI classes of bridges; vfio-pci refuses them


class Function(Struct, frozen=True):
    """A PCI function of a group. ``uses``: how the host uses it, in words. ``nodes``: those of all devices below it."""

    address: str
    ids: str  # "10de:2330"
    driver: str
    uses: tuple[str, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()

    def __str__(self) -> str:
        return f"{self.address} ({self.ids}, {self.driver or 'no driver'})"


# --- the decision ---------------------------------------------------------------------------------------------------


def to_bind(functions: Sequence[Function], address: str) -> list[Function]:
    """Return the functions to bind: the function itself, and those of its group whose drivers block vfio. Pure."""
    return [one for one in functions if one.address == address or does_dma(one.driver)]


def in_the_way(functions: Sequence[Function], address: str, rule: Vfio) -> list[str]:
    """Return why the group of a function cannot be bound to vfio-pci, one sentence for each reason. Pure."""
    found = []
    for one in to_bind(functions, address):
        if one.driver == VFIO_PCI:
            continue
        if not rule.allows(one.ids, one.address):
            found.append(f"{one} may not be bound to vfio-pci: vfio.allow does not name it, or vfio.deny does")
        found += [f"{one}: {use}" for use in one.uses]
    return found


# --- what the kernel says -------------------------------------------------------------------------------------------


class IommuGroups:
    """Reads sysfs, procfs and udev's database; blocks for milliseconds, or for longer in :meth:`opened`.

    It reads only those files of sysfs that do not need the device's lock: a driver that hangs while unbinding keeps it.
    """

    def __init__(
        self,
        sys: Path = Path("/sys"),
        proc: Path = Path("/proc"),
        udev_database: Path = Path("/run/udev/data"),
        dev: Path = Path("/dev"),
    ) -> None:
        self.drivers = PciDrivers(sys)
        self._sys = sys
        self._proc = proc
        self._udev_database = udev_database
        self._dev = dev
        self._mounts = HostMounts(sys, proc)

    def why_not(self, address: str, rule: Vfio) -> str:
        """Return why a function cannot be handed out now; "" if it can. Ignores open files, which change often."""
        if not self.drivers.has_driver(VFIO_PCI):
            return "the kernel has no driver vfio-pci: run modprobe vfio-pci on the node, at each boot"
        if not self.drivers.may_write():
            return "the agent may not write to /sys, so it binds nothing to vfio-pci"
        return self._blind() or "; ".join(in_the_way(self.read(address), address, rule))

    def _blind(self) -> str:
        """Return why the node's processes cannot be seen; "" if they can. A kernel thread shows that."""
        try:
            seen = (self._proc / "2/comm").read_text().strip() == "kthreadd"
        except OSError:
            seen = False
        return "" if seen else "the agent does not see who on the node has devices open: it needs hostPID"

    def read(self, address: str) -> list[Function]:
        """Return the functions of a function's IOMMU group, sorted by address; none if it is in no group."""
        folder = self._sys / "bus/pci/devices" / address / "iommu_group/devices"
        return [found for name in names_in(folder) if (found := self._function(name)) is not None]

    def group_of(self, address: str) -> str:
        """Return the IOMMU group of a function; "" when it is in none, or there is no such function."""
        return link_name(self._sys / "bus/pci/devices" / address / "iommu_group")

    def _function(self, address: str) -> Function | None:
        driver = self.drivers.driver(address)
        if driver is None:
            return None
        place = (self._sys / "bus/pci/devices" / address).resolve()
        ids = ":".join(self.drivers.read(address, name).removeprefix("0x") for name in ("vendor", "device"))
        if self.drivers.read(address, "class").startswith(_BRIDGES):  # devices behind a bridge are not the bridge's
            return Function(address, ids, driver, ("it is a bridge",))
        if driver and not does_dma(driver):
            return Function(address, ids, driver)
        interfaces, blocks, nodes = [], dict[str, DeviceNode](), []
        uses = list(self._function_uses(address))
        consoles = self._consoles()
        away = False
        for folder, names, files in os.walk(place):
            if os.path.basename(folder) == "net":
                interfaces += names
                away = away or not names
            if os.path.basename(folder) == "tty":
                uses += [f"{name} is a console of the kernel" for name in names if name in consoles]
            if "dev" in files and (node := _node(Path(folder))) is not None:
                if node.kind == "b":
                    blocks[os.path.basename(folder)] = node
                else:
                    nodes.append(node)
            if os.path.basename(folder) == "nvme":
                blocks |= dict(self._of_subsystems(names))
        nodes += [*blocks.values(), *self._nvidia(address)]
        numbers = {name: f"{node.major}:{node.minor}" for name, node in blocks.items()}
        network = self.drivers.read(address, "class").startswith("0x02") and driver != ""
        away = away or (network and not interfaces and not driver.startswith("uio"))
        for name in interfaces:
            if why := self._interface_use(name):
                uses.append(f"the network interface {name} {why}")
        if away:
            uses.append("its network interface is not here: it may be in the network namespace of a pod")
        return Function(address, ids, driver, (*uses, *self._disk_uses(numbers)), tuple(nodes))

    def _function_uses(self, address: str) -> Iterator[str]:
        if self.drivers.read(address, "boot_vga") == "1":
            yield "it shows the console"
        folder = self._sys / "bus/pci/devices" / address
        names = names_in(folder)
        if virtual := sum(name.startswith("virtfn") for name in names):
            yield f"it has {virtual} virtual functions"
        # Linux drivers/vfio/mdev: unbinding a card takes these devices from virtual machines, and waits until nobody
        # has one.
        if mediated := sum((folder / name / "mdev_type").exists() for name in names):
            yield f"it has {mediated} mediated devices"

    def _consoles(self) -> list[str]:
        try:
            return (self._sys / "class/tty/console/active").read_text().split()
        except OSError:
            return []

    def _interface_use(self, name: str) -> str:
        folder = self._sys / "class/net" / name
        try:
            up = int((folder / "flags").read_text(), 16) & _IFF_UP
        except (OSError, ValueError):
            return "cannot be asked whether it is up"
        if up:
            return "is up"
        above = [one.removeprefix("upper_") for one in names_in(folder) if one.startswith("upper_")]
        if above:
            return f"is a part of {', '.join(above)}"
        return "has an address" if _has_address(name) else ""

    def _disk_uses(self, blocks: Mapping[str, Number]) -> Iterator[str]:
        if not blocks:
            return
        used = self._mounts.using({"": set(blocks.values())})
        yield from used.values()
        known = self._udev_database.is_dir()
        for name, number in blocks.items():
            if holders := names_in(self._sys / "dev/block" / number / "holders"):
                yield f"{name} is held by {', '.join(holders)}"
                continue
            if not known:
                yield f"nothing tells what is on {name}: udev's database is not at {self._udev_database}"
            kind = self._signature(number)
            if kind in _OF_SEVERAL_DISKS or kind.endswith("_raid_member"):
                yield f"{name} is {_OF_SEVERAL_DISKS.get(kind, 'in a RAID')}"

    def _signature(self, number: Number) -> str:
        """Return what udev found on a disk, such as ``LVM2_member``; "" if nothing."""
        with contextlib.suppress(OSError):
            for line in (self._udev_database / f"b{number}").read_text(errors="replace").splitlines():
                if line.startswith("E:ID_FS_TYPE="):
                    return line.partition("=")[2]
        return ""

    def _of_subsystems(self, controllers: Sequence[str]) -> Iterator[tuple[str, DeviceNode]]:
        """Yield the disks of these controllers' NVMe subsystems, which are not below them (Linux drivers/nvme/host)."""
        for subsystem in names_in(self._sys / "class/nvme-subsystem"):
            folder = (self._sys / "class/nvme-subsystem" / subsystem).resolve()
            if any((folder / name).exists() for name in controllers):
                for place, _, files in os.walk(folder):
                    if "dev" in files and (node := _node(Path(place))) is not None and node.kind == "b":
                        yield os.path.basename(place), node

    def _nvidia(self, address: str) -> list[DeviceNode]:
        """Return the node of a GPU, which sysfs does not show."""
        with contextlib.suppress(OSError, ValueError):
            text = (self._proc / "driver/nvidia/gpus" / address / "information").read_text(errors="replace")
            return [DeviceNode("", "", major=_NVIDIA_MAJOR, minor=int(parse_information(text).get("minor", "")))]
        return []

    def places(self, addresses: Iterable[str]) -> dict[str, str]:
        """Return address -> syspath of the functions."""
        return {one: str((self._sys / "bus/pci/devices" / one).resolve()) for one in addresses}

    def own_nodes(self, address: str) -> set[str]:
        """Return the paths of the IOMMUFD nodes that a function has while it is bound to vfio-pci.

        From Linux 6.0 on a bound function has a vfio device. It has a node only with CONFIG_VFIO_DEVICE_CDEV (6.6),
        which Ubuntu's kernels have and Debian's do not.
        """
        folder = self._sys / "bus/pci/devices" / address / "vfio-dev"
        return {f"{VFIO}devices/{name}" for name in names_in(folder) if (folder / name / "dev").exists()}

    def opened(self, functions: Sequence[Function]) -> str:
        """Return who has a node of the functions open, in words; "" if nobody has. Raises HostError if unknown.

        The kernel itself may have a disk open (LIO target, DRBD replica), which no process shows: so disks are tried,
        too.
        """
        if user := self._open({str(one): one.nodes for one in functions if one.nodes}):
            return user
        for one in functions:
            if any(node.kind == "b" and self._is_exclusive(node) for node in one.nodes):
                return f"{one} has a disk that the kernel uses"
        return ""

    def _is_exclusive(self, node: DeviceNode) -> bool:
        """Whether somebody has a disk open exclusively. Without a node this is unknown, and only open files count."""
        path = self._dev / f"block/{node.major}:{node.minor}"
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            return error.errno == errno.EBUSY
        return False

    def _open(self, nodes: Mapping[str, tuple[DeviceNode, ...]]) -> str:
        if not nodes:
            return ""
        if blind := self._blind():
            raise HostError(blind)
        found = find_open({name: Device(name, name, "", nodes=own) for name, own in nodes.items()}, self._proc)
        if found.by:
            return ", ".join(f"{name} is open in {process}" for name, process in found.by.items())
        if found.blind:
            raise HostError(found.blind, hint="without them nobody knows who has a device open")
        return ""

    def group_user(self, group: str) -> str:
        """Return who has a group open, in words; "" if nobody has. Raises HostError if that is not known.

        The kernel lets one process at a time open a group's node (Linux drivers/vfio/group.c, vfio_group_fops_open).
        """
        path = self._dev / "vfio" / group
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except FileNotFoundError:
            return ""
        except OSError as error:
            status = os.stat(path)
            node = DeviceNode("", "", major=os.major(status.st_rdev), minor=os.minor(status.st_rdev))
            user = self._open({f"{VFIO}{group}": (node,)})
            if user or isinstance(error, PermissionError):  # the agent's own container may not open devices
                return user
            return f"{path} is open: {os.strerror(error.errno or 0)}"
        return ""


def _has_address(name: str) -> bool:
    """Whether an interface of this namespace has an IPv4 address, up or down. IPv6 ones are lost when it is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        return True
    return False


def _node(place: Path) -> DeviceNode | None:
    """Return the node of a device in sysfs."""
    try:
        major, minor = map(int, (place / "dev").read_text().split(":"))
        block = os.path.basename(os.readlink(place / "subsystem")) == "block"
    except (OSError, ValueError):
        return None
    return DeviceNode("", "", kind="b" if block else "c", major=major, minor=minor)
