"""The devices of the lab, as QEMU's ``-device`` and ``device_add`` take them, and the buses that they hang on.

What is on the shelf at the start is in :data:`AT_BOOT`; :data:`SPARE` is plugged in later. A device's id is its name.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]

MEMORY_MIB = 2048
MACHINE = (
    *("-machine", "q35,kernel-irqchip=split,hmat=off", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"),
    *("-m", f"{MEMORY_MIB}M", "-smp", "2,sockets=2,cores=1"),
    *("-object", f"memory-backend-ram,id=m0,size={MEMORY_MIB // 2}M"),
    *("-object", f"memory-backend-ram,id=m1,size={MEMORY_MIB // 2}M"),
    *("-numa", "node,nodeid=0,cpus=0,memdev=m0", "-numa", "node,nodeid=1,cpus=1,memdev=m1"),
    *("-device", "intel-iommu,intremap=on"),
    *("-object", "can-bus,id=can-a", "-audiodev", "none,id=sound"),
)
"""Two NUMA nodes and an IOMMU. ``-cpu max``: grpc's and re2's wheels want SSE4."""


_slots = itertools.count(2)
HARNESS_SLOT = 0x1A
"""The first slot of what the harness itself needs; the last free one is 0x1e."""


def _near() -> JSON:
    """The next slot of the first PCIe root: fixed, so that a device keeps its address when others are not there."""
    return {"bus": "pcie.0", "addr": f"{next(_slots):#x}"}


def _port(name: str, chassis: int, bus: str = "", driver: str = "pcie-root-port") -> JSON:
    place = {"bus": bus} if bus else _near()
    return {"driver": driver, "id": name, **place, "chassis": chassis, "slot": chassis}


BUSES: tuple[JSON, ...] = (
    {"driver": "pxb-pcie", "id": "far", **_near(), "bus_nr": 64, "numa_node": 1},
    _port("far1", 1, "far"),
    _port("far2", 2, "far"),
    {"driver": "x3130-upstream", "id": "switch", "bus": "far2"},
    _port("switch1", 3, "switch", "xio3130-downstream"),
    _port("switch2", 4, "switch", "xio3130-downstream"),
    _port("near1", 5),
    _port("near2", 6),
    _port("near3", 7),
    _port("hot1", 8),
    _port("hot2", 9),
    _port("near4", 10, "pcie.0") | {"addr": "0x18"},  # behind all others, so that their numbers stay
    # A conventional bus behind a bridge: what is on it is one IOMMU group.
    {"driver": "pcie-pci-bridge", "id": "old", "bus": "near3"},
    {"driver": "qemu-xhci", "id": "usb", **_near(), "p2": 15, "p3": 15},
    {"driver": "usb-hub", "id": "hub", "bus": "usb.0", "port": "6"},
    {"driver": "virtio-scsi-pci", "id": "scsi", **_near()},
    {"driver": "sdhci-pci", "id": "sdhci", **_near()},
    {"driver": "intel-hda", "id": "hda", **_near()},
    {"driver": "nvme-subsys", "id": "subsystem", "nqn": "lab"},
)


@dataclass(frozen=True)
class Device:
    """One device; ``backend`` are QEMU's options for what is behind it."""

    name: str
    driver: str
    options: JSON
    backend: tuple[tuple[str, str | JSON], ...] = ()

    @property
    def json(self) -> JSON:
        return {"driver": self.driver, "id": self.name, **self.options}


def _serial(name: str, port: str, serial: str) -> Device:
    chardev = (("-chardev", f"null,id=chars-{name}"),)
    options = {"bus": "usb.0", "port": port, "serial": serial, "chardev": f"chars-{name}", "always-plugged": True}
    return Device(name, "usb-serial", options, chardev)


def _disk(name: str, driver: str, megabytes: int = 64, **options: Any) -> Device:
    size = megabytes << 20
    blockdev = {"driver": "null-co", "node-name": f"blocks-{name}", "size": size, "read-zeroes": True}
    return Device(name, driver, {**options, "drive": f"blocks-{name}"}, (("-blockdev", blockdev),))


def _net(name: str, driver: str, **options: Any) -> Device:
    number = sum(name.encode())
    backend = (("-netdev", f"hubport,id=net-{name},hubid={number}"),)
    mac = f"52:54:00:00:{number >> 8:02x}:{number & 255:02x}"
    return Device(name, driver, {**options, "netdev": f"net-{name}", "mac": mac}, backend)


