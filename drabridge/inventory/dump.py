"""Write devices and their ancestors as a umockdev description, for ``drabridge record`` and bug reports.

The format is that of ``umockdev-record(1)``: ``P:`` path, ``N:`` node, ``S:`` link to it, ``E:`` property, ``A:``
attribute, ``H:`` binary attribute, ``L:`` symbolic link; a blank line ends a device. ``umockdev-run --device`` loads
it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from drabridge.inventory import amdgpu, sriov
from drabridge.inventory.udev import Udev
from drabridge.inventory.udev_device import UdevDevice
from drabridge.system.files import names_in

ATTRIBUTE_LIMIT_BYTES = 4096
"""One page, the most that a text attribute of sysfs holds."""

SECRET_ATTRIBUTES = frozenset(
    {"serial", "serial_number", "unique_id", "uuid", "wwid", "wwn", "eui", "nguid", "address"}
)
SECRET_PROPERTIES = frozenset({
    "ID_SERIAL", "ID_SERIAL_SHORT", "ID_USB_SERIAL", "ID_USB_SERIAL_SHORT", "ID_SCSI_SERIAL", "ID_ATA_SERIAL",
    "ID_WWN", "ID_WWN_WITH_EXTENSION", "ID_NET_NAME_MAC", "ID_FS_UUID", "ID_PART_ENTRY_UUID", "ID_PART_TABLE_UUID",
})  # fmt: skip
_KFD, _KFD_UNIQUE_ID = "topology/nodes/", re.compile(r"^unique_id (\d+)$", re.MULTILINE)  # the topology of AMD's GPUs
SECRET_MIN_CHARS = 4
"""Shorter values are counters and flags. Replacing them everywhere would destroy the description."""

# Left out: reading them is slow or has side effects, or umockdev derives them from other lines.
_SKIPPED = frozenset({"uevent", "vpd", "rom", "config", "remove", "rescan", "reset", "descriptors_raw", "subsystem"})
_SKIPPED_PREFIXES = ("power/", "resource", "trace/", "msi_irqs/")
_BINARY_OF_A_KIND = frozenset({"descriptors", "report_descriptor"})
"""Binary attributes that say what a USB device is. Others (EDID, VPD) have serial numbers that no search finds."""
_MADE_HERE = (amdgpu.PREFIX, sriov.PREFIX)
_LINKS = ("driver", "physfn", "iommu_group", "module")


def dump(udev: Udev, devices: Iterable[UdevDevice], *, anonymous: bool = True) -> str:
    """Return the devices and all their ancestors, ancestors first.

    ``anonymous`` replaces serial numbers, UUIDs and hardware addresses everywhere in the text, and leaves out binary
    attributes that may hold some. Equal values get equal replacements, because bugs may be about devices with equal
    values.
    """
    everything = {node.syspath: node for device in devices for node in device.lineage() if node.subsystem}
    ordered = [everything[syspath] for syspath in sorted(everything)]
    attributes = {device.syspath: dict(_attributes(udev, device, anonymous)) for device in ordered}
    text = "\n".join("".join(f"{line}\n" for line in _lines(device, attributes[device.syspath])) for device in ordered)
    if anonymous:
        for number, secret in enumerate(_secrets(ordered, attributes), start=1):
            text = text.replace(secret, f"ANON{number:04}")
    return text


def _attributes(udev: Udev, device: UdevDevice, anonymous: bool) -> Iterator[tuple[str, bytes]]:
    for name in udev.attribute_names(device.syspath):
        if name in _SKIPPED or name.startswith(_SKIPPED_PREFIXES) or name in _LINKS:
            continue
        value = udev.attribute(device.syspath, name)
        if value is None or len(value) > ATTRIBUTE_LIMIT_BYTES:
            continue
        if not anonymous or name in _BINARY_OF_A_KIND or _is_text(value):
            yield name, value


def _lines(device: UdevDevice, attributes: dict[str, bytes]) -> Iterator[str]:
    yield f"P: {device.devpath}"
    if device.devnode:
        yield f"N: {device.devnode.removeprefix('/dev/')}"
        for link in device.devlinks:
            yield f"S: {link.removeprefix('/dev/')}"
    for name, text in sorted(device.properties.items()):
        if name != "DEVPATH" and not name.startswith(_MADE_HERE):  # not from udev; added again on loading
            yield f"E: {name}={text}"
    for name, value in sorted(attributes.items()):
        yield _attribute(name, value)
    to_virtual_functions = (name for name in names_in(device.syspath) if name.startswith("virtfn"))
    for name in (*_LINKS, *to_virtual_functions):
        try:
            yield f"L: {name}={os.readlink(os.path.join(device.syspath, name))}"
        except OSError:
            continue


def _is_text(value: bytes) -> bool:
    try:
        return all(char.isprintable() or char in "\n\t" for char in value.decode())
    except UnicodeDecodeError:
        return False


def _attribute(name: str, value: bytes) -> str:
    if not _is_text(value):
        return f"H: {name}={value.hex().upper()}"
    escaped = value.decode().replace("\\", "\\\\").replace("\n", "\\n")
    return f"A: {name}={escaped}"


def _secrets(devices: Iterable[UdevDevice], attributes: dict[str, dict[str, bytes]]) -> list[str]:
    """Return the values to hide, longest first: one may contain another (ID_SERIAL ends in ID_SERIAL_SHORT).

    A kernel name is no secret, although it may be a value: the serial of a root hub, and the address of an NVMe
    controller, are a PCI address. It is in every path, so it must stay.
    """
    found: dict[str, None] = {}
    for device in devices:
        for name, value in attributes[device.syspath].items():
            if name in SECRET_ATTRIBUTES:
                found[value.decode(errors="ignore").strip()] = None
            elif name.startswith(_KFD):
                found |= dict.fromkeys(_KFD_UNIQUE_ID.findall(value.decode(errors="ignore")))
        for name in SECRET_PROPERTIES & device.properties.keys():
            found[device.properties[name]] = None
    secrets = found.keys() - {device.sysname for device in devices}
    return sorted((text for text in secrets if len(text) >= SECRET_MIN_CHARS), key=lambda text: (-len(text), text))
