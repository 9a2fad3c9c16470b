"""Make the list that ListAndWatch sends now, from the inventory and the ledger. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from msgspec import Struct

from drabridge.inventory.devices import Device
from drabridge.ledger.eligibility import cordoned_by, legacy_healthy, must_list
from drabridge.ledger.entries import Entry, Ledger
from drabridge.ledger.policy import LedgerPolicy
from drabridge.offers.turns import ADMIT_SECONDS

_NONE: Mapping[str, Collection[str]] = MappingProxyType({})


class ListedUnit(Struct, frozen=True):
    """One id as kubelet is told. A device with replicas has several."""

    id: str
    healthy: bool
    numa_nodes: tuple[int, ...] = ()


def of_resource(ledger: Ledger, resource: str) -> tuple[Entry, ...]:
    """Return the ledger's entries of one resource, by device name."""
    entries = (entry for entry in ledger.entries.values() if entry.device.resource == resource)
    return tuple(sorted(entries, key=lambda entry: entry.name))


def legacy_list(
    ledger: Ledger,
    devices: Mapping[str, Device],
    resource: str,
    *,
    at: float,
    policy: LedgerPolicy,
    former: Mapping[str, Collection[str]] = _NONE,
    refused: Collection[str] | None = None,
    kept: Collection[str] = (),
    paused: Collection[str] = (),
) -> tuple[ListedUnit, ...]:
    """Return the complete list of one resource. ``devices`` are the inventory's, by name; ``at`` is wall seconds.

    Devices of the DRA lane stay in the list as Unhealthy. So the capacity says what the node has, and the allocatable
    number what is left for limits. When no device is left for limits, the list is empty: allocatable 0 without NUMA
    nodes makes the scheduler and kubelet treat the name as served by DRA (``extendedResourceName``). When all ids are
    Unhealthy, there are no NUMA nodes either: DRA serves the name then as well. Kubelet still aligns such pods with
    this list, and with NUMA nodes it would reject them for good (TopologyAffinityError).

    ``former``: device name -> ids that it had with another number of replicas. Kubelet may be allocating them, so they
    stay, Unhealthy: no other pod gets them. An id that a pod has is as Healthy as its device: otherwise kubelet fails
    the pod when it restarts ("previously allocated devices are no longer healthy", devicemanager/manager.go).
    ``refused``: not None while nothing can be granted (a full disk): the ids that kubelet was just refused. Ids that
    pods have stay Healthy, except refused ones. All other ids are Unhealthy, or kubelet would
    send one pod after another into the same failure. ``kept``: devices that are kept for claims
    (:mod:`drabridge.offers.turns`).

    If a device is out of service, even the ids that pods have of it are Unhealthy; otherwise the next pod would be sent
    here for them, and refused. They stay Healthy while kubelet may be admitting the pods that have them.

    ``paused``: devices that no new holder gets for now; ids that pods have of them stay Healthy.
    """
    entries = of_resource(ledger, resource)
    if not any(entry.with_kubelet or at - entry.legacy_until < policy.tombstone_seconds for entry in entries):
        return ()
    listed: list[ListedUnit] = []
    for entry in entries:
        if not must_list(entry, at, policy):
            continue
        device = devices.get(entry.name)
        numa = device.numa_nodes if device else ()
        units = entry.device.units
        healthy: Collection[str] = units if legacy_healthy(ledger, entry) and entry.name not in kept else ()
        theirs = entry.hold.units if entry.hold is not None else ()
        if healthy and refused is not None:
            healthy = set(theirs).difference(refused)
        elif healthy and cordoned_by(ledger, entry) is not None:
            healthy = theirs if _may_admit(ledger, entry, at) else ()
        elif healthy and entry.name in paused:
            healthy = theirs
        elif healthy and entry.name in former:
            healthy = {*theirs, *(unit for unit in units if not surplus(entry, unit))}
        every = healthy is units
        listed.extend(ListedUnit(unit, every or unit in healthy, numa) for unit in units)
        if entry.name in former:
            listed.extend(ListedUnit(unit, unit in healthy, numa) for unit in sorted(former[entry.name]))
    if not any(unit.healthy for unit in listed):
        return tuple(ListedUnit(unit.id, False) for unit in listed)
    return tuple(listed)


def _may_admit(ledger: Ledger, entry: Entry, at: float) -> bool:
    """Whether kubelet may now admit the pods that have the device: for the first time, or again after its start."""
    young = entry.hold is not None and at - entry.hold.allocated_at < ADMIT_SECONDS
    return young or at < ledger.node.releases_suspended_until


def surplus(entry: Entry, unit: str) -> bool:
    """Whether no other pod may get this unit: the device has fewer replicas now, and its pods have all of them."""
    hold = entry.hold
    return hold is not None and unit not in hold.units and len(hold.units) >= len(entry.device.units)
