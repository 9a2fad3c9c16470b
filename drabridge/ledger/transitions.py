"""What one row of the table does to one device.

A transition gets the draft of the step, the entry as it is, and the row's argument; it returns the entry as it will be
(the same object if nothing changes) or a refusal. Which transition runs is the table's business alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from drabridge.inventory.model import Presence
from drabridge.ledger import refusal, release
from drabridge.ledger.events import Drain, QuorumClear, Resolve, SetLane, Use
from drabridge.ledger.model import (
    DRA_OWNERS,
    MOVING,
    ClaimHold,
    ClaimRef,
    Entry,
    HeldBecause,
    Hold,
    Lane,
    Ledger,
    Move,
    MoveStep,
    NodeState,
    Owner,
    Phase,
    Policy,
    Share,
)
from drabridge.ledger.outcome import (
    ConfirmClaim,
    DenyClaim,
    Effect,
    Notify,
    Refusal,
    Released,
    Side,
    Subject,
    TransferAborted,
    Transferred,
)
from drabridge.ledger.release import Free, Witness

Outcome = Entry | Refusal


class Draft:
    """A step in the making: the ledger before, the entries touched so far, and what else is to be reported."""

    __slots__ = (
        "at",
        "denied",
        "durable_node",
        "effects",
        "ledger",
        "node",
        "policy",
        "refusals",
        "removed",
        "seq",
        "table",
        "touched",
    )

    def __init__(self, ledger: Ledger, at: float, policy: Policy, table: Any) -> None:
        self.ledger = ledger
        self.at = at
        self.policy = policy
        self.table = table
        self.seq = ledger.seq + 1
        self.touched: dict[str, Entry] = {}
        self.removed: list[str] = []
        self.refusals: list[Refusal] = []
        self.effects: list[Effect] = []
        self.node: NodeState | None = None
        self.durable_node = False
        self.denied: list[str] = []  # claim UIDs that lost their lease in this step

    def get(self, name: str) -> Entry | None:
        """The entry as this step has it so far."""
        return self.touched.get(name) or self.ledger.entries.get(name)

    @property
    def node_now(self) -> NodeState:
        """The node's state as this step has it so far."""
        return self.node or self.ledger.node

    def relatives(self, entry: Entry) -> Iterable[Entry]:
        """Entries that overlap with this one in hardware, as this step has them so far."""
        for relative in self.ledger.relatives(entry.device):
            yield self.touched.get(relative.device.name, relative)


class Demand(NamedTuple):
    """One device of a claim, asked for."""

    claim: ClaimRef
    use: Use
    guarded: bool = False


# --- how owner and lane follow from the holders ---------------------------------------------------------------------


def owner_of(hold: Hold | None, claims: tuple[ClaimHold, ...]) -> Owner:
    """Who owns a device with these holders. Admin access holds nothing."""
    strongest = Owner.NONE
    for held in claims:
        if held.admin:
            continue
        if held.phase is Phase.PREPARED:
            strongest = Owner.DRA_PREPARED
            break
        if held.phase is Phase.GRANTED:
            strongest = Owner.DRA_GRANTED
        elif strongest is Owner.NONE:
            strongest = Owner.DRA_PENDING
    if hold is None:
        return strongest
    return Owner.LEGACY if strongest is Owner.NONE else Owner.CONFLICT


def settle(
    draft: Draft, before: Entry, hold: Hold | None, claims: tuple[ClaimHold, ...] = (), because: str = ""
) -> Entry:
    """The entry with these holders: its owner, its lane, and a waiting move begun or an open one aborted."""
    owner = owner_of(hold, claims)
    lane, move, since, released = before.lane, before.move, before.since, before.released_because
    if owner is not before.owner:
        since = draft.at
        if owner is Owner.NONE:
            lane, move = _lane_when_free(draft, before)
        elif lane in MOVING or lane is (Lane.DRA if owner is Owner.LEGACY else Lane.LEGACY):
            lane, move = _lane_when_held(draft, before, owner)
        if owner is Owner.CONFLICT:
            _alarm(draft, before, hold, claims)
    if (hold is None and before.hold is not None) or len(claims) < len(before.claims):
        released = because
        who = refusal.holder(before, hold, claims)
        draft.effects.append(Released(before.name, who, because, draft.at - before.since))
    return Entry(before.device, owner, lane, before.drain, hold, claims, move, since, draft.seq, released)


