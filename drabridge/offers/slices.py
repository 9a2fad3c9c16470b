"""Lay out the ResourceSlices that this node should have. Pure.

To add a field of a device: its value in ``Offer``, and its place in ``_device``, or in ``GATED`` if some servers drop
it because a feature gate is off.

There is one pool for each node. Devices are in the order in which the scheduler should take them: the allocator goes
through slices by name and through devices as listed, and takes the first that fits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from drabridge.config.quantity import canonical
from drabridge.config.schema import Resource
from drabridge.inventory.devices import Device
from drabridge.offers.attributes import NUMA_NODE, describe

# A limit of resource.k8s.io in 1.36.2. 128 devices are allowed in a slice without taints, counters and list
# attributes. With 64 in all slices, a device that becomes faulty never forces a new layout.
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


class Effect(StrEnum):
    """The effect of a taint: nothing, no new claims, or eviction as well."""

    NONE = "None"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


class Taint(Struct, frozen=True):
    """Why a device must not be allocated now. ``key`` and ``value`` are label-like.

    ``since``, wall seconds: eviction counts from this time (KEP-5055), even in slices that are created again because
    kubelet deleted them at its start. 0: from when the API server sees the taint.
    """

    key: str
    value: str = ""
    effect: Effect = Effect.NO_SCHEDULE
    since: float = 0.0


class Offer(Struct, frozen=True):
    """One device as it may be offered now.

    ``policies``: how much a claim may take of each capacity, in the API's form; None: one claim at a time holds the
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

    ``place``: the fields of a spec that say which nodes have the devices, if not only the one that is named ``node``.
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
    otherwise two claims could have the two. Without sharing, a device for several claims is offered to one claim at a
    time. Without binding conditions, a device that needs a lease is left out. Without lists, numaNode is one number. An
    empty pool is one slice without devices: "the driver is here, the node has none".
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
        # The scheduler sorts slices with binding conditions last. Separate slices keep these from delaying the others.
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
    place: Json = {"nodeName": node} if node else {"allNodes": True}
    rows = {feature: GATED[feature] for feature in sorted(features)}
    devices = [{"name": one.name.lower(), **row.fields(driver, row.probe)} for one, row in rows.items()]
    names = {"name": pool, "generation": 1, "resourceSliceCount": 1}
    return {"driver": driver, **place, "pool": names, "devices": devices}


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
    attributes, capacity, remarks = describe(offer.device)
    entry: Json = {"name": offer.device.name, "attributes": attributes}
    if capacity:
        entry["capacity"] = capacity
    for feature in sorted(features):  # sorted, so that the same slice is always the same text
        for key, value in GATED[feature].fields(driver, offer).items():
            if key in ("attributes", "capacity"):  # from the attributes and capacities that fit into the slice
                there = entry.get(key, {})
                there |= {name: one for name, one in value.items() if name in there}
            else:
                entry[key] = value
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


# --- what needs a feature gate ----------------------------------------------------------------------------------------


class Gated(Struct, frozen=True):
    """What a feature stands for: fields of a device, and what people are told if the server drops them.

    ``fields``: those of an offer, for the agent's driver. Two features have no field in common, except that each may
    have single attributes and capacities. ``probe``: the offer of the dry run that asks for the fields. ``lacks``,
    ``given_by`` and ``without`` are phrases for people. ``needed``: whether the configuration of resources that serve
    claims needs the feature; ``leases``: a device shall be offered to both sides.
    """

    fields: Callable[[str, Offer], Json]
    probe: Offer
    lacks: str
    given_by: str
    without: str
    needed: Callable[[Sequence[Resource], bool], bool] = lambda serving, leases: False
    off_by_default: bool = False  # in every release so far, so that nobody needs to be told that it is missing


_PROBED = Device("probe", "probe", "probe", near_numa_nodes=(0, 1))
_ON_IN_1_36 = "gate {}, on by default from Kubernetes 1.36"

GATED: Mapping[Feature, Gated] = {
    Feature.LEASES: Gated(
        lambda driver, offer: _lease_fields(driver) if offer.lease else {},
        Offer(_PROBED, lease=True),
        "the API server keeps no binding conditions",
        f"gates {Feature.LEASES} and DRAResourceClaimDeviceStatus, on by default from Kubernetes 1.36, "
        "in the scheduler as well",
        "no device can be leased, so those of lanes.shared are for pods with limits only",
        lambda serving, leases: leases,
    ),
    Feature.TAINTS: Gated(
        lambda driver, offer: {"taints": [_taint(taint) for taint in offer.taints]} if offer.taints else {},
        Offer(_PROBED, taints=(Taint("drabridge.invalid/probe"),)),
        "the API server keeps no device taints",
        _ON_IN_1_36.format(Feature.TAINTS),
        "a faulty device leaves the ResourceSlices, and the pods whose claims have it are not evicted",
        lambda serving, leases: bool(serving),
    ),
    Feature.SHARING: Gated(
        lambda driver, offer: {} if offer.policies is None else _sharing_fields(offer, offer.policies),
        Offer(_PROBED, policies={}),
        "the API server keeps no allowMultipleAllocations of devices",
        _ON_IN_1_36.format(Feature.SHARING),
        "a device that claims are to share goes to one claim at a time",
        lambda serving, leases: any(one.sharing.allow_multiple_allocations for one in serving),
    ),
    Feature.PARTITIONS: Gated(
        lambda driver, offer: _partition_fields(offer) if offer.consumes else {},
        Offer(_PROBED, consumes={"probe": {"probe": 1}}),
        "the API server keeps no shared counters of devices",
        _ON_IN_1_36.format(Feature.PARTITIONS),
        "the parts of a device are not offered to claims while the whole device is",
        lambda serving, leases: any(one.partition is not None for one in serving),
    ),
    Feature.LISTS: Gated(
        lambda driver, offer: _list_fields(offer.device.near_numa_nodes),
        Offer(_PROBED),
        "the API server keeps no attributes of several values",
        f"gate {Feature.LISTS} of Kubernetes 1.36 and later, off by default",
        "numaNode is the device's own node alone, also where others are as near",
        off_by_default=True,
    ),
}
OFF_BY_DEFAULT = frozenset(feature for feature, row in GATED.items() if row.off_by_default)


def _lease_fields(driver: str) -> Json:
    return {
        "bindsToNode": True,
        "bindingConditions": [lease_condition(driver)],
        "bindingFailureConditions": [lease_denied_condition(driver)],
    }


def _sharing_fields(offer: Offer, policies: Mapping[str, Json]) -> Json:
    has = offer.device.capacity
    shared = {name: {"value": canonical(has[name]), "requestPolicy": policies[name]} for name in policies.keys() & has}
    return {"allowMultipleAllocations": True, **({"capacity": shared} if shared else {})}


def _partition_fields(offer: Offer) -> Json:
    sets = [_counter_set(name, counters, key="counterSet") for name, counters in sorted(offer.consumes.items())]
    return {"consumesCounters": sets}


def _list_fields(nodes: Sequence[int]) -> Json:
    return {"attributes": {NUMA_NODE: {"ints": list(nodes)}}} if len(nodes) > 1 else {}
