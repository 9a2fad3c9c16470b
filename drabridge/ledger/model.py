"""Who holds each device, as immutable values: what the ledger remembers.

Nothing here acts: :mod:`drabridge.ledger.table` says how these values change, :mod:`drabridge.ledger.events` says why.
All times are wall-clock seconds since the epoch and come with the events; this package has no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

from msgspec import Struct, field

from drabridge.inventory.model import COMPANION, Device, Presence, device_id_of
from drabridge.ledger.persistent_map import PersistentMap
from drabridge.system import safety_defaults as defaults


class Owner(StrEnum):
    """Who holds a device."""

    NONE = "none"
    LEGACY = "legacy"  # a pod, through Allocate
    DRA_PENDING = "dra-pending"  # a claim was allocated; kubelet has not yet given the device up (level G2)
    DRA_GRANTED = "dra-granted"  # a claim was allocated, nothing uses the device yet
    DRA_PREPARED = "dra-prepared"  # kubelet prepared it: a container may run
    CONFLICT = "conflict"  # kubelet shows a legacy pod on a device that a claim holds
    QUARANTINE = "quarantine"  # nobody knows: the durable state was lost


DRA_OWNERS = frozenset({Owner.DRA_PENDING, Owner.DRA_GRANTED, Owner.DRA_PREPARED})


class Lane(StrEnum):
    """Where a *free* device may be offered."""

    LEGACY = "legacy"
    DRA = "dra"
    SHARED = "shared"  # both sides, guarded by the lease of level G2
    LEGACY_TO_DRA = "legacy-to-dra"  # being revoked from kubelet; offered nowhere
    DRA_TO_LEGACY = "dra-to-legacy"  # being revoked from the scheduler; offered nowhere


MOVING = frozenset({Lane.LEGACY_TO_DRA, Lane.DRA_TO_LEGACY})


class ClaimPhase(StrEnum):
    """How far a claim has come on this node, weakest first."""

    PENDING = "pending"  # G2: waits for kubelet to give the device up
    WITHDRAWN = "withdrawn"  # G2: kubelet has given it up, the lease is not yet confirmed
    GRANTED = "granted"
    PREPARED = "prepared"


class MoveStep(StrEnum):
    """How far a change of lane has come."""

    WAITING = "waiting"  # the device is held; the move begins when it is let go
    REVOKING = "revoking"  # it is no longer offered; the side that had it has not confirmed yet
    QUIESCING = "quiescing"  # the slices no longer show it; schedulers that still remember it get time to act


class PodRef(Struct, frozen=True):
    """A container of a pod as kubelet shows it. Its checkpoint knows the UID, PodResources the names."""

    namespace: str = ""
    name: str = ""
    container: str = ""
    uid: str = ""

    def __str__(self) -> str:
        pod = f"{self.namespace}/{self.name}" if self.name else f"uid {self.uid}"
        return f"{pod} (container {self.container})" if self.container else pod


class ClaimRef(Struct, frozen=True):
    """A ResourceClaim. The UID is its identity; the names are for people."""

    uid: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (uid {self.uid})" if self.name else f"uid {self.uid}"


class HeldBecause(StrEnum):
    """Why a legacy hold has not ended; the value of the ``hold_reason`` metric."""

    RUNNING = "running"  # kubelet shows a pod on it
    TOO_YOUNG = "too-young"  # Allocate was moments ago: kubelet may not have recorded the pod yet
    KUBELET_UNSETTLED = "kubelet-unsettled"  # kubelet restarted: it does not know all of its pods yet
    NO_LIST = "no-list"  # PodResources did not answer
    NO_SECOND_WITNESS = "no-second-evidence"  # neither kubelet's checkpoint nor the API server could be asked
    IN_CHECKPOINT = "in-checkpoint"  # not listed, but kubelet's checkpoint names it: an init container
    POD_UNACCOUNTED = "pod-unaccounted"  # a pod bound here asks for the resource and kubelet shows no device for it
    STILL_OPEN = "still-open"  # a process has the device node open
    GRACE_PERIOD = "grace-period"  # its pod is gone, nobody saw it end: its processes may use their grace period
    ONCE_ABSENT = "once-absent"  # not seen; one look is not enough


class Hold(Struct, frozen=True):
    """A legacy pod's hold: since when, what was seen of it, and why it has not ended."""

    units: tuple[str, ...] = ()  # kubelet's ids that were handed out; empty for a holder that is only suspected
    allocated_at: float = 0.0  # last Allocate
    confirmed: bool = False  # kubelet has shown the device with a pod since then
    last_seen: float = 0.0
    absences: int = 0  # consecutive looks that did not show it
    absent_since: float = 0.0  # the first of them
    pods: tuple[PodRef, ...] = ()
    because: HeldBecause = HeldBecause.TOO_YOUNG
    resource: str = ""  # what kubelet counts it under, where that is not, or no longer, the device's; else empty
    known: bool = False  # this kubelet process asked for it, or has shown it
    retaken: bool = False  # a kubelet that had not shown it gave it out again: perhaps beside a pod that it skipped
    unseen_since: float = 0.0  # the first look of this agent that did not show it, whatever else was in the way
    grace: float | None = None  # seconds that its pods have to end when they are deleted; None: not known


