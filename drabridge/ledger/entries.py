"""What the ledger remembers, as immutable values: each device, its holders, its lane.

Nothing here acts: :mod:`drabridge.ledger.table` says how these values change, :mod:`drabridge.ledger.events` says why.
All times are wall-clock seconds since the epoch and come with the events; this package has no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from itertools import chain

from msgspec import Struct, field

from drabridge.inventory.devices import CDI_PLACE, COMPANION, Device, Presence, device_id_of
from drabridge.ledger.persistent_map import PersistentMap, refile


class Owner(StrEnum):
    """Who holds a device."""

    NONE = "none"
    LEGACY = "legacy"  # a pod, through Allocate
    DRA_PENDING = "dra-pending"  # a claim is allocated; kubelet has not yet given the device up
    DRA_GRANTED = "dra-granted"  # a claim is allocated; no container uses the device yet
    DRA_PREPARED = "dra-prepared"  # kubelet prepared the claim: a container may run
    CONFLICT = "conflict"  # kubelet shows a legacy pod on a device that a claim holds
    QUARANTINE = "quarantine"  # nobody knows: the durable state was lost


DRA_OWNERS = frozenset({Owner.DRA_PENDING, Owner.DRA_GRANTED, Owner.DRA_PREPARED})


class Lane(StrEnum):
    """Where a *free* device may be offered."""

    LEGACY = "legacy"
    DRA = "dra"
    SHARED = "shared"  # both sides, guarded by the lease
    LEGACY_TO_DRA = "legacy-to-dra"  # moving: being withdrawn from kubelet; offered nowhere
    DRA_TO_LEGACY = "dra-to-legacy"  # moving: being withdrawn from the scheduler; offered nowhere


MOVING = frozenset({Lane.LEGACY_TO_DRA, Lane.DRA_TO_LEGACY})


class ClaimPhase(StrEnum):
    """How far a claim has come on this node, weakest first."""

    DENIED = "denied"  # the lease was denied: it holds nothing, and no claim gets the device until it is deallocated
    PENDING = "pending"  # kubelet has not yet given the device up
    WITHDRAWN = "withdrawn"  # kubelet has given it up; the lease is not yet confirmed
    GRANTED = "granted"
    PREPARED = "prepared"


class MoveStep(StrEnum):
    """How far a move has come."""

    WAITING = "waiting"  # the device is held; the move begins when it is released
    REVOKING = "revoking"  # it is no longer offered; the side that had it has not confirmed yet
    QUIESCING = "quiescing"  # the slices no longer show it; schedulers that still remember it get time to act


class WaitsFor(StrEnum):
    """What must confirm that a free device is given up, before the other side, or a claim with a lease, may have it.

    ``lanes/mover.py`` asks, and tells the ledger the answer.
    """

    KUBELET = "kubelet"  # kubelet: it no longer offers the device
    SLICES = "slices"  # the API server: no slice shows it
    CLAIMS = "claims"  # the API server, after the quiet time: no claim has it


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


NEVER_KNOWN = PodRef()  # in ``former``: a pod had the device, and nobody knows which


class HeldBecause(StrEnum):
    """Why a legacy hold has not ended (``drabridge.ledger.release_rule``); the value of the ``hold_reason`` metric."""

    RUNNING = "running"  # kubelet shows a pod on it
    TOO_YOUNG = "too-young"  # Allocate was moments ago: kubelet may not have recorded the pod yet
    KUBELET_UNSETTLED = "kubelet-unsettled"  # kubelet restarted: it does not know all of its pods yet
    NO_LIST = "no-list"  # PodResources did not answer
    NO_SECOND_WITNESS = "no-second-witness"  # neither kubelet's checkpoint nor the API server could be asked
    IN_CHECKPOINT = "in-checkpoint"  # not listed, but kubelet's checkpoint names it, as for an init container
    POD_UNACCOUNTED = "pod-unaccounted"  # kubelet shows none with a pod that asks for it, or is gone and may still run
    STILL_OPEN = "still-open"  # a process has the device node open
    GRACE_PERIOD = "grace-period"  # its pod is gone but was not seen to end: its processes may use their grace period
    ONCE_ABSENT = "once-absent"  # no pod was seen on it, but not often enough yet


class Hold(Struct, frozen=True):
    """A legacy pod's hold: since when, what was seen of it, and why it has not ended."""

    units: tuple[str, ...] = ()  # kubelet's ids that were handed out; empty if a holder is only suspected
    allocated_at: float = 0.0  # last Allocate
    confirmed: bool = False  # kubelet has shown the device with a pod since the last Allocate
    last_seen: float = 0.0
    absences: int = 0  # consecutive rounds of evidence that did not show the hold
    absent_since: float = 0.0  # the first of these rounds
    pods: tuple[PodRef, ...] = ()  # those that have it since the last Allocate, as far as kubelet has shown
    because: HeldBecause = HeldBecause.TOO_YOUNG
    resource: str = ""  # the resource that kubelet counts it under, if not (or no longer) the device's; else empty
    known: bool = False  # this kubelet process called Allocate for it, or has shown it
    retaken: bool = False  # a kubelet that had not shown it gave it out again: perhaps while a forgotten pod runs
    unseen_since: float = 0.0  # this agent's first round that did not show it, even if the round did not count
    grace: float | None = None  # seconds that its pods have to end when they are deleted; None: not known
    recorded: tuple[PodRef, ...] = ()  # its pods by UID, as kubelet's checkpoint named them after the last Allocate
    former: tuple[PodRef, ...] = ()  # the pods that it named before: a checkpoint with no others may be older
    earlier: tuple[PodRef, ...] = ()
    """Pods that had it before the last Allocate and are not known to have ended. When a pod was deleted by force,
    kubelet gives its device to the next pod while processes of the deleted pod still run."""
    earlier_until: float = 0.0  # when the last process of ``earlier`` must have ended

    @property
    def last_recorded(self) -> tuple[PodRef, ...]:
        """The pods that become ``former`` of the next hold."""
        return self.recorded or (NEVER_KNOWN,)


