"""List what a machine could offer: hardware with a node or a network interface, and nodes such as /dev/kvm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from drabridge.inventory.suggest import suggest
from drabridge.inventory.udev_device import UdevDevice
from drabridge.system.pci_driver import VFIO_PCI

SHARED = frozenset({"fuse", "kvm", "tun", "vhost-net", "vhost-vsock", "vsock"})
"""Nodes of the subsystem misc that are not hardware, but that containers ask for."""
_OF_THE_HOST = frozenset({
    "bsg", "gpio", "hwmon", "i2c-dev", "input", "iommu", "ipmi", "mem", "msr", "nvme", "nvme-generic", "pps", "ptp",
    "rtc", "scsi_generic", "tpm", "vc", "watchdog",
})  # fmt: skip
"""Subsystems whose nodes only the host uses, or whose nodes belong to hardware of another subsystem. ``tpmrm`` is not
here, because several users may share that node of a TPM."""
_HOW = {
    "the kernel's name": "kernel's name",
    "the port:": "port",
    "the slot:": "slot",
    "ID_PATH:": "ID_PATH",
    "serial:": "serial",
    "wwid:": "wwid",
    "address:": "address",
}
"""What distinguishes a device in its entry, narrowest first: text in the entry -> words for people."""


def offerable(devices: Mapping[str, UdevDevice]) -> list[UdevDevice]:
    """Choose from ``devices`` (by syspath), sorted by path. Hubs and USB devices with chosen parts are left out."""
    chosen = {path: device for path, device in sorted(devices.items()) if _is_wanted(device)}
    whole = [path for path, device in chosen.items() if device.subsystem == "usb"]
    hubs = {device.above.syspath for device in devices.values() if device.driver == "hub" and device.above is not None}
    for path in whole:
        if path in hubs or any(other.startswith(f"{path}/") for other in chosen):
            del chosen[path]
    return list(chosen.values())


def _is_wanted(device: UdevDevice) -> bool:
    if device.subsystem == "misc" and device.sysname in SHARED:
        return True
    if device.devpath.startswith("/devices/virtual/") or device.subsystem in _OF_THE_HOST:
        return False
    match device.subsystem:
        case "sound":
            return device.sysname.startswith("card")
        case "drm":
            return device.sysname.startswith("card") and bool(device.devnode)
        case "video4linux":
            return device.attributes.get("index", "0") == "0"
        case "block":
            return device.devtype == "disk"
        case "net":
            return True
        case "pci":
            return device.driver in ("nvidia", VFIO_PCI)
        case "usb":
            return device.devtype == "usb_device"
    return bool(device.devnode)


def row(device: UdevDevice, others: Iterable[UdevDevice]) -> dict[str, Any]:
    """Return a device as every output shows it, with the name of its entry and what the entry matches by."""
    entry = suggest(device, others)
    by_name = "sysname:" in entry and "parent:" not in entry
    how = next((how for text, how in _HOW.items() if text in entry), "name" if by_name else "kind")
    return {
        "device": device.devnode or device.syspath,
        "resource": entry.splitlines()[0].removeprefix("- name: "),
        "model": _model(device),
        "matched_by": how,
        "container_gets": "nothing by itself" if "nodes: []" in entry else "its nodes",
        "driver": next((node.driver for node in device.lineage() if node.driver), ""),
    }


def _model(device: UdevDevice) -> str:
    for name in ("ID_MODEL_FROM_DATABASE", "ID_MODEL"):
        if value := device.properties.get(name):
            return value
    return next((node.attributes["product"] for node in device.lineage() if node.attributes.get("product")), "")
