"""Keep the last known attributes and capacity of each device: a claim's selector needs them on every device.

CEL has no value for a missing key, and one such device keeps every claim that selects on the key pending, on all nodes
("no such key": k8s.io/dynamic-resource-allocation, structured allocator). A GPU that NVML no longer reads has what it
had. A changed configuration of the attributes makes all of them anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping
from typing import Any

from msgspec import Struct

from drabridge.config.model import to_data
from drabridge.config.schema import Resource
from drabridge.config.template import Lookup
from drabridge.inventory.attribute_values import attributes_of, capacity_of
from drabridge.inventory.model import Attribute, Semver


class LastValues(Struct, frozen=True):
    """What was published last of one device; ``rules``: a digest of what the configuration said of it then."""

    rules: str
    attributes: Mapping[str, Attribute]
    capacity: Mapping[str, int]

    def to_data(self) -> dict[str, Any]:
        """Return it as ``identities.json`` has it."""
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
    """The last values of all devices, ``values``, by device id."""

    def __init__(self, values: Mapping[str, LastValues]) -> None:
        self.values = dict(values)
        self._rules: dict[int, tuple[Resource, str]] = {}  # by the resource's id(): the resource, and its digest

    def of(self, device_id: str, resource: Resource, lookup: Lookup) -> LastValues:
        """Return a device's attributes and capacity now, the last known ones where there is no value, and keep them."""
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
