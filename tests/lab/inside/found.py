"""Find the devices of the shelf in the guest, by what QEMU was told of them: not by what the product makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyudev

Test = Callable[[Any], bool]


def lineage(device: Any) -> Iterator[Any]:
    """The device, then its ancestors."""
    yield device
    yield from device.ancestors


def attribute(device: Any, name: str) -> str:
    """Of the device or its nearest ancestor that has it."""
    for node in lineage(device):
        value = node.attributes.get(name)
        if value is not None:
            return str(value.decode(errors="replace").strip())
    return ""


def at_port(chain: str) -> Test:
    """On USB, at a port: "6.1" is port 1 of the hub at port 6."""
    return lambda device: any(
        node.device_type == "usb_device" and _text(node, "devpath") == chain for node in lineage(device)
    )


def has(name: str, value: str) -> Test:
    return lambda device: attribute(device, name) == value


def pci(vendor: str, model: str, bus: str = "") -> Test:
    """On a PCI function of this kind; ``bus``: a bridge that must be above it."""
    return lambda device: (
        any(
            _text(node, "vendor") == vendor and _text(node, "device") == model
            for node in lineage(device)
            if node.subsystem == "pci"
        )
        and (not bus or bus in device.sys_path)
    )


def _text(device: Any, name: str) -> str:
    value = device.attributes.get(name)
    return value.decode(errors="replace").strip() if value is not None else ""


FAR = "/pci0000:40/"
"""In the path of every device of the second NUMA node."""

WHERE: dict[str, tuple[str, str, Test]] = {
    # name on the shelf: subsystem, devtype, and what tells it from others
    "radio1": ("tty", "", has("serial", "RADIO1")),
    "radio2": ("tty", "", has("serial", "RADIO2")),
    "radio3": ("tty", "", has("serial", "RADIO3")),
    "radio4": ("tty", "", has("serial", "RADIO4")),
    "twin1": ("tty", "", at_port("3")),
    "twin2": ("tty", "", at_port("4")),
    "bare": ("tty", "", at_port("5")),
    "quad": ("tty", "", lambda device: pci("0x1b36", "0x0004")(device) and _text(device, "line") == "4"),
    "stick1": ("block", "disk", has("serial", "STICK1")),
    "stick2": ("block", "disk", has("serial", "STICK2")),
    "functions": (
        "pci",
        "",
        lambda device: pci("0x1b36", "0x0010")(device) and "sriov_totalvfs" in device.attributes.available_attributes,
    ),
    "nvme2": ("block", "disk", has("serial", "NV-0002")),
    "nvme3": ("block", "disk", has("serial", "NV-0003")),
    "nvme4": ("block", "disk", has("serial", "NV-0004")),
    "scsi1": ("block", "disk", has("wwid", "naa.5000c50015ea71ac")),
    "scsi2": ("block", "disk", has("wwid", "naa.5000c50015ea71ad")),
    "tape": ("block", "disk", lambda device: device.sys_name.startswith("sr")),
    "vdisk1": ("block", "disk", has("serial", "VB-0001")),
    "vdisk2": ("block", "disk", lambda device: pci("0x1af4", "0x1001")(device) and not _text(device, "serial")),
    "card": ("block", "disk", lambda device: device.sys_name == "mmcblk0"),
    "ethernet": ("net", "", lambda device: pci("0x8086", "0x10d3")(device) and _mac(device) == "ethernet"),
    "ethernet2": ("net", "", lambda device: pci("0x8086", "0x10d3")(device) and _mac(device) == "ethernet2"),
    "nic": ("net", "", pci("0x8086", "0x10c9")),
    "vnet": ("net", "", pci("0x1af4", "0x1000")),
    "usbnet": ("net", "", at_port("9")),
    "can": ("net", "", lambda device: device.sys_name.startswith("can")),
    "edu1": ("pci", "", lambda device: _edu(device) and device.sys_path.count("/0000:") == 1),
    "edu2": ("pci", "", lambda device: _edu(device) and FAR in device.sys_path),
    "edu3": (
        "pci",
        "",
        lambda device: _edu(device) and FAR not in device.sys_path and device.sys_path.count("/0000:") > 1,
    ),
    "oldnet": ("net", "", pci("0x8086", "0x100e")),
    "sound": ("sound", "", lambda device: device.sys_name.startswith("card") and pci("0x8086", "0x2668")(device)),
    "headset": ("sound", "", lambda device: device.sys_name.startswith("card") and at_port("10")(device)),
    "keyboard": ("hidraw", "", at_port("11")),
    "tablet": ("hidraw", "", at_port("12")),
    "reader": ("usb", "usb_device", at_port("13")),
    "graphics": ("drm", "drm_minor", lambda device: device.sys_name == "card0"),
    "entropy": ("pci", "", pci("0x1af4", "0x1005")),
    "watchdog": ("watchdog", "", pci("0x8086", "0x25ab")),
    "bmc": ("ipmi", "", lambda device: True),
    "tpm": ("tpm", "", lambda device: True),
}


def _edu(device: Any) -> bool:
    return pci("0x1234", "0x11e8")(device) and device.subsystem == "pci" and _text(device, "device") == "0x11e8"


def _mac(device: Any) -> str:
    """The name that its hardware address was made of (``shelf._net``)."""
    octets = _text(device, "address").split(":")
    number = int(octets[4] + octets[5], 16) if len(octets) == 6 else 0
    return next((name for name in ("ethernet", "ethernet2") if sum(name.encode()) == number), "")


def find_all(name: str) -> list[str]:
    """The syspaths of what is this device of the shelf; one, or none while it is unplugged.

    QEMU 10's NVMe disks have paths as well, which nobody can open.
    """
    subsystem, devtype, test = WHERE[name]
    devices = [one for one in pyudev.Context().list_devices(subsystem=subsystem) if _text(one, "hidden") != "1"]
    return sorted(
        device.sys_path for device in devices if (not devtype or device.device_type == devtype) and test(device)
    )


def find(name: str) -> str:
    """Its syspath; raises AssertionError unless it is there, once."""
    found = find_all(name)
    assert len(found) == 1, f"{name} is {found}"
    return found[0]


def devnode(name: str) -> str:
    """Its device node."""
    return str(pyudev.Devices.from_sys_path(pyudev.Context(), find(name)).device_node)
