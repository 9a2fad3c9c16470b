"""Apply one event to the ledger: find the devices it concerns and the signal for each, and let the table act.

Requests that grant something are all or nothing: if one device is refused, the step changes no entry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, assert_never

from msgspec.structs import replace

from drabridge.inventory.devices import Presence
from drabridge.ledger import eligibility, refusals
from drabridge.ledger import events as ev
from drabridge.ledger.effects import (
    ACCEPTED,
    Decision,
    Effect,
    Notify,
    Readvertise,
    Refusal,
    Refused,
    Side,
    Step,
    Subject,
)
from drabridge.ledger.entries import ClaimPhase, ClaimRef, Entry, Lane, Ledger, LedgerDevice, Owner
from drabridge.ledger.observation import EvidenceRound, KubeletAnswer, shown_as_another_resource, shown_on
from drabridge.ledger.ownership import begin_move
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.table import TABLE, DeviceSignal, Transition
from drabridge.ledger.transaction import RequestedUse, Transaction
from drabridge.ledger.transitions.recovery import with_waits_begun_anew

_DEFAULT = LedgerPolicy()
Table = Mapping[tuple[DeviceSignal, Owner, Lane], Transition]


def step(ledger: Ledger, event: ev.Event, policy: LedgerPolicy = _DEFAULT, table: Table = TABLE) -> Step:
    """Compute what ``event`` makes of ``ledger``. Pure; ``Step.applied_to(ledger)`` is the ledger afterwards."""
    tx = Transaction(ledger, event.at, policy, table, ledger.seq + 1)
    _apply(tx, event)
    for claim, reason in tx.denied.items():
        _deny_lease(tx, claim, (), reason)
    if tx.refusals:
        return _refused(tx, event)
    changes = tuple(tx.touched.values())
    durable = bool(tx.removed) or tx.durable_node or tx.seq in [entry.seq for entry in changes]
    return Step(ACCEPTED, changes, tuple(tx.removed), tx.node, tuple(tx.effects), durable)


def _apply(tx: Transaction, event: ev.Event) -> None:
    match event:
        case ev.Allocate():
            _allocate(tx, event)
        case ev.Prepare():
            _prepare(tx, event)
        case ev.Unprepare():
            _signal_claim(tx, DeviceSignal.UNPREPARE, event.uid, event)
        case ev.ClaimAllocated():
            _claim_allocated(tx, event)
        case ev.ClaimDeallocated():
            _signal_claim(tx, DeviceSignal.CLAIM_DEALLOCATED, event.uid, event.uid, event.kept)
        case ev.Observed():
            _observed(tx, event)
        case ev.Discovered():
            _discovered(tx, event)
        case ev.Cordoned():
            _cordoned(tx, event)
        case ev.Forgotten():
            _forgotten(tx, event)
        case ev.SetLane():
            _signal(tx, DeviceSignal.SET_LANE, event.device, event)
        case ev.WithdrawnFromKubelet():
            _signal(tx, DeviceSignal.WITHDRAWN_FROM_KUBELET, event.device, event)
        case ev.WithdrawnFromSlices():
            _signal(tx, DeviceSignal.WITHDRAWN_FROM_SLICES, event.device, event)
        case ev.NoClaimListed():
            _signal(tx, DeviceSignal.NO_CLAIM_LISTED, event.device, event)
        case ev.NodeBooted():
            _node_booted(tx, event)
        case ev.KubeletStarted():
            _kubelet_started(tx, event)
        case ev.AgentStarted():
            _agent_started(tx, event)
        case ev.RecordLost():
            _record_lost(tx, event)
        case ev.ManualRelease():
            _signal(tx, DeviceSignal.MANUAL_RELEASE, event.device, event)
        case ev.LeaseGranted():
            _grant_lease(tx, event)
        case ev.LeaseDenied():
            _deny_lease(tx, event.claim, event.uses, event.reason)
        case _:
            assert_never(event)


def _signal(tx: Transaction, signal: DeviceSignal, name: str, argument: Any) -> None:
    """Let the table act on the device ``name``; an unknown device is a refusal."""
    entry = tx.get(name)
    if entry is None:
        tx.refusals.append(refusals.unknown(name))
    else:
        _act(tx, signal, entry, argument)


def _signal_claim(
    tx: Transaction, signal: DeviceSignal, uid: str, argument: Any, exclude: Collection[str] = ()
) -> None:
    """Let the table act on every device that the claim ``uid`` has, except those in ``exclude``."""
    for name in tx.ledger.by_claim.get(uid, ()):
        if name not in exclude:
            _signal(tx, signal, name, argument)


def _act(tx: Transaction, signal: DeviceSignal, entry: Entry, argument: Any) -> None:
    """Let the table act on one device. If it refuses, the whole step is refused."""
    outcome = tx.table[signal, entry.owner, entry.lane](tx, entry, argument)
    if type(outcome) is Refusal:
        tx.refusals.append(outcome)
    elif outcome is not entry:
        tx.touched[entry.device.name] = outcome


# --- requests: all or nothing ---------------------------------------------------------------------------------------


def _allocate(tx: Transaction, event: ev.Allocate) -> None:
    if not tx.ledger.node.merged:
        _refuse_before_merge(tx, event.units)
        return
    for name, units in event.units.items():
        entry = tx.get(name)
        if entry is None or event.resource not in ("", entry.device.resource):
            # The device may have changed its resource, and kubelet has not read the new lists yet.
            tx.refusals.append(refusals.unknown(name))
        else:
            _act(tx, DeviceSignal.ALLOCATE, entry, units)


def _prepare(tx: Transaction, event: ev.Prepare) -> None:
    if not tx.ledger.node.merged:
        _refuse_before_merge(tx, (use.device for use in event.uses))
        return
    for use in event.uses:
        signal = DeviceSignal.PREPARE_ADMIN if use.admin else DeviceSignal.PREPARE
        _signal(tx, signal, use.device, RequestedUse(event.claim, use, grace=event.grace))


def _refuse_before_merge(tx: Transaction, names: Iterable[str]) -> None:
    """Refuse every device: the ledger is not merged yet with kubelet's view."""
    tx.refusals += [refusals.starting(name) for name in names]


