"""Plan which devices change lanes so that each lane gets its number. Pure: the same input gives the same plan.

The rules:

- Claims are served from the front of the packing order, pods from its end, so the two lanes rarely want the same
  device.
- Devices on one PCIe root and NUMA node stay together if the numbers allow it.
- Parts of one device always stay together: if the numbers would divide them, claims get fewer than desired.
- Parts go to the lane of their whole, whatever their own numbers are: in different lanes neither would be offered.
- Free devices move before held ones; a whole with a held part counts as held. A held device moves when it is released.
- A device that is moving counts as arrived, so a plan is neither repeated nor taken back while it is carried out.
- Faulty devices count, and each lane chooses them last. If they are a larger share of one lane than of the other, that
  lane gets free working devices in exchange: at once if devices move anyway, else after ``HYSTERESIS_SECONDS``. An
  exchange is made only if it makes the larger share smaller. A device that works again causes no move. So a device that
  flaps ends up in the lane that misses it least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

from msgspec import Struct
from msgspec.structs import replace

from drabridge.inventory.devices import Device, Presence
from drabridge.ledger.entries import Entry, Lane, Ledger, Owner

HYSTERESIS_SECONDS = 60.0  # a device that flaps (USB, a driver reload) must not make others move to and fro


class LaneTarget(Struct, frozen=True):
    """How one resource's devices shall be divided between the lanes; floors and percentages are already applied.

    See ``drabridge.config.lanes.Lanes.targets``.
    """

    dra: int  # number of devices in the dra lane; the rest is in the legacy lane
    pinned: Mapping[str, Lane] | None = None  # devices that the operator chose a lane for, and parts of wholes
    why_pinned: str = "chosen by the operator"

    def lane_of(self, name: str) -> Lane | None:
        """Return the lane of a pinned device; None for any other device."""
        return self.pinned.get(name) if self.pinned else None

    def beside_wholes(self, ledger: Ledger, devices: Iterable[Device], new: Mapping[str, Lane]) -> LaneTarget:
        """Return this target with each part pinned to the lane of its whole, which is in the ledger or in ``new``."""
        entries = ledger.entries
        lanes = {
            device.name: new[device.root] if device.root in new else destination_lane(entries[device.root])
            for device in devices
            if device.root in new or device.root in entries
        }
        if not lanes:
            return self
        return replace(self, pinned={**(self.pinned or {}), **lanes}, why_pinned="parts are where their whole is")


class Urgency(IntEnum):
    """The order in which changes are made."""

    TAKE_BACK = 0  # ends a move that is no longer desired
    FREE = 1
    HELD = 2  # the device moves when it is released


class LaneChange(Struct, frozen=True):
    """One ``SetLane`` to apply."""

    device: str
    lane: Lane
    urgency: Urgency
    reason: str


class _Group(Struct, frozen=True):
    """Devices that move together: a whole device, or all parts of one."""

    names: tuple[str, ...]
    position: int
    cell: tuple[object, ...]  # PCIe root and NUMA nodes
    lane: Lane  # where the group is, or where it is moving to
    astray: tuple[str, ...]  # parts that are in the other lane, because they came later or one by one
    held: bool
    on_its_way: bool
    pinned: bool
    usable: int  # how many of the devices are present and work
    long_unusable: bool  # whether each of the other devices has been faulty or gone for HYSTERESIS_SECONDS

    @property
    def size(self) -> int:
        return len(self.names)

    @property
    def works(self) -> bool:
        return self.usable == self.size


def packing_order(devices: Iterable[Device]) -> list[Device]:
    """Sort by NUMA node, PCIe root, PCI address, name. Claims are served from the front, pods from the end."""
    return sorted(devices, key=lambda d: (d.numa_nodes, d.pcie_root, d.pci_bus_id, d.root or d.name, d.name))


def _wholes(devices: Iterable[Device]) -> list[list[Device]]:
    """Return the devices in packing order, with all parts of one device in one list."""
    groups: dict[str, list[Device]] = {}
    for device in packing_order(devices):
        groups.setdefault(device.root or device.name, []).append(device)
    return list(groups.values())


def from_selection(
    devices: Sequence[Device], pinned: Mapping[str, Lane], *, rest: Lane, min_legacy: int, min_dra: int
) -> LaneTarget:
    """Build the target for devices that the operator names: ``pinned`` ones and their parts; all others go to ``rest``.

    The floors count as well. If a floor leaves no room for all pins, some are dropped: pins for claims from the end of
    the order, pins for pods from the front.
    """
    wholes = _wholes(devices)
    pins = [next((lane for part in whole if (lane := pinned.get(part.name))), None) for whole in wholes]
    in_dra = sum(len(whole) for whole, pin in zip(wholes, pins, strict=True) if (pin or rest) is Lane.DRA)
    total = len(devices)
    most = total - min(min_legacy, total)
    in_dra = min(max(in_dra, min_dra), most)
    kept: dict[str, Lane] = {}
    for lane, room, way in ((Lane.DRA, in_dra, 1), (Lane.LEGACY, total - in_dra, -1)):
        for whole, pin in list(zip(wholes, pins, strict=True))[::way]:
            if pin is lane and len(whole) <= room:
                kept |= dict.fromkeys((part.name for part in whole), lane)
                room -= len(whole)
    return LaneTarget(in_dra, kept)


def counted_devices(ledger: Ledger, resource: str, at: float) -> tuple[str, ...]:
    """Return the devices of a resource that the numbers count: those that are present, or were a moment ago.

    A device that went away under one name and came back under another counts once.
    """
    return tuple(
        entry.name
        for entry in ledger.entries.values()
        if entry.device.resource == resource
        and (
            entry.device.presence is not Presence.GONE
            or (at - entry.presence_since < HYSTERESIS_SECONDS and not _replaced(ledger, entry))
        )
    )


def _replaced(ledger: Ledger, entry: Entry) -> bool:
    return any(
        other.device.presence is not Presence.GONE and other.device.same_place(entry.device)
        for other in ledger.relatives(entry.device)
    )


def seconds_until_replan(ledger: Ledger, at: float) -> float | None:
    """Return the seconds until a device has been faulty or gone for ``HYSTERESIS_SECONDS``; None if no device is."""
    since = [e.presence_since for e in ledger.entries.values() if e.device.presence is not Presence.PRESENT]
    return min((left for stamp in since if (left := stamp + HYSTERESIS_SECONDS - at) > 0), default=None)


def plan(ledger: Ledger, devices: Sequence[Device], desired: LaneTarget, at: float) -> tuple[LaneChange, ...]:
    """Return the changes that bring ``devices`` (the counted ones of one resource) to the target; () if none is due."""
    groups = _groups(ledger, devices, desired, at)
    loose = [group for group in groups if not group.pinned]
    missing = desired.dra - sum(group.size for group in groups if group.lane is Lane.DRA)
    target, source = (Lane.DRA, Lane.LEGACY) if missing > 0 else (Lane.LEGACY, Lane.DRA)
    chosen = _choose([group for group in loose if group.lane is source], loose, abs(missing), target)
    taken = {group.names for group in chosen}
    overtaken = {group.names for group in _overtake([group for group in loose if group.names not in taken])}
    movable = [group for group in loose if not (group.held or group.on_its_way or group.names in overtaken)]
    movable = [group for group in movable if group.works or group.long_unusable or chosen]
    exchanged = {group.names for group in _exchange(groups, taken, movable)}
    taken = (taken ^ exchanged) | overtaken
    changes: list[LaneChange] = []
    for group in groups:
        reason = f"{desired.dra} of {len(devices)} are wanted in the dra lane"
        if group.pinned:
            reason = desired.why_pinned
        elif group.names in exchanged:
            reason = "a device that works for one that does not"
        elif group.names not in taken:
            reason = "parts of one device stay together"
        changes += _change(group, _other(group.lane) if group.names in taken else group.lane, reason)
    return tuple(sorted(changes, key=lambda change: change.urgency))


def startable_without_slices(ledger: Ledger, changes: Sequence[LaneChange]) -> tuple[LaneChange, ...]:
    """Return the changes that can begin while nothing can be offered to claims, for example without an API server.

    If pods would lose a device that claims cannot get yet, only those changes remain that end such a move. No half of
    an exchange begins: the next plan would take it back, again and again.
    """
    if not any(change.lane is Lane.DRA and ledger.entries[change.device].lane is Lane.LEGACY for change in changes):
        return tuple(changes)
    return tuple(c for c in changes if c.lane is Lane.LEGACY and c.urgency is Urgency.TAKE_BACK)


def starting_lanes(ledger: Ledger, devices: Sequence[Device], desired: LaneTarget) -> dict[str, Lane]:
    """Return, by name, the starting lane of each device that the ledger has never seen.

    Parts start in the lane of their siblings. Other devices start in the dra lane while it lacks devices, then in the
    legacy lane.
    """
    new = {device.name for device in devices if device.name not in ledger.entries}
    if not new:
        return {}
    groups = _groups(ledger, devices, desired, 0.0)
    strange = [group for group in groups if not group.pinned and new.issuperset(group.names)]
    missing = desired.dra - sum(group.size for group in groups if group.lane is Lane.DRA)
    taken = {group.names for group in _choose(strange, strange, max(0, missing), Lane.DRA)}
    taken ^= {group.names for group in _exchange(groups, taken, strange)}
    return {n: Lane.DRA if group.names in taken else group.lane for group in groups for n in group.names if n in new}


def destination_lane(entry: Entry) -> Lane:
    """Return the lane that a device is in or moves to: LEGACY or DRA. A shared device counts as LEGACY."""
    return Lane.DRA if entry.target in (Lane.DRA, Lane.LEGACY_TO_DRA) else Lane.LEGACY


def _other(lane: Lane) -> Lane:
    return Lane.LEGACY if lane is Lane.DRA else Lane.DRA


def _groups(ledger: Ledger, devices: Sequence[Device], desired: LaneTarget, at: float) -> list[_Group]:
    groups = []
    for position, members in enumerate(_wholes(devices)):
        names = tuple(device.name for device in members)
        entries = [entry for name in names if (entry := ledger.entries.get(name))]
        held = [entry for entry in entries if entry.owner is not Owner.NONE]
        broken = [entry for entry in entries if entry.device.presence is not Presence.PRESENT]
        facts = [ledger.entries[d.name].device if d.name in ledger.entries else d for d in members]
        pin = next((lane for name in names if (lane := desired.lane_of(name))), None)
        # If parts are in both lanes, the group's lane is that of a held part, which would be the last to move.
        lane = pin or (destination_lane((held or entries)[0]) if entries else Lane.LEGACY)
        groups.append(
            _Group(
                names,
                position,
                (members[0].numa_nodes, members[0].pcie_root),
                lane,
                tuple(entry.name for entry in entries if destination_lane(entry) is not lane),
                bool(held) or _overlaps_a_held_one(ledger, entries),
                any(entry.move is not None for entry in entries),
                pin is not None,
                sum(one.presence is Presence.PRESENT for one in facts),
                all(at - entry.presence_since >= HYSTERESIS_SECONDS for entry in broken),
            )
        )
    return groups


def _overlaps_a_held_one(ledger: Ledger, entries: Iterable[Entry]) -> bool:
    return any(one.owner is not Owner.NONE for entry in entries for one in ledger.relatives(entry.device))


def _choose(candidates: list[_Group], all_groups: list[_Group], missing: int, target: Lane) -> list[_Group]:
    """Choose up to ``missing`` devices for ``target``, one cell (PCIe root and NUMA node) after the other.

    For the legacy lane it may choose more: if parts of one device leave no other way, that lane rather gets too many
    devices than too few.
    """
    direction = 1 if target is Lane.DRA else -1
    chosen: list[_Group] = []
    for turn in range(6):
        left = [group for group in candidates if _turn(group) == turn]
        while missing and left:
            cell = min(
                {group.cell for group in left},
                key=lambda cell: _cell_rank(cell, left, all_groups, chosen, missing, target, direction),
            )
            for group in sorted(
                (group for group in left if group.cell == cell), key=lambda group: direction * group.position
            ):
                left.remove(group)
                if group.size <= missing:
                    chosen.append(group)
                    missing -= group.size
    if missing and target is Lane.LEGACY:
        left = [group for group in candidates if group not in chosen]
        chosen += sorted(
            left, key=lambda group: (not group.on_its_way, group.held, group.size, direction * group.position)
        )[:1]
    return chosen


def _turn(group: _Group) -> int:
    """Return the turn of a group: 0 moving, 1 free, 2 held; 3 to 5 the same for groups that do not work."""
    return (0 if group.on_its_way else 2 if group.held else 1) + (0 if group.works else 3)


def _cell_rank(
    cell: tuple[object, ...],
    left: list[_Group],
    all_groups: list[_Group],
    chosen: list[_Group],
    missing: int,
    target: Lane,
    direction: int,
) -> tuple[int, int]:
    """Return a cell's rank, lowest first: with devices in ``target``, able to move as a whole; then by position."""
    members = [group for group in all_groups if group.cell == cell]
    there = sum(group.size for group in members if group.lane is target or group in chosen)
    ready = sum(group.size for group in left if group.cell == cell)
    whole = there + ready == sum(group.size for group in members) and ready <= missing
    rank = 0 if there else 1 if whole else 2
    return rank, min(direction * group.position for group in members)


