"""A device's attributes and capacity as a ResourceSlice may hold them, within the API server's limits.

Limits: pkg/apis/resource/validation/validation.go in 1.36.2, confirmed on a real server. What does not fit is left out
with a note, never sent: one bad attribute would make the server refuse the whole slice, and all its devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from drabridge.config.quantity import canonical
from drabridge.inventory.model import Attribute, Device, Semver

STANDARD_DOMAIN = "resource.kubernetes.io"
PCIE_ROOT = f"{STANDARD_DOMAIN}/pcieRoot"
PCI_BUS_ID = f"{STANDARD_DOMAIN}/pciBusID"
NUMA_NODE = f"{STANDARD_DOMAIN}/numaNode"  # KEP-6072: the physical node; absent when the firmware says -1

MAX_ENTRIES = 32  # attributes and capacities of one device together
MAX_VALUE_BYTES = 64
_INT64 = range(-(2**63), 2**63)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_DOMAIN = re.compile(r"(?=.{1,63}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VERSION = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:\.\d+)*(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)


@lru_cache(maxsize=1024)
def semver(text: str) -> str | None:
    """A version as strict semver 2.0.0, three parts without leading zeros; None if it cannot be read as one.

    >>> semver("580.95.05"), semver("9.0"), semver("v1.2.3-rc.1"), semver("r580")
    ('580.95.5', '9.0.0', '1.2.3-rc.1', None)
    """
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        return None
    numbers = ".".join(str(int(part or 0)) for part in match.group(1, 2, 3))
    version = numbers + (match[4] or "") + (match[5] or "")
    return version if _SEMVER.fullmatch(version) and len(version) <= MAX_VALUE_BYTES else None


@lru_cache(maxsize=1024)  # a thousand devices have a dozen names
def is_qualified_name(name: str) -> bool:
    """Whether the API takes ``name`` as that of an attribute: a C identifier, or ``domain/identifier``."""
    domain, slash, identifier = name.rpartition("/")
    return bool(_IDENTIFIER.fullmatch(identifier)) and (not slash or bool(_DOMAIN.fullmatch(domain)))


def describe(device: Device) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """``(attributes, capacity, notes)`` of a device in the API's form; notes say what was left out, for the operator.

    When there are too many, those that everybody selects on stay: the standard ones and ``type``, then by name.
    """
    notes: list[str] = []
    attributes: dict[str, Any] = {}
    for name, value in {**_standard(device), **device.attributes}.items():
        encoded = _encode(value) if is_qualified_name(name) else None
        if encoded is None:
            notes.append(f"device {device.name}: the attribute {name!r} = {value!r} does not fit the API; left out")
        else:
            attributes[name] = encoded
    capacity = {}
    for name, amount in device.capacity.items():
        if is_qualified_name(name) and amount in _INT64 and amount >= 0:
            capacity[name] = {"value": canonical(amount)}
        else:
            notes.append(f"device {device.name}: the capacity {name!r} = {amount!r} does not fit the API; left out")
    while len(attributes) + len(capacity) > MAX_ENTRIES:
        victim = max(attributes or capacity, key=_dispensable)
        (attributes if attributes else capacity).pop(victim)
        notes.append(
            f"device {device.name}: {victim!r} left out: the API takes {MAX_ENTRIES} attributes and capacities"
        )
    return dict(sorted(attributes.items())), dict(sorted(capacity.items())), tuple(notes)


def _dispensable(name: str) -> tuple[bool, bool, bool, str]:
    """The largest goes first: ``resource``, which says what ``type`` nearly says, then what nobody else knows."""
    return name == "resource", name not in ("type", "uuid"), "/" not in name, name


def _standard(device: Device) -> dict[str, Attribute]:
    standard: dict[str, Attribute] = {"type": device.resource.rpartition("/")[2], "resource": device.resource}
    if device.pcie_root:
        standard[PCIE_ROOT] = device.pcie_root
    if device.pci_bus_id:
        standard[PCI_BUS_ID] = device.pci_bus_id
    if len(device.numa_nodes) == 1:
        standard[NUMA_NODE] = device.numa_nodes[0]
    return standard


def _encode(value: Attribute) -> Mapping[str, Any] | None:
    """One typed value. ``bool`` before ``int``: Python calls True an int."""
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value} if value in _INT64 else None
        case Semver():
            version = semver(value.text)
            return None if version is None else {"version": version}
        case str():
            return {"string": _clip(value)}


def _clip(text: str) -> str:
    """At most 64 bytes of valid UTF-8, whole characters only."""
    return text.encode("utf-8", "replace")[:MAX_VALUE_BYTES].decode("utf-8", "ignore")