def _claim_allocated(tx: Transaction, event: ev.ClaimAllocated) -> None:
    kept = {use.device for use in event.uses if not use.admin}
    # A claim that was allocated again, with other devices, loses its former ones.
    for name in _held_by(tx, event.claim):
        if name not in kept:
            _signal(tx, DeviceSignal.CLAIM_DEALLOCATED, name, event.claim.uid)
    for use in event.uses:
        before = tx.get(use.device)
        if use.admin:
            continue
        _signal(tx, DeviceSignal.CLAIM_ALLOCATED, use.device, RequestedUse(event.claim, use))
        if before is None or not use.lease or tx.refusals:  # if there is another reason to refuse, that one says more
            continue
        if any(held.claim.uid == event.claim.uid for held in before.denied):
            tx.refusals.append(refusals.denied(before))


def _grant_lease(tx: Transaction, event: ev.LeaseGranted) -> None:
    for claim in (event.claim, *event.others):
        held = _held_by(tx, claim)
        if not held:
            tx.refusals.append(refusals.stale(f"claim {claim}", "it has no device here"))
        for name in held:
            _signal(tx, DeviceSignal.LEASE_GRANTED, name, claim.uid)


def _held_by(tx: Transaction, claim: ClaimRef) -> list[str]:
    """Return the devices that the claim holds, waits for or was denied; not those that it has by admin access."""
    return [
        name
        for name in tx.ledger.by_claim.get(claim.uid, ())
        if (entry := tx.get(name)) and any(held.claim.uid == claim.uid and not held.admin for held in entry.claims)
    ]


