"""Follow who holds which device, for chargeback: seconds by owner, and each hold once it has ended.

Here a hold is one pod or one claim that has one device. If several share a device, each has a hold. A hold begins when
the ledger shows it. The former agent has counted the time before this agent's start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from drabridge.ledger.entries import ClaimPhase, Entry, Ledger, Owner, PodRef
from drabridge.telemetry.metrics import Sample

PODS, CLAIMS = "deviceplugin", "dra"  # values of the label ``api``
SERIES_MAX = 500  # owners with series of their own; a cluster's namespaces and workloads come and go
OVERFLOW_MAX = 1000  # series in all, with one for all further owners of each namespace
OTHER = "other"  # stands for owners or namespaces beyond these limits
PATIENCE_SECONDS = 60.0  # within this, kubelet shows a pod and the API server its owner

Key = tuple[str, str, str]  # device, api, and the pod's or claim's identity; "" while kubelet has shown no pod
OwnerOf = Callable[["Holding"], str]


class Holding(Struct, frozen=True):
    """A pod or claim that has a device. ``since``: wall seconds. ``owner``: ``Deployment/web``; "" if unknown."""

    device: str
    resource: str
    api: str
    namespace: str = ""
    name: str = ""  # the pod's or the claim's name
    uid: str = ""
    since: float = 0.0
    owner: str = ""


class Ended(Struct, frozen=True):
    """A hold that is over. ``until``: wall seconds."""

    holding: Holding
    until: float
    because: str


class _Open(Struct):
    holding: Holding
    opened: float  # on the monotonic clock, as is the next one
    counted: float


class Holds:
    """The holds of one agent process. ``follow`` after each change of the ledger; ``samples`` at each scrape."""

    def __init__(self, owner_of: OwnerOf, clock: Callable[[], float] = time.monotonic) -> None:
        """``owner_of`` returns the workload of a pod or claim; "" while that is unknown."""
        self._owner_of = owner_of
        self._clock = clock
        self._seen = Ledger().entries
        self._open: dict[Key, _Open] = {}
        self._seconds: dict[tuple[str, ...], float] = {}

    @property
    def open(self) -> list[Holding]:
        """The present holds."""
        return [one.holding for one in self._open.values()]

    def follow(self, ledger: Ledger, at: float) -> list[Ended]:
        """Take the holds from the ledger; return those that have ended. ``at``: wall seconds."""
        before, self._seen = self._seen, ledger.entries
        changed = [entry for name, entry in ledger.entries.items() if before.get(name) is not entry]
        ended = [one for entry in changed for one in self._follow(entry, at)]
        forgotten = [key for key in self._open if key[0] not in ledger.entries]
        ended += [self._end(key, at, "the device was forgotten") for key in forgotten]
        self._find_owners()
        return ended

    def samples(self) -> Iterator[Sample]:
        """Yield the counter ``held_seconds`` of every series."""
        self._find_owners()
        now = self._clock()
        for one in self._open.values():
            if one.holding.owner or now - one.opened >= PATIENCE_SECONDS:
                self._count(one, now)
        for labels, seconds in self._seconds.items():
            yield "held_seconds", labels, seconds

    def _follow(self, entry: Entry, at: float) -> Iterator[Ended]:
        now = self._clock()
        device = entry.name
        held = {(device, *identity): holding for identity, holding in _holdings(entry).items()}
        unknown = (device, PODS, "")
        known_before = [key for key in self._open if key[:2] == (device, PODS) and key != unknown]
        if unknown in held and known_before:  # allocated again, perhaps to the same pod: wait until kubelet shows which
            del held[unknown]
            held |= {key: self._open[key].holding for key in known_before}
        began = self._open.get(unknown) if unknown not in held else None
        for key, holding in held.items():
            if key in self._open:
                continue
            if began is not None and key[1] == PODS:
                self._open.pop(unknown, None)
                holding = replace(holding, since=began.holding.since)
                self._open[key] = _Open(holding, began.opened, began.counted)
            else:
                self._open[key] = _Open(holding, now, now)
        until = min(at, entry.hold.allocated_at) if entry.hold is not None else at
        because = entry.released_because if entry.hold is None else "another pod has it"
        for key in [key for key in self._open if key[0] == device and key not in held]:
            if key[1] == PODS:
                yield self._end(key, until, because)
            else:
                yield self._end(key, at, entry.released_because)

    def _end(self, key: Key, until: float, because: str) -> Ended:
        one = self._open.pop(key)
        one.holding = self._with_owner(one.holding)
        self._count(one, self._clock())
        return Ended(one.holding, max(until, one.holding.since), because)

    def _find_owners(self) -> None:
        for one in self._open.values():
            one.holding = self._with_owner(one.holding)

    def _with_owner(self, holding: Holding) -> Holding:
        if holding.owner or not holding.name:
            return holding
        owner = self._owner_of(holding)
        return replace(holding, owner=owner) if owner else holding

    def _count(self, one: _Open, now: float) -> None:
        labels = self._labels(one.holding)
        self._seconds[labels] = self._seconds.get(labels, 0.0) + now - one.counted
        one.counted = now

    def _labels(self, holding: Holding) -> tuple[str, ...]:
        """Return the labels of a series that exists or may be added. Beyond the limits, all others share one."""
        kind, _, name = holding.owner.partition("/")
        rest = (holding.api, holding.resource)
        whole = (holding.namespace, kind, name, *rest)
        if whole in self._seconds or len(self._seconds) < SERIES_MAX:
            return whole
        others = (holding.namespace, "", OTHER, *rest)
        if others in self._seconds or len(self._seconds) < OVERFLOW_MAX:
            return others
        return (OTHER, "", OTHER, *rest)


def _holdings(entry: Entry) -> dict[tuple[str, str], Holding]:
    """Return (api, identity) -> who has the device. Admin access and claims that wait for a lease have nothing."""
    device, resource = entry.name, entry.device.resource
    found: dict[tuple[str, str], Holding] = {}
    if entry.hold is not None and (entry.hold.pods or entry.owner is not Owner.QUARANTINE):
        for pod in entry.hold.pods or (PodRef(),):
            identity = f"{pod.namespace}/{pod.name}" if pod.name else pod.uid
            found[PODS, identity] = Holding(
                device, resource, PODS, pod.namespace, pod.name, pod.uid, entry.hold.allocated_at
            )
    for held in entry.holders:
        if held.phase in (ClaimPhase.GRANTED, ClaimPhase.PREPARED):
            claim = held.claim
            found[CLAIMS, claim.uid] = Holding(
                device, resource, CLAIMS, claim.namespace, claim.name, claim.uid, held.since
            )
    return found
