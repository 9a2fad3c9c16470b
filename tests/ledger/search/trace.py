"""The way to a state that the search found, in words: worked out afterwards, one state at a time."""

from __future__ import annotations

import numpy as np

from tests.ledger.search.explore import Explorer, chunks
from tests.ledger.search.packing import Codes
from tests.ledger.search.states import Broken


def first_violation(explorer: Explorer, levels: list[Codes]) -> tuple[str, tuple[str, ...]]:
    """What is wrong in the last level or one step beyond it, and the way there."""
    world, last = explorer.world, levels[-1]
    for code in last.tolist():
        try:
            world.checks.check(explorer.packing.state(code))
        except Broken as broken:
            return str(broken), way_to(explorer, levels, code)
    for code in last.tolist():
        state = explorer.packing.state(code)
        try:
            for _, after, _ in world.successors(state):
                explorer.canonical(after)
        except Broken as broken:
            return str(broken), (*way_to(explorer, levels, code), "(while working out what happens next)")
    raise AssertionError("a violation was seen and cannot be found again")


def way_to(explorer: Explorer, levels: list[Codes], code: int) -> tuple[str, ...]:
    """The labels on a shortest way to a state."""
    depth = next(depth for depth, level in enumerate(levels) if _has(level, code))
    way: list[str] = []
    for level in reversed(levels[:depth]):
        before = _before(explorer, level, code)
        way.append(_label(explorer, before, code))
        code = before
    return tuple(reversed(way))


def way_to_nearest(explorer: Explorer, levels: list[Codes], codes: Codes) -> tuple[str, ...]:
    """The labels on a shortest way to any of these states."""
    found = next(both for level in levels if len(both := np.intersect1d(level, codes)))
    return way_to(explorer, levels, int(found[0]))


def _before(explorer: Explorer, level: Codes, code: int) -> int:
    """A state of ``level`` that ``code`` can follow."""
    level = next(chunk for chunk in chunks(level) if _has(explorer.after(chunk), code))
    while len(level) > 1:
        half = level[: len(level) // 2]
        level = half if _has(explorer.after(half), code) else level[len(half) :]
    return int(level[0])


def _label(explorer: Explorer, before: int, code: int) -> str:
    for label, after, _ in explorer.world.successors(explorer.packing.state(before)):
        if explorer.canonical(after) == code:
            return label
    raise AssertionError("the packed rules and the plain ones disagree")


def _has(codes: Codes, code: int) -> bool:
    at = int(np.searchsorted(codes, np.uint64(code)))
    return at < len(codes) and int(codes[at]) == code
