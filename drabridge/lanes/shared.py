"""Choose the devices that are offered to both sides. Pure.

They are devices that pods may have, and that claims may have as well, by a lease. So the plan of the two lanes comes
first, and those that it leaves to pods may be shared: from the front of the order, where claims are served.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from drabridge.inventory.model import Device, Presence
from drabridge.lanes.plan import LaneChange, Urgency, destination_lane, packing_order
from drabridge.ledger.eligibility import leasable
from drabridge.ledger.model import Entry, Lane, Ledger


def lent_as_shared(ledger: Ledger, lent: Iterable[str]) -> Ledger:
    """Return the ledger with devices that are lent to the dra lane in the shared lane, to which they belong."""
    entries = (entry for name in lent if (entry := ledger.entries.get(name)))
    return ledger.replace(
        (replace(entry, lane=Lane.SHARED, move=None) for entry in entries if _target(entry) is Lane.DRA), seq=ledger.seq
    )


def with_shared(
    ledger: Ledger,
    devices: Sequence[Device],
    changes: Sequence[LaneChange],
    count: int,
    lent: Collection[str] = frozenset(),
) -> tuple[LaneChange, ...]:
    """Return the changes of the two lanes with ``count`` of the devices that pods may have shared with claims.

    Those of them that are ``lent`` are to be in the dra lane for now (:mod:`drabridge.offers.turns`).
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
        elif _target(ledger.entries[name]) is not lane:
            reason = (
                "claims get it next" if lane is Lane.DRA else f"{count} of {len(devices)} are wanted in the shared lane"
            )
            planned[name] = LaneChange(name, lane, Urgency.FREE, reason)
    return tuple(sorted(planned.values(), key=lambda change: change.urgency))


def shared_now(ledger: Ledger, devices: Sequence[Device]) -> int:
    """Count the devices that are shared, or are to be when they are released."""
    entries = (ledger.entries.get(device.name) for device in devices)
    return sum(entry is not None and _target(entry) is Lane.SHARED for entry in entries)


def _target(entry: Entry) -> Lane:
    return entry.move.target if entry.move else entry.lane


def _lane(entry: Entry, planned: Mapping[str, LaneChange]) -> Lane:
    change = planned.get(entry.name)
    return change.lane if change else destination_lane(entry)


def _rank(entry: Entry) -> tuple[bool, bool]:
    """Rank what works first, then what is shared now: a sort that is stable keeps the order otherwise."""
    return entry.device.presence is not Presence.PRESENT, _target(entry) is not Lane.SHARED
