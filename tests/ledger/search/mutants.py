"""Broken ledgers, each with one rule missing. The search must find a counterexample for every one of them.

``python -m tests.ledger.search.mutants`` prints the shortest way into trouble for each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from drabridge.ledger import apply_event, refusals
from drabridge.ledger import events as ev
from drabridge.ledger.effects import Decision, Step
from drabridge.ledger.entries import ClaimHold, ClaimPhase, Entry, Hold, Lane, Ledger, Owner
from drabridge.ledger.ownership import with_holders
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.proofs import End
from drabridge.ledger.table import CLAIMED, TABLE, DeviceSignal, Transition
from drabridge.ledger.transaction import Outcome, RequestedUse, Transaction
from tests.ledger.search.states import POLICY, Config, Stepper

if TYPE_CHECKING:
    from tests.ledger.search.search import Found

SMALL = Config(devices=1, pods=1, claims=1, late_evidence=False, moves=1)


class Mutant(Struct, frozen=True):
    """One broken rule, and the world in which it shows."""

    name: str
    config: Config

    def hunt(self) -> Found:
        """Search until the first violation."""
        from tests.ledger.search.search import search  # late: agents that are broken on purpose import this file, too

        return search(self.config, liveness=self in STARVING)


def other_rows(signal: DeviceSignal, owners: Any, transition: Transition) -> Stepper:
    """The real step with other rows for ``signal`` and ``owners``."""
    table = {key: transition if key[0] is signal and key[1] in owners else original for key, original in TABLE.items()}

    def mutated(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
        return apply_event.step(ledger, event, policy, table)

    return mutated


def _heard(change: Callable[[ev.Observed, Ledger], ev.Observed]) -> Stepper:
    """The real step with evidence that was tampered with."""

    def mutated(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
        if isinstance(event, ev.Observed):
            event = change(event, ledger)
        return apply_event.step(ledger, event, policy)

    return mutated


def _steal(tx: Transaction, entry: Entry, units: tuple[str, ...]) -> Outcome:
    return with_holders(tx, entry, Hold(units, tx.at), ())


def _forget_claim(tx: Transaction, entry: Entry, uid: str) -> Outcome:
    left = tuple(held for held in entry.claims if held.claim.uid != uid)
    return entry if left == entry.claims else with_holders(tx, entry, entry.hold, left, "deallocated")


def _second_claim(tx: Transaction, entry: Entry, demand: RequestedUse) -> Outcome:
    rest = tuple(held for held in entry.claims if held.claim.uid != demand.claim.uid)
    return with_holders(tx, entry, entry.hold, (*rest, ClaimHold(demand.claim, ClaimPhase.PREPARED, tx.at)))


def _free(tx: Transaction, entry: Entry, what: Any) -> Outcome:
    return with_holders(tx, entry, None, (), "mutant") if entry.hold or entry.claims else entry


def _jump(tx: Transaction, entry: Entry, event: ev.SetLane) -> Outcome:
    return entry if entry.lane is event.lane else replace(entry, lane=event.lane, move=None, seq=tx.seq)


def _arrive_early(tx: Transaction, entry: Entry, since_seq: int) -> Outcome:
    if entry.lane is not Lane.DRA_TO_LEGACY:
        return entry
    return replace(entry, lane=Lane.LEGACY, move=None, seq=tx.seq)


def _some_of_it(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
    """Gives what is free of a claim and says no to the rest."""
    done = apply_event.step(ledger, event, policy)
    if done.decision.accepted or not isinstance(event, ev.Prepare | ev.ClaimAllocated):
        return done
    for use in event.uses:
        part = apply_event.step(ledger, replace(event, uses=(use,)), policy)
        if part.decision.accepted:
            return replace(part, decision=Decision(False, done.decision.refusals))
    return done


def _deaf(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
    """Does not look at kubelet, nor at CDI files, when it starts."""
    if isinstance(event, ev.AgentStarted):
        event = replace(event, prepared=(), listed=None, checkpoint=None)
    return apply_event.step(ledger, event, policy)


def _ends_of_all(seen: ev.Observed, _: Ledger) -> ev.Observed:
    return replace(seen, ends={pod.uid: End.REPORTED for pods in seen.recorded.values() for pod in pods})


def _changed_holds(ledger: Ledger, **changes: Any) -> Ledger:
    holds = [entry for entry in ledger.entries.values() if entry.hold]
    return ledger.replace(
        [replace(one, hold=replace(one.hold, **changes)) for one in holds if one.hold], seq=ledger.seq
    )


def _believes_old_files(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
    """Takes the pod that kubelet's checkpoint names for that of the last Allocate, whoever it was before."""
    if isinstance(event, ev.Observed):
        ledger = _changed_holds(ledger, former=())
    return apply_event.step(ledger, event, policy)


