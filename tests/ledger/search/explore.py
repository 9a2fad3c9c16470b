"""Breadth-first search over packed states: millions of them, level by level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tests.ledger.search.packing import Codes, Packing, unique
from tests.ledger.search.states import State
from tests.ledger.search.symmetry import Symmetry
from tests.ledger.search.tables import RuleTables, Table
from tests.ledger.search.world import World

CHUNK = 1 << 18  # states that are looked at together: what they become fits the processor's cache, more or less
_NOTHING = np.zeros(0, np.uint64)
Flags = NDArray[np.bool_]
Item = TypeVar("Item", bound=np.generic)


class Visited:
    """A growing set of states: a large sorted array, and a small one that is merged into it now and then."""

    def __init__(self) -> None:
        self._large, self._small = _NOTHING, _NOTHING

    def without(self, codes: Codes) -> Codes:
        """Those of ``codes`` (sorted) that are new."""
        for known in (self._large, self._small):
            if len(known):
                at = np.minimum(np.searchsorted(known, codes), len(known) - 1)
                codes = codes[known[at] != codes]
        return codes

    def add(self, codes: Codes) -> None:
        """Add states that are not there yet."""
        self._small = _merged(self._small, codes)
        if len(self._small) > len(self._large) // 8:
            self._large, self._small = _merged(self._large, self._small), _NOTHING

    def all(self) -> Codes:
        """Every state, sorted."""
        self._large, self._small = _merged(self._large, self._small), _NOTHING
        return self._large


def _merged(one: Codes, other: Codes) -> Codes:
    both = np.concatenate([one, other])
    both.sort(kind="stable")  # two sorted runs: merged in one pass
    return both


class Explorer:
    """The transition relation of a world over packed states."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.packing = Packing(world.config)
        self.symmetry = Symmetry(world.ledgers, self.packing)
        self._rules = tuple(RuleTables(self.packing, rule) for rule in world.rules)
        self._checks = tuple(Table(self.packing, part) for part in world.checks.parts())
        self.transitions = 0

    def canonical(self, state: State) -> int:
        """The number of the state that stands for this one."""
        return int(self.symmetry.canonical(np.array([self.packing.code(state)], np.uint64))[0])

    def after(self, codes: Codes) -> Codes:
        """What can come next: sorted, each once."""
        found = []
        for rule in self._rules:
            for which, after in rule.outcomes(codes):
                self.transitions += len(after)
                found.append(after[after != codes[which]])
        return unique(self.symmetry.canonical(np.concatenate(found))) if found else _NOTHING

    def check(self, codes: Codes) -> None:
        """Raise :class:`tests.ledger.search.states.Broken` if an invariant does not hold in one of them."""
        for part in self._checks:
            part.learn(codes)

    def levels(self, visited: Visited) -> Iterator[Codes]:
        """New states by their distance from the beginning. :class:`Broken` comes out of it."""
        level = np.array([self.canonical(self.world.initial())], np.uint64)
        while len(level):
            yield level
            self.check(level)
            visited.add(level)
            level = _united([visited.without(self.after(chunk)) for chunk in chunks(level)])

    def stuck(self, states: Codes) -> Codes:
        """Those (of all states, sorted) from which no drained state can be reached by rules that help."""
        ledgers = self.world.ledgers
        drained = np.array([ledgers.drained(number) for number in range(len(ledgers.ledgers))], np.bool_)
        good = drained[self.packing.of(states, "ledger")]
        return self._cannot_reach(states, good, [rule for rule in self._rules if rule.helps])

    def unserved(self, states: Codes) -> Codes:
        """Those (of all states, sorted) in which a claim waits for a condition, and may wait for ever."""
        good = np.ones(len(states), np.bool_)
        for name in self.packing.claims:
            waits = np.array([claim.waits for claim in self.packing.domains[name].values], np.bool_)
            good &= ~waits[self.packing.of(states, name)]
        return self._cannot_reach(states, good, [rule for rule in self._rules if rule.serves])

    def _cannot_reach(self, states: Codes, good: Flags, rules: list[RuleTables]) -> Codes:
        self._by_first_way(states, good, rules)
        while True:  # the few that are left have other ways
            left = np.flatnonzero(~good)
            before = len(left)
            for part in chunks(left):
                for rule in rules:
                    for which, after in rule.outcomes(states[part]):
                        reached = good[np.searchsorted(states, self.symmetry.canonical(after))]
                        good[part[which[reached]]] = True
            if np.count_nonzero(~good) == before:
                return np.compress(~good, states)

    def _by_first_way(self, states: Codes, good: Flags, rules: list[RuleTables]) -> None:
        """Let every state go the first way that leads to another state, and on from there."""
        way = np.arange(len(states), dtype=np.int32)
        for part in chunks(np.flatnonzero(~good)):
            left = part
            for rule in rules:
                mine = states[left]
                for which, after in rule.outcomes(mine):
                    target = self.symmetry.canonical(after)
                    open_ = (way[left[which]] == left[which]) & (target != mine[which])
                    way[left[which[open_]]] = np.searchsorted(states, target[open_])
                left = left[way[left] == left]
        left = np.flatnonzero(~good)
        while True:
            reached = good[way[left]]
            if not reached.any():
                return
            good[left[reached]] = True
            left = left[~reached]


def chunks(array: NDArray[Item]) -> Iterator[NDArray[Item]]:
    """Pieces of at most :data:`CHUNK`."""
    for begin in range(0, len(array), CHUNK):
        yield array[begin : begin + CHUNK]


def _united(pieces: list[Codes]) -> Codes:
    if len(pieces) == 1:
        return pieces[0]
    return unique(np.concatenate(pieces)) if pieces else _NOTHING
