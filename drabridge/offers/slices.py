"""Lay out the ResourceSlices that this node should have. Pure.

There is one pool for each node. Devices are in the order in which the scheduler should take them: the allocator goes
through slices by name and through devices as listed, and takes the first that fits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from drabridge.config.quantity import canonical
from drabridge.inventory.devices import Device
from drabridge.offers.attributes import describe

# resource.k8s.io limits in 1.36.2. 128 devices are allowed in a slice without taints, counters and list attributes;
# with 64 always, a device that becomes faulty never forces a new layout.
DEVICES_PER_SLICE = 64
COUNTER_SETS_PER_SLICE = 8
MAX_NAME = 253

Json = dict[str, Any]  # one JSON object as the API has it


class Feature(StrEnum):
    """Fields of a device that need a feature gate of the API server; the value is the gate's name."""

    TAINTS = "DRADeviceTaints"
    LEASES = "DRADeviceBindingConditions"
    SHARING = "DRAConsumableCapacity"
    PARTITIONS = "DRAPartitionableDevices"
    LISTS = "DRAListTypeAttributes"


ALL_FEATURES = frozenset(Feature)
OFF_BY_DEFAULT = frozenset({Feature.LISTS})  # in every release so far: that they are missing is no news


class Effect(StrEnum):
    """The effect of a taint: nothing, no new claims, or eviction as well."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


class Taint(Struct, frozen=True):
    """Why a device must not be allocated now. ``key`` and ``value`` are label-like.

    ``since``, wall seconds: eviction counts from it (KEP-5055), also in slices that are made anew because kubelet's
    start deleted them. 0: from when the API server sees the taint.
    """

    key: str
    value: str = ""
    effect: Effect = Effect.NO_SCHEDULE
    since: float = 0.0


class Offer(Struct, frozen=True):
    """One device as it may be offered now.

    ``policies``: how much a claim may take of each capacity, as the API has it; None: one claim at a time holds the
    device. ``consumes`` maps a counter set to the amounts that this device takes from it. ``lease``: a claim gets it
    only after the agent has confirmed.
    """

    device: Device
    taints: tuple[Taint, ...] = ()
    lease: bool = False
    policies: Mapping[str, Json] | None = None
    consumes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Pool(Struct, frozen=True):
    """Everything to publish. ``counters``: counter set -> counter -> amount, of wholes whose parts are offered.

    ``place``: the fields of a spec that say which nodes have the devices, where it is not the one of the name ``node``.
    """

    driver: str
    node: str
    offers: tuple[Offer, ...] = ()
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    place: Mapping[str, Any] | None = None


class DesiredSlices(Struct, frozen=True):
    """Slices by name, in order, each as a ``spec`` without ``pool``; notes are for the operator."""

    slices: Mapping[str, Json]
    notes: tuple[str, ...] = ()


def desired_slices(pool: Pool, features: frozenset[Feature] = ALL_FEATURES) -> DesiredSlices:
    """Return the slices of a pool, for a server that keeps the fields of ``features``.

    Without taints, a device with a taint is left out. Without counters, a part is left out while its whole is offered:
    nothing would stop a claim on each. Without sharing, a device for several claims is offered to one claim at a time.
    Without binding conditions, a device that needs a lease is left out. Without lists, numaNode is one number. An empty
    pool is one slice without devices: "the driver is here, the node has none".
    """
    notes: list[str] = []
    plain: list[Json] = []
    leased: list[Json] = []
    names = {offer.device.name for offer in pool.offers}
    for offer in pool.offers:
        why = _left_out(offer, names, features)
        if why:
            notes.append(f"device {offer.device.name} is not in a ResourceSlice: {why}")
            continue
        entry, remarks = _device(pool.driver, offer, features)
        notes.extend(remarks)
        # The scheduler sorts slices with binding conditions last: in slices of their own they never delay the others.
        (leased if offer.lease else plain).append(entry)

    bodies: list[Json] = [{"devices": chunk} for group in (plain, leased) for chunk in _chunks(group)]
    if Feature.PARTITIONS in features and any("consumesCounters" in entry for entry in (*plain, *leased)):
        sets = [_counter_set(name, counters) for name, counters in sorted(pool.counters.items())]
        bodies += [
            {"sharedCounters": sets[i : i + COUNTER_SETS_PER_SLICE]}
            for i in range(0, len(sets), COUNTER_SETS_PER_SLICE)
        ]
    base = {"driver": pool.driver, **(pool.place or {"nodeName": pool.node})}
    specs = {slice_name(pool.driver, pool.node, i): {**base, **body} for i, body in enumerate(bodies or [{}])}
    return DesiredSlices(specs, tuple(notes))


def slice_name(driver: str, node: str, index: int) -> str:
    """Return the slice's name: sorted by index, the same in every agent, a DNS subdomain of 253 characters at most."""
    stem = f"{node}-{driver}"
    tail = f"-{index:05d}"
    if len(stem) + len(tail) > MAX_NAME:
        digest = hashlib.sha256(stem.encode()).hexdigest()[:16]
        stem = f"{stem[: MAX_NAME - len(tail) - len(digest) - 1].rstrip('-.')}-{digest}"
    return stem + tail


