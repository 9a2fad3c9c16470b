"""One event, one step: which devices it concerns, as which signals, and what the table makes of them.

Requests that grant something are all or nothing: one refused device, and the step changes no entry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from drabridge.inventory.model import Presence
from drabridge.ledger import eligibility, refusals
from drabridge.ledger import events as ev
from drabridge.ledger.effects import (
    ACCEPTED,
    ConfirmClaim,
    Decision,
    DenyClaim,
    Effect,
    Notify,
    Readvertise,
    Refusal,
    Refused,
    Side,
    Step,
    Subject,
)
from drabridge.ledger.model import ClaimRef, Entry, Lane, Ledger, LedgerDevice, LedgerPolicy, Owner
from drabridge.ledger.observation import (
    NO_CLAIMS,
    KubeletAnswer,
    claims,
    known_of_pods,
    seen,
    seen_elsewhere,
    strange,
    unaccounted,
)
from drabridge.ledger.ownership import begin
from drabridge.ledger.release_rule import DeviceEvidence
from drabridge.ledger.table import TABLE, DeviceSignal, Transition
from drabridge.ledger.transaction import RequestedUse, Transaction

_DEFAULT = LedgerPolicy()
Table = Mapping[tuple[DeviceSignal, Owner, Lane], Transition]


def step(ledger: Ledger, event: ev.Event, policy: LedgerPolicy = _DEFAULT, table: Table = TABLE) -> Step:
    """What ``event`` makes of ``ledger``. Pure; ``Step.of(ledger)`` is the ledger afterwards."""
    tx = Transaction(ledger, event.at, policy, table)
    _HANDLERS[type(event)](tx, event)
    if tx.refusals:
        side = _side(event)
        if side is not None:
            tx.refusals[:] = [refusals.advised(refused, side) for refused in tx.refusals]
        return Step(Decision(False, tuple(tx.refusals)), effects=_of_refusal(tx, event, side))
    changes = tuple(tx.touched.values())
    durable = bool(tx.removed) or tx.durable_node or tx.seq in [entry.seq for entry in changes]
    return Step(ACCEPTED, changes, tuple(tx.removed), tx.node, tuple(tx.effects), durable)


def _signal(tx: Transaction, signal: DeviceSignal, name: str, what: Any) -> None:
    """Let the table act on the device of that name."""
    entry = tx.get(name)
    if entry is None:
        tx.refusals.append(refusals.unknown(name))
    else:
        _act(tx, signal, entry, what)


def _act(tx: Transaction, signal: DeviceSignal, entry: Entry, what: Any) -> None:
    """Let the table act on one device; its refusal is the step's."""
    outcome = tx.table[signal, entry.owner, entry.lane](tx, entry, what)
    if type(outcome) is Refusal:
        tx.refusals.append(outcome)
    elif outcome is not entry:
        tx.touched[entry.device.name] = outcome


# --- requests: all or nothing ---------------------------------------------------------------------------------------


def _allocate(tx: Transaction, event: ev.Allocate) -> None:
    if not tx.ledger.node.merged:
        _starting(tx, event.units)
        return
    for name, units in event.units.items():
        entry = tx.get(name)
        if entry is None or event.resource not in ("", entry.device.resource):
            tx.refusals.append(refusals.unknown(name))  # or kubelet has not read yet that it is another resource's
        else:
            _act(tx, DeviceSignal.ALLOCATE, entry, units)
    if not tx.refusals:
        for uid in tuple(tx.denied):
            _lease_denied(tx, ev.LeaseDenied(uid, event.at, "a pod was given the device first"))


def _prepare(tx: Transaction, event: ev.Prepare) -> None:
    if not tx.ledger.node.merged:
        _starting(tx, (use.device for use in event.uses))
        return
    for use in event.uses:
        signal = DeviceSignal.PREPARE_ADMIN if use.admin else DeviceSignal.PREPARE
        _signal(tx, signal, use.device, RequestedUse(event.claim, use, grace=event.grace))