class ClaimShare(Struct, frozen=True):
    """One share of a device that several claims may use at once, as the API server allocated it."""

    id: str
    consumed: tuple[tuple[str, int], ...] = ()  # capacity name -> amount, base units


class ClaimHold(Struct, frozen=True):
    """A claim's hold of one device. Admin access is recorded but holds nothing."""

    claim: ClaimRef
    phase: ClaimPhase
    since: float
    shares: tuple[ClaimShare, ...] = ()
    admin: bool = False
    api_allocated: bool = True  # False once the API server was seen without the allocation
    grace: float = 0.0  # seconds that its pods have to end when they are deleted; 0: not known
    lingers: float = 0.0  # unprepared at ``since``, and processes of its pods may go on for so many seconds; else 0

    @property
    def lingers_until(self) -> float:
        """Until when processes may have the device although kubelet has unprepared the claim; 0: it has not."""
        return self.since + self.lingers if self.lingers else 0.0


class Move(Struct, frozen=True):
    """A change of lane that has not ended. ``source`` is where the device goes back to if it is taken meanwhile."""

    source: Lane
    target: Lane
    step: MoveStep
    since: float  # when it was asked for
    step_since: float
    reason: str = ""  # why it waits, for people


class LedgerDevice(Struct, frozen=True):
    """What the ledger needs to know about a device; it comes from the inventory."""

    name: str
    resource: str = ""
    units: tuple[str, ...] = ()  # the ids that kubelet counts
    root: str = ""  # the whole device that this is a part of; "" for a whole one
    presence: Presence = Presence.PRESENT
    shareable: bool = False  # several claims may hold it (allowMultipleAllocations)
    capacity: tuple[tuple[str, int], ...] = ()  # defence against over-commitment of a shareable device
    syspath: str = ""  # where the hardware is, or was last: two names for one place never both have a holder
    also_at: tuple[str, ...] = ()
    """Other places of its hardware: what is there has no holder beside its own. Syspaths, and nodes that it hands out:
    ``c188:0``, ``/dev/vfio/12``, and ``+c188:1`` of a companion, which two devices may both have."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those of its places that are nodes."""
        return tuple(filter(is_node, self.also_at))

    def same_place(self, other: LedgerDevice) -> bool:
        """Whether both are names for what is, or was, at one syspath, one has the other's place as well, or both hand
        out one node.
        """
        return self.same_syspath(other) or share_a_node(self.also_at, other.also_at)

    def same_syspath(self, other: LedgerDevice) -> bool:
        """Whether both are names for what is, or was, at one syspath, or one has the other's place as well."""
        if not (self.syspath and other.syspath):
            return False
        return self.syspath in (other.syspath, *other.also_at) or other.syspath in self.also_at

    def related(self, other: LedgerDevice) -> bool:
        """Whether one is a part of the other, or in its place; not, that they hand out one node and no more."""
        return self.root == other.name or other.root == self.name or self.same_syspath(other)

    @property
    def id(self) -> str:
        """What all of its units begin with, however many replicas it has, had, or another agent gave it."""
        return device_id_of(self.units[0]) if self.units else ""

    @classmethod
    def of(cls, device: Device, *, shareable: bool = False) -> LedgerDevice:
        """The facts of an inventory record; ``shareable`` is the operator's choice, not the hardware's."""
        return cls(
            device.name,
            device.resource,
            device.units,
            device.root,
            device.presence,
            shareable,
            tuple(sorted(device.capacity.items())) if shareable else (),
            device.syspath,
            device.also_at,
        )


