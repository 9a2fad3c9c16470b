"""Which devices change lanes so that each lane gets its number: a pure plan, the same for the same input.

Claims are served from the front of the order, pods from its end (opposite-end packing), so the lanes rarely want the
same device. Devices on one PCIe root and NUMA node stay together where the numbers allow it, and parts of one device
always do: where the numbers would divide them, claims get fewer than wanted. Parts go where their whole goes, whatever
their own numbers are: a part and a whole in different lanes are offered to nobody. Free devices move before held ones,
and a whole of which a part is held counts as held. A held device is only marked, and moves when it is let go. What is
on its way counts as arrived, so a plan that is carried out is never taken back, and one that is under way is not
repeated.

Faulty devices count, and are the last to choose for either lane. The lane that lacks more of its number by them gets
free ones that work in exchange: at once where devices move anyhow, else after ``HYSTERESIS_SECONDS``. Every exchange
makes the larger lack smaller, and one that works again moves nothing: what flaps ends where it is missed least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

from msgspec import Struct
from msgspec.structs import replace

from drabridge.inventory.model import Device, Presence
from drabridge.ledger.model import Entry, Lane, Ledger, Owner

HYSTERESIS_SECONDS = 60.0  # a device that flaps (USB, a driver reload) must not make others move to and fro


class LaneTarget(Struct, frozen=True):
    """How one resource's devices are to be divided.

    ``dra`` of ``total`` devices in the dra lane, the rest in the legacy lane; floors and percentages are already in it
    (``drabridge.config.lanes.Lanes.targets``). Pinned devices stay where the operator says, parts where their whole is.
    """

    dra: int
    pinned: Mapping[str, Lane] | None = None
    why_pinned: str = "chosen by the operator"

    def lane_of(self, name: str) -> Lane | None:
        """Where a pinned device must be."""
        return self.pinned.get(name) if self.pinned else None

    def beside_wholes(self, ledger: Ledger, devices: Iterable[Device], new: Mapping[str, Lane]) -> LaneTarget:
        """The same with each part in the lane of its whole, which is in the ledger or among the ``new`` ones."""
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

    TAKE_BACK = 0  # ends a move that is no longer wanted
    FREE = 1
    HELD = 2  # marks it; it moves when it is let go


class LaneChange(Struct, frozen=True):
    """One ``SetLane`` to apply."""

    device: str
    lane: Lane
    urgency: Urgency
    reason: str


class _Unit(Struct, frozen=True):
    """Devices that move together: a whole device, or all parts of one."""

    names: tuple[str, ...]
    position: int
    cell: tuple[object, ...]  # PCIe root and NUMA nodes
    lane: Lane  # where it is, or is on its way to
    astray: tuple[str, ...]  # parts that are not there: they came later, or one by one
    held: bool
    on_its_way: bool
    pinned: bool
    usable: int  # how many of them are there and work
    lasting: bool  # those that do not have not for a while

    @property
    def size(self) -> int:
        return len(self.names)

    @property
    def works(self) -> bool:
        return self.usable == self.size


def packing_order(devices: Iterable[Device]) -> list[Device]:
    """Front to back: by NUMA node, PCIe root and address, name. Claims start at the front, pods at the end."""
    return sorted(devices, key=lambda d: (d.numa_nodes, d.pcie_root, d.pci_bus_id, d.root or d.name, d.name))


def _wholes(devices: Iterable[Device]) -> list[list[Device]]:
    """The same, with all parts of one device together."""
    groups: dict[str, list[Device]] = {}
    for device in packing_order(devices):
        groups.setdefault(device.root or device.name, []).append(device)
    return list(groups.values())


def from_selection(
    devices: Sequence[Device], pinned: Mapping[str, Lane], *, rest: Lane, min_legacy: int, min_dra: int
) -> LaneTarget:
    """What is wanted where the operator says which devices: ``pinned`` ones with their parts, all others in ``rest``.

    The floors hold, too: pins beyond them are left out, claims' from the end of the order and pods' from its front.
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
    """The devices of a resource that the numbers are about: those that are there, or were until just now and did not
    make room for another (a device that is called otherwise now counts once).
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
    """Seconds until a device will have been faulty, or gone, for long enough to plan anew; None if no change is due."""
    since = [e.presence_since for e in ledger.entries.values() if e.device.presence is not Presence.PRESENT]
    return min((left for stamp in since if (left := stamp + HYSTERESIS_SECONDS - at) > 0), default=None)


def plan(ledger: Ledger, devices: Sequence[Device], wanted: LaneTarget, at: float) -> tuple[LaneChange, ...]:
    """The changes that bring ``devices`` (one resource's, all counted) to what is wanted; () if they are there."""
    units = _units(ledger, devices, wanted, at)
    loose = [unit for unit in units if not unit.pinned]
    missing = wanted.dra - sum(unit.size for unit in units if unit.lane is Lane.DRA)
    target, source = (Lane.DRA, Lane.LEGACY) if missing > 0 else (Lane.LEGACY, Lane.DRA)
    chosen = _choose([unit for unit in loose if unit.lane is source], loose, abs(missing), target)
    taken = {unit.names for unit in chosen}
    overtaken = {unit.names for unit in _overtake([unit for unit in loose if unit.names not in taken])}
    movable = [unit for unit in loose if not (unit.held or unit.on_its_way or unit.names in overtaken)]
    movable = [unit for unit in movable if unit.works or unit.lasting or chosen]
    exchanged = {unit.names for unit in _exchange(units, taken, movable)}
    taken = (taken ^ exchanged) | overtaken
    changes: list[LaneChange] = []
    for unit in units:
        reason = f"{wanted.dra} of {len(devices)} are wanted in the dra lane"
        if unit.pinned:
            reason = wanted.why_pinned
        elif unit.names in exchanged:
            reason = "a device that works for one that does not"
        elif unit.names not in taken:
            reason = "parts of one device stay together"
        changes += _change(unit, _other(unit.lane) if unit.names in taken else unit.lane, reason)
    return tuple(sorted(changes, key=lambda change: change.urgency))


def startable_without_slices(ledger: Ledger, changes: Sequence[LaneChange]) -> tuple[LaneChange, ...]:
    """What can begin of a plan while claims cannot be offered anything, the API server is away, say. Where pods would
    lose a device for nothing they only get some back: of an exchange the next plan would take back the half, for ever.
    """
    if not any(change.lane is Lane.DRA and ledger.entries[change.device].lane is Lane.LEGACY for change in changes):
        return tuple(changes)
    return tuple(c for c in changes if c.lane is Lane.LEGACY and c.urgency is Urgency.TAKE_BACK)


def starting_lanes(ledger: Ledger, devices: Sequence[Device], wanted: LaneTarget) -> dict[str, Lane]:
    """Where devices start that the ledger has never seen: parts beside their siblings, others first where some are
    missing in the dra lane, the rest legacy.
    """
    new = {device.name for device in devices if device.name not in ledger.entries}
    if not new:
        return {}
    units = _units(ledger, devices, wanted, 0.0)
    strange = [unit for unit in units if not unit.pinned and new.issuperset(unit.names)]
    missing = wanted.dra - sum(unit.size for unit in units if unit.lane is Lane.DRA)
    taken = {unit.names for unit in _choose(strange, strange, max(0, missing), Lane.DRA)}
    taken ^= {unit.names for unit in _exchange(units, taken, strange)}
    return {n: Lane.DRA if unit.names in taken else unit.lane for unit in units for n in unit.names if n in new}


def destination_lane(entry: Entry) -> Lane:
    """Where a device is, or is on its way to: LEGACY or DRA (a shared device counts as legacy)."""
    lane = entry.move.target if entry.move else entry.lane
    return Lane.DRA if lane in (Lane.DRA, Lane.LEGACY_TO_DRA) else Lane.LEGACY


def _other(lane: Lane) -> Lane:
    return Lane.LEGACY if lane is Lane.DRA else Lane.DRA


def _units(ledger: Ledger, devices: Sequence[Device], wanted: LaneTarget, at: float) -> list[_Unit]:
    units = []
    for position, members in enumerate(_wholes(devices)):
        names = tuple(device.name for device in members)
        entries = [entry for name in names if (entry := ledger.entries.get(name))]
        held = [entry for entry in entries if entry.owner is not Owner.NONE]
        broken = [entry for entry in entries if entry.device.presence is not Presence.PRESENT]
        facts = [ledger.entries[d.name].device if d.name in ledger.entries else d for d in members]
        pin = next((lane for name in names if (lane := wanted.lane_of(name))), None)
        # Of parts that were divided a held one says where the others go: it would be the last to move.
        lane = pin or (destination_lane((held or entries)[0]) if entries else Lane.LEGACY)
        units.append(
            _Unit(
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
    return units


def _overlaps_a_held_one(ledger: Ledger, entries: Iterable[Entry]) -> bool:
    return any(one.owner is not Owner.NONE for entry in entries for one in ledger.relatives(entry.device))


def _choose(candidates: list[_Unit], everybody: list[_Unit], missing: int, target: Lane) -> list[_Unit]:
    """Up to ``missing`` devices for ``target``: cell by cell, those first that complete a cell, then whole cells.

    Back to pods at least so many: where parts leave no other way, the numbers of the legacy lane come first.
    """
    front = 1 if target is Lane.DRA else -1
    chosen: list[_Unit] = []
    for wave in range(6):
        left = [unit for unit in candidates if _wave(unit) == wave]
        while missing and left:
            cell = min(
                {unit.cell for unit in left},
                key=lambda cell: _cell_rank(cell, left, everybody, chosen, missing, target, front),
            )
            for unit in sorted((unit for unit in left if unit.cell == cell), key=lambda unit: front * unit.position):
                left.remove(unit)
                if unit.size <= missing:
                    chosen.append(unit)
                    missing -= unit.size
    if missing and target is Lane.LEGACY:
        left = [unit for unit in candidates if unit not in chosen]
        chosen += sorted(left, key=lambda unit: (not unit.on_its_way, unit.held, unit.size, front * unit.position))[:1]
    return chosen


def _wave(unit: _Unit) -> int:
    """When it is its turn: what is on its way, what is free, what is held; then likewise what does not work."""
    return (0 if unit.on_its_way else 2 if unit.held else 1) + (0 if unit.works else 3)


def _cell_rank(
    cell: tuple[object, ...],
    left: list[_Unit],
    everybody: list[_Unit],
    chosen: list[_Unit],
    missing: int,
    target: Lane,
    front: int,
) -> tuple[int, int]:
    """Better cells first: already split, then one that can go whole, then by position."""
    members = [unit for unit in everybody if unit.cell == cell]
    there = sum(unit.size for unit in members if unit.lane is target or unit in chosen)
    ready = sum(unit.size for unit in left if unit.cell == cell)
    whole = there + ready == sum(unit.size for unit in members) and ready <= missing
    rank = 0 if there else 1 if whole else 2
    return rank, min(front * unit.position for unit in members)


def _overtake(units: list[_Unit]) -> Iterable[_Unit]:
    """A held device that waits to leave a lane is replaced by a free one of that lane: nobody needs to wait."""
    for target, front in ((Lane.DRA, 1), (Lane.LEGACY, -1)):
        waiting = [unit for unit in units if unit.lane is target and unit.held and unit.on_its_way]
        free = [unit for unit in units if unit.lane is not target and _wave(unit) == 1]
        free.sort(key=lambda unit: front * unit.position)
        for unit in waiting:
            other = next((one for one in free if one.size == unit.size), None)
            if other is not None:
                free.remove(other)
                yield unit
                yield other


def _exchange(units: list[_Unit], taken: Collection[tuple[str, ...]], movable: list[_Unit]) -> Iterator[_Unit]:
    """Of ``movable`` those that do not work, in the lane that lacks the larger part of its number, and as many of the
    other lane that do: while that lane, without them, lacks less. ``taken`` are about to change lanes.
    """
    lanes = {unit.names: _other(unit.lane) if unit.names in taken else unit.lane for unit in units}
    number, lack = dict.fromkeys((Lane.DRA, Lane.LEGACY), 0), dict.fromkeys((Lane.DRA, Lane.LEGACY), 0)
    for unit in units:
        number[lanes[unit.names]] += unit.size
        lack[lanes[unit.names]] += unit.size - unit.usable
    for short, front in ((Lane.DRA, 1), (Lane.LEGACY, -1)):
        rich = _other(short)
        spare = [unit for unit in movable if lanes[unit.names] is rich and unit.works]
        spare.sort(key=lambda unit: front * unit.position)
        for unit in movable:
            missing = unit.size - unit.usable
            other = next((one for one in spare if one.size == unit.size), None)
            if lanes[unit.names] is not short or not missing or other is None:
                continue
            if lack[short] * number[rich] > (lack[rich] + missing) * number[short]:
                lack[short], lack[rich] = lack[short] - missing, lack[rich] + missing
                spare.remove(other)
                yield unit
                yield other


def _change(unit: _Unit, lane: Lane, reason: str) -> list[LaneChange]:
    names = unit.astray if lane is unit.lane else [name for name in unit.names if name not in unit.astray]
    urgency = Urgency.TAKE_BACK if unit.on_its_way else Urgency.HELD if unit.held else Urgency.FREE
    return [LaneChange(name, lane, urgency, reason) for name in names]