def _starting(tx: Transaction, names: Iterable[str]) -> None:
    """Before the agent has compared its ledger with kubelet's view, it grants nothing."""
    tx.refusals += [refusals.starting(name) for name in names]


def _claim_allocated(tx: Transaction, event: ev.ClaimAllocated) -> None:
    wanted = {use.device for use in event.uses}
    for name in tx.ledger.by_claim.get(event.claim.uid, ()):
        if name not in wanted:  # the claim was allocated anew, elsewhere
            _signal(tx, DeviceSignal.CLAIM_DEALLOCATED, name, event.claim.uid)
    for use in event.uses:
        if not use.admin:
            _signal(tx, DeviceSignal.CLAIM_ALLOCATED, use.device, RequestedUse(event.claim, use, event.guarded))


# --- notices --------------------------------------------------------------------------------------------------------


def _of_claim(signal: DeviceSignal) -> Callable[[Transaction, Any], None]:
    """A notice about a claim concerns every device that the claim has."""

    def handle(tx: Transaction, event: Any) -> None:
        for name in tx.ledger.by_claim.get(event.uid, ()):
            _signal(tx, signal, name, event.uid)

    return handle


def _unprepared(tx: Transaction, event: ev.Unprepare) -> None:
    for name in tx.ledger.by_claim.get(event.uid, ()):
        _signal(tx, DeviceSignal.UNPREPARE, name, event)


def _claim_deallocated(tx: Transaction, event: ev.ClaimDeallocated) -> None:
    for name in tx.ledger.by_claim.get(event.uid, ()):
        if name not in event.kept:
            _signal(tx, DeviceSignal.CLAIM_DEALLOCATED, name, event.uid)


def _of_device(signal: DeviceSignal, argument: Callable[[Any], Any]) -> Callable[[Transaction, Any], None]:
    def handle(tx: Transaction, event: Any) -> None:
        _signal(tx, signal, event.device, argument(event))

    return handle


def _lease_granted(tx: Transaction, event: ev.LeaseGranted) -> None:
    _of_claim(DeviceSignal.LEASE_GRANTED)(tx, event)
    tx.effects.append(ConfirmClaim(event.uid))


def _lease_denied(tx: Transaction, event: ev.LeaseDenied) -> None:
    _of_claim(DeviceSignal.LEASE_DENIED)(tx, event)
    _set_node(tx, denied=tx.node_now.denied | {event.uid})
    tx.effects.append(DenyClaim(event.uid, event.reason))


def _observed(tx: Transaction, event: ev.Observed) -> None:
    node = tx.ledger.node
    if event.since_seq < node.kubelet_seq:
        return
    opened = event.opened or {}
    listed = None if event.listed is None else KubeletAnswer(event.listed)
    checkpoint = None if event.checkpoint is None else KubeletAnswer(event.checkpoint.pods)
    barrier = event.checkpoint is not None and event.checkpoint.barrier
    strangers = strange(event, tx.ledger)
    for entry in tx.ledger.entries.values():
        if entry.seq <= event.since_seq:
            of_claims = claims(event, entry, strangers) if entry.owner is Owner.QUARANTINE else NO_CLAIMS
            evidence = DeviceEvidence(
                None if listed is None else listed.pods(entry),
                None if checkpoint is None else checkpoint.pods(entry),
                barrier,
                unaccounted(event, entry),
                opened.get(entry.device.name),
                tuple(unit for shown in (listed, checkpoint) if shown is not None for _, unit in shown.units(entry)),
                *of_claims,
                alone=event.alone,
            )
            if event.ended or event.grace:
                evidence = known_of_pods(event, entry, evidence)
            _act(tx, DeviceSignal.SEEN if evidence.pods else DeviceSignal.ABSENT, entry, evidence)


# --- beginnings -----------------------------------------------------------------------------------------------------


