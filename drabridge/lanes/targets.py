"""Work out which lane each device shall be in: apply the desired lanes to the devices that are here.

The pure part, which devices change lanes, is :mod:`drabridge.lanes.plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from drabridge.config.lanes import Lanes, LaneShare, Selection
from drabridge.config.schema import Config, Resource
from drabridge.inventory.devices import Device, Presence, Snapshot
from drabridge.inventory.inventory import Inventory
from drabridge.inventory.match import matches
from drabridge.kube.connection import ApiServer
from drabridge.lanes.acknowledgements import PublishedSlices
from drabridge.lanes.desired import DesiredLanes
from drabridge.lanes.plan import (
    LaneChange,
    LaneTarget,
    counted_devices,
    destination_lane,
    from_selection,
    plan,
    starting_lanes,
)
from drabridge.lanes.shared import lent_as_shared, shared_now, with_shared
from drabridge.ledger.eligibility import leasable
from drabridge.ledger.entries import Lane, Ledger
from drabridge.ledger.service import LedgerService


class LanePlan(Struct, frozen=True):
    """The changes for one resource. ``notes``: which part of the desired lanes cannot be reached, in words."""

    devices: Sequence[Device]
    wanted: LaneTarget
    changes: Sequence[LaneChange]
    notes: list[str]


class LaneTargets(Struct, frozen=True):
    """Compares the desired lanes with the ledger. Changes no lane.

    ``config`` and ``devices`` (by name) return what is in use now. ``lent``: shared devices that shall be in the dra
    lane for now.
    """

    config: Callable[[], Config]
    devices: Callable[[], Mapping[str, Device]]
    inventory: Inventory
    ledger_service: LedgerService
    desired: DesiredLanes
    api_server: ApiServer
    slices: PublishedSlices
    lent: Callable[[], Collection[str]]

    def first_lanes(self, snapshot: Snapshot) -> Mapping[str, Lane]:
        """Return, by name, the starting lane of each device that the ledger has never seen."""
        ledger = self.ledger_service.ledger
        found: dict[str, Lane] = {}
        here = {device.syspath for device in snapshot.devices if device.presence is not Presence.GONE}
        for resource in self.resources():
            devices = [
                device
                for device in snapshot.of(resource.name)
                # A gone device whose place another device has taken is left out: the other device has its lane.
                if device.presence is not Presence.GONE or device.syspath not in here
            ]
            wanted, _ = self._wanted(self.desired.lanes(resource), devices)
            found |= starting_lanes(ledger, devices, wanted.beside_wholes(ledger, devices, found))
        return found

    def resources(self) -> list[Resource]:
        """Return the resources. Those with parts come last, because a part follows the lane of its whole."""
        return sorted(self.config().resources, key=lambda resource: resource.partition is not None)

    def plan(self, resource: Resource) -> LanePlan | None:
        """Plan the changes of one resource.

        None while the inventory is not complete, or if an unreadable file may have the resource's desired lanes.
        """
        if not self.inventory.current.complete or self.desired.uncertain(resource):
            return None
        lent, now = self.lent(), self.ledger_service.now()
        ledger = lent_as_shared(self.ledger_service.ledger, lent)
        known = self.devices()
        devices = [known[name] for name in counted_devices(ledger, resource.name, now) if name in known]
        wanted, notes = self._wanted(self.desired.lanes(resource), devices)
        changes = plan(ledger, devices, wanted.beside_wholes(ledger, devices, {}), now)
        count, why = self._shared(resource, devices, ledger)
        made = with_shared(self.ledger_service.ledger, devices, changes, count, lent)
        return LanePlan(devices, wanted, made, [*notes, *why])

    def divided(self, made: LanePlan) -> list[str]:
        """Return a note if the dra lane cannot get its number because parts of one device share a lane.

        Call it once the changes have begun.
        """
        entries = self.ledger_service.ledger.entries
        there = sum(
            destination_lane(entries[device.name]) is Lane.DRA for device in made.devices if device.name in entries
        )
        if there == made.wanted.dra or not any(device.root for device in made.devices):
            return []
        return [
            f"the dra lane has {there} devices and not {made.wanted.dra}: "
            "parts of one device stay together, and with the whole device"
        ]

    def _shared(self, resource: Resource, devices: Sequence[Device], ledger: Ledger) -> tuple[int, list[str]]:
        """Return how many devices shall be offered to both sides, and sentences why they are fewer than desired."""
        asked = self.desired.lanes(resource).shared_of(len(devices))
        if not asked:
            return 0, []
        left = self.config().dra.leases.max_devices - sum(
            entry.lane is Lane.SHARED and entry.device.resource != resource.name for entry in ledger.entries.values()
        )
        alone = sum(leasable(ledger, entry) for one in devices if (entry := ledger.entries.get(one.name)))
        count, why = min(asked, alone), "devices with parts, and their parts, cannot be leased"
        off = self.api_server.claims_off
        if not alone:
            pass
        elif off is not None or self.slices.keeps_leases is None:
            count = min(count, shared_now(ledger, devices))
            why = off.why if off else "it is not known yet whether the API server keeps binding conditions"
        elif not self.slices.keeps_leases:
            count, why = 0, "the API server does not keep binding conditions"
        elif left < count:
            count, why = max(0, left), "dra.leases.maxDevices allows no more"
        return count, [f"{asked - count} of {asked} shared devices are for pods only: {why}"] if count < asked else []

    def _wanted(self, lanes: Lanes, devices: Sequence[Device]) -> tuple[LaneTarget, list[str]]:
        """Return the desired lanes as a target for ``devices``, and sentences about what cannot be reached."""
        total = len(devices)
        selected = {
            lane: set(self._selected(share, lane, devices))
            for lane, share in zip((Lane.LEGACY, Lane.DRA), lanes.resolved, strict=True)
            if isinstance(share, Selection)
        }
        notes = [f"no device matches what is to be in the {lane} lane" for lane, names in selected.items() if not names]
        wanted = LaneTarget(lanes.targets(total)[1])
        if any(selected.values()):
            pinned = {name: lane for lane in (Lane.DRA, Lane.LEGACY) for name in selected.get(lane, ())}
            # A lane with a selection has exactly the selected devices; the other lane has the rest.
            rest = Lane.LEGACY if Lane.DRA in selected else Lane.DRA
            wanted = from_selection(devices, pinned, rest=rest, min_legacy=lanes.min_legacy, min_dra=lanes.min_dra)
            if left := sum(wanted.lane_of(name) is not lane for name, lane in pinned.items()):
                notes.append(f"{left} of {len(pinned)} chosen devices: minLegacy and minDra leave no room for them")
        there = (total - wanted.dra - lanes.shared_of(total), wanted.dra)
        numbers = zip((Lane.LEGACY, Lane.DRA), lanes.resolved, there, strict=True)
        notes += [
            f"the {lane} lane has {'what the chosen devices leave, ' if selected else ''}{count} and not {share}"
            for lane, share, count in numbers
            if isinstance(share, LaneShare) and not _has_share(share, count, total)
        ]
        if self.api_server.claims_off is not None:  # the dra lane keeps its devices and gets no more
            entries = self.ledger_service.ledger.entries
            kept = [e for d in devices if (e := entries.get(d.name)) and e.lane in (Lane.DRA, Lane.DRA_TO_LEGACY)]
            return LaneTarget(min(wanted.dra, len(kept))), []
        return wanted, notes if devices else []

    def _selected(self, selection: Selection, lane: Lane, devices: Sequence[Device]) -> Iterator[str]:
        """Yield the names of the selected devices. A device that is away matches nothing, but stays selected."""
        entries = self.ledger_service.ledger.entries
        for device in devices:
            record = self.inventory.udev_device(device.name)
            if record is not None:
                selected = matches(record, selection.match)
            else:
                selected = device.name in entries and destination_lane(entries[device.name]) is lane
            if selected:
                yield device.name


def _has_share(share: LaneShare, count: int, total: int) -> bool:
    """Whether a lane with ``count`` devices has its share; if both are percentages, one may be rounded down."""
    asked = share.of(total)
    return asked is None or abs(asked - count) <= (share.percent is not None)
