"""Write a resource entry for one device: it matches nothing else, survives replugging, and is ready to paste."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeGuard

from msgspec import Struct

from drabridge.config.checker import check
from drabridge.config.matcher import Matcher
from drabridge.config.names import DNS_LABEL_MAX
from drabridge.config.nvidia_profile import nvidia_profile
from drabridge.config.pattern import WHITESPACE, Glob, check_id_width
from drabridge.config.problems import Problems
from drabridge.config.vendors import EXAMPLES
from drabridge.inventory.match import holds
from drabridge.inventory.topology import place_template
from drabridge.inventory.udev_device import UdevDevice
from drabridge.system.pci_driver import VFIO_PCI

USB_IDS, PCI_IDS = ("idVendor", "idProduct"), ("vendor", "device", "class")
UNIT = ("serial", "wwid")
"""Attributes that always identify one piece of hardware: a USB device, a disk, an NVMe controller, a memory card."""
PART = ("partition", "index", "dev_port")
"""Attributes that tell the parts of one piece of hardware apart: of a disk, a camera, a network card."""
SUGGESTED = frozenset({
    *USB_IDS, *PCI_IDS, *UNIT, *PART, "product", "devpath", "bInterfaceNumber", "address", "addr_assign_type",
})  # fmt: skip
"""The attributes of the device or an ancestor that an entry may use."""

NVIDIA = "nvidia"
_OTHER_HARDWARE = frozenset({"ata_port", "block", "i2c", "input", "nvme", "pci", "ptp", "scsi", "usb", "watchdog"})
"""Subsystems of devices below a PCI function that are other hardware, or that only the host uses."""

_UNSAFE = re.compile(r"[*?\[\]\\|]")
_LITERAL_MAX = 200  # longest value that is written into a rule, in characters
_NO_ADDRESS = "00:00:00:00:00:00"
_ALIKE = "remove this line to match every device of this kind"


class _Noted(Struct, frozen=True):
    """A value of a rule, with a comment after it."""

    text: str
    note: str


Rule = dict[str, Any]
"""A matcher as the configuration has it; texts are globs, or :class:`_Noted`."""


def suggest(device: UdevDevice, others: Iterable[UdevDevice] = ()) -> str:
    """Return YAML, with comments, of one item of ``resources:`` that matches this device and none of the others.

    It matches by what identifies the hardware: a serial, or the ids of its USB device or PCI function. If others match
    as well, it also uses the part of the hardware, then the place, and last the kernel's name, which another device may
    get at the next boot. If nothing tells the device apart, a comment says so. The text is valid and matches
    ``device``. A GPU of NVIDIA's driver gets the item of its profile.
    """
    if device.subsystem == "pci" and device.driver == NVIDIA:
        return nvidia_profile().partition("resources:\n")[2]
    others = [other for other in others if other.syspath != device.syspath]
    hardware = _Hardware(device)
    for rule in hardware.rules():
        predicate = check(Matcher, _plain(rule)).predicate()
        alike = [other for other in others if holds(predicate, other)]
        if not alike:
            break
    lines = [f"- name: example.com/{_resource_name(hardware)}"]
    if example := _example(hardware.pci):
        lines.append(f"  # deploy/examples/{example} offers every device of this kind, with attributes and health.")
    lines.append("  match:")
    lines += _indented("  - ", "    ", list(_yaml(rule)))
    lines.append(f"  id: {_flow(hardware.identities(rule))}")
    lines += _nodes(device, others)
    if alike:
        lines.append(f"  # It matches {len(alike)} more of this machine's devices: nothing tells them apart.")
    return "\n".join(lines) + "\n"


class _Hardware:
    """What a device is a part of."""

    def __init__(self, device: UdevDevice) -> None:
        self.device = device
        self.usb = _nearest(device, lambda node: node.subsystem == "usb" and node.devtype == "usb_device")
        self.interface = _nearest(device, lambda node: node.devtype == "usb_interface") if self.usb else None
        self.pci = _nearest(device, lambda node: node.subsystem == "pci")
        self.anchor = self.usb or self.pci
        self.unit, self.unit_attribute = self._find_unit()

    def _find_unit(self) -> tuple[UdevDevice | None, str]:
        """Return the device or ancestor with a unique attribute, and the attribute's name; None and "" if none has."""
        for node in self.device.lineage():
            if node is self.pci and not self.usb:
                break
            for name in UNIT:
                if _can_be_matched(node.attributes.get(name), name):
                    return node, name
            if node is self.usb:
                break
        address = self.device.attributes.get("address", "").strip()
        permanent = self.device.attributes.get("addr_assign_type", "").strip() == "0"  # NET_ADDR_PERM
        if self.device.subsystem == "net" and permanent and address not in ("", _NO_ADDRESS):
            return self.device, "address"
        return None, ""

    def rules(self) -> Iterator[Rule]:
        """Yield rules, from the widest to the narrowest."""
        yield self._rule()
        yield self._rule(part=True)
        yield self._rule(place=True)
        yield self._rule(part=True, place=True)
        if path := self.device.properties.get("ID_PATH"):
            yield self._rule(part=True, place=True) | {"property": {"ID_PATH": _literal(path)}}
        name = _Noted(
            _literal(self.device.sysname), "the kernel's name: it may be another device's after the next boot"
        )
        yield self._rule(part=True, place=True) | {"sysname": name}

    def _rule(self, part: bool = False, place: bool = False) -> Rule:
        device = self.device
        if device is self.usb:
            return self._of_usb(device, place)
        if device is self.pci:
            return self._of_pci(device, place)
        rule: Rule = {"subsystem": _literal(device.subsystem)} if device.subsystem else {}
        if device.devtype:
            rule["devtype"] = _literal(device.devtype)
        attributes = (
            {name: device.attributes.get(name) for name in PART} if part or device.devtype == "partition" else {}
        )
        if self.unit is device:
            attributes[self.unit_attribute] = device.attributes.get(self.unit_attribute)
        above = self._above(part, place)
        if above is None and self.unit is not device:
            rule["sysname"] = _literal(device.sysname)
        elif device.subsystem not in ("block", "net"):  # their devtype and hardware are enough, and their names change
            rule["sysname"] = _numberless(device.sysname)
        if written := _attributes(attributes):
            rule["attr"] = written
        if above is not None:
            rule["parent"] = above
        return rule

    def _above(self, part: bool, place: bool) -> Rule | None:
        """Return the rule for an ancestor (``parent:``); None if the entry needs none."""
        if self.unit is not None and self.unit is not self.usb and self.unit is not self.device:
            name = self.unit_attribute
            return {"subsystem": _literal(self.unit.subsystem), "attr": _attributes({name: self.unit.attributes[name]})}
        if self.unit is self.device and not place:
            return None
        if self.usb is None:
            return self._of_pci(self.pci, place) if self.pci is not None else None
        above = self._of_usb(self.usb, place)
        if part and self.interface is not None and (number := self.interface.attributes.get("bInterfaceNumber")):
            return {
                "subsystem": "usb",
                "devtype": "usb_interface",
                "attr": _attributes({"bInterfaceNumber": number}),
                "parent": above,
            }
        return above

    def _of_usb(self, node: UdevDevice, place: bool) -> Rule:
        rule: Rule = {"subsystem": "usb", "devtype": "usb_device"}
        attributes = {name: node.attributes.get(name) for name in USB_IDS}
        written: Rule = _attributes(attributes)
        if serial := _attributes({"serial": node.attributes.get("serial")}):
            written["serial"] = _Noted(serial["serial"], _ALIKE)
        if place and (port := _attributes({"devpath": node.attributes.get("devpath")})):
            written["devpath"] = _Noted(port["devpath"], "the port: " + _ALIKE)
        if written:
            rule["attr"] = written
        if place and self.pci is not None:
            rule["parent"] = {"subsystem": "pci", "sysname": _literal(self.pci.sysname)}
        return rule if written else rule | {"sysname": _literal(node.sysname)}

    def _of_pci(self, node: UdevDevice, place: bool) -> Rule:
        written = _attributes({name: node.attributes.get(name) for name in PCI_IDS})
        rule: Rule = {"subsystem": "pci"}
        if node.driver == VFIO_PCI:
            rule["driver"] = VFIO_PCI
        if place or not written:
            rule["sysname"] = (
                _Noted(_literal(node.sysname), "the slot: " + _ALIKE) if written else _literal(node.sysname)
            )
        return rule | ({"attr": written} if written else {})

    def identities(self, rule: Rule) -> list[str]:
        """Return the templates of the id, best first. They need no udev database: a pod may not see it."""
        found = []
        if self.unit is not None:
            own = "" if self.unit is self.device else "parent."
            part = "-{attr:partition}" if self.device.devtype == "partition" else ""
            found.append(f"{{{own}attr:{self.unit_attribute}}}{part}")
        if self.anchor is not None:
            found.append(place_template(self.device))
        if isinstance(rule.get("sysname"), _Noted) and self.device is not self.pci:
            found = ["{pci}-{sysname}" if one == "{pci}" else one for one in found]
        return found or ["{sysname}"]


