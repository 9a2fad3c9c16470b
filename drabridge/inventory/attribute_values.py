"""Attributes and capacity of one device: text from hardware, read as the types of the resource.k8s.io API. Pure.

A value that cannot be read as its type is left out: a wrong one would make the API refuse the whole slice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from drabridge.config import names
from drabridge.config.fabric import FabricDevice
from drabridge.config.pattern import Patterns, is_hex_id
from drabridge.config.problems import Problems
from drabridge.config.published import INT64, UNITS, parse_quantity
from drabridge.config.schema import Resource
from drabridge.config.template import Lookup
from drabridge.inventory.model import Attribute, Semver

_VERSION = re.compile(r"[vV]?(\d+(?:\.\d+)*)(.*)", re.DOTALL | re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,19}", re.ASCII)
_HEX_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}")

_BOOLEANS = MappingProxyType(
    dict.fromkeys(("1", "y", "yes", "true", "on", "enabled"), True)
    | dict.fromkeys(("0", "n", "no", "false", "off", "disabled"), False)
)


def attributes_of(resource: Resource | FabricDevice, values: Lookup) -> dict[str, Attribute]:
    """The attributes that the configuration gives one device, by name."""
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
    """What the table publishes for a text; None when nothing in it matches. Only an empty pattern matches no text."""
    for published, patterns in table.items():
        if patterns.matches(text, hex_id=hex_id) if text else patterns.accepts_missing:
            return published
    return None


def capacity_of(resource: Resource | FabricDevice, values: Lookup) -> dict[str, int]:
    """The capacities that the configuration gives one device, by name, in base units."""
    found = {}
    for name, spec in resource.capacity.items():
        text = str(spec.value) if spec.source is None else values(spec.source)
        if text and (value := amount(text, spec.unit)) is not None:
            found[name] = value
    return found


def as_string(text: str) -> str | None:
    """The text, cut at a character to at most 64 bytes (the API server counts bytes); None when it is empty."""
    cut = text.encode()[: names.ATTRIBUTE_VALUE_MAX].decode(errors="ignore")
    return cut or None


def as_int(text: str) -> int | None:
    """A decimal number, or a hexadecimal one with 0x (sysfs writes both), within 64 bits; else None."""
    if _HEX_NUMBER.fullmatch(text):
        value = int(text, 16)
    elif _NUMBER.fullmatch(text):
        value = int(text)
    else:
        return None
    return value if -INT64 <= value < INT64 else None


def as_bool(text: str) -> bool | None:
    """A truth value in the words that sysfs, udev and module parameters use; else None."""
    return _BOOLEANS.get(text.lower())


def as_semver(text: str) -> Semver | None:
    """A vendor's version as semantic version 2.0.0; None when it is none.

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
    """``text`` as an attribute of the type ``kind`` (``string``, ``int``, ``bool``, ``version``); else None."""
    return _CONVERT[kind](text.strip())


def amount(text: str, unit: str) -> int | None:
    """A whole number of ``unit``, or a Kubernetes quantity (``40Gi``), in base units (bytes or counts); else None."""
    text = text.strip()
    try:
        value = int(text) * UNITS[unit] if text.isascii() and text.isdecimal() else parse_quantity(text)
    except (Problems, ValueError):
        return None
    return value if value < INT64 else None
