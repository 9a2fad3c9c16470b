"""Devices as immutable values, and an ordered and versioned snapshot of them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from msgspec import Struct, field

REPLICA_SEPARATOR = "::"  # as NVIDIA's plugin writes it, so that each can read a checkpoint of the other

COMPANION = "+"  # marks the place of a companion's node: two devices may share a companion

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"

CDI_PLACE = "cdi:"  # marks the qualified name of a CDI device that gives access to the hardware

_EMPTY: Mapping[str, str] = MappingProxyType({})


class Presence(StrEnum):
    """Whether the hardware can be used now."""

    PRESENT = "present"
    FAULTY = "faulty"  # there, but a node is missing or a health rule fails (health_rules.py)
    GONE = "gone"  # unplugged, named otherwise, or no longer matched; kept while somebody may hold it


class Semver(Struct, frozen=True):
    """A version attribute: strict semver 2.0.0, three parts, at most 64 characters (the API's rule)."""

    text: str


Attribute = str | bool | int | Semver


class DeviceNode(Struct, frozen=True):
    """A node under /dev as it is right now. ``container_path``: where the container has it."""

    path: str
    container_path: str
    permissions: str = "rw"  # subset of "rwm"
    kind: Literal["c", "b"] = "c"
    major: int = 0
    minor: int = 0
    file_mode: int | None = None  # permission bits in the container; None, also of uid and gid: the runtime decides
    uid: int | None = None
    gid: int | None = None
    joined_gid: int | None = None  # the container's process joins this group, too


class Mount(Struct, frozen=True):
    """A bind mount that comes with a device."""

    host_path: str
    container_path: str
    read_only: bool = True


class NvidiaFile(Struct, frozen=True):
    """A file: its path on the host, its paths in a container, and where it was found (for people)."""

    path: str
    container_paths: tuple[str, ...]
    found: str
    read_only: bool = True


class NvidiaFiles(Struct, frozen=True):
    """What a container gets of NVIDIA's driver (``nvidia_files.py``).

    ``hook``: program and arguments, see :class:`Fallback`. ``problem``: why there is nothing.

    ``looked_at``: paths, and what stat(2) said of them. While that is unchanged, a new search would find the same.
    """

    version: str = ""
    files: tuple[NvidiaFile, ...] = ()
    hook: tuple[str, ...] = ()
    problem: str = ""
    looked_at: tuple[tuple[str, tuple[int, ...]], ...] = ()
    mounts: tuple[Mount, ...] = ()


class Fallback(Struct, frozen=True):
    """What a container gets in place of a device's CDI devices while one of them is in no file."""

    nodes: tuple[DeviceNode, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    mounts: tuple[Mount, ...] = ()
    hook: tuple[str, ...] = ()  # a program of the host, and its arguments, that the runtime runs for the container
    no_driver: str = ""  # why the driver's files, which the fallback needs, cannot be given


class Device(Struct, frozen=True):
    """One device of the node, copied out of udev at once.

    ``name`` is a DNS label, unique on the node and stable over reboots and replugging: the ledger's key, the device's
    name in a ResourceSlice, the base of its CDI names. ``id`` is its name in kubelet's device manager and checkpoint (a
    GPU's UUID, for example); it is unique on the node as well. ``capacity`` values are plain numbers in base units.
    """

    name: str
    id: str
    resource: str  # extended resource name; the key of the resource in the configuration
    syspath: str = ""
    nodes: tuple[DeviceNode, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    mounts: tuple[Mount, ...] = ()
    cdi_devices: tuple[str, ...] = ()  # qualified names from other programs' CDI files, given to the container as well
    fallback: Fallback | None = None  # given in place of ``cdi_devices`` while there is ``cdi_missing``
    cdi_missing: str = ""  # why the fallback is given, for people; ``cdi_devices`` is empty then
    numa_nodes: tuple[int, ...] = ()  # never holds -1: unknown is empty
    near_numa_nodes: tuple[int, ...] = ()  # that node first, then the nearest ones on its socket
    root: str = ""  # name of the whole device that this is a part of; "" for a whole device
    also_at: tuple[str, ...] = ()  # other places of this hardware (overlap.py): syspaths, nodes as "c188:0", CDI names
    standard: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))  # topology.STANDARD
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))  # from the configuration
    capacity: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    replicas: int = 1
    serial: str = ""  # the hardware's, if the resource evicts holders of an exchanged device
    presence: Presence = Presence.PRESENT
    reason: str = ""  # why it is not PRESENT, for people
    fault: str = ""  # the worst fault that NVML reports: "lost", "reset", "xid-79", "ecc", "thermal"
    former: bool = False  # held under an earlier configuration's name, under which no new holder gets it

    @property
    def pci_bus_id(self) -> str:
        """``0000:3b:00.0``, in lower case; "" for a device on a further bus (USB) behind the PCI function."""
        return str(self.standard.get(PCI_BUS_ID, ""))

    @property
    def pcie_root(self) -> str:
        """``pci0000:3a``; "" for a device on no PCI bus."""
        return str(self.standard.get(PCIE_ROOT, ""))

    @property
    def units(self) -> tuple[str, ...]:
        """The ids that kubelet counts: the device's own, or one for each replica (``<id>::<n>``)."""
        if self.replicas == 1:
            return (self.id,)
        return tuple(f"{self.id}{REPLICA_SEPARATOR}{n}" for n in range(self.replicas))


def device_id_of(unit: str) -> str:
    """Return the device id behind a unit id: ``GPU-1::3`` -> ``GPU-1``; an id without a replica number is its own."""
    head, separator, tail = unit.rpartition(REPLICA_SEPARATOR)
    return head if separator and tail.isdecimal() else unit


class Collision(Struct, frozen=True):
    """Devices that resolve to one name or id: none of them is offered until the operator decides.

    A device that had the name first keeps it, but is listed here too. With an empty ``identity``, these are devices
    for which no identity template has a value, all for the same reason.
    """

    identity: str
    resource: str
    syspaths: tuple[str, ...]
    hint: str

    def __str__(self) -> str:
        if not self.identity:
            several = len(self.syspaths) > 1
            return (
                f"{self.resource}: {', '.join(self.syspaths)} {'have' if several else 'has'} no identity. {self.hint}"
            )
        return f"{self.resource}: {', '.join(self.syspaths)} all resolve to the identity {self.identity!r}. {self.hint}"


class Snapshot(Struct, frozen=True):
    """An ordered set of devices at one moment. ``complete`` is false until the first enumeration has ended."""

    version: int
    devices: tuple[Device, ...] = ()
    collisions: tuple[Collision, ...] = ()
    complete: bool = True

    def by_name(self) -> dict[str, Device]:
        return {device.name: device for device in self.devices}

    def of(self, resource: str) -> tuple[Device, ...]:
        """Return the devices of one resource, in the snapshot's order."""
        return tuple(device for device in self.devices if device.resource == resource)
