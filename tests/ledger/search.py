"""Exhaustive breadth-first search of a small world over the real ``step``: safety, then liveness.

``python -m tests.ledger.search --faults 2`` searches a larger world; ``--help`` shows what can be varied.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from array import array

from msgspec import Struct

from tests.ledger.states import Broken, Config, State
from tests.ledger.world import World


class Found(Struct, frozen=True):
    """What a search found. ``trace`` leads to the violation, or to a state that cannot drain; empty if all is well."""

    states: int
    transitions: int
    ledgers: int
    steps: int
    seconds: float
    violation: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        line = (
            f"{self.states} states, {self.transitions} transitions, {self.ledgers} ledgers, "
            f"{self.steps} different steps, {self.seconds:.1f} s"
        )
        if not self.violation:
            return line
        steps = "\n".join(f"  {number:2} {label}" for number, label in enumerate(self.trace, 1))
        return f"{line}\n{self.violation}\n{steps}"


class _Graph:
    """The explored part: numbered states, how each was reached, and the edges that help to drain, reversed later."""

    def __init__(self) -> None:
        self.numbers: dict[State, int] = {}
        self.states: list[State] = []
        self.parents = array("l")
        self.labels: dict[str, int] = {}
        self.reached_by = array("l")
        self.sources = array("l")
        self.targets = array("l")

    def add(self, state: State, parent: int, label: str) -> int | None:
        """Number a new state; None if it is known."""
        if state in self.numbers:
            return None
        number = self.numbers[state] = len(self.states)
        self.states.append(state)
        self.parents.append(parent)
        self.reached_by.append(self.labels.setdefault(label, len(self.labels)))
        return number

    def trace(self, number: int) -> tuple[str, ...]:
        """The labels on the way to a state."""
        names = list(self.labels)
        way: list[str] = []
        while self.parents[number] >= 0:
            way.append(names[self.reached_by[number]])
            number = self.parents[number]
        return tuple(reversed(way))


def search(config: Config, *, liveness: bool = True, limit: int = 10_000_000) -> Found:
    """Explore everything; stop at the first violation. ``limit`` states at most (:exc:`RuntimeError` beyond)."""
    begin = time.perf_counter()
    gc.freeze()
    gc.disable()  # millions of tuples without a cycle: looking for cycles takes most of the time
    try:
        return _search(config, liveness, limit, begin)
    finally:
        gc.enable()


def _search(config: Config, liveness: bool, limit: int, begin: float) -> Found:
    world, graph = World(config), _Graph()
    transitions = 0

    def found(violation: str = "", trace: tuple[str, ...] = ()) -> Found:
        return Found(
            len(graph.states),
            transitions,
            len(world.ledgers),
            world.steps,
            time.perf_counter() - begin,
            violation,
            trace,
        )

    graph.add(world.initial(), -1, "")
    number, label = 0, ""
    try:
        while number < len(graph.states):
            for label, raw, helps in world.successors(graph.states[number]):
                transitions += 1
                state = world.canonical(raw)
                new = graph.add(state, number, label)
                if new is not None:
                    world.check(raw)
                    if new >= limit:
                        raise RuntimeError(f"more than {limit} states")
                if liveness and helps:
                    graph.sources.append(number)
                    graph.targets.append(graph.numbers[state])
            label = ""
            number += 1
    except Broken as broken:
        return found(str(broken), (*graph.trace(number), label or "(while working out what happens next)"))
    if liveness:
        stuck = _stuck(world, graph)
        if stuck is not None:
            return found("I7 leak: no way to drain from here", graph.trace(stuck))
    return found()


def _stuck(world: World, graph: _Graph) -> int | None:
    """The first state from which no drained state can be reached by edges that help; None if there is none."""
    count = len(graph.states)
    start = array("l", bytes(array("l").itemsize * (count + 1)))
    for target in graph.targets:
        start[target + 1] += 1
    for index in range(count):
        start[index + 1] += start[index]
    place = array("l", start)
    back = array("l", bytes(array("l").itemsize * len(graph.targets)))
    for source, target in zip(graph.sources, graph.targets, strict=True):
        back[place[target]] = source
        place[target] += 1
    good = bytearray(count)
    queue = [number for number, state in enumerate(graph.states) if world.drained(state)]
    for number in queue:
        good[number] = 1
    while queue:
        number = queue.pop()
        for index in range(start[number], start[number + 1]):
            source = back[index]
            if not good[source]:
                good[source] = 1
                queue.append(source)
    first = good.find(0)
    return None if first < 0 else first


def main(arguments: list[str] | None = None) -> int:
    """Search one world and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Config()
    parser.add_argument("--devices", type=int, default=default.devices, choices=(1, 2))
    parser.add_argument("--pods", type=int, default=default.pods, choices=(0, 1, 2))
    parser.add_argument("--claims", type=int, default=default.claims, choices=(0, 1, 2))
    parser.add_argument("--faults", type=int, default=default.faults)
    parser.add_argument(
        "--kinds", default=",".join(sorted(default.kinds)), help="of crash,kubelet,force,reboot,lost,unplug"
    )
    parser.add_argument("--prompt-evidence", action="store_true", help="evidence is applied when it is gathered")
    parser.add_argument("--no-checkpoint", action="store_true", help="the API server is the second witness")
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--moves", type=int, default=default.moves, help="changes of lane that the operator asks for")
    parser.add_argument("--single", action="store_true", help="a claim wants one device")
    parser.add_argument("--limit", type=int, default=10_000_000)
    options = parser.parse_args(arguments)
    config = Config(
        devices=options.devices,
        pods=options.pods,
        claims=options.claims,
        faults=options.faults,
        kinds=frozenset(options.kinds.split(",")),
        whole_claims=not options.single,
        late_evidence=not options.prompt_evidence,
        checkpoint=not options.no_checkpoint,
        probe=options.probe,
        moves=options.moves,
    )
    result = search(config, limit=options.limit)
    print(result)
    return 1 if result.violation else 0


if __name__ == "__main__":
    sys.exit(main())
