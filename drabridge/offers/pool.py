"""Decide which devices this node's ResourceSlices offer, and how, from the inventory and the ledger. Pure.

A device of the legacy lane is left out, not tainted: a claim that tolerates everything ignores a taint. A device that
claims may hold, but that is not available now, stays and has a taint, so that people see why.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from drabridge.config.claims import Partition
from drabridge.config.published import ALL, Capacity, RequestPolicy, quantity_value
from drabridge.config.quantity import canonical
from drabridge.config.schema import Config, Resource
from drabridge.inventory.devices import Device, Presence, Snapshot
from drabridge.ledger import eligibility
from drabridge.ledger.entries import DRA_OWNERS, Entry, Lane, Ledger, Owner
from drabridge.offers.slices import Effect, Json, Offer, Pool, Taint

PARTS = "parts"  # the counter of a whole whose parts have no counters in the configuration

UNWELL = "node-unwell"  # the value of the taint while grants would fail; /readyz has the reason
PAUSED = "paused"  # the value of the taint while a vendor's manager changes driver or partitions
_OFFERED_LANES = frozenset({Lane.DRA, Lane.SHARED})


def pool_of(
    snapshot: Snapshot,
    ledger: Ledger,
    config: Config,
    node: str,
    at: float,
    *,
    unwell: bool = False,
    kept: Callable[[Entry], bool] = lambda _: False,
    paused: Collection[str] = (),
) -> Pool:
    """Return the pool that shall be published. ``at``: wall-clock seconds, for devices that may come back.

    ``unwell``: the node can grant none of its free devices. ``kept``: whether a device is not for claims now
    (:mod:`drabridge.offers.turns`). ``paused``: devices that no new holder gets for now.
    """
    resources = {resource.name: resource for resource in config.resources}
    counters = _counters(snapshot, resources)
    context = _Context(ledger, config, counters, at, kept, paused)
    offers = [
        context.offer(device, entry, resources[device.resource])
        for device in snapshot.devices
        if (entry := ledger.entries.get(device.name)) is not None
        and device.resource in resources
        and not device.former  # its name is lost with its hold, so no new claim may take it
        and is_published(entry)
    ]
    if unwell:
        taint = Taint(f"{config.driver}/unavailable", UNWELL)
        free = {entry.name for entry in ledger.entries.values() if entry.owner is Owner.NONE}
        offers = [
            replace(offer, taints=(taint,)) if offer.device.name in free and not offer.taints else offer
            for offer in offers
        ]
    offered = {name for offer in offers for name in offer.consumes}
    return Pool(config.driver, node, tuple(offers), {name: c for name, c in counters.items() if name in offered})


def is_published(entry: Entry) -> bool:
    """Whether the device is in a slice at all, with or without a taint."""
    return entry.owner in DRA_OWNERS or (entry.lane in _OFFERED_LANES and not _leaving(entry)) or _is_lent_soon(entry)


def _leaving(entry: Entry) -> bool:
    """Whether the device is free and moves to the legacy lane: the move waits until it is withdrawn."""
    return entry.move is not None and entry.move.target is Lane.LEGACY and entry.owner is Owner.NONE


def _is_lent_soon(entry: Entry) -> bool:
    """Whether the device is shared, but will be for claims alone as soon as kubelet has given it up."""
    return entry.lane is Lane.LEGACY_TO_DRA and entry.move is not None and entry.move.source is Lane.SHARED


class _Context(Struct, frozen=True):
    """What is the same for all offers of one pool."""

    ledger: Ledger
    config: Config
    counters: Mapping[str, Mapping[str, int]]
    at: float
    kept: Callable[[Entry], bool]
    paused: Collection[str]

    def offer(self, device: Device, entry: Entry, resource: Resource) -> Offer:
        """Return the offer of one device."""
        # The ledger gets a snapshot a moment later. So a device is gone if the ledger or the snapshot says so, and it
        # is back when both say so.
        if entry.device.presence is Presence.GONE:
            device = replace(device, presence=Presence.GONE)
        elif entry.device.presence is not device.presence:
            entry = replace(entry, device=replace(entry.device, presence=device.presence), presence_since=self.at)
        policies = None
        if resource.sharing.allow_multiple_allocations:
            policies = capacity_policies(resource.capacity, device.capacity)
        consumes: dict[str, Mapping[str, int]] = {}
        if device.name in self.counters:  # a whole takes everything
            consumes[device.name] = self.counters[device.name]
        elif device.root in self.counters and resource.partition is not None:
            each = {name: counter.each for name, counter in resource.partition.counters.items()} or {PARTS: 1}
            consumes[device.root] = each
        shared = entry.lane is Lane.SHARED or _is_lent_soon(entry)
        return Offer(device, tuple(self._taints(device, entry)), shared, policies, consumes)

    def _taints(self, device: Device, entry: Entry) -> Iterator[Taint]:
        prefix, settings = self.config.driver, self.config.dra.taints
        if device.presence is Presence.FAULTY:
            effect = Effect(settings.nvml.of(device.fault) or settings.faulty)
            yield Taint(f"{prefix}/faulty", device.fault, effect, entry.presence_since)
        elif device.presence is Presence.GONE:
            # Nobody is evicted at once, because a USB device that re-enumerates is away only for a moment.
            since = entry.presence_since + settings.gone_after_seconds
            lasting = self.at >= since
            yield Taint(f"{prefix}/gone", "", Effect(settings.gone) if lasting else Effect.NO_SCHEDULE, since * lasting)
        elif entry.name in self.paused:
            yield Taint(f"{prefix}/unavailable", PAUSED)
        elif not eligibility.dra_schedulable(self.ledger, entry):
            yield Taint(f"{prefix}/unavailable", _reason(self.ledger, entry))
        elif self.kept(entry):  # as while the last pod had it: the next pod is coming, and no slice changes
            yield Taint(f"{prefix}/unavailable", str(Owner.LEGACY))


def _reason(ledger: Ledger, entry: Entry) -> str:
    """Say why a present device is not available, as a label's value."""
    if entry.denied and entry.owner in (Owner.NONE, *DRA_OWNERS):
        return "lease-denied"
    if eligibility.cordoned_by(ledger, entry) is not None:
        return "cordoned"
    if entry.owner in DRA_OWNERS and entry.move:
        return "leaving"
    if _is_lent_soon(entry) and entry.owner is Owner.NONE:
        return str(Owner.LEGACY)
    return str(entry.owner) if entry.owner is not Owner.NONE else "overlaps"


