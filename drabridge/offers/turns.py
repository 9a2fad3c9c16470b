"""Decide which API alone is offered a shared device, while both want more than there is. Pure.

Without turns, the side that has a device keeps it. When a pod ends, the scheduler sends the next one at once, because
kubelet's number has not changed; so claims lose every race. When a claim ends, the slice shows that at once, but
kubelet tells the scheduler its new number only with its next node status; so the next claim is first.

So while both sides want devices and none is free, a released device is offered to one side alone for a while: to the
side that has fewer devices, or as many, so that each gets half. When claims shall get a pod's device, the scheduler
must not send a next pod for it: kubelet would refuse that pod for good. So one device that pods hold is promised to
claims first: kubelet is told that it is Unhealthy. Once the scheduler knows the smaller number, claims get the device
of whichever pod ends next. Until then the pod that has the promised device must not end: the scheduler would send the
next pod at once, and kubelet would refuse it. So only the device of a pod that is expected to stay is promised. Where
pods end sooner than the scheduler learns a number, claims wait until pods leave a device unused.

While claims wait in a queue, the devices that claims keep in this way are lent to the dra lane (``lent``). There the
next claim needs no lease, for which the scheduler would make it wait five seconds. A queue is known from the last
device that was offered to claims alone: they took it at once. A lent device that claims leave comes back, after the
lane's quiet time.

A side wants devices as soon as it takes one or tries to. It no longer wants any when it leaves a device unused that was
offered to it alone. Nothing here changes what the ledger grants: if the other side asks nevertheless, it gets the
device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType

from msgspec import Struct

from drabridge.inventory.devices import Presence
from drabridge.ledger.eligibility import blocking_relative, cordoned_by, legacy_healthy
from drabridge.ledger.entries import DRA_OWNERS, Entry, Lane, Ledger, Owner

TURN_SECONDS = 12.0
"""Kubelet tells its number every 10 s (nodeStatusUpdateFrequency); the scheduler tries a pod again after at most 10 s
(podMaxBackoffSeconds)."""

QUEUE_SECONDS = 5.0
"""A waiting claim takes a device within this time: the scheduler tries it at once, unless it has just tried it."""

ASK_SECONDS = 120.0
"""Nobody here sees pods with limits that wait for a device. If claims have all devices, pods get a turn this often."""

ADMIT_SECONDS = 0.5
"""From Allocate until kubelet has admitted the pod: an app container that takes over its init container's device is
refused while kubelet has no Healthy one at all."""


class Side(StrEnum):
    """Who gets a device: pods with limits, or claims."""

    PODS = "pods"
    CLAIMS = "claims"


_LEASED = frozenset({Owner.DRA_GRANTED, Owner.DRA_PREPARED})
OTHER = {Side.PODS: Side.CLAIMS, Side.CLAIMS: Side.PODS}
BOTH = frozenset(Side)


class Turn(Struct, frozen=True):
    """A free device is offered to one side alone, at least until ``until`` (wall seconds)."""

    side: Side
    until: float


class Turns(Struct, frozen=True):
    """Whose turn it is. ``wanting``: by resource; ``turns``: by device.

    ``promises``: resource -> a device that pods have and that is Unhealthy, because claims get the next device that
    pods release; "" between two pods. ``asked``: resource -> when pods last left a turn unused, or when the resource
    was first looked at, in wall seconds. ``queue``: resources whose claims took at once the last device that was
    offered to them alone. ``lent``: shared devices that shall be in the dra lane: claims have them, or have a turn.
    ``stays``: resource -> how long the last pod that ended had its device, in seconds.
    """

    wanting: Mapping[str, frozenset[Side]] = MappingProxyType({})
    turns: Mapping[str, Turn] = MappingProxyType({})
    promises: Mapping[str, str] = MappingProxyType({})
    asked: Mapping[str, float] = MappingProxyType({})
    queue: frozenset[str] = frozenset()
    lent: frozenset[str] = frozenset()
    stays: Mapping[str, float] = MappingProxyType({})

    @property
    def kept_from_pods(self) -> frozenset[str]:
        """Return the devices that are Unhealthy for kubelet although pods could have them, or have them."""
        for_claims = (name for name, turn in self.turns.items() if turn.side is Side.CLAIMS)
        return frozenset(for_claims) | frozenset(self.promises.values()) - {""}

    def keeps_from_claims(self, entry: Entry) -> bool:
        """Whether a device has a taint although claims could have it: pods get it, or it is about to be lent."""
        turn = self.turns.get(entry.name)
        return turn is not None and entry.lane is not Lane.DRA and (turn.side is Side.PODS or entry.name in self.lent)


NOBODYS = Turns()


class Change(Struct, frozen=True):
    """What happened since the last look.

    ``at``: wall seconds. ``told``: how many devices of each resource pods may have here, as the scheduler knows it.
    ``sent``: resources for which a pod was sent here.
    """

    old: Ledger
    new: Ledger
    at: float
    told: Mapping[str, int]
    sent: Collection[str] = ()


def follow(before: Turns, change: Change) -> Turns:
    """Return whose turn it is after the ledger changed, or time went on."""
    groups: dict[str, list[Entry]] = {}
    for entry in change.new.entries.values():
        if _takes_part(entry, before.lent) and cordoned_by(change.new, entry) is None:
            groups.setdefault(entry.device.resource, []).append(entry)
    if not groups:
        return NOBODYS
    looked = {resource: _Group(before, change, entries) for resource, entries in groups.items()}
    promises = {resource: group.promise() for resource, group in looked.items()}
    after = Turns(
        {resource: group.wanting for resource, group in looked.items()},
        {device: turn for group in looked.values() for device, turn in group.turns.items()},
        {resource: device for resource, device in promises.items() if device is not None},
        {resource: group.asked for resource, group in looked.items()},
        frozenset(resource for resource, group in looked.items() if group.queue),
        frozenset().union(*(group.lent() for group in looked.values())),
        {resource: group.last_stay for resource, group in looked.items() if group.last_stay is not None},
    )
    return before if after == before else after


def _takes_part(entry: Entry, lent: Collection[str]) -> bool:
    """Whether the device is shared or shall be, and only for one pod at a time. ``lent``: devices lent until now."""
    if entry.device.presence is not Presence.PRESENT or len(entry.device.units) != 1:
        return False
    return entry.target is Lane.SHARED or (entry.target is Lane.DRA and entry.name in lent)


def _side(entry: Entry) -> Side | None:
    """Return which side has the device."""
    return Side.PODS if entry.owner is Owner.LEGACY else Side.CLAIMS if entry.owner in DRA_OWNERS else None


class _Group:
    """The shared devices of one resource."""

    def __init__(self, before: Turns, change: Change, entries: list[Entry]) -> None:
        resource, old, new, at = entries[0].device.resource, change.old, change.new, change.at
        returning = {one.name for one in entries if one.lane is Lane.DRA_TO_LEGACY}
        free = {
            one.name: one
            for one in entries
            if one.owner is Owner.NONE and one.name not in returning and blocking_relative(new, one) is None
        }
        was = [(old.entries.get(one.name, one), one) for one in entries]
        tried = frozenset().union(*(_tried(*pair) for pair in was))
        turns = {name: turn for name, turn in before.turns.items() if name in free}
        unused = {turn.side for turn in turns.values() if turn.until <= at}
        self.turns = {name: turn for name, turn in turns.items() if turn.until > at}
        theirs = {one.name for one in entries if _side(one) is Side.CLAIMS}
        taken = [turn for name, turn in before.turns.items() if turn.side is Side.CLAIMS and name in theirs]
        soon = any(at - (turn.until - TURN_SECONDS) <= QUEUE_SECONDS for turn in taken)
        self.queue = soon if taken else resource in before.queue and Side.CLAIMS not in unused
        self.asked = at if Side.PODS in unused else before.asked.get(resource, at)
        pods = {Side.PODS} if resource in change.sent or at - self.asked >= ASK_SECONDS else ()
        wanted = before.wanting.get(resource, frozenset())
        self.wanting = wanted.difference(unused).union(pods, tried)
        self._has = Counter(side for one in entries if (side := _side(one)))
        self._has += Counter(turn.side for turn in self.turns.values())
        self._has[Side.PODS] += len(returning)
        self._promise = before.promises.get(resource)
        self._at = at
        self._told = change.told.get(resource)
        self._settled = at >= new.node.releases_suspended_until
        self._healthy = {
            one.name for one in new.entries.values() if one.device.resource == resource and legacy_healthy(new, one)
        }
        released = [(one, side) for past, one in was if (side := _released_by(past)) and one.name in free]
        self._scarce = not free.keys() - self.turns.keys() - {one.name for one, _ in released}
        for one, side in released:
            if self.wanting == BOTH and self._scarce:
                self._release(one, side)
        self._entries = entries
        self._held = [one for one in entries if one.owner is Owner.LEGACY]
        stays = [seconds for pair in was if (seconds := _ended_stay(*pair, at)) is not None]
        self.last_stay = stays[-1] if stays else before.stays.get(resource)

    def lent(self) -> frozenset[str]:
        """Return the devices that shall be in the dra lane: those that claims have, or have a turn for, in a queue.

        Devices that claims have there stay, even if an earlier agent lent them. Nothing is lent if the next device is
        for pods.
        """
        theirs = [one for one in self._entries if one.owner in _LEASED or self._is_for_claims(one.name)]
        pods_next = self._is_next(Side.PODS, self._has[Side.CLAIMS] - 1)
        lend = self.queue and self.wanting == BOTH and self._scarce and not pods_next
        return frozenset(one.name for one in theirs if lend or one.lane is not Lane.SHARED)

    def _is_for_claims(self, device: str) -> bool:
        """Whether a free device is for claims alone."""
        turn = self.turns.get(device)
        return turn is not None and turn.side is Side.CLAIMS

    def _release(self, released: Entry, last: Side) -> None:
        """Give a device that ``last`` has released to the side that has fewer; a single device goes to each in turn."""
        side = OTHER[last] if self._is_next(OTHER[last], self._has[last]) else last
        if last is Side.PODS and side is Side.CLAIMS:
            if self._is_promise_known():
                self._promise = None
            else:
                side = Side.PODS  # the next pod is coming
        if side is Side.CLAIMS or released.lane is Lane.SHARED:  # else pods get it when it has come back
            self._give(released.name, side)

    def _give(self, device: str, side: Side) -> None:
        self.turns[device] = Turn(side, self._at + TURN_SECONDS)
        self._has[side] += 1

    def _is_promise_known(self) -> bool:
        """Whether the scheduler knows that pods may have one device less."""
        if not self._promise or self._told is None:
            return False
        kept = {name for name, turn in self.turns.items() if turn.side is Side.CLAIMS}
        return self._told <= len(self._healthy - kept - {self._promise})

    def _is_next(self, side: Side, others: int) -> bool:
        """Whether a side shall get another device while the other side has ``others``."""
        return self._has[side] < others or self._has[side] == others == 0

    def promise(self) -> str | None:
        """Return the device promised to claims; None if claims shall not get the next device that pods release.

        Nothing is promised soon after kubelet's start: while it admits its pods again, their devices must be Healthy.
        """
        if self.wanting != BOTH or not self._scarce or not self._settled:
            return None
        kept = self._promise
        have = len(self._held) if kept is None else self._has[Side.PODS]  # a new promise waits for coming pods
        if not self._is_next(Side.CLAIMS, have - 1):
            return None
        staying = [one for one in self._held if one.name == kept or self._will_stay(one)]
        first = min(staying, key=lambda one: (one.name != kept, one.since, one.name), default=None)
        return first.name if first else ""

    def _will_stay(self, held: Entry) -> bool:
        """Whether a pod keeps its device until the scheduler knows a smaller number, as far as can be foreseen.

        The pod has had it for as long as that takes, and is not about to end if it lives as long as the last one did.
        """
        if held.hold is None or self.last_stay is None:
            return False
        stay = self._at - held.hold.allocated_at
        return stay >= TURN_SECONDS and abs(stay - self.last_stay) >= TURN_SECONDS


def _released_by(past: Entry) -> Side | None:
    """Return which side had a device that is free now; a device that moved back from the dra lane was for claims."""
    return Side.CLAIMS if past.lane is Lane.DRA_TO_LEGACY else _side(past)


def _ended_stay(was: Entry, now: Entry, at: float) -> float | None:
    """Return how long a pod had the device that it no longer has; None if none ended. An init container is no pod."""
    if was.hold is None or (now.hold is not None and now.hold.allocated_at == was.hold.allocated_at):
        return None
    stay = at - was.hold.allocated_at
    return stay if stay >= ADMIT_SECONDS else None


def _tried(was: Entry, now: Entry) -> frozenset[Side]:
    """Return the sides that have taken the device between ``was`` and ``now``, or tried to."""
    sides = set()
    if now.hold is not None and (was.hold is None or was.hold.allocated_at != now.hold.allocated_at):
        sides.add(Side.PODS)
    if now.denied != was.denied and now.denied:
        sides.add(Side.CLAIMS)
    if _side(now) is Side.CLAIMS and {one.claim.uid for one in now.holders} - {one.claim.uid for one in was.holders}:
        sides.add(Side.CLAIMS)
    return frozenset(sides)