def _kubelet_began(tx: Transaction, event: ev.KubeletStarted) -> None:
    """What kubelet says is incomplete for a while; what it said counts no more. Unless it is the one that is known."""
    if _is_known(tx, event.kubelet):
        return
    for entry in tx.ledger.entries.values():
        if entry.hold is not None:
            _signal(tx, DeviceSignal.RECOUNT, entry.device.name, None)
    _set_node(
        tx,
        kubelet=event.kubelet,
        kubelet_seq=tx.seq,
        releases_suspended_until=max(tx.node_now.releases_suspended_until, event.at + tx.policy.settle_seconds),
        suspended_because="kubelet started",
    )


def _is_known(tx: Transaction, kubelet: str) -> bool:
    """Whether it is the process that was met before; one that nobody can name is not."""
    return kubelet != "" and kubelet == tx.node_now.kubelet


def _booted(tx: Transaction, event: ev.NodeBooted) -> None:
    if event.boot_id == tx.ledger.node.boot_id:
        return
    if tx.ledger.node.boot_id:
        for name in tx.ledger.entries:
            _signal(tx, DeviceSignal.REBOOTED, name, None)
    _set_node(tx, boot_id=event.boot_id, kubelet="")  # a socket's file outlives the boot, its process does not
    tx.durable_node = True


def _restarted(tx: Transaction, event: ev.AgentStarted) -> None:
    """Union of what the ledger, kubelet and the CDI files know; in doubt the holder stays."""
    witnesses = [KubeletAnswer(pods) for pods in (event.listed, event.checkpoint and event.checkpoint.pods) if pods]
    for entry in tx.ledger.entries.values():
        if (mended := without_future_stamps(entry, event.at)) is not entry:
            tx.touched[entry.name] = replace(mended, seq=tx.seq)
        _signal(tx, DeviceSignal.RECOUNT, entry.device.name, None)
        if evidence := seen(witnesses, entry):
            _signal(tx, DeviceSignal.SEEN, entry.name, evidence)
    _found(tx, event.prepared, {use.device for found in event.prepared for use in found.uses})
    _found_elsewhere(tx, witnesses)
    node = tx.node_now
    until, why = event.at + tx.policy.settle_seconds, "the agent started"
    if node.whole and _is_known(tx, event.kubelet) and node.releases_suspended_until <= until:
        until, why = node.releases_suspended_until, node.suspended_because  # kubelet started when that says
    tx.durable_node = bool(node.lost)
    _set_node(
        tx,
        merged=True,
        lost="",
        kubelet=event.kubelet,
        kubelet_seq=tx.seq,
        releases_suspended_until=until,
        suspended_because=why,
    )


def without_future_stamps(entry: Entry, at: float) -> Entry:
    """The entry with no stamp later than ``at`` (seconds); the same object if there is none.

    Waits are counted from stamps. One from the future would make them last until the clock gets there; taken as now,
    each wait is had in full, once more.
    """
    hold, move = entry.hold, entry.move
    if hold is not None and max(hold.allocated_at, hold.last_seen, hold.absent_since) > at:
        hold = replace(
            hold,
            allocated_at=min(hold.allocated_at, at),
            last_seen=min(hold.last_seen, at),
            absent_since=min(hold.absent_since, at),
        )
    if move is not None and max(move.since, move.step_since) > at:
        move = replace(move, since=min(move.since, at), step_since=min(move.step_since, at))
    claims = entry.claims
    if any(held.since > at for held in claims):
        claims = tuple(replace(held, since=min(held.since, at)) for held in claims)
    own = (entry.since, entry.presence_since, entry.legacy_until)
    if hold is entry.hold and move is entry.move and claims is entry.claims and max(own) <= at:
        return entry
    since, presence_since, legacy_until = (min(stamp, at) for stamp in own)
    return replace(
        entry,
        hold=hold,
        move=move,
        claims=claims,
        since=since,
        presence_since=presence_since,
        legacy_until=legacy_until,
    )


