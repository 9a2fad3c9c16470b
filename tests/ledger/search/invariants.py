"""What must always hold, as predicates over a ledger and what is really the case outside.

The search of small worlds, the stateful tests and the soak runs all check these. I7 (no leak) is about runs, not about
states: the search proves it by finding, from every state, a way to one where :func:`drained` is true.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from msgspec import Struct, field

from drabridge.inventory.devices import Presence
from drabridge.ledger import eligibility
from drabridge.ledger import events as ev
from drabridge.ledger.apply_event import step
from drabridge.ledger.entries import MOVING, ClaimHold, ClaimPhase, Entry, Lane, Ledger, Owner
from drabridge.ledger.ownership import owner_of
from drabridge.ledger.policy import LedgerPolicy

_NONE: Collection[str] = frozenset()


class Truth(Struct, frozen=True):
    """What is really the case, seen from outside: by device name, or by claim UID."""

    pods: Mapping[str, Collection[str]] = field(default_factory=dict)  # device -> pods whose processes may use it
    claims: Mapping[str, Collection[str]] = field(default_factory=dict)  # device -> claims whose processes may use it
    promised_pods: Mapping[str, Collection[str]] = field(
        default_factory=dict
    )  # device -> pods told "yes" and not ended
    promised_claims: Mapping[str, Collection[str]] = field(default_factory=dict)  # the same for prepared claims
    healthy: Collection[str] = _NONE  # devices that kubelet believes Healthy
    schedulable: Collection[str] = _NONE  # devices that a scheduler may still choose
    offered: Collection[str] = _NONE  # devices that the slices in the API offer
    in_allocate: Collection[str] = _NONE  # devices that kubelet is allocating, or has given to a pod
    uses: Mapping[str, Collection[str]] = field(default_factory=dict)  # claim -> its devices, in the API
    leased: Mapping[str, Collection[str]] = field(default_factory=dict)  # claim -> devices that it was told it has
    denied: Mapping[str, Collection[str]] = field(default_factory=dict)  # claim -> devices that it was told it lacks
    shared: Collection[str] = _NONE  # devices that claims may share


class Violation(Struct, frozen=True):
    """An invariant that does not hold."""

    invariant: str
    device: str
    what: str

    def __str__(self) -> str:
        return f"{self.invariant} {self.device}: {self.what}"


def check(ledger: Ledger, truth: Truth, policy: LedgerPolicy) -> tuple[Violation, ...]:
    """Every violated invariant about states."""
    return check_ledger(ledger, policy) + check_truth(ledger, truth, policy)


def check_ledger(ledger: Ledger, policy: LedgerPolicy) -> tuple[Violation, ...]:
    """The part of :func:`check` that needs nothing but the ledger."""
    nothing = Truth()
    return tuple(violation for rule in _LEDGER_RULES for violation in rule(ledger, nothing, policy))


def check_truth(ledger: Ledger, truth: Truth, policy: LedgerPolicy) -> tuple[Violation, ...]:
    """The part of :func:`check` that compares the ledger with the world."""
    return tuple(violation for rule in _TRUTH_RULES for violation in rule(ledger, truth, policy))


def check_step(before: Ledger, event: ev.Event, after: Ledger, policy: LedgerPolicy) -> tuple[Violation, ...]:
    """Every violated invariant about steps."""
    return tuple(violation for rule in _STEP_RULES for violation in rule(before, event, after, policy))


def drained(ledger: Ledger) -> bool:
    """Nobody holds anything or was denied it, and no move is under way."""
    return all(
        entry.owner is Owner.NONE and entry.lane not in MOVING and not entry.denied for entry in ledger.entries.values()
    )


Found = Iterator[Violation]


def one_holder(ledger: Ledger, truth: Truth, policy: LedgerPolicy) -> Found:
    """I1: never a pod and a claim, never two claims, on one device or on overlapping ones."""
    for name in {*truth.pods, *truth.claims}:
        pods, claims = truth.pods.get(name, ()), truth.claims.get(name, ())
        if pods and claims:
            yield Violation("I1", name, f"used by pods {sorted(pods)} and by claims {sorted(claims)}")
        if len(claims) > 1 and name not in truth.shared:
            yield Violation("I1", name, f"used by claims {sorted(claims)}")
        entry = ledger.entries.get(name)
        for relative in ledger.relatives(entry.device) if entry else ():
            if (pods or claims) and (truth.pods.get(relative.name) or truth.claims.get(relative.name)):
                yield Violation("I1", name, f"used while {relative.name}, a part of the same hardware, is used")


def durable_promise(ledger: Ledger, truth: Truth, policy: LedgerPolicy) -> Found:
    """I2: who was told "yes" is in the durable ledger."""
    for name, pods in truth.promised_pods.items():
        entry = ledger.entries.get(name)
        if pods and (entry is None or (entry.hold is None and entry.owner is not Owner.QUARANTINE)):
            yield Violation("I2", name, f"pods {sorted(pods)} were promised it, the ledger says {_owner(entry)}")
    for name, uids in truth.promised_claims.items():
        entry = ledger.entries.get(name)
        for uid in uids:
            if not (entry and (_prepared(entry, uid) or entry.owner is Owner.QUARANTINE)):
                yield Violation("I2", name, f"claim {uid} was promised it, the ledger says {_owner(entry)}")


def one_side(ledger: Ledger, truth: Truth, policy: LedgerPolicy) -> Found:
    """I3: outside the shared lane, a free device is offered on one side at most, with what others still believe."""
    for name in set(truth.healthy) & set(truth.schedulable):
        entry = ledger.entries.get(name)
        if entry and entry.owner is Owner.NONE and entry.lane is not Lane.SHARED:
            yield Violation("I3", name, "free, and both kubelet and a scheduler may choose it")


def none_means_none(ledger: Ledger, truth: Truth, policy: LedgerPolicy) -> Found:
    """I4: no process uses a device that nobody owns."""
    for name, entry in ledger.entries.items():
        if entry.owner is Owner.NONE and (truth.pods.get(name) or truth.claims.get(name)):
            yield Violation("I4", name, "the ledger says free, and it is used")


def no_arbitration_by_health(ledger: Ledger, truth: Truth, policy: LedgerPolicy) -> Found:
    """I5: what a pod holds stays Healthy while the hardware is; what kubelet would be refused is not Healthy."""
    for name, entry in ledger.entries.items():
        healthy = eligibility.legacy_healthy(ledger, entry)
        present = entry.device.presence is Presence.PRESENT
        if entry.owner is Owner.LEGACY and present and not healthy and not entry.counted_elsewhere:
            yield Violation("I5", name, "held by a pod and Unhealthy")
        allocate = ev.Allocate({name: entry.device.units}, entry.since)
        if healthy and ledger.node.merged and not step(ledger, allocate, policy).decision.accepted:
            yield Violation("I5", name, "Healthy, and an Allocate would be refused")


def whole_claims(ledger: Ledger, truth: Truth, policy: LedgerPolicy) -> Found:
    """I6: a claim is prepared on all of its devices or on none.

    Granted it may be on a part: out of quarantine the devices come one by one, as they are seen to be unused.
    """
    for uid, devices in truth.uses.items():
        mine = set(ledger.by_claim.get(uid, ()))
        if any(_prepared(ledger.entries[name], uid) for name in mine) and not set(devices) <= mine:
            missing = sorted(set(devices) - mine)
            yield Violation("I6", missing[0], f"claim {uid} is prepared on {sorted(mine)} and lacks {missing}")


def ids_stay_listed(ledger: Ledger, truth: Truth, policy: LedgerPolicy) -> Found:
    """An id that may be in an Allocate, or that a pod has, stays in the list: kubelet 1.36.2 crashes otherwise."""
    for name in truth.in_allocate:
        if name not in ledger.entries:
            yield Violation("listed", name, "its id is gone from the list while kubelet has it")


def leases_hold(ledger: Ledger, truth: Truth, policy: LedgerPolicy) -> Found:
    """L1: a claim that was told it has its devices, or was prepared, has them alone, and no pod can be given them."""
    for uid, devices in truth.leased.items():
        for name in set(ledger.by_claim.get(uid, ())) - set(devices):
            yield Violation("L1", name, f"claim {uid} was told that others are leased to it, and has this one still")
        for name in devices:
            entry = ledger.entries.get(name)
            held = entry.claim(uid) if entry else None
            if entry and entry.owner is Owner.QUARANTINE:
                continue
            if held is None or held.phase not in (ClaimPhase.GRANTED, ClaimPhase.PREPARED):
                yield Violation("L1", name, f"claim {uid} was told it has it, the ledger says {_owner(entry)}")
            elif name in truth.healthy:
                yield Violation("L1", name, f"claim {uid} was told it has it, and kubelet may give it to a pod")


def denials_show(ledger: Ledger, truth: Truth, policy: LedgerPolicy) -> Found:
    """L2: the slices do not offer what a claim was told it cannot have: it would be given the same device again."""
    for uid, devices in truth.denied.items():
        for name in set(devices) & set(truth.offered):
            entry = ledger.entries.get(name)
            if entry and entry.claim(uid) is None:
                yield Violation("L2", name, f"claim {uid} was denied it, and the slices offer it still")


def consistent(ledger: Ledger, truth: Truth, policy: LedgerPolicy) -> Found:
    """The owner follows from the holders; a moving device is free; an index is what it indexes."""
    for name, entry in ledger.entries.items():
        if entry.owner is not Owner.QUARANTINE and entry.owner is not owner_of(entry.hold, entry.claims):
            yield Violation("form", name, f"owner {entry.owner} does not follow from its holders")
        if entry.lane in MOVING and (entry.owner is not Owner.NONE or entry.move is None):
            yield Violation("form", name, f"moving ({entry.lane}) while {entry.owner}")
        if any(name not in ledger.by_claim.get(held.claim.uid, ()) for held in entry.claims):
            yield Violation("form", name, "missing in the index of claims")


def idempotent(before: Ledger, event: ev.Event, after: Ledger, policy: LedgerPolicy) -> Found:
    """I8: a request that is repeated gets the same answer and changes no owner."""
    if isinstance(event, ev.Allocate | ev.Prepare | ev.Unprepare | ev.ClaimAllocated | ev.ClaimDeallocated):
        again = step(after, event, policy)
        if step(before, event, policy).decision.accepted != again.decision.accepted:
            yield Violation("I8", "", f"{event} is answered otherwise when it is repeated")
        for entry in again.changes:
            if entry.owner is not after.entries[entry.name].owner:
                yield Violation("I8", entry.name, f"{event}, repeated, changes the owner")


_ENDS_PREPARED = ev.Unprepare | ev.NodeBooted | ev.ManualRelease
_ENDS_GRANTED = ev.ClaimDeallocated | ev.ClaimAllocated | ev.ManualRelease
_ENDS_WAITING = _ENDS_GRANTED | ev.LeaseDenied | ev.Allocate | ev.Observed | ev.AgentStarted


def claims_end_twice(before: Ledger, event: ev.Event, after: Ledger, policy: LedgerPolicy) -> Found:
    """I9: a prepared claim's hold ends only when it is deallocated in the API *and* unprepared.

    A pod, or a denial, ends none of a claim that has all of its devices.
    """
    for name, old, new in _changed(before, after):
        for held in old.holders:
            if new is not None and new.claim(held.claim.uid) is not None:
                continue
            if not _may_end(held, event, before):
                yield Violation(
                    "I9", name, f"claim {held.claim.uid} ({held.phase}) was dropped by {type(event).__name__}"
                )


def _may_end(held: ClaimHold, event: ev.Event, before: Ledger) -> bool:
    if held.phase is ClaimPhase.PREPARED:
        return isinstance(event, _ENDS_PREPARED) and not held.api_allocated
    names = set(before.by_claim[held.claim.uid])
    if isinstance(event, ev.LeaseDenied):
        names |= {use.device for use in event.uses}
    has_all = all(name in before.entries and _granted(before.entries[name], held.claim.uid) for name in names)
    return isinstance(event, _ENDS_GRANTED if has_all else _ENDS_WAITING)


def doubt_holds(before: Ledger, event: ev.Event, after: Ledger, policy: LedgerPolicy) -> Found:
    """I10: a legacy hold ends by evidence (or the operator), QUARANTINE by evidence, nothing by time alone."""
    for name, old, new in _changed(before, after):
        hold_ended = old.hold is not None and (new is None or new.hold is None)
        if hold_ended and not isinstance(event, ev.Observed | ev.ManualRelease | ev.AgentStarted):
            yield Violation("I10", name, f"the legacy hold was ended by {type(event).__name__}")
        if old.owner is Owner.QUARANTINE and new and new.owner is Owner.NONE and isinstance(event, ev.AgentStarted):
            yield Violation("I10", name, "quarantine ended without evidence")


_GIVES = ev.Allocate | ev.Prepare | ev.ClaimAllocated | ev.LeaseGranted


def out_of_service(before: Ledger, event: ev.Event, after: Ledger, policy: LedgerPolicy) -> Found:
    """C1: nobody new gets a cordoned device. C2: a cordon takes it from nobody."""
    for name, old, new in _changed(before, after) if isinstance(event, _GIVES | ev.Cordoned) else ():
        had, has = _who_has(old), _who_has(new)
        if isinstance(event, ev.Cordoned) and had != has:
            yield Violation("C2", name, f"{sorted(had)} had it, {sorted(has)} have it after a cordon")
        elif eligibility.cordoned_by(before, old) is not None and has - had:
            yield Violation("C1", name, f"{type(event).__name__} gives it to {sorted(has - had)} while it is cordoned")


def _who_has(entry: Entry | None) -> set[str]:
    if entry is None:
        return set()
    claims = {held.claim.uid for held in entry.claims if held.phase in (ClaimPhase.GRANTED, ClaimPhase.PREPARED)}
    return claims | ({"a pod"} if entry.hold is not None else set())


def _changed(before: Ledger, after: Ledger) -> Iterator[tuple[str, Entry, Entry | None]]:
    for name, old in before.entries.items():
        new = after.entries.get(name)
        if new is not old:
            yield name, old, new


def _prepared(entry: Entry, uid: str) -> bool:
    held = entry.claim(uid)
    return held is not None and held.phase is ClaimPhase.PREPARED


def _granted(entry: Entry, uid: str) -> bool:
    held = entry.claim(uid)
    return held is not None and held.phase in (ClaimPhase.GRANTED, ClaimPhase.PREPARED)


def _owner(entry: Entry | None) -> str:
    return "nothing" if entry is None else str(entry.owner)


_LEDGER_RULES: tuple[Callable[[Ledger, Truth, LedgerPolicy], Found], ...] = (no_arbitration_by_health, consistent)
_TRUTH_RULES: tuple[Callable[[Ledger, Truth, LedgerPolicy], Found], ...] = (
    one_holder,
    durable_promise,
    one_side,
    none_means_none,
    whole_claims,
    ids_stay_listed,
    leases_hold,
    denials_show,
)
_STEP_RULES: tuple[Callable[[Ledger, ev.Event, Ledger, LedgerPolicy], Found], ...] = (
    idempotent,
    claims_end_twice,
    doubt_holds,
    out_of_service,
)