def _nodes(device: UdevDevice, others: Iterable[UdevDevice]) -> Iterator[str]:
    if device.devnode:
        yield "  nodes: [{from: devnode}]"
        return
    below = sorted({other.subsystem for other in others if _is_node_of(device, other)})
    if below:
        yield f"  group: {{with: children, match: [{{subsystem: {_flow(below)}, exists: [devnode]}}]}}"
        yield "  nodes: [{from: group}]"
        return
    if device.subsystem == "pci":
        if device.driver != VFIO_PCI:
            now = f"it is {device.driver}'s now, which makes no node" if device.driver else "no driver has it now"
            yield f"  # Only when it is bound to {VFIO_PCI}, for a virtual machine or DPDK: {now}."
        yield '  nodes: [{path: "/dev/vfio/{iommu_group}"}, {path: /dev/vfio/vfio}]'
        yield f"  health: [{{driverBound: {VFIO_PCI}}}, {{nodeExists: true}}]"
        return
    yield "  nodes: []  # it has no node under /dev: a container gets no access to it from here"


def _is_node_of(device: UdevDevice, other: UdevDevice) -> bool:
    """Whether ``other`` has a node that the device's own driver made; not a node of what is plugged into the device."""
    if not other.devnode or not other.syspath.startswith(f"{device.syspath}/"):
        return False
    if device.subsystem != "pci":
        return other.subsystem == device.subsystem
    between = [node for node in other.lineage() if node.syspath.startswith(f"{device.syspath}/")]
    return not any(node.subsystem in _OTHER_HARDWARE for node in between)


