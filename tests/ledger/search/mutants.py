"""Broken ledgers, each with one rule missing. The search must find a counterexample for every one of them.

``python -m tests.ledger.search.mutants`` prints the shortest way into trouble for each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from drabridge.ledger import apply_event
from drabridge.ledger import events as ev
from drabridge.ledger.effects import Decision, Step
from drabridge.ledger.model import ClaimHold, ClaimPhase, Entry, Hold, Lane, Ledger, Owner
from drabridge.ledger.ownership import with_holders
from drabridge.ledger.policy import LedgerPolicy
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

        return search(self.config, liveness=False)


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


_NOTHING = ev.CheckpointRead({})
_TWO = replace(SMALL, devices=2, moves=0, lanes=(Lane.DRA, Lane.DRA))
_ONE_DRA = replace(SMALL, lanes=(Lane.DRA, Lane.DRA))
_FILES_LOST = replace(_ONE_DRA, moves=0, kinds=frozenset({"lost"}), files_lost=True)

_GRACE = replace(SMALL, grace=True, policy=replace(POLICY, grace_seconds=2), kinds=frozenset({"force"}))

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
)


def main() -> int:
    """Hunt every mutant; exit status 1 if one survives."""
    survivors = 0
    for mutant in MUTANTS:
        found = mutant.hunt()
        survivors += not found.violation
        print(f"{'killed' if found.violation else 'SURVIVED'}: {mutant.name}: {found}\n")
    print(f"{len(MUTANTS)} mutants, {survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
