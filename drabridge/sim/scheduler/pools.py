"""Gather pools as the scheduler sees them on one node.

Only complete pools of the newest generation count. Devices are in order of preference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from drabridge.sim.apiserver.quantity import Quantity
from drabridge.sim.apiserver.status import JSON

DeviceId = tuple[str, str, str]
"""(driver, pool, device)."""


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """One device that a node could use; ``spec`` is its entry in the slice."""

    driver: str
    pool: str
    name: str
    spec: JSON
    revision: str
    """resourceVersion of its slice: the key for remembered selector answers."""
    node_selector: JSON | None
    """Selector of the slice or device; None if the device is on every node."""

    @property
    def id(self) -> DeviceId:
        return self.driver, self.pool, self.name

    @property
    def shareable(self) -> bool:
        return bool(self.spec.get("allowMultipleAllocations"))

    def attribute(self, name: str) -> JSON | None:
        """Return an attribute by its qualified name. In slices, the driver's own domain may be left out of names."""
        attributes = self.spec.get("attributes", {})
        domain, _, short = name.rpartition("/")
        found = attributes.get(name, attributes.get(short) if domain == self.driver else None)
        return dict(found) if found is not None else None


Counters = Mapping[str, Mapping[str, Quantity]]


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """One pool, as far as this node can use it."""

    driver: str
    name: str
    complete: bool
    """All slices of the newest generation are there; an incomplete pool is not allocated from."""
    problem: str
    """Why the pool is invalid; empty when it is not."""
    devices: tuple[Device, ...]
    counters: Counters = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether devices of the pool may be allocated at all."""
        return self.complete and not self.problem

    @property
    def has_binding_conditions(self) -> bool:
        return any("bindingConditions" in device.spec for device in self.devices)


def node_term(node: str) -> JSON:
    """Return the selector of exactly one node, as allocations carry it."""
    field_term = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"nodeSelectorTerms": [{"matchFields": [field_term]}]}


def selects(selector: JSON, node: JSON) -> bool:
    """Whether a NodeSelector matches: any term, all of its expressions."""
    labels = node["metadata"].get("labels", {})
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        all(_expression(one, labels) for one in term.get("matchExpressions", []))
        and all(_expression(one, fields) for one in term.get("matchFields", []))
        for term in selector.get("nodeSelectorTerms", [])
    )


def _expression(one: JSON, values: Mapping[str, str]) -> bool:
    match one["operator"]:
        case "In":
            return values.get(one["key"]) in one["values"]
        case "Exists":
            return one["key"] in values
    raise NotImplementedError(f"the operator {one['operator']} of a node selector")


def gather(slices: Iterable[JSON], node: JSON) -> tuple[Pool, ...]:
    """Return the pools in the allocator's order: those with binding conditions last, then by driver and name."""
    by_pool: dict[tuple[str, str], list[JSON]] = defaultdict(list)
    for one in slices:
        by_pool[one["spec"]["driver"], one["spec"]["pool"]["name"]].append(one)
    pools = []
    for (driver, name), members in by_pool.items():
        newest = max(one["spec"]["pool"]["generation"] for one in members)
        current = [one for one in members if one["spec"]["pool"]["generation"] == newest]
        current.sort(key=lambda one: str(one["metadata"]["name"]))
        pools.append(_pool(driver, name, current, node))
    kept = [pool for pool in pools if pool.devices]
    return tuple(sorted(kept, key=lambda pool: (pool.has_binding_conditions, pool.driver, pool.name)))


def _pool(driver: str, name: str, current: Sequence[JSON], node: JSON) -> Pool:
    names = [device["name"] for one in current for device in one["spec"].get("devices", [])]
    twice = sorted({one for one in names if names.count(one) > 1}) if len(set(names)) < len(names) else []
    counters = {
        group["name"]: {key: Quantity.parse(value["value"]) for key, value in group.get("counters", {}).items()}
        for one in current
        for group in one["spec"].get("sharedCounters", [])
    }
    return Pool(
        driver,
        name,
        complete=len(current) == current[0]["spec"]["pool"]["resourceSliceCount"],
        problem=f"has duplicate device names: {', '.join(twice)}" if twice else "",
        devices=tuple(device for one in current for device in _devices(one, node)),
        counters=counters,
    )


def _devices(one: JSON, node: JSON) -> Iterable[Device]:
    spec = one["spec"]
    for device in spec.get("devices", []):
        where = device if spec.get("perDeviceNodeSelection") else spec
        if "nodeName" in where:
            if where["nodeName"] != node["metadata"]["name"]:
                continue
            selector: JSON | None = node_term(where["nodeName"])
        elif "nodeSelector" in where:
            selector = where["nodeSelector"]
            if not selects(where["nodeSelector"], node):
                continue
        else:
            selector = None
        revision = f"{one['metadata']['uid']}/{one['metadata']['resourceVersion']}"
        yield Device(spec["driver"], spec["pool"]["name"], device["name"], device, revision, selector)
