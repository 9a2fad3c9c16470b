"""Stages as tables: what a stage makes of the fields that it looks at is worked out once and looked up after that."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.ledger.search.packing import Codes, Packing, unique
from tests.ledger.search.rules import Rule, Stage

_NOTHING = np.zeros(0, np.uint64)


class Table:
    """One stage over packed states."""

    def __init__(self, packing: Packing, stage: Stage) -> None:
        self._packing, self._stage = packing, stage
        self._mask = np.uint64(packing.mask(stage.reads))
        self._keys = _NOTHING  # sorted: the values of the fields that were met
        self._first = np.zeros(0, np.int32)  # for each key, where its outcomes begin
        self._count = np.zeros(0, np.int32)
        self._keep = _NOTHING  # for each outcome, the bits that stay
        self._add = _NOTHING  # and those that are added

    def outcomes(self, codes: Codes) -> list[tuple[NDArray[np.intp], Codes]]:
        """Pairs of (which of ``codes``, what becomes of them)."""
        at = self._places(codes & self._mask)
        count, first = self._count[at], self._first[at]
        found = []
        for turn in range(int(count.max(initial=0))):
            which = np.flatnonzero(count > turn)
            place = first[which] + turn
            found.append((which, (codes[which] & self._keep[place]) | self._add[place]))
        return found

    def learn(self, codes: Codes) -> None:
        """Work out what is new, without using it: for checks."""
        self._places(codes & self._mask)

    def _places(self, keys: Codes) -> NDArray[np.intp]:
        """Where the keys are, after working out those that are new."""
        at = np.searchsorted(self._keys, keys)
        known = np.zeros(len(keys), np.bool_)
        if len(self._keys):
            np.equal(self._keys[np.minimum(at, len(self._keys) - 1)], keys, out=known)
        if known.all():
            return at
        self._add_keys(unique(keys[~known]))
        return np.searchsorted(self._keys, keys)

    def _add_keys(self, keys: Codes) -> None:
        first: list[int] = []
        count: list[int] = []
        keep: list[int] = []
        add: list[int] = []
        begin = len(self._keep)
        for key in keys.tolist():
            view = self._packing.state(key, self._stage.reads)
            first.append(begin + len(keep))
            for _, after in self._stage.act(view):
                kept, added = self._packing.change(after)
                keep.append(kept)
                add.append(added)
            count.append(begin + len(keep) - first[-1])
        self._keep = np.concatenate([self._keep, np.array(keep, np.uint64)])
        self._add = np.concatenate([self._add, np.array(add, np.uint64)])
        where = np.searchsorted(self._keys, keys)
        self._keys = np.insert(self._keys, where, keys)
        self._first = np.insert(self._first, where, np.array(first, np.int32))
        self._count = np.insert(self._count, where, np.array(count, np.int32))


class RuleTables:
    """A rule over packed states."""

    def __init__(self, packing: Packing, rule: Rule) -> None:
        self.helps, self.serves = rule.helps, rule.serves
        self._tables = tuple(Table(packing, stage) for stage in rule.stages)

    def outcomes(self, codes: Codes) -> list[tuple[NDArray[np.intp], Codes]]:
        """Pairs of (which of ``codes``, what becomes of them)."""
        found = [(np.arange(len(codes)), codes)]
        for table in self._tables:
            found = [(sources[which], after) for sources, states in found for which, after in table.outcomes(states)]
        return found
