"""One soak run from its beginning to its verdict."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.bed import Bed, bed
from tests.soak.storm import Storm
from tests.soak.workload import Load

PROGRESS_SECONDS = 10.0
CONVERGE_SECONDS = 120.0  # the longest wait of the agent is 60 s: between two questions about a claim that stays

# What a person reads in the events, by kind. The first that matches counts.
KINDS: tuple[tuple[str, str], ...] = (
    ("held by a claim", r"is held by claim"),
    ("held by a pod", r"is held by (pod|a pod)"),
    ("conflict", r"at once since"),
    ("quarantine", r"in quarantine"),
    ("other lane", r"is offered to|is being moved"),
    ("starting", r"the agent is starting"),
    ("not present", r"is gone|is faulty|has no device|there is no device"),
    ("no healthy device", r"no healthy devices present"),
    ("too few devices", r"requested number of devices unavailable|OutOf|Insufficient"),
    ("previously allocated", r"previously allocated devices are no longer healthy"),
    ("API away", r"API server|no answer|GET /api|is not allowed to use resource claim|is not allocated"),
    ("agent away", r"registered|connection|Unavailable|transport|EOF|endpoint|DRA driver"),
)


@dataclass(slots=True)
class Verdict:
    """What a run found. ``leaks``: devices that nobody gets any more, and files of holders that are gone."""

    seconds: float = 0.0
    converged_seconds: float = 0.0
    pods: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    double_holds: list[str] = field(default_factory=list)
    kubelet_double_bookings: int = 0
    leaks: list[str] = field(default_factory=list)
    died: str = ""

    @property
    def ok(self) -> bool:
        return not self.double_holds and not self.leaks and not self.died

    def __str__(self) -> str:
        return (
            f"soak: pods={self.pods} refusals={self.refusals.total()} double_holds={len(self.double_holds)} "
            f"leaks={len(self.leaks)} seconds={self.seconds:.0f}"
        )


async def soak(
    seconds: float,
    seed: int,
    say: Callable[[str], None] = print,
    command: tuple[str, ...] = ("-m", "drabridge"),
    log: Path | None = None,
    least_pods: int = 0,
) -> Verdict:
    """Load and faults for ``seconds``, then a time without faults, then the verdict.

    ``log``: where the agent's log is kept. ``least_pods``: on a slow machine the load goes on
    until so many pods have run and one was refused.
    """
    verdict = Verdict()
    began = time.monotonic()
    async with bed(seed, command) as stage:
        say(f"soak: seed {seed}, {stage.capacity}, for {seconds:.0f} s")
        load, storm = Load(stage, random.Random(f"load {seed}")), Storm(stage, random.Random(f"storm {seed}"))
        refusals = Refusals(stage)

        def enough() -> bool:
            return len(stage.judge.started_pods) >= least_pods and (not least_pods or refusals.counts.total() > 0)

        async with asyncio.TaskGroup() as group:
            working = group.create_task(load.run(), name="load")
            faults = group.create_task(storm.run(), name="storm")
            while (left := began + seconds - time.monotonic()) > 0 or not enough():
                await asyncio.sleep(min(max(left, 1.0), PROGRESS_SECONDS))
                refusals.read()
                say(progress(time.monotonic() - began, stage, load, storm, refusals.counts))
            storm.active = False
            await faults
            load.finish()
            await working
        peace = time.monotonic()
        while (found := await leaks(stage)) and time.monotonic() - peace < CONVERGE_SECONDS:
            await asyncio.sleep(0.2)
        verdict.leaks = found
        verdict.converged_seconds = time.monotonic() - peace
        refusals.read()
        verdict.refusals = refusals.counts
        verdict.pods = len(stage.judge.started_pods)
        verdict.double_holds = sorted(map(str, stage.judge.double_holds()))
        verdict.kubelet_double_bookings = len(stage.judge.kubelet_double_bookings())
        verdict.died = stage.kubelet.crashed or ""
        if log is not None:
            log.write_text(stage.agent.text())
        say(f"faults: {listed(storm.counts)}")
        say(f"pods created: {listed(load.created)}; failed: {listed(load.failed)}")
        say(f"refusals: {listed(verdict.refusals)}")
        say(f"kubelet's own double bookings: {verdict.kubelet_double_bookings}")
        say(f"converged after {verdict.converged_seconds:.1f} s without faults")
        for line in (*verdict.double_holds, *verdict.leaks):
            say(f"!! {line}")
        if verdict.died:
            say(f"!! kubelet died: {verdict.died}")
    verdict.seconds = time.monotonic() - began
    return verdict


class Refusals:
    """Counts kubelet's events about pods that did not get what they asked for, by kind."""

    def __init__(self, stage: Bed) -> None:
        self._stage = stage
        self._read = 0
        self._seen: set[tuple[str, str]] = set()
        self.counts: Counter[str] = Counter()

    def read(self) -> None:
        """What came since the last time; a message that is repeated for one pod counts once."""
        events = self._stage.kubelet.events[self._read :]
        self._read += len(events)
        for event in events:
            kind = kind_of(f"{event.reason}: {event.message}")
            if event.reason != "Failed" and (event.pod, kind) not in self._seen:
                self._seen.add((event.pod, kind))
                self.counts[kind] += 1


def kind_of(message: str) -> str:
    """The kind of a refusal, from the words that a person reads."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, message)), f"other: {message[:200]}")


def progress(at: float, stage: Bed, load: Load, storm: Storm, refusals: Counter[str]) -> str:
    """One line."""
    judge = stage.judge
    return (
        f"soak: {at:4.0f} s  pods {len(judge.started_pods)} ({load.alive} now)  refused {refusals.total()}  "
        f"double holds {len(judge.double_holds())}  kubelet's own {len(judge.kubelet_double_bookings())}  "
        f"faults {storm.counts.total()}"
    )


async def leaks(stage: Bed) -> list[str]:
    """Devices that are not free or not offered on exactly one side, seen from outside, and files without a holder."""
    try:
        document = await stage.agent.status()
    except (OSError, TimeoutError, IndexError, AssertionError) as error:
        return [f"the agent does not answer: {error!r}"]
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in document["devices"]}
    found = list(_held(rows.values()))
    healthy, schedulable = stage.healthy(), stage.schedulable()
    for name in rows:
        sides = [side for side, names in (("pods", healthy), ("claims", schedulable)) if name in names]
        if len(sides) != 1:
            found.append(f"{name} is offered to {' and '.join(sides) or 'nobody'}: {rows[name]}")
    if len(rows) != sum(stage.capacity.values()):
        found.append(f"{len(rows)} devices are known, {sum(stage.capacity.values())} exist")
    return found + [f"{path} was left behind" for path in stage.files()]


def _held(rows: Iterable[dict[str, Any]]) -> Iterable[str]:
    for row in rows:
        if row["owner"] != "none":
            yield f"{row['name']} is still {row['owner']} ({row['evidence']}): {row['holders']}"


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"