def _overtake(groups: list[_Group]) -> Iterable[_Group]:
    """Yield pairs to swap: a held group that waits to leave a lane, then a free group of that lane to go instead."""
    for target, direction in ((Lane.DRA, 1), (Lane.LEGACY, -1)):
        waiting = [group for group in groups if group.lane is target and group.held and group.on_its_way]
        free = [group for group in groups if group.lane is not target and _turn(group) == 1]
        free.sort(key=lambda group: direction * group.position)
        for group in waiting:
            other = next((one for one in free if one.size == group.size), None)
            if other is not None:
                free.remove(other)
                yield group
                yield other


def _exchange(groups: list[_Group], taken: Collection[tuple[str, ...]], movable: list[_Group]) -> Iterator[_Group]:
    """Yield pairs of ``movable`` to exchange: a group that does not work, then a working group of the other lane.

    The first is in the lane that lacks the larger share of its devices. After the exchange the other lane must lack a
    smaller share than that lane did before. ``taken`` groups are about to change lanes.
    """
    lanes = {group.names: _other(group.lane) if group.names in taken else group.lane for group in groups}
    number, lack = dict.fromkeys((Lane.DRA, Lane.LEGACY), 0), dict.fromkeys((Lane.DRA, Lane.LEGACY), 0)
    for group in groups:
        number[lanes[group.names]] += group.size
        lack[lanes[group.names]] += group.size - group.usable
    for short, direction in ((Lane.DRA, 1), (Lane.LEGACY, -1)):
        rich = _other(short)
        spare = [group for group in movable if lanes[group.names] is rich and group.works]
        spare.sort(key=lambda group: direction * group.position)
        for group in movable:
            missing = group.size - group.usable
            other = next((one for one in spare if one.size == group.size), None)
            if lanes[group.names] is not short or not missing or other is None:
                continue
            if lack[short] * number[rich] > (lack[rich] + missing) * number[short]:
                lack[short], lack[rich] = lack[short] - missing, lack[rich] + missing
                spare.remove(other)
                yield group
                yield other


def _change(group: _Group, lane: Lane, reason: str) -> list[LaneChange]:
    names = group.astray if lane is group.lane else [name for name in group.names if name not in group.astray]
    urgency = Urgency.TAKE_BACK if group.on_its_way else Urgency.HELD if group.held else Urgency.FREE
    return [LaneChange(name, lane, urgency, reason) for name in names]