def _deny_lease(tx: Transaction, claim: ClaimRef, uses: Iterable[ev.DeviceUse], reason: str) -> None:
    """Deny a claim all of its devices, and write an Event. A device that is no longer known needs no denial.

    The event is refused if the claim was granted all of them. If the claim lacks one, it is denied the granted ones,
    too: they are of another lane, or of an earlier allocation.
    """
    known, wanted = _held_by(tx, claim), [use.device for use in uses if not use.admin]
    entries = [tx.get(name) for name in wanted or known]
    if entries and all(entry is not None and _is_granted(entry, claim) for entry in entries):
        tx.refusals.append(refusals.stale(f"claim {claim}", "its lease is granted"))
        return
    for name in filter(tx.get, dict.fromkeys((*known, *wanted))):
        _signal(tx, DeviceSignal.LEASE_DENIED, name, claim)
    tx.effects.append(Notify(Subject.CLAIM, "LeaseDenied", reason, claim.namespace, claim.name, claim.uid))


def _is_granted(entry: Entry, claim: ClaimRef) -> bool:
    held = entry.claim(claim.uid)
    return held is not None and held.phase in (ClaimPhase.GRANTED, ClaimPhase.PREPARED)


# --- evidence -------------------------------------------------------------------------------------------------------


def _observed(tx: Transaction, event: ev.Observed) -> None:
    """Judge every device that has not changed since the evidence was gathered."""
    if event.since_seq < tx.ledger.node.kubelet_seq:
        return
    evidence = EvidenceRound(event, tx.ledger)
    for entry in tx.ledger.entries.values():
        if entry.seq <= event.since_seq:
            found = evidence.about(entry)
            _act(tx, DeviceSignal.SEEN if found.pods else DeviceSignal.ABSENT, entry, found)


# --- starts and losses ----------------------------------------------------------------------------------------------


def _kubelet_started(tx: Transaction, event: ev.KubeletStarted) -> None:
    """Suspend releases until a new kubelet knows its pods, and start to count evidence again.

    A kubelet that is already known changes nothing.
    """
    if _is_known_kubelet(tx, event.kubelet):
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


def _is_known_kubelet(tx: Transaction, kubelet: str) -> bool:
    """Whether ``kubelet`` is the process that was known before; a process that cannot be identified is not."""
    return kubelet != "" and kubelet == tx.node_now.kubelet


def _node_booted(tx: Transaction, event: ev.NodeBooted) -> None:
    if event.boot_id == tx.ledger.node.boot_id:
        return
    if tx.ledger.node.boot_id:
        for name in tx.ledger.entries:
            _signal(tx, DeviceSignal.REBOOTED, name, None)
    _set_node(tx, boot_id=event.boot_id, kubelet="")  # a socket's file outlives the boot, its process does not
    tx.durable_node = True


def _agent_started(tx: Transaction, event: ev.AgentStarted) -> None:
    """Merge what the ledger, kubelet and the CDI files say. A device is held if any of them says so."""
    answers = [KubeletAnswer(pods) for pods in (event.listed, event.checkpoint and event.checkpoint.pods) if pods]
    for entry in tx.ledger.entries.values():
        if (corrected := with_waits_begun_anew(entry, event.at, tx.policy)) is not entry:
            tx.touched[entry.name] = replace(corrected, seq=tx.seq)
        _signal(tx, DeviceSignal.RECOUNT, entry.device.name, None)
        if evidence := shown_on(answers, entry):
            _signal(tx, DeviceSignal.SEEN, entry.name, evidence)
    _record_prepared(tx, event.prepared, {use.device for found in event.prepared for use in found.uses})
    _believe_other_resources(tx, answers)
    node = tx.node_now
    until, because = event.at + tx.policy.settle_seconds, "the agent started"
    if node.whole and _is_known_kubelet(tx, event.kubelet) and node.releases_suspended_until <= until:
        until, because = node.releases_suspended_until, node.suspended_because  # since kubelet's start
    # The first merge must be on disk: fabric claims leave files but nothing in the ledger. An agent that starts with a
    # ledger that was never merged takes such files for traces of a lost ledger.
    tx.durable_node = bool(node.lost) or not node.ever_merged
    _set_node(
        tx,
        merged=True,
        lost="",
        kubelet=event.kubelet,
        kubelet_seq=tx.seq,
        releases_suspended_until=until,
        suspended_because=because,
    )