def _example(function: UdevDevice | None) -> str:
    """Return the example for a PCI function and the devices below it; "" if there is none."""
    if function is None:
        return ""
    if function.driver == VFIO_PCI or "physfn" in function.links:
        return "sriov-vf.yaml" if "physfn" in function.links else ""
    return EXAMPLES.get(function.driver, "")


# --- rules as text ---------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Return a rule without its comments, as ``check`` takes it."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.text if isinstance(value, _Noted) else value


def _yaml(rule: Rule) -> Iterator[str]:
    for key, value in rule.items():
        if isinstance(value, dict):
            yield f"{key}:"
            yield from ("  " + line for line in _yaml(value))
        else:
            yield f"{key}: {_word(_plain(value))}" + (f"  # {value.note}" if isinstance(value, _Noted) else "")


# --- names and values, whatever the hardware says --------------------------------------------------------------------


def _attributes(values: Mapping[str, str | None]) -> dict[str, Any]:
    """Return a pattern for each value that can be matched."""
    return {name: _literal(value.rstrip(WHITESPACE)) for name, value in values.items() if _can_be_matched(value, name)}


def _literal(value: str) -> str:
    """Return a pattern for a value. Characters that no pattern can have become ``?``; ``*`` ends a cut value."""
    cut = len(value) > _LITERAL_MAX
    out = ""
    for char in value[:_LITERAL_MAX]:
        if char == "|" or not char.isprintable() or char in "[]":
            out += "?"
        else:
            out += "\\" + char if _UNSAFE.match(char) else char
    return out + ("*" if cut else "")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # YAML has no surrogate pairs


def _word(text: str) -> str:
    """Return the text as a person would write it: quoted unless it is a plain word."""
    return text if re.fullmatch(r"(?!(true|false|null|yes|no|on|off|y|n)$)[a-z][a-z_]*", text) else _quoted(text)


def _numberless(sysname: str) -> str:
    """Return ``ttyUSB*`` for ``ttyUSB0``: the number changes whenever the device is plugged in."""
    stem = sysname.rstrip("0123456789")
    return _literal(sysname) if stem == sysname or not stem else _literal(stem).removesuffix("*") + "*"


def _can_be_matched(value: str | None, name: str) -> TypeGuard[str]:
    """Whether a rule with this value can match: it is not empty, and an id has the width of one."""
    if value is None or not value.rstrip(WHITESPACE):
        return False
    try:
        check_id_width(name, Glob.compile(_literal(value.rstrip(WHITESPACE))))
    except Problems:
        return False
    return True


def _resource_name(hardware: _Hardware) -> str:
    device, anchor = hardware.device, hardware.anchor
    of_class = device.sysname if device is not hardware.pci else ""
    candidates = [
        device.properties.get("ID_MODEL"),
        anchor.attributes.get("product") if anchor else None,
        of_class,
        device.properties.get("ID_MODEL_FROM_DATABASE"),
        device.properties.get("ID_PCI_SUBCLASS_FROM_DATABASE"),
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


def _nearest(device: UdevDevice, wanted: Callable[[UdevDevice], bool]) -> UdevDevice | None:
    """Return the device itself or its nearest ancestor that is wanted."""
    return next(filter(wanted, device.lineage()), None)


def _indented(first: str, rest: str, lines: list[str]) -> list[str]:
    return [(rest if index else first) + line for index, line in enumerate(lines)]
