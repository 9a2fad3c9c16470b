"""How things can happen in a small world: rules, each a chain of stages that declare what they look at.

A stage is given a state in which everything that it did not declare is :data:`HIDDEN`, and touching that is an error.
So what a stage makes of a state depends on the declared fields alone, and has to be worked out once for each of their
values (:mod:`tests.ledger.search.tables`), however many states there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, NoReturn

from tests.ledger.search.states import State

Outcomes = Iterable[tuple[str, State]]  # what happened, for people; and the state afterwards


class _Hidden:
    """What a stage may not look at."""

    __slots__ = ()

    def _touched(self, *_: Any) -> NoReturn:
        raise TypeError("a rule looked at a field that it did not declare")

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _touched
    __getattr__ = __getitem__ = __iter__ = __len__ = __index__ = __int__ = __contains__ = _touched
    __and__ = __rand__ = __or__ = __ror__ = __rshift__ = __add__ = __sub__ = _touched

    def __repr__(self) -> str:
        return "hidden"


HIDDEN: Any = _Hidden()


class Stage(NamedTuple):
    """``act`` may look at the fields ``reads`` and change any; no outcome: the rule does not apply."""

    reads: frozenset[str]
    act: Callable[[State], Outcomes]


class Rule(NamedTuple):
    """One kind of thing that can happen. ``helps``: whether it may be counted on for everything to drain.

    ``serves``: whether it may be counted on while everybody waits for a device, and nobody gives up or ends.
    """

    helps: bool
    stages: tuple[Stage, ...]
    serves: bool = False

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        """Everything that this rule makes of a state, without any reduction."""
        return _run(self.stages, "", state)


def _run(stages: tuple[Stage, ...], label: str, state: State) -> Iterator[tuple[str, State]]:
    if not stages:
        yield label, state
        return
    for said, after in stages[0].act(state):
        yield from _run(stages[1:], label or said, after)


def stage(reads: str, act: Callable[[State], Outcomes]) -> Stage:
    """``reads`` are names of fields, pods and claims one by one: ``ledger up pod0 claim1``."""
    return Stage(frozenset(reads.split()), act)


def where(reads: str, holds: Callable[[State], object]) -> Stage:
    """A stage that changes nothing: the rule applies only where this holds."""

    def act(state: State) -> Outcomes:
        return (("", state),) if holds(state) else ()

    return stage(reads, act)


def happens(*stages: Stage) -> Rule:
    """A rule that nobody can count on: a fault, or somebody's choice to want a device."""
    return Rule(False, stages)


def helps(*stages: Stage) -> Rule:
    """A rule that happens sooner or later if nothing fails."""
    return Rule(True, stages, True)


def ends(*stages: Stage) -> Rule:
    """A rule that happens sooner or later, but not for the sake of those who wait."""
    return Rule(True, stages)
