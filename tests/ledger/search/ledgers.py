"""Ledgers as small numbers: each is kept once, and each step of the real ledger is taken once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from drabridge.ledger import eligibility
from drabridge.ledger import events as ev
from drabridge.ledger.apply_event import step
from drabridge.ledger.entries import (
    Ledger,
    NodeState,
)
from tests.ledger.search import invariants
from tests.ledger.search.forget import crashed, normal
from tests.ledger.search.states import (
    DEVICES,
    NOW,
    Broken,
    Config,
    State,
)

WHY = "out of service"


@dataclass(slots=True)
class Ledgers:
    """All ledgers that were met, and what became of them."""

    config: Config
    ledgers: list[Ledger] = field(default_factory=list)
    steps: int = 0  # calls of the real step
    _ids: dict[Any, int] = field(default_factory=dict)
    _memo: dict[Any, Any] = field(default_factory=dict)

    def intern(self, ledger: Ledger) -> int:
        """The number of a ledger, forgetting everything that no transition looks at."""
        entries = tuple(
            normal(entry, grace=self.config.grace, proofs=self.config.proofs)
            for _, entry in sorted(ledger.entries.items())
        )
        node = NodeState(
            boot_id=ledger.node.boot_id and "boot",
            merged=ledger.node.merged,
            kubelet_seq=ledger.node.kubelet_seq,
            releases_suspended_until=2.0 if ledger.node.releases_suspended_until > NOW else 0.0,
            lost=ledger.node.lost and "lost",
        )
        key = (entries, node)
        number = self._ids.get(key)
        if number is None:
            plain = Ledger.of(entries, node, seq=0)
            if violations := invariants.check_ledger(plain, self.config.policy):
                raise Broken(violations)
            number = self._ids[key] = len(self.ledgers)
            self.ledgers.append(plain)
        return number

    def memo(self, what: str, number: int, make: Callable[[Ledger], Ledger]) -> int:
        """The number of ``make(ledger)``."""
        key = (what, number)
        result: int | None = self._memo.get(key)
        if result is None:
            result = self._memo[key] = self.intern(make(self.ledgers[number]))
        return result

    def apply(self, number: int, key: tuple[Any, ...], event: Callable[[], ev.Event]) -> tuple[int, bool]:
        """Let the real step act; ``key`` names the event. Checks the invariants about steps."""
        memo_key = (number, key)
        known: tuple[int, bool] | None = self._memo.get(memo_key)
        if known is None:
            self.steps += 1
            before, happened = self.ledgers[number], event()
            done = self.config.step(before, happened, self.config.policy)
            after = done.applied_to(before)
            checked = self.config.step is step  # a mutant is to be caught by its consequences
            if checked and (violations := invariants.check_step(before, happened, after, self.config.policy)):
                raise Broken(violations)
            known = self._memo[memo_key] = (self.intern(after), done.decision.accepted)
        return known

    def offers(self, number: int) -> tuple[int, int]:
        """What the agent offers to kubelet and to the scheduler: two masks."""
        key = ("offers", number)
        known: tuple[int, int] | None = self._memo.get(key)
        if known is None:
            ledger = self.ledgers[number]
            legacy = dra = 0
            for bit, name in enumerate(DEVICES):
                if entry := ledger.entries.get(name):
                    legacy |= self.config.offer(ledger, entry) << bit
                    dra |= eligibility.dra_schedulable(ledger, entry) << bit
            known = self._memo[key] = (legacy, dra)
        return known

    def cordoned(self, number: int) -> dict[str, str]:
        """The devices that are out of service, as what discovers devices says it."""
        return {name: WHY for name, entry in self.ledgers[number].entries.items() if entry.device.cordoned}

    def drained(self, number: int) -> bool:
        """Nobody holds anything."""
        return invariants.drained(self.ledgers[number])

    def down(self, state: State) -> State:
        """The agent is killed (that costs a fault): kubelet's stream breaks, unwritten evidence is gone."""
        return state._replace(
            ledger=self.memo("crashed", state.ledger, crashed),
            up=False,
            noticed=False,
            healthy=0,
            gathered=None,
            faults=state.faults - 1,
        )