def _found(tx: Transaction, prepared: Iterable[ev.ClaimDevices], names: Collection[str]) -> None:
    """Of claims that may be in use, what is among these devices."""
    for found in prepared:
        for use in found.uses:
            if use.device in names and tx.get(use.device):
                _signal(tx, DeviceSignal.FOUND_PREPARED, use.device, RequestedUse(found.claim, use))


def _found_elsewhere(tx: Transaction, witnesses: Sequence[KubeletAnswer]) -> None:
    """Pods that another resource shows with an id of ours, where nobody knows better: the device is in quarantine, or
    free by a ledger that was never compared with kubelet's view. What may be chance puts no known holder in doubt.
    """
    unsure = {Owner.QUARANTINE} if tx.ledger.node.ever_merged else {Owner.QUARANTINE, Owner.NONE}
    for name, before in tx.ledger.entries.items():
        entry = tx.touched.get(name, before)
        if entry.owner in unsure and (evidence := seen_elsewhere(witnesses, entry)):
            _signal(tx, DeviceSignal.SEEN, name, evidence)


def _lost(tx: Transaction, event: ev.RecordLost) -> None:
    for name in filter(tx.get, event.devices or tx.ledger.entries):
        _signal(tx, DeviceSignal.LOST, name, event.reason)
    if tx.touched or not event.devices:
        devices = ", ".join(tx.touched) or "this node's devices"
        what = f"who holds {devices} is not known" if event.devices else f"the record of who holds {devices} was lost"
        message = f"{what} ({event.reason}); quarantined until proven free"
        tx.effects.append(Notify(Subject.NODE, "LedgerLost", message))
    if not event.devices:
        _set_node(tx, merged=False, lost=event.reason or "unreadable")
        tx.durable_node = True


# --- inventory ------------------------------------------------------------------------------------------------------


def _discovered(tx: Transaction, event: ev.Discovered) -> None:
    entries = tx.ledger.entries
    found = {facts.name: facts for facts in event.devices}
    arrived: list[str] = []
    for name, facts in found.items():
        entry = entries.get(name)
        if entry is None:
            first = event.lanes.get(name, Lane.LEGACY)
            new = Entry(facts, lane=first, since=event.at, seq=tx.seq, presence_since=event.at, legacy_until=event.at)
            tx.touched[name] = _arrived(tx, new)
            if tx.ledger.node.lost:
                _signal(tx, DeviceSignal.LOST, name, tx.ledger.node.lost)
            arrived.append(name)
        elif entry.device != facts:
            _known(tx, entry, facts)
    for name, entry in entries.items():
        if name not in found and entry.device.presence is not Presence.GONE:
            _known(tx, entry, replace(entry.device, presence=Presence.GONE))
    _found(tx, event.prepared, arrived)


def _arrived(tx: Transaction, entry: Entry) -> Entry:
    """A free device that was not there until now. The merge asked kubelet who holds what, and it is over: pods of
    another plugin may have this one, so claims are offered it when kubelet has said that none does.
    """
    if entry.owner is not Owner.NONE or entry.lane is not Lane.DRA or not tx.ledger.node.ever_merged:
        return entry
    lane, move = begin(tx, Lane.LEGACY, Lane.DRA, tx.at)
    return replace(entry, lane=lane, move=move)


def _known(tx: Transaction, entry: Entry, facts: LedgerDevice) -> None:
    """A known device has other facts. Who holds it does not change: that is about the pod, not the hardware."""
    gone = facts.presence is not entry.device.presence
    if gone and facts.presence is not Presence.PRESENT and entry.owner is not Owner.NONE:
        message = f"{entry.name} is {facts.presence} while it is held by {refusals.holder(entry)}"
        tx.effects.append(Notify(Subject.NODE, "HeldDeviceUnavailable", message))
    hold = entry.hold
    if hold is not None and facts.resource != entry.device.resource:  # kubelet goes on counting it as it did
        hold = replace(hold, resource=hold.resource or entry.device.resource)
    known = replace(entry, device=facts, hold=hold, was_at=_was_at(entry, facts), seq=tx.seq)
    if gone:
        known = replace(known, since=tx.at, presence_since=tx.at)
    back = entry.device.presence is Presence.GONE and facts.presence is not Presence.GONE
    tx.touched[entry.name] = _arrived(tx, known) if back else known


