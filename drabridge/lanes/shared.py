"""Choose the devices that are offered to both sides. Pure.

Pods may have a shared device, and claims may have it by a lease. The two lanes are planned first. Of the devices that
this plan leaves to pods, the first ones in packing order are shared, because claims are served from there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from drabridge.inventory.devices import Device, Presence
from drabridge.lanes.plan import LaneChange, Urgency, destination_lane, packing_order
from drabridge.ledger.eligibility import leasable
from drabridge.ledger.entries import Entry, Lane, Ledger


def lent_as_shared(ledger: Ledger, lent: Iterable[str]) -> Ledger:
    """Return the ledger with the ``lent`` devices in the shared lane, where they belong, instead of the dra lane."""
    entries = (entry for name in lent if (entry := ledger.entries.get(name)))
    return ledger.replace(
        (replace(entry, lane=Lane.SHARED, move=None) for entry in entries if entry.target is Lane.DRA), seq=ledger.seq
    )


def with_shared(
    ledger: Ledger,
    devices: Sequence[Device],
    changes: Sequence[LaneChange],
    count: int,
    lent: Collection[str] = frozenset(),
) -> tuple[LaneChange, ...]:
    """Return the changes of the two lanes, and those that put ``count`` of the devices for pods into the shared lane.

    Shared devices that are ``lent`` shall be in the dra lane for now (:mod:`drabridge.offers.turns`).
    """
    seen = lent_as_shared(ledger, lent).entries
    entries = {device.name: seen[device.name] for device in packing_order(devices) if device.name in seen}
    planned = {change.device: change for change in changes}
    for_pods = [name for name, entry in entries.items() if _lane(entry, planned) is Lane.LEGACY]
    for_pods.sort(key=lambda name: _rank(entries[name]))
    shared = frozenset([name for name in for_pods if leasable(ledger, entries[name])][:count])
    for name in for_pods:
        lane = Lane.LEGACY if name not in shared else Lane.DRA if name in lent else Lane.SHARED
        if name in planned:
            planned[name] = replace(planned[name], lane=lane)
        elif ledger.entries[name].target is not lane:
            reason = (
                "claims get it next" if lane is Lane.DRA else f"{count} of {len(devices)} are wanted in the shared lane"
            )
            planned[name] = LaneChange(name, lane, Urgency.FREE, reason)
    return tuple(sorted(planned.values(), key=lambda change: change.urgency))


def shared_now(ledger: Ledger, devices: Sequence[Device]) -> int:
    """Count the devices that are shared, or will be when they are released."""
    entries = (ledger.entries.get(device.name) for device in devices)
    return sum(entry is not None and entry.target is Lane.SHARED for entry in entries)


def _lane(entry: Entry, planned: Mapping[str, LaneChange]) -> Lane:
    change = planned.get(entry.name)
    return change.lane if change else destination_lane(entry)


def _rank(entry: Entry) -> tuple[bool, bool]:
    """Rank working devices first, then shared ones. The sort is stable, so that the order is kept otherwise."""
    return entry.device.presence is not Presence.PRESENT, entry.target is not Lane.SHARED
