"""Rules that the search of small worlds cannot check, each tested by the shortest history that needs it.

In those worlds every source tells the truth about the moment it is asked, and two sources agree before a hold ends.
Real sources may be out of date, or may not have been asked. Each entry names a rule and a ledger without that rule, and
asserts that the history ends differently in the two.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import Struct
from msgspec.structs import replace

from drabridge.ledger import apply_event, release_rule
from drabridge.ledger import events as ev
from drabridge.ledger.effects import ACCEPTED, Step
from drabridge.ledger.entries import Entry, HeldBecause, Hold, Lane, Ledger, LedgerDevice, NodeState, Owner, PodRef
from drabridge.ledger.ownership import with_holders
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.table import DeviceSignal
from drabridge.ledger.transaction import Outcome, Transaction
from drabridge.ledger.transitions.no_change import ignore
from tests.ledger.search.mutants import other_rows
from tests.ledger.search.states import Stepper
from tests.support.ledger_node import CLAIM

POLICY = LedgerPolicy(grace_seconds=0.0)
POD = PodRef("ns", "pod", "main", "pod-uid")
SHOWN = {("r", "d"): (POD,)}
HELD = ev.Allocate({"d": ("d",)}, 0.0)
USE = (ev.DeviceUse("d"),)
PREPARED = ev.Prepare(CLAIM, USE, 0.0)


def _look(at: float, *, shown: bool = False, since_seq: int | None = None) -> Callable[[Ledger], ev.Observed]:
    pods = SHOWN if shown else {}
    return lambda now: ev.Observed(
        at, now.seq if since_seq is None else since_seq, pods, ev.CheckpointRead(pods), {}, allocated=()
    )


Happening = ev.Event | Callable[[Ledger], ev.Event]


def _after(step: Stepper, *events: Happening, lane: Lane = Lane.LEGACY, merged: bool = True) -> Ledger:
    """The ledger of one device after a history."""
    ledger = Ledger.of([Entry(LedgerDevice("d", "r", ("d",)), lane=lane)], NodeState("boot", merged=merged))
    for one in events:
        ledger = step(ledger, one(ledger) if callable(one) else one, POLICY).applied_to(ledger)
    return ledger


class Pinned(Struct, frozen=True):
    """A rule, the ledger without it, and the history that tells them apart: ``sound`` holds of the real one alone."""

    rule: str
    without: Stepper
    history: tuple[Happening, ...]
    sound: Callable[[Entry], bool]
    lane: Lane = Lane.LEGACY
    merged: bool = True


def _held(entry: Entry) -> bool:
    return entry.owner is Owner.LEGACY


def _weighed(
    change: Callable[[release_rule.DeviceEvidence], release_rule.DeviceEvidence], *, settled: bool = False
) -> Stepper:
    """The real step with another rule for the end of a hold."""

    def mutated(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
        real = release_rule.judge

        def judge(hold: Hold, evidence: release_rule.DeviceEvidence, **how: object) -> Hold | release_rule.HoldEnded:
            if settled:
                how["suspended_until"] = 0.0
            return real(hold, change(evidence), **how)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patching:
            patching.setattr(release_rule, "judge", judge)
            return apply_event.step(ledger, event, policy)

    return mutated


def _without_settling_after(kind: type[ev.Event]) -> Stepper:
    def mutated(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
        done = apply_event.step(ledger, event, policy)
        if isinstance(event, kind) and done.node is not None:
            return replace(done, node=replace(done.node, releases_suspended_until=0.0))
        return done

    return mutated


def _of_node(**changes: object) -> Stepper:
    """The real step with another state of the node."""

    def mutated(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
        node = replace(ledger.node, **changes)
        return apply_event.step(ledger.replace((), node=node, seq=ledger.seq), event, policy)

    return mutated


def _boot_lost(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
    return Step(ACCEPTED) if isinstance(event, ev.NodeBooted) else apply_event.step(ledger, event, policy)


def _straight(ledger: Ledger, event: ev.Event, policy: LedgerPolicy) -> Step:
    """Out of quarantine into the lane that the device had."""
    done = apply_event.step(ledger, event, policy)
    moved = [replace(one, lane=Lane.DRA, move=None) if one.lane is Lane.LEGACY_TO_DRA else one for one in done.changes]
    return replace(done, changes=tuple(moved))


def _free(tx: Transaction, entry: Entry, what: object) -> Outcome:
    return with_holders(tx, entry, None, (), "mutant")


_AS_IT_IS = _weighed(lambda evidence: evidence, settled=True)
_CONFIRMED = HELD, _look(50.0, shown=True)
_TWICE = _look(110.0), _look(121.0)
PINNED = (
    Pinned(
        "a kubelet that has just started may not know all of its pods, whatever else it says",
        _AS_IT_IS,
        (*_CONFIRMED, ev.KubeletStarted(100.0), *_TWICE),
        _held,
    ),
    Pinned(
        "an agent that has just started may meet a kubelet that has, too",
        _without_settling_after(ev.AgentStarted),
        (*_CONFIRMED, ev.AgentStarted(100.0), *_TWICE),
        _held,
    ),
    Pinned(
        "an agent waits for a kubelet that it met, and not for the one that the agent before had met",
        _of_node(kubelet="another"),
        (ev.KubeletStarted(40.0, "one"), *_CONFIRMED, ev.AgentStarted(101.0, kubelet="another"), *_TWICE),
        _held,
    ),
    Pinned(
        "a kubelet's socket says nothing about the process behind it after the node has booted",
        _boot_lost,
        (
            ev.KubeletStarted(0.0, "one"),
            *_CONFIRMED,
            ev.NodeBooted("later", 99.0),
            ev.AgentStarted(100.0, kubelet="one"),
            *_TWICE,
        ),
        _held,
    ),
    Pinned(
        "what an earlier kubelet said is no evidence about this one",
        _of_node(kubelet_seq=0),
        (*_CONFIRMED, ev.KubeletStarted(100.0), _look(900.0, since_seq=2), _look(950.0, since_seq=2)),
        lambda entry: _held(entry) and entry.hold is not None and not entry.hold.absences,
    ),
    Pinned(
        "an absence that an earlier kubelet showed does not count",
        other_rows(DeviceSignal.RECOUNT, set(Owner), ignore),
        (*_CONFIRMED, _look(99.0), ev.KubeletStarted(100.0), _look(170.0)),
        _held,
    ),
    Pinned(
        "before the merge nothing is granted",
        _of_node(merged=True),
        (HELD,),
        lambda entry: entry.owner is Owner.NONE,
        merged=False,
    ),
    Pinned(
        "a pod that kubelet shows on a free device has it",
        other_rows(DeviceSignal.SEEN, {Owner.NONE}, ignore),
        (_look(50.0, shown=True),),
        _held,
    ),
    Pinned(
        "a pod that kubelet shows on a claim's device is a conflict",
        other_rows(DeviceSignal.SEEN, {Owner.DRA_GRANTED, Owner.DRA_PREPARED}, ignore),
        (PREPARED, _look(50.0, shown=True)),
        lambda entry: entry.owner is Owner.CONFLICT,
        lane=Lane.DRA,
    ),
    Pinned(
        "a checkpoint holds, fresh or not: the API server does not know of a restarted init container",
        _weighed(lambda evidence: replace(evidence, checkpointed=evidence.checkpointed and ())),
        (
            *_CONFIRMED,
            *(
                lambda now, at=at: ev.Observed(at, now.seq, {}, ev.CheckpointRead(SHOWN, barrier=False), {})
                for at in (110.0, 121.0)
            ),
        ),
        lambda entry: entry.hold is not None and entry.hold.because is HeldBecause.IN_CHECKPOINT,
    ),
    Pinned(
        "a boot ends what containers had prepared",
        _boot_lost,
        (PREPARED, ev.NodeBooted("another", 1.0)),
        lambda entry: entry.owner is Owner.DRA_GRANTED,
        lane=Lane.DRA,
    ),
    Pinned(
        "what leaves quarantine is offered to claims once kubelet has given it up",
        _straight,
        (ev.RecordLost(0.0), ev.AgentStarted(0.0), _look(200.0), _look(220.0)),
        lambda entry: (entry.owner, entry.lane) == (Owner.NONE, Lane.LEGACY_TO_DRA),
        lane=Lane.DRA,
    ),
    Pinned(
        "a boot does not take a claim's allocation",
        other_rows(DeviceSignal.REBOOTED, {Owner.DRA_PREPARED}, _free),
        (PREPARED, ev.NodeBooted("another", 1.0)),
        lambda entry: entry.owner is Owner.DRA_GRANTED,
        lane=Lane.DRA,
    ),
)


@pytest.mark.parametrize("pinned", PINNED, ids=lambda pinned: pinned.rule.replace(" ", "-"))
def test_a_rule_that_the_search_cannot_check_is_tested_by_a_history_of_its_own(pinned: Pinned) -> None:
    def after(step: Stepper) -> Entry:
        return _after(step, *pinned.history, lane=pinned.lane, merged=pinned.merged).entries["d"]

    assert pinned.sound(after(apply_event.step))
    assert not pinned.sound(after(pinned.without)), "the history ends the same without the rule"