def _forgets_the_forgotten(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
    if isinstance(event, ev.Observed):
        ledger = _changed_holds(ledger, retaken=False)
    return apply_event.step(ledger, event, policy)


def _trusts_kubelet(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
    """Believes a kubelet that shows nothing of what it never showed."""
    if isinstance(event, ev.Observed):
        holds = [entry for entry in ledger.entries.values() if entry.hold]
        known = [replace(entry, hold=replace(entry.hold, known=True)) for entry in holds if entry.hold]
        ledger = ledger.replace(known, seq=ledger.seq)
    return apply_event.step(ledger, event, policy)


def _frees_at_once(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
    """Takes kubelet's Unprepare for the end of every process."""
    if isinstance(event, ev.Unprepare):
        event = replace(event, lingers=0.0)
    return apply_event.step(ledger, event, policy)


def _leases_early(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
    """Grants a lease as soon as a claim asks."""
    if isinstance(event, ev.ClaimAllocated):
        for use in event.uses:
            done = apply_event.step(ledger, event, policy)
            ledger = done.applied_to(ledger)
            withdrawn = ev.WithdrawnFromKubelet(use.device, ledger.seq, event.at)
            return _both(done, apply_event.step(ledger, withdrawn, policy))
    return apply_event.step(ledger, event, policy)


def _both(first: Step, second: Step) -> Step:
    """Two steps as one."""
    if not (first.decision.accepted and second.decision.accepted):
        return first
    later = {entry.name for entry in second.changes}
    rest = tuple(entry for entry in first.changes if entry.name not in later)
    return replace(second, changes=(*rest, *second.changes))


def _keeps_former_devices(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
    """Forgets that a claim which is allocated anew loses its former devices."""
    if isinstance(event, ev.ClaimAllocated):
        theirs = {use.device for use in event.uses}
        former = [ledger.entries[name] for name in ledger.by_claim.get(event.claim.uid, ()) if name not in theirs]
        done = apply_event.step(ledger, event, policy)
        changes = tuple(entry for entry in done.changes if entry.name not in {one.name for one in former})
        return replace(done, changes=changes)
    if isinstance(event, ev.ClaimDeallocated) and event.kept:
        return apply_event.step(ledger, replace(event, kept=frozenset(ledger.entries)), policy)
    return apply_event.step(ledger, event, policy)


def _grant_anyway(tx: Transaction, entry: Entry, uid: str) -> Outcome:
    held = entry.claim(uid)
    if held is None:
        return entry
    granted = replace(held, phase=ClaimPhase.GRANTED)
    return with_holders(tx, entry, entry.hold, (*(one for one in entry.claims if one is not held), granted))


def _prepare_anyway(tx: Transaction, entry: Entry, request: Any) -> Outcome:
    prepared = ClaimHold(request.claim, ClaimPhase.PREPARED, tx.at)
    others = tuple(held for held in entry.claims if held.claim.uid != request.claim.uid)
    return with_holders(tx, entry, entry.hold, (*others, prepared))


def _not_now(tx: Transaction, entry: Entry, uid: str) -> Outcome:
    return refusals.stale(entry.name, "mutant")


def _lease_taken(tx: Transaction, entry: Entry, units: tuple[str, ...]) -> Outcome:
    """A pod takes what claims wait for; the rest of the claims' devices stay theirs."""
    others = tuple(held for held in entry.claims if held.admin)
    return with_holders(tx, entry, Hold(units, tx.at), others)


def _forget_denial(tx: Transaction, entry: Entry, claim: Any) -> Outcome:
    return _forget_claim(tx, entry, claim.uid)


def _keep_denial(tx: Transaction, entry: Entry, uid: str) -> Outcome:
    mine = tuple(held for held in entry.claims if held.claim.uid == uid and held.phase is ClaimPhase.DENIED)
    return entry if mine else TABLE[DeviceSignal.CLAIM_DEALLOCATED, entry.owner, entry.lane](tx, entry, uid)


_NOTHING = ev.CheckpointRead({})
_TWO = replace(SMALL, devices=2, moves=0, lanes=(Lane.DRA, Lane.DRA))
_ONE_DRA = replace(SMALL, lanes=(Lane.DRA, Lane.DRA))
_FILES_LOST = replace(_ONE_DRA, moves=0, kinds=frozenset({"lost"}), files_lost=True)

_GRACE = replace(SMALL, grace=True, policy=replace(POLICY, grace_seconds=2), kinds=frozenset({"force"}))
_PROOFS = replace(_GRACE, pods=2, proofs=True)

_LEASES = replace(SMALL, moves=0, faults=0, kinds=frozenset(), leases=True, lanes=(Lane.SHARED, Lane.SHARED))
_TWO_LEASES = replace(_LEASES, devices=2)

MUTANTS: tuple[Mutant, ...] = (
    # the five of the design
    Mutant(
        "release on PodResources alone",
        replace(SMALL, step=_heard(lambda seen, _: replace(seen, checkpoint=_NOTHING, unaccounted={}))),
    ),
    Mutant(
        "a claim ends with its deallocation in the API",
        replace(_ONE_DRA, step=other_rows(DeviceSignal.CLAIM_DEALLOCATED, Owner, _forget_claim)),
    ),
    Mutant(
        "Allocate takes a granted device",
        replace(SMALL, claims=1, step=other_rows(DeviceSignal.ALLOCATE, CLAIMED, _steal)),
    ),
    Mutant("a lost ledger means free", replace(SMALL, restart_as_free=True)),
    Mutant("answered before it is durable", replace(SMALL, reply_before_durable=True)),
    # our own
    Mutant(
        "release on the checkpoint alone, before kubelet wrote it",
        replace(
            SMALL,
            policy=replace(POLICY, absent_lists=1, absent_seconds=0, min_hold_seconds=0, unconfirmed_seconds=0),
            step=_heard(lambda seen, _: replace(seen, listed={}, unaccounted={})),
        ),
    ),
    Mutant("one look is enough", replace(SMALL, policy=replace(POLICY, absent_lists=1, absent_seconds=0))),
    Mutant(
        "a move without kubelet's acknowledgement",
        replace(SMALL, step=other_rows(DeviceSignal.SET_LANE, {Owner.NONE}, _jump)),
    ),
    Mutant(
        "a move without waiting for schedulers and claims",
        replace(_ONE_DRA, step=other_rows(DeviceSignal.WITHDRAWN_FROM_SLICES, {Owner.NONE}, _arrive_early)),
    ),
    Mutant(
        "a second claim on a prepared device",
        replace(_ONE_DRA, claims=2, moves=0, step=other_rows(DeviceSignal.PREPARE, CLAIMED, _second_claim)),
    ),
    Mutant(
        "a reboot frees what pods hold", replace(SMALL, step=other_rows(DeviceSignal.REBOOTED, {Owner.LEGACY}, _free))
    ),
    Mutant(
        "quarantine ends as soon as somebody asks",
        replace(SMALL, faults=2, step=other_rows(DeviceSignal.ABSENT, {Owner.QUARANTINE}, _free)),
    ),
    Mutant(
        "a claim gets what is free of it",
        replace(_TWO, pods=0, claims=2, step=_some_of_it, lanes=(Lane.DRA, Lane.DRA)),
    ),
    Mutant(
        "late evidence is believed",
        replace(
            SMALL, pods=2, claims=0, late_evidence=True, step=_heard(lambda seen, now: replace(seen, since_seq=99))
        ),
    ),
    Mutant("an id is dropped while kubelet allocates it", replace(SMALL, kinds=frozenset({"unplug"}), drop_ids=True)),
    Mutant(
        "a start that does not look around", replace(SMALL, kinds=frozenset({"lost"}), step=_deaf, restart_as_free=True)
    ),
    Mutant(
        "quarantine ends although the API server shows an allocation",
        replace(_FILES_LOST, step=_heard(lambda seen, _: replace(seen, allocated=seen.allocated and ()))),
    ),
    Mutant(
        "quarantine ends though nobody could be asked about claims",
        replace(_FILES_LOST, step=_heard(lambda seen, _: replace(seen, allocated=seen.allocated or ()))),
    ),
    Mutant(
        "quarantine ends although kubelet shows a container with a claim",
        replace(_FILES_LOST, claims_shown=True, step=_heard(lambda seen, _: replace(seen, claimed={}))),
    ),
    # what a real kubelet does
    Mutant(
        "a force-deleted pod's processes die within the usual absence",
        replace(_GRACE, policy=replace(POLICY, grace_seconds=0), step=_heard(lambda seen, _: replace(seen, grace={}))),
    ),
    Mutant(
        "a claim's processes have ended when kubelet unprepares it",
        replace(_GRACE, pods=0, moves=0, lanes=(Lane.DRA, Lane.DRA), step=_frees_at_once),
    ),
    Mutant(
        "a kubelet that shows nothing has nothing",
        replace(_GRACE, kinds=frozenset({"forget"}), step=_trusts_kubelet),
    ),
    # proofs
    Mutant(
        "the end of a pod is believed that nobody reported",
        replace(_PROOFS, kinds=frozenset({"force"}), step=_heard(_ends_of_all)),
    ),
    Mutant(
        "a file that is older than the Allocate names its pod", replace(_PROOFS, faults=0, step=_believes_old_files)
    ),
    Mutant(
        "a pod that kubelet forgot ends with the one that has its device now",
        replace(_PROOFS, moves=0, kinds=frozenset({"forget"}), step=_forgets_the_forgotten),
    ),
    # leases
    Mutant("the condition before kubelet's acknowledgement", replace(_LEASES, step=_leases_early)),
    Mutant(
        "a lease that kubelet has not acknowledged is granted",
        replace(_LEASES, step=other_rows(DeviceSignal.LEASE_GRANTED, Owner, _grant_anyway)),
    ),
    Mutant("a denial before the taint", replace(_LEASES, told_early=True)),
    Mutant(
        "a lease is kept when the claim is allocated another device",
        replace(_TWO_LEASES, pods=0, step=_keeps_former_devices, whole_claims=False),
    ),
    Mutant("a condition is set on a claim that was allocated anew", replace(_TWO_LEASES, pods=0, told_blindly=True)),
    Mutant(
        "a pod takes one device of a claim that waits, and the claim gets the others",
        replace(_TWO_LEASES, step=other_rows(DeviceSignal.ALLOCATE, {Owner.DRA_PENDING}, _lease_taken)),
    ),
    Mutant(
        "a pod takes a leased device",
        replace(_LEASES, step=other_rows(DeviceSignal.ALLOCATE, CLAIMED, _steal)),
    ),
    Mutant(
        "a claim is prepared that waits for its lease",
        replace(_LEASES, bound_early=True, step=other_rows(DeviceSignal.PREPARE, {Owner.DRA_PENDING}, _prepare_anyway)),
    ),
    Mutant(
        "a claim is prepared that never asked for its lease",
        replace(_LEASES, bound_early=True, step=other_rows(DeviceSignal.PREPARE, {Owner.NONE}, _prepare_anyway)),
    ),
    Mutant(
        "a denial is not remembered",
        replace(_LEASES, step=other_rows(DeviceSignal.LEASE_DENIED, Owner, _forget_denial)),
    ),
)

# They break no rule, but a device is never free again, or a claim waits for ever.
STARVING: tuple[Mutant, ...] = (
    Mutant(
        "a lease is never granted",
        replace(_LEASES, pods=0, step=other_rows(DeviceSignal.LEASE_GRANTED, Owner, _not_now)),
    ),
    Mutant(
        "a denial outlives the claim's allocation",
        replace(_LEASES, step=other_rows(DeviceSignal.CLAIM_DEALLOCATED, Owner, _keep_denial)),
    ),
)


def main() -> int:
    """Hunt every mutant; exit status 1 if one survives."""
    survivors = 0
    for mutant in (*MUTANTS, *STARVING):
        found = mutant.hunt()
        survivors += not found.violation
        print(f"{'killed' if found.violation else 'SURVIVED'}: {mutant.name}: {found}\n")
    print(f"{len(MUTANTS) + len(STARVING)} mutants, {survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