def _lane_when_held(draft: Draft, before: Entry, owner: Owner) -> tuple[Lane, Move | None]:
    """A held device is in the lane of its holder's side; where it was meant to be, it moves when it is let go."""
    lane, move = before.lane, before.move
    target = lane if move is None else move.target
    if lane in MOVING and move is not None:
        lane = move.source
        draft.effects.append(TransferAborted(before.name, move.target, f"taken while it was {move.step}"))
    if owner is Owner.LEGACY and lane is Lane.DRA:
        lane = Lane.LEGACY
    elif owner in DRA_OWNERS and lane is Lane.LEGACY:
        lane = Lane.DRA
    if target is lane:
        return lane, None
    asked = move.since if move else draft.at
    return lane, Move(lane, target, MoveStep.WAITING, asked, draft.at, "the device is held")


def _lane_when_free(draft: Draft, before: Entry) -> tuple[Lane, Move | None]:
    """A waiting move begins. Out of CONFLICT or QUARANTINE, kubelet must confirm before claims are offered a device."""
    if before.move is not None:
        return _begin(draft, before.lane, before.move.target, before.move.since)
    if before.owner in (Owner.CONFLICT, Owner.QUARANTINE) and before.lane is Lane.DRA:
        return _begin(draft, Lane.LEGACY, Lane.DRA, draft.at)
    return before.lane, None


def _begin(draft: Draft, source: Lane, target: Lane, asked: float) -> tuple[Lane, Move | None]:
    """Start to move a free device: tell the side that has it; the other side gets it once that is confirmed."""
    if target is source:
        return source, None
    if source is Lane.LEGACY and target is Lane.SHARED:
        return Lane.SHARED, None  # nobody loses it, and its claims will be guarded
    revoke = Lane.LEGACY_TO_DRA if target is Lane.DRA else Lane.DRA_TO_LEGACY
    whom = "kubelet" if revoke is Lane.LEGACY_TO_DRA else "the API server"
    return revoke, Move(source, target, MoveStep.REVOKING, asked, draft.at, f"waits for {whom} to confirm")


def _alarm(draft: Draft, before: Entry, hold: Hold | None, claims: tuple[ClaimHold, ...]) -> None:
    """Tell everybody concerned that a pod and a claim have one device."""
    pods = hold.pods if hold else ()
    holders = tuple(held.claim for held in claims if not held.admin)
    message = (
        f"{before.name} is used by {', '.join(map(str, pods)) or 'a pod'} through resource limits and by "
        f"{', '.join(f'claim {claim}' for claim in holders)}; stop one of them"
    )
    draft.effects.append(Notify(Subject.NODE, "DeviceConflict", message))
    draft.effects += [Notify(Subject.POD, "DeviceConflict", message, p.namespace, p.name, p.uid) for p in pods]
    draft.effects += [Notify(Subject.CLAIM, "DeviceConflict", message, c.namespace, c.name, c.uid) for c in holders]


def _obstacle(draft: Draft, entry: Entry) -> Refusal | None:
    """Why a free device cannot be given to anybody: it is not there, or overlapping hardware is held."""
    if entry.device.presence is not Presence.PRESENT:
        return refusal.not_present(entry)
    for relative in draft.relatives(entry):
        if relative.owner is not Owner.NONE:
            return refusal.overlaps(entry, relative, draft.at)
    return None


# --- rows that change nothing ---------------------------------------------------------------------------------------


def ignore(draft: Draft, entry: Entry, what: Any) -> Outcome:
    """The signal means nothing here."""
    return entry


def refuse_held(draft: Draft, entry: Entry, what: Any) -> Outcome:
    """Somebody has it."""
    return refusal.held(entry, draft.at)


def refuse_lane_legacy(draft: Draft, entry: Entry, what: Any) -> Outcome:
    """It is free, but not for pods with limits."""
    return _obstacle(draft, entry) or refusal.other_lane(entry, Side.LEGACY)


def refuse_lane_dra(draft: Draft, entry: Entry, what: Any) -> Outcome:
    """It is free, but not for claims."""
    return _obstacle(draft, entry) or refusal.other_lane(entry, Side.DRA)


# --- legacy ---------------------------------------------------------------------------------------------------------