AT_BOOT: tuple[Device, ...] = (
    # Serial ports: two with serials, two that share one, one without, one behind a hub; a card with four.
    _serial("radio1", "1", "RADIO1"),
    _serial("radio2", "2", "RADIO2"),
    _serial("twin1", "3", "00000001"),
    _serial("twin2", "4", "00000001"),
    _serial("bare", "5", ""),
    _serial("radio3", "6.1", "RADIO3"),
    Device(
        "quad",
        "pci-serial-4x",
        {**_near(), **{f"chardev{number}": f"chars-quad{number}" for number in range(1, 5)}},
        tuple(("-chardev", f"null,id=chars-quad{number}") for number in range(1, 5)),
    ),
    # Disks.
    _disk("stick1", "usb-storage", bus="usb.0", port="7", serial="STICK1", removable=True),
    _disk("stick2", "usb-storage", bus="usb.0", port="8", serial="STICK2", removable=True),
    Device(
        "functions",
        "nvme",
        {
            "bus": "far1",
            "serial": "NV-0001",
            "subsys": "subsystem",
            "sriov_max_vfs": 4,
            "sriov_vq_flexible": 8,
            "sriov_vi_flexible": 4,
            "max_ioqpairs": 16,
            "msix_qsize": 8,
        },
    ),
    _disk("nvme2", "nvme", bus="near1", serial="NV-0002"),
    _disk("nvme3", "nvme", bus="switch1", serial="NV-0003"),
    # With numbers of their own: QEMU gives the next free one, so a drive would change its place with its neighbours.
    _disk("scsi1", "scsi-hd", bus="scsi.0", **{"scsi-id": 0}, serial="SCSI-0001", wwn=0x5000C50015EA71AC),
    _disk("scsi2", "scsi-hd", bus="scsi.0", **{"scsi-id": 1}, serial="SCSI-0002", wwn=0x5000C50015EA71AD),
    _disk("tape", "scsi-cd", bus="scsi.0", **{"scsi-id": 2}, serial="CD-0001"),
    _disk("vdisk1", "virtio-blk-pci", **_near(), serial="VB-0001"),
    _disk("vdisk2", "virtio-blk-pci", **_near()),
    _disk("card", "sd-card", bus="sd-bus"),
    # Networks.
    _net("ethernet", "e1000e", bus="near2"),
    _net("vnet", "virtio-net-pci", **_near()),
    _net("nic", "igb", bus="near4"),  # with virtual functions; QEMU has it since 8.0
    _net("usbnet", "usb-net", bus="usb.0", port="9"),
    Device("can", "kvaser_pci", {**_near(), "canbus": "can-a"}),
    # Cards without a driver: one near, one behind a switch of the second node, one that shares its IOMMU group.
    Device("edu1", "edu", _near()),
    Device("edu2", "edu", {"bus": "switch2"}),
    Device("edu3", "edu", {"bus": "old"}),
    _net("oldnet", "e1000", bus="old"),
    # Sound, input, graphics, smart card, the rest.
    Device("sound", "hda-duplex", {"bus": "hda.0", "audiodev": "sound"}),
    Device("headset", "usb-audio", {"bus": "usb.0", "port": "10", "audiodev": "sound"}),
    Device("keyboard", "usb-kbd", {"bus": "usb.0", "port": "11"}),
    Device("tablet", "usb-tablet", {"bus": "usb.0", "port": "12"}),
    Device("reader", "usb-ccid", {"bus": "usb.0", "port": "13"}),
    Device("graphics", "virtio-gpu-pci", _near()),
    Device("entropy", "virtio-rng-pci", _near()),
    Device("watchdog", "i6300esb", _near()),
    Device("bmc", "pci-ipmi-kcs", {**_near(), "bmc": "bmc-sim"}, (("-device", "ipmi-bmc-sim,id=bmc-sim"),)),
    Device("tpm", "tpm-tis", {"tpmdev": "tpm-swtpm"}),  # guest.py starts swtpm, if there is one
)

SPARE: tuple[Device, ...] = (
    _serial("radio4", "14", "RADIO4"),
    _disk("nvme4", "nvme", bus="hot1", serial="NV-0004"),
    _net("ethernet2", "e1000e", bus="hot2"),
)