def _was_at(entry: Entry, facts: LedgerDevice) -> tuple[str, ...]:
    """The nodes that its holder may have beside those that the device has now: it was plugged in again, or lost them
    to a driver that resets, and its container was told of them when it began.
    """
    if entry.owner is Owner.NONE:
        return ()
    return tuple(place for place in dict.fromkeys((*entry.was_at, *entry.device.nodes)) if place not in facts.also_at)


def _forgotten(tx: Transaction, event: ev.Forgotten) -> None:
    for name in event.devices:
        entry = tx.get(name)
        if entry is None:
            continue
        if eligibility.must_list(entry, tx.at, tx.policy):
            tx.refusals.append(refusals.in_use(entry, "kubelet may still use its id"))
        else:
            tx.removed.append(name)


# --- what others are told -------------------------------------------------------------------------------------------


def _side(event: ev.Event) -> Side | None:
    """Who is refused; None: nobody but us."""
    if isinstance(event, ev.Allocate):
        return Side.LEGACY
    return Side.DRA if isinstance(event, ev.Prepare | ev.ClaimAllocated) else None


def _of_refusal(tx: Transaction, event: ev.Event, side: Side | None) -> tuple[Effect, ...]:
    """A refused party believes that the device is free: it is told otherwise at once. A person is told with the answer
    that the party gets. That is this one for Allocate; a Prepare tries several times inside one call of kubelet.
    """
    if side is None:
        return ()
    devices = tuple(dict.fromkeys(refused.device for refused in tx.refusals))
    told = refusal_told(side, tx.refusals) if isinstance(event, ev.Allocate) else ()
    return (Readvertise(devices, side), *told)


def refusal_told(side: Side, refusals: Sequence[Refusal], claim: ClaimRef | None = None) -> tuple[Effect, ...]:
    """What people hear of a refusal that a caller was given: a count for each device, and one Event about the claim, or
    about the node where a pod was refused: a pod is not known by name then.
    """
    counted = tuple(Refused(side, refused.code, refused.device) for refused in refusals)
    message = "; ".join(map(str, refusals))
    if claim is None:
        return (*counted, Notify(Subject.NODE, "AllocateRefused", message))
    return (*counted, Notify(Subject.CLAIM, "DeviceRefused", message, claim.namespace, claim.name, claim.uid))


def _set_node(tx: Transaction, **changes: Any) -> None:
    tx.node = tx.node_now._replace(**changes)


_HANDLERS: dict[type, Callable[[Transaction, Any], None]] = {
    ev.Discovered: _discovered,
    ev.Forgotten: _forgotten,
    ev.Allocate: _allocate,
    ev.Observed: _observed,
    ev.KubeletStarted: _kubelet_began,
    ev.ClaimAllocated: _claim_allocated,
    ev.ClaimDeallocated: _claim_deallocated,
    ev.Prepare: _prepare,
    ev.Unprepare: _unprepared,
    ev.SetLane: _of_device(DeviceSignal.SET_LANE, lambda event: event),
    ev.WithdrawnFromKubelet: _of_device(DeviceSignal.WITHDRAWN, lambda event: event.since_seq),
    ev.WithdrawnFromSlices: _of_device(DeviceSignal.SLICE_WITHDRAWN, lambda event: event.since_seq),
    ev.NoClaimListed: _of_device(DeviceSignal.QUORUM_CLEAR, lambda event: event),
    ev.NodeBooted: _booted,
    ev.AgentStarted: _restarted,
    ev.RecordLost: _lost,
    ev.ManualRelease: _of_device(DeviceSignal.RESOLVE, lambda event: event),
    ev.LeaseGranted: _lease_granted,
    ev.LeaseDenied: _lease_denied,
}