class Entry(Struct, frozen=True):
    """One device: what it is, who holds it, where it may be offered.

    ``owner`` follows from ``hold`` and ``claims`` (see ``drabridge.ledger.ownership``) except for QUARANTINE.
    """

    device: LedgerDevice
    owner: Owner = Owner.NONE
    lane: Lane = Lane.LEGACY
    hold: Hold | None = None
    claims: tuple[ClaimHold, ...] = ()
    move: Move | None = None
    since: float = 0.0  # last change of owner, lane or presence
    seq: int = 0  # the ledger's sequence number of that change: evidence gathered before it says nothing
    released_because: str = ""  # why the last holder is no longer the holder
    presence_since: float = 0.0  # last change of presence
    legacy_until: float = 0.0  # when kubelet last had business with it; now, if ``with_kubelet``
    was_at: tuple[str, ...] = ()  # nodes that it handed out before, which its holder may have yet

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def leaving(self) -> bool:
        """Whether the device is to leave its lane: the last one to choose for new work."""
        return self.move is not None

    @property
    def drain(self) -> bool:
        """Whether it is busy and leaves its lane when it is let go. The mark is the waiting move, so it cannot differ
        from it: a move that is withdrawn or begins takes the mark with it.
        """
        return self.move is not None and self.move.step is MoveStep.WAITING

    @property
    def with_kubelet(self) -> bool:
        """Whether kubelet has, may have, or is to have business with the device."""
        return self.lane is not Lane.DRA or self.hold is not None or self.owner is Owner.QUARANTINE

    @property
    def holders(self) -> tuple[ClaimHold, ...]:
        """The claims that really hold the device: those without admin access."""
        return tuple(claim for claim in self.claims if not claim.admin)

    @property
    def counted_elsewhere(self) -> bool:
        """Whether kubelet counts the pod's hold under another resource: under this one it would give it out again."""
        return self.hold is not None and self.hold.resource not in ("", self.device.resource)

    @property
    def counted_as(self) -> tuple[str, ...]:
        """The resources under which kubelet may show a pod on it."""
        own = self.device.resource
        return (own, self.hold.resource) if self.hold is not None and self.hold.resource not in ("", own) else (own,)

    def claim(self, uid: str) -> ClaimHold | None:
        """What the claim ``uid`` holds of this device."""
        return next((held for held in self.holders if held.claim.uid == uid), None)


class NodeState(NamedTuple):
    """What the ledger remembers about the node as a whole."""

    boot_id: str = ""
    merged: bool = False  # this process has merged the ledger with kubelet's view: before that nothing is granted
    kubelet: str = ""  # the process that is known (deviceplugin.kubelet_process); "": whoever comes is another one
    kubelet_seq: int = 0  # evidence gathered before this sequence number came from an earlier kubelet
    releases_suspended_until: float = 0.0
    suspended_because: str = ""  # who began, for people
    denied: frozenset[str] = frozenset()  # claim UIDs whose lease was denied (G2)
    lost: str = ""  # why the record was lost; until the merge, a device without an entry is quarantined, not free

    @property
    def whole(self) -> bool:
        """Whether the ledger knows all of its node: it was compared with kubelet's view, and not lost since."""
        return self.ever_merged and not self.lost

    @property
    def ever_merged(self) -> bool:
        """Whether an agent has ever compared this ledger with kubelet's view: before that, "free" is not known."""
        return self.releases_suspended_until > 0.0  # every merge sets it