def _record_prepared(tx: Transaction, prepared: Iterable[ev.ClaimDevices], names: Collection[str]) -> None:
    """Record claims that may be in use on the known devices among ``names``."""
    for found in prepared:
        for use in found.uses:
            if use.device in names and tx.get(use.device):
                _signal(tx, DeviceSignal.FOUND_PREPARED, use.device, RequestedUse(found.claim, use))


def _believe_other_resources(tx: Transaction, answers: Sequence[KubeletAnswer]) -> None:
    """Believe pods that kubelet shows under another resource with an id of ours, if the device's holder is not known.

    The holder is not known if the device is in quarantine, or if it is free and the ledger was never merged with
    kubelet's view. The same id may be chance, so it casts no doubt on a known holder.
    """
    unsure = {Owner.QUARANTINE} if tx.ledger.node.ever_merged else {Owner.QUARANTINE, Owner.NONE}
    for name, before in tx.ledger.entries.items():
        entry = tx.touched.get(name, before)
        if entry.owner in unsure and (evidence := shown_as_another_resource(answers, entry)):
            _signal(tx, DeviceSignal.SEEN, name, evidence)


def _record_lost(tx: Transaction, event: ev.RecordLost) -> None:
    for name in filter(tx.get, event.devices or tx.ledger.entries):
        _signal(tx, DeviceSignal.RECORD_LOST, name, event.reason)
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
    cordoned = event.cordoned
    found = {device.name: _with_cordon(device, cordoned) for device in event.devices}
    arrived: list[str] = []
    for name, device in found.items():
        entry = entries.get(name)
        if entry is None:
            lane = event.lanes.get(name, Lane.LEGACY)
            new = Entry(device, lane=lane, since=event.at, seq=tx.seq, presence_since=event.at, legacy_until=event.at)
            tx.touched[name] = _arrived(tx, new)
            if tx.ledger.node.lost:
                _signal(tx, DeviceSignal.RECORD_LOST, name, tx.ledger.node.lost)
            arrived.append(name)
        elif entry.device != device:
            _device_changed(tx, entry, device)
    for name, entry in entries.items():
        if name not in found:
            gone = _with_cordon(replace(entry.device, presence=Presence.GONE), cordoned)
            if gone != entry.device:
                _device_changed(tx, entry, gone)
    _record_prepared(tx, event.prepared, arrived)


def _arrived(tx: Transaction, entry: Entry) -> Entry:
    """Let a free device that arrives in the DRA lane first move there: kubelet must confirm that no pod has it.

    The merge asked kubelet who holds what, but without this device: pods of another plugin may have it.
    """
    if entry.owner is not Owner.NONE or entry.lane is not Lane.DRA or not tx.ledger.node.ever_merged:
        return entry
    lane, move = begin_move(tx, Lane.LEGACY, Lane.DRA, tx.at)
    return replace(entry, lane=lane, move=move)