def lease_condition(driver: str) -> str:
    """Return the condition that confirms a claim on a leased device."""
    return f"{driver}/lease"


def lease_denied_condition(driver: str) -> str:
    """Return the condition that makes the scheduler pick another device."""
    return f"{driver}/lease-denied"


def feature_probe(driver: str, node: str, pool: str, features: Iterable[Feature]) -> Json:
    """Return the spec of a slice with a device for each feature: its dry run shows which fields a server keeps.

    ``node`` is empty for a slice of all nodes.
    """
    fields: Mapping[Feature, Json] = {
        Feature.TAINTS: {"taints": [_taint(Taint(f"{driver}/probe"))]},
        Feature.LEASES: _lease_fields(driver),
        Feature.SHARING: {"allowMultipleAllocations": True},
        Feature.PARTITIONS: {"consumesCounters": [_counter_set("probe", {"probe": 1}, key="counterSet")]},
        Feature.LISTS: {"attributes": {"probe": {"ints": [0]}}},
    }
    place: Json = {"nodeName": node} if node else {"allNodes": True}
    devices = [{"name": feature.name.lower(), **fields[feature]} for feature in sorted(features)]
    names = {"name": pool, "generation": 1, "resourceSliceCount": 1}
    return {"driver": driver, **place, "pool": names, "devices": devices}


def _lease_fields(driver: str) -> Json:
    return {
        "bindsToNode": True,
        "bindingConditions": [lease_condition(driver)],
        "bindingFailureConditions": [lease_denied_condition(driver)],
    }


def _left_out(offer: Offer, names: set[str], features: frozenset[Feature]) -> str:
    if offer.lease and Feature.LEASES not in features:
        return "it needs a lease, and the API server keeps no binding conditions"
    tainted = [taint for taint in offer.taints if taint.effect is not Effect.NONE]
    if tainted and Feature.TAINTS not in features:
        return f"{tainted[0].key}={tainted[0].value}, and the API server keeps no taints"
    if offer.consumes and offer.device.root in names and Feature.PARTITIONS not in features:
        return f"it is a part of {offer.device.root}, and the API server keeps no counters"
    return ""


def _device(driver: str, offer: Offer, features: frozenset[Feature]) -> tuple[Json, list[str]]:
    attributes, capacity, remarks = describe(offer.device, lists=Feature.LISTS in features)
    entry: Json = {"name": offer.device.name, "attributes": attributes}
    if capacity:
        entry["capacity"] = capacity
    if offer.taints and Feature.TAINTS in features:
        entry["taints"] = [_taint(taint) for taint in offer.taints]
    if offer.lease:
        entry |= _lease_fields(driver)
    if offer.policies is not None and Feature.SHARING in features:
        entry["allowMultipleAllocations"] = True
        for name, policy in offer.policies.items():
            if name in capacity:
                capacity[name]["requestPolicy"] = policy
    if offer.consumes and Feature.PARTITIONS in features:
        entry["consumesCounters"] = [_counter_set(n, c, key="counterSet") for n, c in sorted(offer.consumes.items())]
    return entry, list(remarks)


def _taint(taint: Taint) -> Json:
    entry = {"key": taint.key, "effect": taint.effect.value}
    if taint.value:
        entry["value"] = taint.value
    if taint.since:
        entry["timeAdded"] = datetime.fromtimestamp(taint.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return entry


def _counter_set(name: str, counters: Mapping[str, int], key: str = "name") -> Json:
    return {key: name, "counters": {counter: {"value": canonical(n)} for counter, n in sorted(counters.items())}}


def _chunks(entries: Sequence[Json]) -> Iterable[list[Json]]:
    for start in range(0, len(entries), DEVICES_PER_SLICE):
        yield list(entries[start : start + DEVICES_PER_SLICE])
