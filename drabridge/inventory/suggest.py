"""Write a resource entry for one device: minimal, stable over replugging, ready to paste."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TypeGuard

from drabridge.config.names import DNS_LABEL_MAX
from drabridge.config.pattern import WHITESPACE, Glob, check_id_width
from drabridge.config.problems import Problems
from drabridge.inventory.udev_device import UdevDevice

_UNSAFE = re.compile(r"[*?\[\]\\|]")
_LITERAL_MAX = 200  # characters of a value that are worth writing into a rule
_ID_FIELDS = ("property:ID_SERIAL_SHORT", "attr:serial", "property:ID_PATH")


def suggest(device: UdevDevice) -> str:
    """YAML of one item of ``resources:`` that matches this device, with comments on what to widen.

    It matches by what identifies the hardware: USB vendor, product and serial of the device or of an ancestor, else the
    ids of its PCI function, else the kernel's name. The text loads, and matches ``device``.
    """
    usb = _nearest(device, lambda node: node.subsystem == "usb" and node.devtype == "usb_device")
    pci = _nearest(device, lambda node: node.subsystem == "pci")
    anchor = usb or pci
    lines = [f"- name: example.com/{_resource_name(device, anchor)}", "  match:"]
    lines += _indented("  - ", "    ", list(_matcher(device, usb, pci)))
    identities = [f"{{{field}}}" for field in _ID_FIELDS if _has(device, field)]
    identities += ["{pci}"] if pci is not None and usb is None else []
    lines.append(f"  id: {_flow([*identities, '{sysname}'])}")
    lines += _nodes(device)
    return "\n".join(lines) + "\n"


def _matcher(device: UdevDevice, usb: UdevDevice | None, pci: UdevDevice | None) -> Iterator[str]:
    if device is usb:
        yield from _usb(device)
    elif device is pci:
        yield from _pci(device)
    else:
        if device.subsystem:
            yield f"subsystem: {_literal(device.subsystem)}"
        if usb is None and pci is None:
            yield f"sysname: {_literal(device.sysname)}"
            return
        yield f"sysname: {_numberless(device.sysname)}"
        if (interface := device.properties.get("ID_USB_INTERFACE_NUM")) and usb is not None:
            yield f"property: {{ID_USB_INTERFACE_NUM: {_literal(interface)}}}  # of several interfaces of one device"
        yield "parent:"
        for line in _usb(usb) if usb is not None else _pci(pci) if pci is not None else ():
            yield "  " + line


def _usb(node: UdevDevice) -> Iterator[str]:
    yield "subsystem: usb"
    if node.devtype:
        yield f"devtype: {_literal(node.devtype)}"
    yield from _attributes(node, ("idVendor", "idProduct", "serial"))


def _pci(node: UdevDevice) -> Iterator[str]:
    yield "subsystem: pci"
    yield from _attributes(node, ("vendor", "device", "class"))


def _attributes(node: UdevDevice, names: tuple[str, ...]) -> Iterator[str]:
    found: dict[str, str] = {}
    for name in names:
        value = node.attributes.get(name)
        if _can_be_matched(value, name):
            found[name] = value.rstrip(WHITESPACE)
    if found:
        yield "attr:"
    for name, value in found.items():
        note = "  # remove this line to match every device of this kind" if name == "serial" else ""
        yield f"  {name}: {_literal(value)}{note}"
    if not found:
        yield f"sysname: {_literal(node.sysname)}"


def _nodes(device: UdevDevice) -> Iterator[str]:
    if device.devnode:
        yield "  nodes: [{from: devnode}]"
    elif device.subsystem == "pci":
        yield "  nodes:"
        yield '  - {path: "/dev/vfio/{iommu_group}", optional: true}  # when it is bound to vfio-pci'
        yield "  - {path: /dev/vfio/vfio, optional: true}"
    else:
        yield "  nodes: []  # it has no node under /dev"


# --- names and values, whatever the hardware says --------------------------------------------------------------------


def _literal(value: str) -> str:
    """A quoted pattern that matches exactly this value; signs that no pattern can have become ``?``."""
    cut = len(value) > _LITERAL_MAX
    out = ""
    for char in value[:_LITERAL_MAX]:
        if char == "|" or not char.isprintable() or char in "[]":
            out += "?"
        else:
            out += "\\" + char if _UNSAFE.match(char) else char
    return _quoted(out + ("*" if cut else ""))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # YAML has no surrogate pairs


def _numberless(sysname: str) -> str:
    """``ttyUSB0`` -> ``"ttyUSB*"``: the number is a new one at every plugging."""
    stem = sysname.rstrip("0123456789")
    return _literal(sysname) if stem == sysname or not stem else _literal(stem)[:-1].removesuffix("*") + '*"'


def _can_be_matched(value: str | None, name: str) -> TypeGuard[str]:
    """Whether a rule with this value can match: it is not empty, and an id has the width of one."""
    if value is None or not value.rstrip(WHITESPACE):
        return False
    try:
        check_id_width(name, Glob.compile(json.loads(_literal(value.rstrip(WHITESPACE)))))
    except Problems:
        return False
    return True


def _resource_name(device: UdevDevice, anchor: UdevDevice | None) -> str:
    candidates = [
        device.properties.get("ID_MODEL"),
        anchor.attributes.get("product") if anchor else None,
        device.sysname,
        device.subsystem,
    ]
    for candidate in candidates:
        words = re.sub(r"[^a-z0-9]+", "-", (candidate or "")[:DNS_LABEL_MAX].lower()).strip("-")
        stem = words.rstrip("0123456789").rstrip("-") if candidate == device.sysname else words
        if stem and not stem.isdecimal():
            return stem
    return "device"


def _flow(items: list[str]) -> str:
    return "[" + ", ".join(json.dumps(item) for item in dict.fromkeys(items)) + "]"


def _has(device: UdevDevice, field: str) -> bool:
    source, _, key = field.partition(":")
    value = device.attributes.get(key) if source == "attr" else device.properties.get(key)
    return bool(value and value.strip())


def _nearest(device: UdevDevice, wanted: Callable[[UdevDevice], bool]) -> UdevDevice | None:
    """The device itself or its nearest ancestor that is wanted."""
    return next(filter(wanted, device.lineage()), None)


def _indented(first: str, rest: str, lines: list[str]) -> list[str]:
    return [(rest if index else first) + line for index, line in enumerate(lines)]