def _device_changed(tx: Transaction, entry: Entry, device: LedgerDevice) -> None:
    """Record what the inventory says about a known device. Its holder stays: a pod may run on without its hardware."""
    presence_changed = device.presence is not entry.device.presence
    if presence_changed and device.presence is not Presence.PRESENT and entry.owner is not Owner.NONE:
        message = f"{entry.name} is {device.presence} while it is held by {refusals.holder(entry)}"
        tx.effects.append(Notify(Subject.NODE, "HeldDeviceUnavailable", message))
    if device.cordoned and device.cordoned != entry.device.cordoned:
        message = f"{entry.name} is out of service: {device.cordoned}; nobody new gets it"
        tx.effects.append(Notify(Subject.NODE, "DeviceCordoned", message, warning=False))
    elif entry.device.cordoned and not device.cordoned:
        message = f"{entry.name} is in service again"
        tx.effects.append(Notify(Subject.NODE, "DeviceUncordoned", message, warning=False))
    hold = entry.hold
    if hold is not None and device.resource != entry.device.resource:  # kubelet still counts it so
        hold = replace(hold, resource=hold.resource or entry.device.resource)
    changed = replace(entry, device=device, hold=hold, was_at=_former_nodes(entry, device), seq=tx.seq)
    if presence_changed:
        changed = replace(changed, since=tx.at, presence_since=tx.at)
    is_back = entry.device.presence is Presence.GONE and device.presence is not Presence.GONE
    tx.touched[entry.name] = _arrived(tx, changed) if is_back else changed


def _former_nodes(entry: Entry, device: LedgerDevice) -> tuple[str, ...]:
    """Return the device nodes that the device had before, and that its holder may still have.

    They differ from the present ones if the device was plugged in again, or its driver was reset: the container was
    given the former nodes.
    """
    if entry.owner is Owner.NONE:
        return ()
    return tuple(place for place in dict.fromkeys((*entry.was_at, *entry.device.nodes)) if place not in device.also_at)


def _cordoned(tx: Transaction, event: ev.Cordoned) -> None:
    for entry in tx.ledger.entries.values():
        device = _with_cordon(entry.device, event.devices)
        if device is not entry.device:
            _device_changed(tx, entry, device)


def _with_cordon(device: LedgerDevice, cordoned: Mapping[str, str]) -> LedgerDevice:
    why = cordoned.get(device.name, "")
    return device if device.cordoned == why else replace(device, cordoned=why)


def _forgotten(tx: Transaction, event: ev.Forgotten) -> None:
    for name in event.devices:
        entry = tx.get(name)
        if entry is None:
            continue
        if eligibility.must_list(entry, tx.at, tx.policy):
            tx.refusals.append(refusals.in_use(entry, "kubelet may still use its id"))
        else:
            tx.removed.append(name)


# --- refusals and what others hear of them --------------------------------------------------------------------------


def _refused(tx: Transaction, event: ev.Event) -> Step:
    """Return the step that changes nothing. The side that believed the device free is sent the current offers at once.

    A refusal is reported to people once, with the answer that kubelet gets. For Allocate that is this answer. A Prepare
    tries several times within one call of kubelet: the caller reports the last try by :func:`refusal_effects`.
    """
    match event:
        case ev.Allocate():
            side = Side.LEGACY
        case ev.Prepare() | ev.ClaimAllocated():
            side = Side.DRA
        case _:
            return Step(Decision(False, tuple(tx.refusals)))
    refused = tuple(refusals.with_advice(one, side) for one in tx.refusals)
    effects: tuple[Effect, ...] = (Readvertise(tuple(dict.fromkeys(one.device for one in refused)), side),)
    if side is Side.LEGACY:
        effects += refusal_effects(side, refused)
    return Step(Decision(False, refused), effects=effects)


def refusal_effects(side: Side, refused: Sequence[Refusal], claim: ClaimRef | None = None) -> tuple[Effect, ...]:
    """Return how a refusal is reported to people: a count for each device, and one Kubernetes Event.

    The Event is about the claim, or about the node if a pod was refused: Allocate does not name its pod.
    """
    counted = tuple(Refused(side, one.code, one.device) for one in refused)
    message = "; ".join(map(str, refused))
    if claim is None:
        return (*counted, Notify(Subject.NODE, "AllocateRefused", message))
    return (*counted, Notify(Subject.CLAIM, "DeviceRefused", message, claim.namespace, claim.name, claim.uid))


def _set_node(tx: Transaction, **changes: Any) -> None:
    tx.node = replace(tx.node_now, **changes)
