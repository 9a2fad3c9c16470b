"""Convert text from hardware to a device's attributes and capacity, in the types of the resource.k8s.io API. Pure.

A value that cannot be read as its type is left out: with a wrong value the API server would refuse the whole slice.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Container, Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from drabridge.config import names
from drabridge.config.declaration import to_data
from drabridge.config.fabric import FabricDevice
from drabridge.config.pattern import Patterns, is_hex_id
from drabridge.config.problems import Problems
from drabridge.config.published import INT64, UNITS, parse_quantity
from drabridge.config.schema import Resource
from drabridge.config.template import Lookup
from drabridge.inventory.devices import Attribute, Semver

_VERSION = re.compile(r"[vV]?(\d+(?:\.\d+)*)(.*)", re.DOTALL | re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_HEX_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}")

_BOOLEANS = MappingProxyType(
    dict.fromkeys(("1", "y", "yes", "true", "on", "enabled"), True)
    | dict.fromkeys(("0", "n", "no", "false", "off", "disabled"), False)
)


def attributes_of(resource: Resource | FabricDevice, values: Lookup) -> dict[str, Attribute]:
    """Return the attributes that the configuration gives one device, by name."""
    found: dict[str, Attribute] = {}
    for name, spec in resource.attributes.items():
        text = values(spec.source) if spec.source is not None else None
        if spec.map and spec.source is not None:
            text = mapped(text, spec.map, hex_id=is_hex_id(spec.source.source, spec.source.key))
        if spec.value is not None and spec.kind != "version":
            found[name] = spec.value
        elif (value := attribute(text or str(spec.value or ""), spec.kind)) is not None:
            found[name] = value
    return found


def mapped(text: str | None, table: Mapping[str, Patterns], *, hex_id: bool = False) -> str | None:
    """Return what the table publishes for a text; None when nothing matches. Only an empty pattern matches no text."""
    for published, patterns in table.items():
        if patterns.matches(text, hex_id=hex_id) if text else patterns.accepts_missing:
            return published
    return None


def capacity_of(resource: Resource | FabricDevice, values: Lookup) -> dict[str, int]:
    """Return the capacities that the configuration gives one device, by name, in base units."""
    found = {}
    for name, spec in resource.capacity.items():
        text = str(spec.value) if spec.source is None else values(spec.source)
        if text and (value := amount(text, spec.unit)) is not None:
            found[name] = value
    return found


def as_string(text: str) -> str | None:
    """Return the text, cut at a character to at most 64 bytes (the API server counts bytes); None when it is empty."""
    cut = text.encode()[: names.ATTRIBUTE_VALUE_MAX].decode(errors="ignore")
    return cut or None


def as_int(text: str) -> int | None:
    """Return a decimal number, or a hexadecimal one with 0x (sysfs writes both), within 64 bits; else None."""
    if _HEX_NUMBER.fullmatch(text):
        value = int(text, 16)
    elif _NUMBER.fullmatch(text):
        value = int(text)
    else:
        return None
    return value if -INT64 <= value < INT64 else None


def as_bool(text: str) -> bool | None:
    """Return a truth value in the words that sysfs, udev and module parameters use; else None."""
    return _BOOLEANS.get(text.lower())


def as_semver(text: str) -> Semver | None:
    """Return a vendor's version as semantic version 2.0.0; None when it is none.

    ``580.95`` -> ``580.95.0`` (missing parts are 0), ``535.054.03`` -> ``535.54.3`` (no leading zeros),
    ``v1.2`` -> ``1.2.0``, ``1.2.3.4`` -> ``1.2.3+4`` (further parts become build metadata, which does not order),
    ``1.2.3-rc1`` stays.
    """
    if names.is_semver(text):
        return Semver(text)
    match = _VERSION.fullmatch(text)
    if match is None:
        return None
    parts = [str(int(part)) for part in match.group(1).split(".")[: names.ATTRIBUTE_VALUE_MAX]]
    core = ".".join([*parts, "0", "0"][:3])
    extra = ".".join(parts[3:])
    candidate = core + match.group(2) if not extra else f"{core}+{extra}{match.group(2)}"
    return Semver(candidate) if names.is_semver(candidate) else None


_CONVERT: Mapping[str, Callable[[str], Attribute | None]] = MappingProxyType(
    {"string": as_string, "int": as_int, "bool": as_bool, "version": as_semver}
)


def attribute(text: str, kind: str) -> Attribute | None:
    """Return ``text`` as an attribute of the type ``kind`` (``string``, ``int``, ``bool``, ``version``); else None."""
    return _CONVERT[kind](text.strip())


def amount(text: str, unit: str) -> int | None:
    """Return a whole number of ``unit``, or a Kubernetes quantity (``40Gi``), in base units; None for anything else."""
    text = text.strip()
    try:
        value = int(text) * UNITS[unit] if text.isascii() and text.isdecimal() else parse_quantity(text)
    except (Problems, ValueError):
        return None
    return value if value < INT64 else None


# --- last values ------------------------------------------------------------------------------------------------------


class LastValues(Struct, frozen=True):
    """What was last published of one device. ``rules``: a digest of the attribute and capacity rules used then."""

    rules: str
    attributes: Mapping[str, Attribute]
    capacity: Mapping[str, int]

    def to_data(self) -> dict[str, Any]:
        """Return the form that ``identities.json`` has."""
        versions = {k: {"version": v.text} if isinstance(v, Semver) else v for k, v in self.attributes.items()}
        return {"rules": self.rules, "attributes": versions, "capacity": dict(self.capacity)}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> LastValues:
        """Read what :meth:`to_data` wrote. Raises ValueError, KeyError, TypeError or AttributeError."""
        attributes = {
            str(k): Semver(str(v["version"])) if isinstance(v, dict) else v for k, v in data["attributes"].items()
        }
        capacity = {str(k): int(v) for k, v in data["capacity"].items()}
        if not all(isinstance(value, str | bool | int | Semver) for value in attributes.values()):
            raise ValueError("an attribute is of no type that there is")
        return cls(str(data["rules"]), attributes, capacity)


class LastKnown:
    """The last values of all devices. ``values``: device id -> values.

    Every device must have the attributes that claims select on: CEL fails on a missing key ("no such key"), and one
    such device keeps all these claims pending, on all nodes (k8s.io/dynamic-resource-allocation, structured allocator).
    So a GPU that NVML can no longer read keeps its last values. If the configuration of a resource's attributes
    changes, its devices' old values are dropped.
    """

    def __init__(self, values: Mapping[str, LastValues]) -> None:
        self.values = dict(values)
        self._rules: dict[int, tuple[Resource, str]] = {}  # by the resource's id(): the resource, and its digest

    def of(self, device_id: str, resource: Resource, lookup: Lookup) -> LastValues:
        """Return a device's attributes and capacity, and remember them. A missing value is the last known one."""
        if (known := self._rules.get(id(resource))) is None:
            known = self._rules[id(resource)] = (resource, _digest(resource))
        rules = known[1]
        now = LastValues(rules, attributes_of(resource, lookup), capacity_of(resource, lookup))
        last = self.values.get(device_id)
        if last is not None and last.rules == rules:
            now = LastValues(rules, {**last.attributes, **now.attributes}, {**last.capacity, **now.capacity})
        self.values[device_id] = now
        return now

    def keep(self, device_ids: Container[str]) -> None:
        """Forget all devices but these."""
        self.values = {device_id: last for device_id, last in self.values.items() if device_id in device_ids}


def _digest(resource: Resource) -> str:
    said = [to_data(resource.attributes), to_data(resource.capacity)]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
