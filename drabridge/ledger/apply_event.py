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
from drabridge.ledger.clock_stamps import not_after
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
    draft = Transaction(ledger, event.at, policy, table)
    _HANDLERS[type(event)](draft, event)
    if draft.refusals:
        side = _side(event)
        if side is not None:
            draft.refusals[:] = [refusals.advised(refused, side) for refused in draft.refusals]
        return Step(Decision(False, tuple(draft.refusals)), effects=_of_refusal(draft, event, side))
    changes = tuple(draft.touched.values())
    durable = bool(draft.removed) or draft.durable_node or draft.seq in [entry.seq for entry in changes]
    return Step(ACCEPTED, changes, tuple(draft.removed), draft.node, tuple(draft.effects), durable)


def _signal(draft: Transaction, signal: DeviceSignal, name: str, what: Any) -> None:
    """Let the table act on the device of that name."""
    entry = draft.get(name)
    if entry is None:
        draft.refusals.append(refusals.unknown(name))
    else:
        _act(draft, signal, entry, what)


def _act(draft: Transaction, signal: DeviceSignal, entry: Entry, what: Any) -> None:
    """Let the table act on one device; its refusal is the step's."""
    outcome = draft.table[signal, entry.owner, entry.lane](draft, entry, what)
    if type(outcome) is Refusal:
        draft.refusals.append(outcome)
    elif outcome is not entry:
        draft.touched[entry.device.name] = outcome


# --- requests: all or nothing ---------------------------------------------------------------------------------------


def _allocate(draft: Transaction, event: ev.Allocate) -> None:
    if not draft.ledger.node.merged:
        _starting(draft, event.units)
        return
    for name, units in event.units.items():
        entry = draft.get(name)
        if entry is None or event.resource not in ("", entry.device.resource):
            draft.refusals.append(refusals.unknown(name))  # or kubelet has not read yet that it is another resource's
        else:
            _act(draft, DeviceSignal.ALLOCATE, entry, units)
    if not draft.refusals:
        for uid in tuple(draft.denied):
            _lease_denied(draft, ev.LeaseDenied(uid, event.at, "a pod was given the device first"))


def _prepare(draft: Transaction, event: ev.Prepare) -> None:
    if not draft.ledger.node.merged:
        _starting(draft, (use.device for use in event.uses))
        return
    for use in event.uses:
        signal = DeviceSignal.PREPARE_ADMIN if use.admin else DeviceSignal.PREPARE
        _signal(draft, signal, use.device, RequestedUse(event.claim, use, grace=event.grace))


def _starting(draft: Transaction, names: Iterable[str]) -> None:
    """Before the agent has compared its ledger with kubelet's view, it grants nothing."""
    draft.refusals += [refusals.starting(name) for name in names]


def _claim_allocated(draft: Transaction, event: ev.ClaimAllocated) -> None:
    wanted = {use.device for use in event.uses}
    for name in draft.ledger.by_claim.get(event.claim.uid, ()):
        if name not in wanted:  # the claim was allocated anew, elsewhere
            _signal(draft, DeviceSignal.CLAIM_DEALLOCATED, name, event.claim.uid)
    for use in event.uses:
        if not use.admin:
            _signal(draft, DeviceSignal.CLAIM_ALLOCATED, use.device, RequestedUse(event.claim, use, event.guarded))


# --- notices --------------------------------------------------------------------------------------------------------


def _of_claim(signal: DeviceSignal) -> Callable[[Transaction, Any], None]:
    """A notice about a claim concerns every device that the claim has."""

    def handle(draft: Transaction, event: Any) -> None:
        for name in draft.ledger.by_claim.get(event.uid, ()):
            _signal(draft, signal, name, event.uid)

    return handle


def _unprepared(draft: Transaction, event: ev.Unprepare) -> None:
    for name in draft.ledger.by_claim.get(event.uid, ()):
        _signal(draft, DeviceSignal.UNPREPARE, name, event)


def _claim_deallocated(draft: Transaction, event: ev.ClaimDeallocated) -> None:
    for name in draft.ledger.by_claim.get(event.uid, ()):
        if name not in event.kept:
            _signal(draft, DeviceSignal.CLAIM_DEALLOCATED, name, event.uid)


def _of_device(signal: DeviceSignal, argument: Callable[[Any], Any]) -> Callable[[Transaction, Any], None]:
    def handle(draft: Transaction, event: Any) -> None:
        _signal(draft, signal, event.device, argument(event))

    return handle


def _lease_granted(draft: Transaction, event: ev.LeaseGranted) -> None:
    _of_claim(DeviceSignal.LEASE_GRANTED)(draft, event)
    draft.effects.append(ConfirmClaim(event.uid))


def _lease_denied(draft: Transaction, event: ev.LeaseDenied) -> None:
    _of_claim(DeviceSignal.LEASE_DENIED)(draft, event)
    _set_node(draft, denied=draft.node_now.denied | {event.uid})
    draft.effects.append(DenyClaim(event.uid, event.reason))


