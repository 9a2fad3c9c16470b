"""Write a device's attributes and capacity as a ResourceSlice has them, within the API server's limits.

Limits: pkg/apis/resource/validation/validation.go in 1.36.2, confirmed on a real server. Whatever does not fit is left
out with a note, and never sent: one bad attribute would make the server refuse the whole slice, and all its devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drabridge.config import names
from drabridge.config.published import INT64
from drabridge.config.quantity import canonical
from drabridge.inventory.devices import Attribute, Device, Semver

# KEP-6072 (GA in 1.37; older servers keep it as any attribute): the physical node, one number, absent when the firmware
# says -1. If several nodes are equally near, slices have a list of them if the API server keeps lists (KEP-5491).
NUMA_NODE = "resource.kubernetes.io/numaNode"


def describe(device: Device) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """Return ``(attributes, capacity, notes)`` of a device in the API's form. Notes tell the operator what is left out.

    When there are too many attributes, those that most claims select on stay: ``type``, ``uuid`` and the standard ones.
    ``resource`` is dropped first, then the others from the end of the alphabet.
    """
    notes: list[str] = []
    attributes: dict[str, Any] = {}
    for name, value in {**_standard(device), **device.attributes}.items():
        encoded = _encode(value) if names.is_attribute_name(name) else None
        if encoded is None:
            notes.append(f"device {device.name}: the attribute {name!r} = {value!r} does not fit the API; left out")
        else:
            attributes[name] = encoded
    capacity = {}
    for name, amount in device.capacity.items():
        if names.is_attribute_name(name) and 0 <= amount < INT64:
            capacity[name] = {"value": canonical(amount)}
        else:
            notes.append(f"device {device.name}: the capacity {name!r} = {amount!r} does not fit the API; left out")
    while len(attributes) + len(capacity) > names.ATTRIBUTES_AND_CAPACITY_MAX:
        victim = max(attributes or capacity, key=_dispensable)
        (attributes if attributes else capacity).pop(victim)
        notes.append(
            f"device {device.name}: {victim!r} left out: the API takes "
            f"{names.ATTRIBUTES_AND_CAPACITY_MAX} attributes and capacities"
        )
    return dict(sorted(attributes.items())), dict(sorted(capacity.items())), tuple(notes)


def _dispensable(name: str) -> tuple[bool, bool, bool, str]:
    """Return a sort key. The largest is dropped first: ``resource``, which is like ``type``, then non-standard ones."""
    return name == "resource", name not in ("type", "uuid"), "/" not in name, name


def _standard(device: Device) -> dict[str, Attribute]:
    standard: dict[str, Attribute] = {"type": device.resource.rpartition("/")[2], "resource": device.resource}
    if len(device.numa_nodes) == 1:
        standard[NUMA_NODE] = device.numa_nodes[0]
    return standard | dict(device.standard)


def _encode(value: Attribute) -> Mapping[str, Any] | None:
    """Return one typed value; None when it does not fit. ``bool`` comes before ``int``: True is an int in Python."""
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value} if -INT64 <= value < INT64 else None
        case Semver():
            return {"version": value.text} if names.is_semver(value.text) else None
        case str():
            return {"string": _clip(value)}


def _clip(text: str) -> str:
    """Return the text, cut at a character to at most 64 bytes of valid UTF-8."""
    return text.encode("utf-8", "replace")[: names.ATTRIBUTE_VALUE_MAX].decode("utf-8", "ignore")