class ClaimShare(Struct, frozen=True):
    """One claim's share of a device that several claims may use at once, as the API server allocated it."""

    id: str
    consumed: tuple[tuple[str, int], ...] = ()  # capacity name -> amount, base units


class ClaimHold(Struct, frozen=True):
    """A claim's hold of one device. Admin access is recorded, but holds nothing."""

    claim: ClaimRef
    phase: ClaimPhase
    since: float
    shares: tuple[ClaimShare, ...] = ()
    admin: bool = False
    api_allocated: bool = True  # False once the API server no longer shows the allocation
    grace: float = 0.0  # seconds that its pods have to end when they are deleted; 0: not known
    lingers: float = 0.0  # seconds after ``since``, when it was unprepared, for which its pods' processes may run on

    @property
    def waits_for(self) -> WaitsFor | None:
        """What must confirm, before the claim can be granted its lease, that the device is given up; None: nothing."""
        return WaitsFor.KUBELET if self.phase is ClaimPhase.PENDING and not self.admin else None

    @property
    def lingers_until(self) -> float:
        """When the last process of an unprepared claim must have ended; 0: no process may run on."""
        return self.since + self.lingers if self.lingers else 0.0


class Move(Struct, frozen=True):
    """A move that has not ended. The device goes back to ``source`` if it is taken meanwhile."""

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
    root: str = ""  # the whole device that this is a part of; "" for a whole device
    presence: Presence = Presence.PRESENT
    shareable: bool = False  # several claims may hold it (allowMultipleAllocations)
    capacity: tuple[tuple[str, int], ...] = ()  # a shareable device's, to check again that it is not over-committed
    syspath: str = ""  # where the hardware is, or was last; of two devices for one place at most one has a holder
    also_at: tuple[str, ...] = ()
    """Other places of its hardware. While it has a holder, no other device at such a place may have one. They are
    syspaths, or nodes that it hands out: ``c188:0``, ``/dev/vfio/12``, ``cdi:...`` (from a CDI file), and ``+c188:1``
    (a companion's, which two devices may share)."""
    cordoned: str = ""  # why it is out of service, in the operator's words; "" if it is in service

    @property
    def nodes(self) -> tuple[str, ...]:
        """The device nodes among its places."""
        return tuple(filter(_is_node, self.also_at))

    def same_place(self, other: LedgerDevice) -> bool:
        """Whether both have hardware in common: :meth:`same_syspath`, or a device node that both hand out."""
        return self.same_syspath(other) or _share_a_node(self.also_at, other.also_at)

    def same_syspath(self, other: LedgerDevice) -> bool:
        """Whether both have the same syspath, now or last, or one of them is also at the syspath of the other."""
        if not (self.syspath and other.syspath):
            return False
        return self.syspath in (other.syspath, *other.also_at) or other.syspath in self.also_at

    def related(self, other: LedgerDevice) -> bool:
        """Whether one is a part of the other, or both have the same place. A common device node does not count."""
        return self.root == other.name or other.root == self.name or self.same_syspath(other)

    @property
    def id(self) -> str:
        """The prefix of all of its units' ids, whatever the number of its replicas."""
        return device_id_of(self.units[0]) if self.units else ""

    @classmethod
    def of(cls, device: Device, *, shareable: bool = False) -> LedgerDevice:
        """Return what the ledger needs of an inventory device; ``shareable`` is the operator's choice."""
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

    ``owner`` follows from ``hold`` and ``claims`` (see ``drabridge.ledger.ownership``), except for QUARANTINE.
    """

    device: LedgerDevice
    owner: Owner = Owner.NONE
    lane: Lane = Lane.LEGACY
    hold: Hold | None = None
    claims: tuple[ClaimHold, ...] = ()
    move: Move | None = None
    since: float = 0.0  # last change of owner, lane or presence
    seq: int = 0  # the ledger's sequence number at the last change: evidence gathered before it is not believed
    released_because: str = ""  # why the last holder no longer holds it
    presence_since: float = 0.0  # last change of presence
    legacy_until: float = 0.0  # when kubelet stopped dealing with it; means nothing while ``with_kubelet``
    was_at: tuple[str, ...] = ()  # device nodes that it handed out before, which its holder may still have
    former: tuple[PodRef, ...] = ()  # the pods of its last hold that ended, as kubelet's checkpoint named them

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def target(self) -> Lane:
        """The lane that the device moves to; its present lane if it does not move."""
        return self.move.target if self.move else self.lane

    @property
    def waits_for(self) -> WaitsFor | None:
        """What must confirm that the device is given up, for its move or for the lease of a claim; None: nothing."""
        if any(held.waits_for for held in self.claims):
            return WaitsFor.KUBELET
        if self.move is None or self.lane not in MOVING:
            return None
        if self.lane is Lane.LEGACY_TO_DRA:
            return WaitsFor.KUBELET
        return WaitsFor.SLICES if self.move.step is MoveStep.REVOKING else WaitsFor.CLAIMS

    @property
    def leaves_when_released(self) -> bool:
        """Whether the device is held and moves when it is released."""
        return self.move is not None and self.move.step is MoveStep.WAITING

    @property
    def with_kubelet(self) -> bool:
        """Whether kubelet deals with the device, may deal with it, or is about to."""
        return self.lane is not Lane.DRA or self.hold is not None or self.owner is Owner.QUARANTINE

    @property
    def holders(self) -> tuple[ClaimHold, ...]:
        """The claims that hold the device: all but those with admin access, and those that were denied."""
        return tuple(claim for claim in self.claims if not (claim.admin or claim.phase is ClaimPhase.DENIED))

    @property
    def denied(self) -> tuple[ClaimHold, ...]:
        """The claims that were denied the device and are still allocated it, as far as is known."""
        return tuple(claim for claim in self.claims if claim.phase is ClaimPhase.DENIED)

    @property
    def counted_elsewhere(self) -> bool:
        """Whether kubelet counts the pod's hold under another resource, and so would give the device out again."""
        return self.hold is not None and self.hold.resource not in ("", self.device.resource)

    @property
    def counted_as(self) -> tuple[str, ...]:
        """The resources under which kubelet may show a pod on it."""
        own = self.device.resource
        return (own, self.hold.resource) if self.hold is not None and self.counted_elsewhere else (own,)

    def claim(self, uid: str) -> ClaimHold | None:
        """Return the hold of the claim ``uid`` on this device; None if the claim has none, or only admin access."""
        return next((held for held in self.holders if held.claim.uid == uid), None)