class Ledger(Struct, frozen=True):
    """All entries at one moment. The indexes are derived; build ledgers with :meth:`of` and :meth:`replace`."""

    entries: PersistentMap[Entry] = field(default_factory=PersistentMap)
    node: NodeState = field(default_factory=NodeState)
    seq: int = 0
    by_root: PersistentMap[tuple[str, ...]] = field(default_factory=PersistentMap)  # whole device -> its parts
    by_claim: PersistentMap[tuple[str, ...]] = field(default_factory=PersistentMap)  # claim UID -> devices
    by_place: PersistentMap[tuple[str, ...]] = field(
        default_factory=PersistentMap
    )  # syspath -> devices that are there, also or only

    @classmethod
    def of(cls, entries: Iterable[Entry], node: NodeState | None = None, seq: int = 0) -> Ledger:
        """A ledger from entries alone."""
        return cls(node=node or NodeState()).replace(entries, seq=seq)

    def replace(
        self,
        changes: Iterable[Entry],
        removed: Iterable[str] = (),
        node: NodeState | None = None,
        seq: int | None = None,
    ) -> Ledger:
        """This ledger with some entries replaced or removed, as a new value; ``seq`` is one more unless given."""
        entries, by_root, by_claim, by_place = self.entries, self.by_root, self.by_claim, self.by_place
        for entry in changes:
            name = entry.device.name
            before = entries.get(name)
            entries = entries.put(name, entry)
            if before is None or before.claims is not entry.claims:
                by_claim = _refile(by_claim, name, _uids(before), _uids(entry))
            if before is None or before.device is not entry.device or before.was_at is not entry.was_at:
                by_root = _refile(by_root, name, _roots(before), _roots(entry))
                by_place = _refile(by_place, name, _places(before), _places(entry))
        for name in removed:
            before = entries.get(name)
            entries = entries.drop(name)
            by_claim = _refile(by_claim, name, _uids(before), ())
            by_root = _refile(by_root, name, _roots(before), ())
            by_place = _refile(by_place, name, _places(before), ())
        node = self.node if node is None else node
        return Ledger(entries, node, self.seq + 1 if seq is None else seq, by_root, by_claim, by_place)

    def relatives(self, device: LedgerDevice) -> tuple[Entry, ...]:
        """Those that overlap with it in hardware: the whole of a part, the parts of a whole, what had their places,
        what has the other's place as well as its own, and whose holder may have one of its nodes.
        """
        if not device.root and device.name not in self.by_root and self._alone(device):
            return ()  # as most are: nothing is to be put together
        return (*self._family(device), *self._beside(device))

    def _alone(self, device: LedgerDevice) -> bool:
        """Whether nothing else is where it is. Asked of every device for every list."""
        if device.syspath:
            own = (device.name,)
            if self.by_place.get(device.syspath, own) != own:
                return False
            for place in device.also_at:
                if self.by_place.get(filed_as(place), own) != own:
                    return False
        return True

    def _family(self, device: LedgerDevice) -> tuple[Entry, ...]:
        others = self._others_in_place(device)
        if device.root:
            whole = self.entries.get(device.root)
            return (whole, *self._others_in_place(whole.device), *others) if whole else others
        parts = self.by_root.get(device.name, ())
        if others:  # the parts of what the place was called before are parts of it
            parts = (*parts, *(name for other in others for name in self.by_root.get(other.name, ())))
        if not parts:
            return others
        here = tuple(self.entries[name] for name in parts)
        return (*here, *(other for part in here for other in self._others_in_place(part.device)), *others)

    def _others_in_place(self, device: LedgerDevice) -> tuple[Entry, ...]:
        names = self.by_place.get(device.syspath) if device.syspath else None
        if names is None or names == (device.name,):
            return ()
        here = (self.entries[name] for name in names if name != device.name)
        return tuple(other for other in here if other.device.syspath == device.syspath)

    def _beside(self, device: LedgerDevice) -> tuple[Entry, ...]:
        names: Iterable[str] = self.by_place.get(device.syspath, ())
        if device.also_at:
            more = (self.by_place.get(filed_as(place), ()) for place in device.also_at)
            names = dict.fromkeys(chain(names, *more))
        others = (self.entries[name] for name in names if name != device.name)
        return tuple(
            other
            for other in others
            if other.device.syspath != device.syspath
            and (other.device.same_place(device) or share_a_node(other.was_at, device.also_at))
        )