def _observed(draft: Transaction, event: ev.Observed) -> None:
    node = draft.ledger.node
    if event.since_seq < node.kubelet_seq:
        return
    opened = event.opened or {}
    listed = None if event.listed is None else KubeletAnswer(event.listed)
    checkpoint = None if event.checkpoint is None else KubeletAnswer(event.checkpoint.pods)
    barrier = event.checkpoint is not None and event.checkpoint.barrier
    strangers = strange(event, draft.ledger)
    for entry in draft.ledger.entries.values():
        if entry.seq <= event.since_seq:
            of_claims = claims(event, entry, strangers) if entry.owner is Owner.QUARANTINE else NO_CLAIMS
            witness = DeviceEvidence(
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
                witness = known_of_pods(event, entry, witness)
            _act(draft, DeviceSignal.SEEN if witness.pods else DeviceSignal.ABSENT, entry, witness)


# --- beginnings -----------------------------------------------------------------------------------------------------


def _kubelet_began(draft: Transaction, event: ev.KubeletStarted) -> None:
    """What kubelet says is incomplete for a while; what it said counts no more. Unless it is the one that is known."""
    if _is_known(draft, event.kubelet):
        return
    for entry in draft.ledger.entries.values():
        if entry.hold is not None:
            _signal(draft, DeviceSignal.RECOUNT, entry.device.name, None)
    _set_node(
        draft,
        kubelet=event.kubelet,
        kubelet_seq=draft.seq,
        releases_suspended_until=max(draft.node_now.releases_suspended_until, event.at + draft.policy.settle_seconds),
        suspended_because="kubelet started",
    )


def _is_known(draft: Transaction, kubelet: str) -> bool:
    """Whether it is the process that was met before; one that nobody can name is not."""
    return kubelet != "" and kubelet == draft.node_now.kubelet


def _booted(draft: Transaction, event: ev.NodeBooted) -> None:
    if event.boot_id == draft.ledger.node.boot_id:
        return
    if draft.ledger.node.boot_id:
        for name in draft.ledger.entries:
            _signal(draft, DeviceSignal.REBOOTED, name, None)
    _set_node(draft, boot_id=event.boot_id, kubelet="")  # a socket's file outlives the boot, its process does not
    draft.durable_node = True


def _restarted(draft: Transaction, event: ev.AgentStarted) -> None:
    """Union of what the ledger, kubelet and the CDI files know; in doubt the holder stays."""
    witnesses = [KubeletAnswer(pods) for pods in (event.listed, event.checkpoint and event.checkpoint.pods) if pods]
    for entry in draft.ledger.entries.values():
        if (mended := not_after(entry, event.at)) is not entry:
            draft.touched[entry.name] = replace(mended, seq=draft.seq)
        _signal(draft, DeviceSignal.RECOUNT, entry.device.name, None)
        if witness := seen(witnesses, entry):
            _signal(draft, DeviceSignal.SEEN, entry.name, witness)
    _found(draft, event.prepared, {use.device for found in event.prepared for use in found.uses})
    _found_elsewhere(draft, witnesses)
    node = draft.node_now
    until, why = event.at + draft.policy.settle_seconds, "the agent started"
    if node.whole and _is_known(draft, event.kubelet) and node.releases_suspended_until <= until:
        until, why = node.releases_suspended_until, node.suspended_because  # kubelet started when that says
    draft.durable_node = bool(node.lost)
    _set_node(
        draft,
        merged=True,
        lost="",
        kubelet=event.kubelet,
        kubelet_seq=draft.seq,
        releases_suspended_until=until,
        suspended_because=why,
    )


def _found(draft: Transaction, prepared: Iterable[ev.ClaimDevices], names: Collection[str]) -> None:
    """Of claims that may be in use, what is among these devices."""
    for found in prepared:
        for use in found.uses:
            if use.device in names and draft.get(use.device):
                _signal(draft, DeviceSignal.FOUND_PREPARED, use.device, RequestedUse(found.claim, use))


def _found_elsewhere(draft: Transaction, witnesses: Sequence[KubeletAnswer]) -> None:
    """Pods that another resource shows with an id of ours, where nobody knows better: the device is in quarantine, or
    free by a ledger that was never compared with kubelet's view. What may be chance puts no known holder in doubt.
    """
    unsure = {Owner.QUARANTINE} if draft.ledger.node.ever_merged else {Owner.QUARANTINE, Owner.NONE}
    for name, before in draft.ledger.entries.items():
        entry = draft.touched.get(name, before)
        if entry.owner in unsure and (witness := seen_elsewhere(witnesses, entry)):
            _signal(draft, DeviceSignal.SEEN, name, witness)


def _lost(draft: Transaction, event: ev.RecordLost) -> None:
    for name in filter(draft.get, event.devices or draft.ledger.entries):
        _signal(draft, DeviceSignal.LOST, name, event.reason)
    if draft.touched or not event.devices:
        devices = ", ".join(draft.touched) or "this node's devices"
        what = f"who holds {devices} is not known" if event.devices else f"the record of who holds {devices} was lost"
        message = f"{what} ({event.reason}); quarantined until proven free"
        draft.effects.append(Notify(Subject.NODE, "LedgerLost", message))
    if not event.devices:
        _set_node(draft, merged=False, lost=event.reason or "unreadable")
        draft.durable_node = True


# --- inventory ------------------------------------------------------------------------------------------------------


def _discovered(draft: Transaction, event: ev.Discovered) -> None:
    entries = draft.ledger.entries
    found = {facts.name: facts for facts in event.devices}
    arrived: list[str] = []
    for name, facts in found.items():
        entry = entries.get(name)
        if entry is None:
            first = event.lanes.get(name, Lane.LEGACY)
            new = Entry(
                facts, lane=first, since=event.at, seq=draft.seq, presence_since=event.at, legacy_until=event.at
            )
            draft.touched[name] = _arrived(draft, new)
            if draft.ledger.node.lost:
                _signal(draft, DeviceSignal.LOST, name, draft.ledger.node.lost)
            arrived.append(name)
        elif entry.device != facts:
            _known(draft, entry, facts)
    for name, entry in entries.items():
        if name not in found and entry.device.presence is not Presence.GONE:
            _known(draft, entry, replace(entry.device, presence=Presence.GONE))
    _found(draft, event.prepared, arrived)


def _arrived(draft: Transaction, entry: Entry) -> Entry:
    """A free device that was not there until now. The merge asked kubelet who holds what, and it is over: pods of
    another plugin may have this one, so claims are offered it when kubelet has said that none does.
    """
    if entry.owner is not Owner.NONE or entry.lane is not Lane.DRA or not draft.ledger.node.ever_merged:
        return entry
    lane, move = begin(draft, Lane.LEGACY, Lane.DRA, draft.at)
    return replace(entry, lane=lane, move=move)


def _known(draft: Transaction, entry: Entry, facts: LedgerDevice) -> None:
    """A known device has other facts. Who holds it does not change: that is about the pod, not the hardware."""
    gone = facts.presence is not entry.device.presence
    if gone and facts.presence is not Presence.PRESENT and entry.owner is not Owner.NONE:
        message = f"{entry.name} is {facts.presence} while it is held by {refusals.holder(entry)}"
        draft.effects.append(Notify(Subject.NODE, "HeldDeviceUnavailable", message))
    hold = entry.hold
    if hold is not None and facts.resource != entry.device.resource:  # kubelet goes on counting it as it did
        hold = replace(hold, resource=hold.resource or entry.device.resource)
    known = replace(entry, device=facts, hold=hold, was_at=_was_at(entry, facts), seq=draft.seq)
    if gone:
        known = replace(known, since=draft.at, presence_since=draft.at)
    back = entry.device.presence is Presence.GONE and facts.presence is not Presence.GONE
    draft.touched[entry.name] = _arrived(draft, known) if back else known


def _was_at(entry: Entry, facts: LedgerDevice) -> tuple[str, ...]:
    """The nodes that its holder may have beside those that the device has now: it was plugged in again, or lost them
    to a driver that resets, and its container was told of them when it began.
    """
    if entry.owner is Owner.NONE:
        return ()
    return tuple(place for place in dict.fromkeys((*entry.was_at, *entry.device.nodes)) if place not in facts.also_at)


def _forgotten(draft: Transaction, event: ev.Forgotten) -> None:
    for name in event.devices:
        entry = draft.get(name)
        if entry is None:
            continue
        if eligibility.must_list(entry, draft.at, draft.policy):
            draft.refusals.append(refusals.in_use(entry, "kubelet may still use its id"))
        else:
            draft.removed.append(name)


# --- what others are told -------------------------------------------------------------------------------------------


def _side(event: ev.Event) -> Side | None:
    """Who is refused; None: nobody but us."""
    if isinstance(event, ev.Allocate):
        return Side.LEGACY
    return Side.DRA if isinstance(event, ev.Prepare | ev.ClaimAllocated) else None


def _of_refusal(draft: Transaction, event: ev.Event, side: Side | None) -> tuple[Effect, ...]:
    """A refused party believes that the device is free: it is told otherwise at once. A person is told with the answer
    that the party gets. That is this one for Allocate; a Prepare tries several times inside one call of kubelet.
    """
    if side is None:
        return ()
    devices = tuple(dict.fromkeys(refused.device for refused in draft.refusals))
    told = refusal_told(side, draft.refusals) if isinstance(event, ev.Allocate) else ()
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


def _set_node(draft: Transaction, **changes: Any) -> None:
    draft.node = draft.node_now._replace(**changes)


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