class NodeState(Struct, frozen=True):
    """What the ledger remembers about the node as a whole."""

    boot_id: str = ""
    merged: bool = False  # this agent process has merged the ledger with kubelet's view; until then nothing is granted
    kubelet: str = ""  # the known kubelet process (deviceplugin.kubelet_process); "": the next one counts as another
    kubelet_seq: int = 0  # evidence gathered before this sequence number came from an earlier kubelet
    releases_suspended_until: float = 0.0
    suspended_because: str = ""  # which program started, for people
    lost: str = ""  # why the record was lost; until the merge, a device without an entry is quarantined, not free

    @property
    def whole(self) -> bool:
        """Whether the ledger knows every holder: it was merged with kubelet's view, and has not been lost since."""
        return self.ever_merged and not self.lost

    @property
    def ever_merged(self) -> bool:
        """Whether any agent ever merged this ledger with kubelet's view; until then no device is known to be free."""
        return self.releases_suspended_until > 0.0  # every merge sets it


class Ledger(Struct, frozen=True):
    """All entries at one moment. Build ledgers with :meth:`of` and :meth:`replace`, which keep the indexes right."""

    entries: PersistentMap[Entry] = field(default_factory=PersistentMap)
    node: NodeState = field(default_factory=NodeState)
    seq: int = 0
    by_root: PersistentMap[tuple[str, ...]] = field(default_factory=PersistentMap)  # whole device -> its parts
    by_claim: PersistentMap[tuple[str, ...]] = field(default_factory=PersistentMap)  # claim UID -> devices
    by_place: PersistentMap[tuple[str, ...]] = field(default_factory=PersistentMap)  # syspath or node -> devices there

    @classmethod
    def of(cls, entries: Iterable[Entry], node: NodeState | None = None, seq: int = 0) -> Ledger:
        """Build a ledger from entries."""
        return cls(node=node or NodeState()).replace(entries, seq=seq)

    def replace(
        self,
        changes: Iterable[Entry],
        removed: Iterable[str] = (),
        node: NodeState | None = None,
        seq: int | None = None,
    ) -> Ledger:
        """Return this ledger with some entries replaced or removed; ``seq`` is one more unless it is given."""
        entries, by_root, by_claim, by_place = self.entries, self.by_root, self.by_claim, self.by_place
        for entry in changes:
            name = entry.device.name
            before = entries.get(name)
            entries = entries.put(name, entry)
            if before is None or before.claims is not entry.claims:
                by_claim = refile(by_claim, name, _uids(before), _uids(entry))
            if before is None or before.device is not entry.device or before.was_at is not entry.was_at:
                by_root = refile(by_root, name, _roots(before), _roots(entry))
                by_place = refile(by_place, name, _places(before), _places(entry))
        for name in removed:
            before = entries.get(name)
            entries = entries.drop(name)
            by_claim = refile(by_claim, name, _uids(before), ())
            by_root = refile(by_root, name, _roots(before), ())
            by_place = refile(by_place, name, _places(before), ())
        node = self.node if node is None else node
        return Ledger(entries, node, self.seq + 1 if seq is None else seq, by_root, by_claim, by_place)

    def relatives(self, device: LedgerDevice) -> tuple[Entry, ...]:
        """Return the entries whose hardware overlaps with the device's.

        They are the whole of a part, the parts of a whole, other names for the same place, devices that are also at
        one of its places, and devices whose holder may still have one of its nodes.
        """
        if not device.root and device.name not in self.by_root and self._alone(device):
            return ()  # so for most devices; every list asks this of every device
        return (*self._family(device), *self._beside(device))

    def _alone(self, device: LedgerDevice) -> bool:
        """Whether no other device is at any of its places."""
        if device.syspath:
            own = (device.name,)
            if self.by_place.get(device.syspath, own) != own:
                return False
            for place in device.also_at:
                if self.by_place.get(_place_key(place), own) != own:
                    return False
        return True

    def _family(self, device: LedgerDevice) -> tuple[Entry, ...]:
        """Return a device's whole or parts, and other names for the syspaths of the device, its whole and its parts."""
        others = self._others_in_place(device)
        if device.root:
            whole = self.entries.get(device.root)
            return (whole, *self._others_in_place(whole.device), *others) if whole else others
        parts = self.by_root.get(device.name, ())
        if others:  # parts of a former name of the place are parts of the device
            parts = (*parts, *(name for other in others for name in self.by_root.get(other.name, ())))
        if not parts:
            return others
        here = tuple(self.entries[name] for name in parts)
        return (*here, *(other for part in here for other in self._others_in_place(part.device)), *others)

    def _others_in_place(self, device: LedgerDevice) -> tuple[Entry, ...]:
        """Return other names for the device's own syspath."""
        names = self.by_place.get(device.syspath) if device.syspath else None
        if names is None or names == (device.name,):
            return ()
        here = (self.entries[name] for name in names if name != device.name)
        return tuple(other for other in here if other.device.syspath == device.syspath)

    def _beside(self, device: LedgerDevice) -> tuple[Entry, ...]:
        """Return devices with another syspath that share a place with it, or whose holder may still have its node."""
        names: Iterable[str] = self.by_place.get(device.syspath, ())
        if device.also_at:
            more = (self.by_place.get(_place_key(place), ()) for place in device.also_at)
            names = dict.fromkeys(chain(names, *more))
        others = (self.entries[name] for name in names if name != device.name)
        return tuple(
            other
            for other in others
            if other.device.syspath != device.syspath
            and (other.device.same_place(device) or _share_a_node(other.was_at, device.also_at))
        )