def take(draft: Draft, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """Allocate of a free device."""
    return _obstacle(draft, entry) or settle(draft, entry, Hold(units, draft.at), entry.claims)


def take_shared(draft: Draft, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """Allocate of a free device that claims may have, too."""
    return take(draft, entry, units) if draft.policy.g2 else refusal.disabled(entry)


def retake(draft: Draft, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """Allocate of what a legacy pod has: an app container after its init container, a re-admitted pod, another replica.

    Refusing here on the word of PodResources made pods fail in storms (project-akri/akri#849).
    """
    if entry.device.presence is not Presence.PRESENT:
        return refusal.not_present(entry)
    old = entry.hold or Hold()
    kept = old.units if set(units) <= set(old.units) else tuple(sorted({*old.units, *units}))
    return settle(draft, entry, Hold(kept, draft.at, False, old.last_seen, pods=old.pods), entry.claims)


def preempt(draft: Draft, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """G2: until the lease is confirmed, the pod wins and the claim is denied."""
    if not draft.policy.g2:
        return refusal.held(entry, draft.at)
    draft.denied += [held.claim.uid for held in entry.holders]
    return settle(draft, entry, Hold(units, draft.at), tuple(held for held in entry.claims if held.admin))


def confirm(draft: Draft, entry: Entry, witness: Witness) -> Outcome:
    """Kubelet shows the pod."""
    hold = entry.hold or Hold()
    seen = release.seen(hold, witness, draft.at)
    return entry if seen is hold else replace(entry, hold=seen)


def adopt(draft: Draft, entry: Entry, witness: Witness) -> Outcome:
    """Kubelet shows a pod on a device that no pod was known to have: believe it. With a claim on it: CONFLICT."""
    hold = Hold(entry.device.units, draft.at, True, draft.at, pods=witness.pods, because=HeldBecause.RUNNING)
    message = f"{entry.name} was recorded as {entry.owner}, and kubelet shows {', '.join(map(str, witness.pods))} on it"
    draft.effects.append(Notify(Subject.NODE, "DeviceAdopted", message, warning=False))
    return settle(draft, entry, hold, entry.claims)


def weigh(draft: Draft, entry: Entry, witness: Witness) -> Outcome:
    """Kubelet does not show the pod: has it let go?"""
    hold = entry.hold or Hold()
    strict = entry.owner is Owner.QUARANTINE
    node = draft.ledger.node
    if strict and not node.merged:
        return entry
    verdict = release.weigh(
        hold,
        witness,
        at=draft.at,
        suspended_until=node.releases_suspended_until,
        policy=draft.policy,
        strict=strict,
    )
    if isinstance(verdict, Free):
        return settle(draft, entry, None, entry.claims, verdict.because)
    return entry if verdict is hold else replace(entry, hold=verdict)


# --- claims ---------------------------------------------------------------------------------------------------------


def _shares(use: Use) -> tuple[Share, ...]:
    return (use.share,) if use.share else ()


def _with(claims: tuple[ClaimHold, ...], new: ClaimHold) -> tuple[ClaimHold, ...]:
    """``claims`` with ``new`` instead of the one of the same UID and kind."""
    rest = tuple(held for held in claims if (held.claim.uid, held.admin) != (new.claim.uid, new.admin))
    return (*rest, new)


def _give(draft: Draft, entry: Entry, demand: Demand, phase: Phase) -> Entry:
    new = ClaimHold(demand.claim, phase, draft.at, _shares(demand.use))
    return settle(draft, entry, entry.hold, (*entry.claims, new))


def grant(draft: Draft, entry: Entry, demand: Demand) -> Outcome:
    """A claim was allocated a device that claims may have. Hardware that is gone does not make it untrue."""
    for relative in draft.relatives(entry):
        if relative.owner is not Owner.NONE:
            return refusal.overlaps(entry, relative, draft.at)
    return _give(draft, entry, demand, Phase.GRANTED)


def pend(draft: Draft, entry: Entry, demand: Demand) -> Outcome:
    """A claim was allocated a shared device: kubelet must give it up first, unless nobody waits for the lease."""
    if not draft.policy.g2:
        return refusal.disabled(entry)
    return _obstacle(draft, entry) or _give(draft, entry, demand, Phase.PENDING if demand.guarded else Phase.GRANTED)


def prepare(draft: Draft, entry: Entry, demand: Demand) -> Outcome:
    """Kubelet prepares a claim before the watch showed its allocation; the API server was asked."""
    return _obstacle(draft, entry) or _give(draft, entry, demand, Phase.PREPARED)


def regrant(draft: Draft, entry: Entry, demand: Demand) -> Outcome:
    """The API server shows an allocation of a device that claims hold: known, shared, or a second holder."""
    return _join(draft, entry, demand, Phase.GRANTED)


def reprepare(draft: Draft, entry: Entry, demand: Demand) -> Outcome:
    """Kubelet prepares a claim on a device that claims hold: this one, a share of it, or a second holder."""
    held = next((held for held in entry.holders if held.claim.uid == demand.claim.uid), None)
    if held and held.phase in (Phase.PENDING, Phase.WITHDRAWN):
        return refusal.pending(entry)
    if entry.device.presence is not Presence.PRESENT and not (held and held.phase is Phase.PREPARED):
        return refusal.not_present(entry)
    return _join(draft, entry, demand, Phase.PREPARED)


def _join(draft: Draft, entry: Entry, demand: Demand, phase: Phase) -> Outcome:
    """Add ``demand`` to the claims that hold the device, or refuse it. Repeating it changes nothing."""
    use = demand.use
    known = next((held for held in entry.holders if held.claim.uid == demand.claim.uid), None)
    other = next((held for held in entry.holders if held.claim.uid != demand.claim.uid), None)
    new_share = use.share is not None and (known is None or all(use.share.id != share.id for share in known.shares))
    shared = entry.device.shareable and use.share and all(held.shares for held in entry.holders)
    if known is None and other is not None and not shared:
        return refusal.exclusive(entry, other, draft.at)
    if new_share and use.share and (over := _overcommitted(entry, use.share)):
        return over
    if known is None:
        return _give(draft, entry, demand, phase)
    stronger = phase is Phase.PREPARED and known.phase is not Phase.PREPARED
    if not (stronger or new_share or not known.api_allocated):
        return entry
    changed = replace(
        known,
        phase=phase if stronger else known.phase,
        since=draft.at if stronger else known.since,
        shares=known.shares + (_shares(use) if new_share else ()),
        api_allocated=True,
    )
    return settle(draft, entry, entry.hold, _with(entry.claims, changed))


def _overcommitted(entry: Entry, share: Share) -> Refusal | None:
    """Whether a new share asks for more than the others leave. The scheduler counts first; this is defence."""
    total = dict(entry.device.capacity)
    for name, wanted in share.consumed:
        if name not in total:
            continue
        used = sum(
            amount
            for held in entry.holders
            for given in held.shares
            for capacity, amount in given.consumed
            if capacity == name
        )
        if used + wanted > total[name]:
            return refusal.overcommitted(entry, name, wanted, total[name] - used)
    return None


def note_allocated(draft: Draft, entry: Entry, demand: Demand) -> Outcome:
    """An allocation of a device in CONFLICT or QUARANTINE: noted for a claim that is recorded, refused for another."""
    known = entry.claim(demand.claim.uid)
    if known is None:
        return refusal.held(entry, draft.at)
    if known.api_allocated:
        return entry
    return replace(entry, claims=_with(entry.claims, replace(known, api_allocated=True)), seq=draft.seq)


def admit_admin(draft: Draft, entry: Entry, demand: Demand) -> Outcome:
    """Admin access holds nothing and hinders nobody; it is recorded so that Unprepare finds it."""
    if any(held.admin and held.claim.uid == demand.claim.uid for held in entry.claims):
        return entry
    new = ClaimHold(demand.claim, Phase.PREPARED, draft.at, _shares(demand.use), admin=True)
    return replace(entry, claims=(*entry.claims, new), seq=draft.seq)


def found_prepared(draft: Draft, entry: Entry, demand: Demand) -> Outcome:
    """A CDI file says that a claim may be in use: so it holds the device, whatever the ledger thought."""
    known = entry.claim(demand.claim.uid)
    if known and known.phase is Phase.PREPARED:
        return entry
    new = ClaimHold(demand.claim, Phase.PREPARED, draft.at, _shares(demand.use), demand.use.admin)
    hold = None if entry.owner is Owner.QUARANTINE and entry.hold and not entry.hold.confirmed else entry.hold
    return settle(draft, entry, hold, _with(entry.claims, new))


def _reclaim(draft: Draft, entry: Entry, claims: tuple[ClaimHold, ...], because: str) -> Entry:
    """The entry with other claims; QUARANTINE stays what it is."""
    if entry.owner is Owner.QUARANTINE:
        return replace(entry, claims=claims, seq=draft.seq)
    return settle(draft, entry, entry.hold, claims, because)


def deallocate(draft: Draft, entry: Entry, uid: str) -> Outcome:
    """The API server has taken the device from the claim. What kubelet has prepared stays until it unprepares."""
    return _each(
        draft,
        entry,
        uid,
        lambda held: None if held.phase is not Phase.PREPARED else _unallocated(held),
        "the claim was deallocated before it was prepared",
    )


def _unallocated(held: ClaimHold) -> ClaimHold:
    return replace(held, api_allocated=False) if held.api_allocated else held


def unprepare(draft: Draft, entry: Entry, uid: str) -> Outcome:
    """No container uses the claim here. The device is free only if the API server has taken it back as well."""

    def back(held: ClaimHold) -> ClaimHold | None:
        if held.phase is not Phase.PREPARED:
            return held
        if held.admin or not held.api_allocated:
            return None
        return replace(held, phase=Phase.GRANTED, since=draft.at)

    return _each(draft, entry, uid, back, "the claim was unprepared and is deallocated")


def _each(draft: Draft, entry: Entry, uid: str, change: Any, because: str) -> Entry:
    """Apply ``change`` to what the claim ``uid`` has of the device (its hold, its admin access, or both)."""
    claims = tuple(held if held.claim.uid != uid else change(held) for held in entry.claims)
    left = tuple(held for held in claims if held is not None)
    return entry if left == entry.claims else _reclaim(draft, entry, left, because)


def reboot(draft: Draft, entry: Entry, what: None) -> Outcome:
    """No container of the last boot runs: nothing is prepared. Legacy holds stay, for kubelet's checkpoint does too."""
    claims = tuple(
        replace(held, phase=Phase.GRANTED, since=draft.at) if held.phase is Phase.PREPARED else held
        for held in entry.claims
        if not (held.phase is Phase.PREPARED and (held.admin or not held.api_allocated))
    )
    if claims != entry.claims:
        entry = _reclaim(draft, entry, claims, "the node was rebooted and the claim is deallocated")
    return recount(draft, entry, what)


def recount(draft: Draft, entry: Entry, what: Any) -> Outcome:
    """Kubelet or the agent began anew: absences seen so far count no more."""
    if entry.hold is None or not entry.hold.absences:
        return entry
    return replace(entry, hold=replace(entry.hold, absences=0, absent_since=0.0))


# --- lanes ----------------------------------------------------------------------------------------------------------


def move_free(draft: Draft, entry: Entry, event: SetLane) -> Outcome:
    """Move a free device: revoke, acknowledge, grant."""
    if event.lane is Lane.SHARED and not draft.policy.g2:
        return refusal.disabled(entry)
    source = entry.move.source if entry.lane in MOVING and entry.move else entry.lane
    if entry.move and entry.lane in MOVING and event.lane is entry.move.target:
        return entry
    lane, move = _begin(draft, source, event.lane, draft.at)
    return entry if (lane, move) == (entry.lane, entry.move) else _moved(draft, entry, lane, move)


def move_later(draft: Draft, entry: Entry, event: SetLane) -> Outcome:
    """Move a held device when it is let go."""
    if event.lane is Lane.SHARED and not draft.policy.g2:
        return refusal.disabled(entry)
    if event.lane is (entry.move.target if entry.move else entry.lane):
        return entry
    move = None
    if event.lane is not entry.lane:
        move = Move(entry.lane, event.lane, MoveStep.WAITING, draft.at, draft.at, event.reason or "the device is held")
    return replace(entry, move=move, seq=draft.seq)


def _moved(draft: Draft, entry: Entry, lane: Lane, move: Move | None) -> Entry:
    return replace(entry, lane=lane, move=move, since=draft.at, seq=draft.seq)


def drain(draft: Draft, entry: Entry, event: Drain) -> Outcome:
    """Offer the device no more once it is free, or again."""
    return entry if entry.drain is event.on else replace(entry, drain=event.on, since=draft.at, seq=draft.seq)


def acknowledge(draft: Draft, entry: Entry, since_seq: int) -> Outcome:
    """Kubelet no longer offers a device that is being revoked: claims may have it."""
    if since_seq < entry.seq:
        return refusal.stale(entry.name, "kubelet's answer is older than the move")
    return _arrive(draft, entry)


def _arrive(draft: Draft, entry: Entry) -> Entry:
    assert entry.move is not None
    move = entry.move
    draft.effects.append(Transferred(entry.name, move.source, move.target, draft.at - move.since))
    return _moved(draft, entry, move.target, None)


def quiesce(draft: Draft, entry: Entry, since_seq: int) -> Outcome:
    """The slices no longer show the device; schedulers that remember it get time to act."""
    if since_seq < entry.seq:
        return refusal.stale(entry.name, "the API server's answer is older than the move")
    if entry.move is None or entry.move.step is MoveStep.QUIESCING:
        return entry
    move = replace(
        entry.move, step=MoveStep.QUIESCING, step_since=draft.at, reason="waits for schedulers that remember it"
    )
    return replace(entry, move=move, seq=draft.seq)


def clear(draft: Draft, entry: Entry, event: QuorumClear) -> Outcome:
    """No claim has the device after the quiet time: pods may have it."""
    assert entry.move is not None
    if event.since_seq < entry.seq or entry.move.step is not MoveStep.QUIESCING:
        return refusal.stale(entry.name, "the claims were listed before the slice was withdrawn")
    left = entry.move.step_since + draft.policy.quiesce_seconds - draft.at
    if left > 0:
        return refusal.stale(entry.name, f"schedulers may still remember the device, for {left:.0f} s")
    return _arrive(draft, entry)


# --- loss and its end -----------------------------------------------------------------------------------------------


def quarantine(draft: Draft, entry: Entry, reason: str) -> Outcome:
    """The record is lost: what looked free may be held by anybody."""
    lane, move = _lane_when_held(draft, entry, Owner.QUARANTINE)
    return replace(
        entry,
        owner=Owner.QUARANTINE,
        lane=lane,
        move=move,
        hold=Hold(allocated_at=draft.at),
        since=draft.at,
        seq=draft.seq,
        released_because="",
    )


_NOBODY_SEEN = frozenset(  # kubelet was asked and shows nobody: only what would make it certain is missing
    {HeldBecause.ONCE_ABSENT, HeldBecause.NO_SECOND_WITNESS, HeldBecause.POD_UNACCOUNTED}
)


def resolve(draft: Draft, entry: Entry, event: Resolve) -> Outcome:
    """The operator ends holds that nobody has, as far as kubelet and the API server can say."""
    hold, claims = entry.hold, entry.claims
    if event.legacy and hold is not None:
        if hold.because not in _NOBODY_SEEN:
            return refusal.in_use(entry, f"kubelet does not say that no pod uses it ({hold.because})")
        hold = None
    if event.claims:
        for held in entry.holders:
            if held.api_allocated:
                return refusal.in_use(entry, f"the API server shows it allocated to claim {held.claim}")
        claims = ()
    if entry.owner is Owner.QUARANTINE and hold is not None:
        return _reclaim(draft, entry, claims, "the operator resolved it")
    return settle(draft, entry, hold, claims, "the operator resolved it")


# --- the lease of level G2 ------------------------------------------------------------------------------------------


def lease_withdrawn(draft: Draft, entry: Entry, since_seq: int) -> Outcome:
    """Kubelet has given up a shared device that a claim waits for."""
    if since_seq < entry.seq:
        return refusal.stale(entry.name, "kubelet's answer is older than the claim")
    return _rephase(draft, entry, {Phase.PENDING: Phase.WITHDRAWN})


def lease_grant(draft: Draft, entry: Entry, uid: str) -> Outcome:
    """The claim's lease is confirmed, if kubelet has given the device up."""
    held = entry.claim(uid)
    if held is None or held.phase is Phase.PENDING:
        return refusal.stale(entry.name, "kubelet has not given the device up yet")
    return _rephase(draft, entry, {Phase.WITHDRAWN: Phase.GRANTED}, uid)


def _rephase(draft: Draft, entry: Entry, phases: dict[Phase, Phase], uid: str = "") -> Entry:
    claims = tuple(
        replace(held, phase=phases[held.phase], since=draft.at)
        if held.phase in phases and uid in ("", held.claim.uid)
        else held
        for held in entry.claims
    )
    return entry if claims == entry.claims else settle(draft, entry, entry.hold, claims)


def lease_deny(draft: Draft, entry: Entry, uid: str) -> Outcome:
    """The claim loses its lease."""
    claims = tuple(held for held in entry.claims if held.claim.uid != uid or held.admin)
    return entry if claims == entry.claims else settle(draft, entry, entry.hold, claims, "the lease was denied")


def lease_effects(uid: str, denied: bool, because: str = "") -> Effect:
    """What the API server is to be told about the claim's lease."""
    return DenyClaim(uid, because) if denied else ConfirmClaim(uid)