def _uids(entry: Entry | None) -> tuple[str, ...]:
    if entry is None or not entry.claims:
        return ()
    if len(entry.claims) == 1:
        return (entry.claims[0].claim.uid,)
    return tuple(dict.fromkeys(held.claim.uid for held in entry.claims))


def _roots(entry: Entry | None) -> tuple[str, ...]:
    return (entry.device.root,) if entry and entry.device.root else ()


def _places(entry: Entry | None) -> tuple[str, ...]:
    if entry is None or not entry.device.syspath:
        return ()
    if not entry.device.also_at and not entry.was_at:
        return (entry.device.syspath,)
    others = map(filed_as, (*entry.device.also_at, *entry.was_at))
    return tuple(dict.fromkeys((entry.device.syspath, *others)))


def _refile(
    index: PersistentMap[tuple[str, ...]], name: str, old: tuple[str, ...], new: tuple[str, ...]
) -> PersistentMap[tuple[str, ...]]:
    """``index`` with ``name`` filed under the keys ``new`` instead of ``old``."""
    if old == new:
        return index
    for key in old:
        if key not in new:
            left = tuple(other for other in index[key] if other != name)
            index = index.put(key, left) if left else index.drop(key)
    for key in new:
        if key not in old:
            index = index.put(key, (*index.get(key, ()), name))
    return index


def filed_as(place: str) -> str:
    """The key of a place in an index: a node is one place, whoever's own it is."""
    return place[1:] if place[:1] == COMPANION else place


def is_node(place: str) -> bool:
    """Whether a place is a node, and no syspath."""
    return place.startswith("/dev/") or (place[:1] in ("c", "b", COMPANION) and place[-1:].isdecimal())


def share_a_node(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether a node that is the device's own on one side is there on the other, its own or a companion's."""
    if not some or not others:
        return False
    return any(
        place in there or f"{COMPANION}{place}" in there
        for here, there in ((some, others), (others, some))
        for place in here
        if is_node(place) and place[:1] != COMPANION
    )


class LedgerPolicy(Struct, frozen=True):
    """The numbers behind the rules, in seconds. The reasons are in ``system.safety_defaults``."""

    min_hold_seconds: float = defaults.MIN_HOLD_SECONDS
    unconfirmed_seconds: float = defaults.UNCONFIRMED_SECONDS
    absent_lists: int = 2  # one List can miss a pod (kubelet lists active pods only)
    absent_seconds: float = defaults.ABSENT_SECONDS
    settle_seconds: float = defaults.SETTLE_SECONDS
    quiesce_seconds: float = defaults.QUIESCE_SECONDS
    grace_seconds: float = 30.0  # of a pod whose own is not known: the API server's default (core/v1/defaults.go)
    tombstone_seconds: float = defaults.TOMBSTONE_SECONDS
    g2: bool = False  # the shared lane and its lease