def capacity_policies(capacity: Mapping[str, Capacity], has: Mapping[str, int]) -> dict[str, Json]:
    """Return how much a claim may take of each capacity of a device for several claims; ``has``: what the device has.

    Without a policy a claim that asks for no amount takes all of a capacity (KEP-5075), and shares nothing.
    """
    return {
        name: {"default": canonical(0)} if one.request_policy is None else _policy(one.request_policy, has.get(name, 0))
        for name, one in capacity.items()
    }


def _policy(policy: RequestPolicy, whole: int) -> Json:
    """Return the policy of a capacity of which the device has ``whole``; the policy's larger amounts are left out.

    Devices of one resource differ, and the API server refuses a slice if one amount is more than its device has.
    """
    low, high, step, limits = 0, whole, None, policy.valid_range
    if limits is not None:
        low, step = quantity_value(limits.min), None if limits.step is None else quantity_value(limits.step)
        most = whole if limits.max is None else min(whole, quantity_value(limits.max))
        if low + (step or 0) > whole:
            limits = None
        else:
            high = low + (most - low) // (step or 1) * (step or 1)
    values = tuple(value for value in map(quantity_value, policy.valid_values) if value <= whole)
    default = high if policy.default == ALL else min(high, quantity_value(policy.default))
    if values and default not in values:
        default = values[-1]
    found: Json = {"default": canonical(default)}
    if limits is not None:
        bounds = {"min": low, "max": None if limits.max is None else high, "step": step}
        found["validRange"] = {name: canonical(value) for name, value in bounds.items() if value is not None}
    elif values:
        found["validValues"] = [canonical(value) for value in sorted({*values, default})]
    return found


def _counters(snapshot: Snapshot, resources: Mapping[str, Resource]) -> dict[str, dict[str, int]]:
    """Return counter set (with the whole device's name) -> counter -> total, for each whole that has parts here."""
    sets: dict[str, dict[str, int]] = {}
    parts: Tally[str] = Tally()
    for device in snapshot.devices:
        partition = _partition(resources, device)
        if partition is None or not device.root:
            continue
        parts[device.root] += 1
        totals = sets.setdefault(device.root, {})
        for name, counter in partition.counters.items():
            totals[name] = max(counter.total, totals.get(name, 0))
        if not partition.counters:
            totals[PARTS] = parts[device.root]
    return sets


def _partition(resources: Mapping[str, Resource], device: Device) -> Partition | None:
    resource = resources.get(device.resource)
    return None if resource is None else resource.partition
