"""Exhaustive search of a small world over the real ``step``: no invariant is broken, and everything can drain.

``python -m tests.ledger.search --faults 3 --moves 2`` searches a larger world than the tests do; ``--help`` shows what
can be varied, ``--tests`` searches what the tests search.
"""

from __future__ import annotations

import argparse
import gc
import time

from msgspec import Struct

from drabridge.ledger.entries import Lane
from tests.ledger.search.explore import Explorer, Visited
from tests.ledger.search.packing import Codes
from tests.ledger.search.states import Broken, Config
from tests.ledger.search.trace import first_violation, way_to_nearest
from tests.ledger.search.world import World
from tests.ledger.search.worlds import WORLDS

LIMIT = 200_000_000


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


def search(config: Config, *, liveness: bool = True, limit: int = LIMIT) -> Found:
    """Explore everything; stop at the first violation. ``limit`` states at most (:exc:`RuntimeError` beyond)."""
    begin = time.perf_counter()
    gc.freeze()
    gc.disable()  # ledgers have no cycles, and looking for some takes a while
    try:
        return _search(config, liveness, limit, begin)
    finally:
        gc.enable()


def _search(config: Config, liveness: bool, limit: int, begin: float) -> Found:
    explorer, visited = Explorer(World(config)), Visited()
    levels: list[Codes] = []
    count = 0

    def found(violation: str = "", trace: tuple[str, ...] = ()) -> Found:
        ledgers = explorer.world.ledgers
        seconds = time.perf_counter() - begin
        return Found(count, explorer.transitions, len(ledgers.ledgers), ledgers.steps, seconds, violation, trace)

    try:
        for level in explorer.levels(visited):
            levels.append(level)
            count += len(level)
            if count > limit:
                raise RuntimeError(f"more than {limit} states")
    except Broken:
        return found(*first_violation(explorer, levels))
    if liveness and len(stuck := explorer.stuck(visited.all())):
        trace = way_to_nearest(explorer, levels, stuck)
        return found("I7 leak: no way to drain from here", trace)
    if liveness and config.leases and len(stuck := explorer.unserved(visited.all())):
        trace = way_to_nearest(explorer, levels, stuck)
        return found("L3 progress: a claim may wait for ever for its condition", trace)
    return found()


def main(arguments: list[str] | None = None) -> int:
    """Search one world, or all that the tests search, and print what was found."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.ledger.search", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Config()
    parser.add_argument("--tests", action="store_true", help="the worlds of the tests, instead of one described below")
    parser.add_argument("--devices", type=int, default=default.devices, choices=(1, 2))
    parser.add_argument("--pods", type=int, default=default.pods, choices=(1, 2))
    parser.add_argument("--claims", type=int, default=default.claims, choices=(0, 1, 2))
    parser.add_argument("--faults", type=int, default=default.faults, choices=range(4))
    parser.add_argument(
        "--kinds", default=",".join(sorted(default.kinds)), help="of crash,kubelet,force,reboot,lost,unplug"
    )
    parser.add_argument("--prompt-evidence", action="store_true", help="evidence is applied when it is gathered")
    parser.add_argument("--no-checkpoint", action="store_true", help="the API server is the second source")
    parser.add_argument("--probe", action="store_true", help="open nodes are looked for; zombies live for any time")
    parser.add_argument(
        "--files-lost", action="store_true", help="the CDI files of claims may be lost with the agent's record"
    )
    parser.add_argument("--claims-shown", action="store_true", help="kubelet shows claims with their containers")
    parser.add_argument(
        "--moves", type=int, default=default.moves, choices=range(4), help="changes of lane that the operator asks for"
    )
    parser.add_argument("--leases", action="store_true", help="both APIs share all devices; the operator moves none")
    parser.add_argument("--prompt-leases", action="store_true", help="with --leases: nobody is late but kubelet")
    parser.add_argument("--single", action="store_true", help="a claim wants one device")
    parser.add_argument("--limit", type=int, default=LIMIT, help="states; one takes 16 bytes, and some more on the way")
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
        moves=0 if options.leases else options.moves,
        leases=options.leases,
        prompt=options.prompt_leases,
        lanes=(Lane.SHARED, Lane.SHARED) if options.leases else default.lanes,
        files_lost=options.files_lost,
        claims_shown=options.claims_shown,
    )
    broken = 0
    for name, world in (WORLDS if options.tests else {"this world": config}).items():
        result = search(world, limit=options.limit)
        broken += bool(result.violation)
        print(f"{name}: {result}", flush=True)
    return 1 if broken else 0