def _uids(entry: Entry | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(held.claim.uid for held in entry.claims)) if entry and entry.claims else ()


def _roots(entry: Entry | None) -> tuple[str, ...]:
    return (entry.device.root,) if entry and entry.device.root else ()


def _places(entry: Entry | None) -> tuple[str, ...]:
    if entry is None or not entry.device.syspath:
        return ()
    if not entry.device.also_at and not entry.was_at:
        return (entry.device.syspath,)
    others = map(_place_key, (*entry.device.also_at, *entry.was_at))
    return tuple(dict.fromkeys((entry.device.syspath, *others)))


def _place_key(place: str) -> str:
    """Return the key of a place in ``by_place``: the same for a device node whether it is a companion's or not."""
    return place[1:] if place[:1] == COMPANION else place


def _is_node(place: str) -> bool:
    """Whether a place is a device node, or a CDI device that stands for nodes; otherwise it is a syspath."""
    return place.startswith(("/dev/", CDI_PLACE)) or (place[:1] in ("c", "b", COMPANION) and place[-1:].isdecimal())


def _share_a_node(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether both have a device node in common that is not a companion's on both sides."""
    return bool(some and others) and any(
        place in there or f"{COMPANION}{place}" in there
        for here, there in ((some, others), (others, some))
        for place in here
        if _is_node(place) and place[:1] != COMPANION
    )
