"""One soak run on a real node, or on several, from its beginning to its verdict."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from tests.cluster.bed import AGENT, CLAIMS, NAMESPACE, apply_node
from tests.soak.real import judge
from tests.soak.real.bed import DRA, LEGACY, NAMES, READY_SECONDS, RealNode, comes_true, real_nodes, restored
from tests.soak.real.judge import STUCK_SECONDS, Verdict
from tests.soak.real.load import DEMAND, Load
from tests.soak.real.starts import Starts
from tests.soak.real.storm import HALVES, OF_SEVERAL, SHARED, Storm
from tests.soak.run import listed

PROGRESS_SECONDS = 10.0
SETTLE_SECONDS = 100.0
"""kubelet's loop unprepares forgotten claims every 60 s (pkg/kubelet/cm/dra/manager.go); releases take less."""
POD_LOGS = "/var/log/pods"  # kubelet's podLogsDir


class Logbook:
    """A line for each fact, with the time; in a file too where one was asked for."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        now = datetime.now(UTC)
        self.lines.append(f"{now.timestamp():.1f} {line}")
        if self._file is not None:
            print(now.strftime("%H:%M:%S.%f")[:-3], line, file=self._file, flush=True)


WARM_SECONDS = 300.0  # until then an agent still fills what it keeps of pods that have ended
GROWTH_KIB = 1024  # in an hour
JUDGED_SECONDS = 3600.0  # of one process, before its growth says anything; of a run, before its shares do
THIRD = 1 / 3
"""What each API gets of shared devices' time at least, while both always wait (docs/leases.md)."""


class Memory:
    """Anonymous memory of the agent's processes; growth is that of one process, after it has warmed up."""

    def __init__(self, look: Callable[[], tuple[int, int] | None], now: Callable[[], float] = time.monotonic) -> None:
        """``look`` returns the agent's pid and its KiB; None while it is away."""
        self._look = look
        self._now = now
        self._pid, self._since, self._warm = 0, 0.0, 0
        self._seen, self._kib = 0.0, 0
        self.start: int | None = None
        self.most = 0
        self.grown: list[str] = []  # what grew too much, in words

    def look(self) -> int | None:
        found = self._look()
        if found is None:
            return None
        pid, kib = found
        self.start = self.start or kib
        self.most = max(self.most, kib)
        if pid != self._pid:
            self._judge()
            self._pid, self._since, self._warm = pid, self._now(), 0
        elif not self._warm and self._now() - self._since >= WARM_SECONDS:
            self._warm = kib
        self._seen, self._kib = self._now(), kib
        return kib

    def last(self) -> str:
        """Look once more, and say what the present process grew by since it was warm, and how fast."""
        self.look()
        return self._judge()

    def _judge(self) -> str:
        """Judge the process that was seen last, by what it had then."""
        seconds = self._seen - self._since - WARM_SECONDS
        if not self._warm or seconds <= 0:
            return "no agent ran for long enough to be judged"
        growth = self._kib - self._warm
        slope = growth / 1024 / (seconds / 3600)
        told = f"grew by {growth} KiB in {seconds:.0f} s, from {self._warm} to {self._kib}: {slope:+.2f} MiB an hour"
        if seconds + WARM_SECONDS >= JUDGED_SECONDS and growth > GROWTH_KIB * max(1.0, seconds / 3600):
            self.grown.append(f"the agent's memory {told}")
        return told


async def soak(
    seconds: float,
    seed: int,
    environ: Mapping[str, str],
    say: Callable[[str], None] = print,
    log: Path | None = None,
    *,
    shared: bool = False,
    faults: tuple[str, ...] | None = None,
    demand: float = DEMAND,
    count: int = 1,
) -> Verdict:
    """Load and faults for ``seconds``, then at most 150 s without faults, then the verdict; restore the nodes.

    ``shared``: every device is offered to both APIs. ``faults``: how the names of those that happen begin; None: all.
    ``count``: of nodes, each with a load of its own; what is found is added up.
    """
    verdict, began = Verdict(), time.monotonic()
    with contextlib.ExitStack() as files:
        file = files.enter_context(log.open("w")) if log is not None else None
        book = Logbook(file)
        async with real_nodes(environ, book, count, shared=shared) as nodes:
            followed = []
            for node in nodes:
                name = f"{log.name}.agent{node.suffix}" if log is not None else ""
                said = files.enter_context(log.with_name(name).open("w")) if log is not None else None
                followed += [_follow(node, said), node.watch_checkpoint()]
            async with _beside(*followed):
                await _run(nodes, seconds, seed, say, verdict, faults, demand)
                try:
                    await restored(nodes)
                except AssertionError as error:
                    verdict.leaks.append(str(error).partition("\n")[0])
            for kind, lines in (
                ("double hold", verdict.double_holds),
                ("stuck", verdict.stuck),
                ("leak", verdict.leaks),
                ("failure", verdict.failures),
            ):
                for line in lines:
                    book(f"!! {kind}: {line}")
                    say(f"!! {kind}: {line}")
            if not verdict.ok:
                say("what happened, all of it:")
                for line in (*book.lines, *verdict.story):
                    say(f"  {line}")
    verdict.seconds = time.monotonic() - began
    return verdict


async def _run(
    nodes: Sequence[RealNode],
    seconds: float,
    seed: int,
    say: Callable[[str], None],
    verdict: Verdict,
    faults: tuple[str, ...] | None,
    demand: float,
) -> None:
    began, starts = time.monotonic(), Starts()
    memories = [Memory(node.memory_kib) for node in nodes]
    for memory in memories:
        memory.look()
    names = ", ".join(node.object_name for node in nodes)
    say(f"soak: seed {seed}, {len(NAMES)} devices of {names}, for {seconds:.0f} s")
    loads = [Load(node, random.Random(f"load {seed}{node.suffix}"), demand, starts=starts) for node in nodes]
    known = (SHARED if nodes[0].shared else HALVES) + (OF_SEVERAL if len(nodes) > 1 else ())
    kinds = tuple(one for one in known if faults is None or one.startswith(faults))
    storm = Storm(nodes, random.Random(f"storm {seed}"), began + seconds, kinds)
    await loads[0].prepare()
    async with asyncio.TaskGroup() as group:
        working = [group.create_task(load.run(), name=f"load{load.node.suffix}") for load in loads]
        blowing = group.create_task(storm.run(), name="storm")
        timing = group.create_task(loads[0].watch_starts(), name="starts")
        while (left := began + seconds - time.monotonic()) > 0:
            await asyncio.sleep(min(left, PROGRESS_SECONDS))
            for memory in memories:
                memory.look()
            say(_progress(time.monotonic() - began, loads, storm))
        await blowing
        for load in loads:
            load.finish()
        nodes[0].log("the storm is over: those who wait get their turn")
        calm = time.monotonic()
        await comes_true(lambda: _calm(nodes), READY_SECONDS)
        await asyncio.wait(working, timeout=max(1.0, calm + STUCK_SECONDS - time.monotonic()))
        terminating = []
        for load, work in zip(loads, working, strict=True):
            stuck = load.waits.stuck | {
                uid: f"{name} still waits after {STUCK_SECONDS:.0f} s without faults"
                for uid, name in load.waiting.items()
            }
            verdict.stuck += stuck.values()
            if not work.done():
                terminating += [name for name in load.names if name not in load.waiting.values()]
            work.cancel()
        timing.cancel()
        await asyncio.gather(*working, return_exceptions=True)
    verdict.stuck.sort()
    last = [(memory.look(), memory.last()) for memory in memories]
    settled = await asyncio.gather(*(_settled(node) for node in nodes))
    verdict.leaks = [f"{line}{_of(node)}" for node, found in zip(nodes, settled, strict=True) for line in found]
    verdict.leaks += [f"pod {name} does not end" for name in terminating]
    theirs, forced, had_seconds = [], 0, Counter[str]()
    for load in loads:
        node, journal = load.node, judge.parse(load.node.journal())
        record = node.kubelet_record()
        ours, kubelets = judge.double_holds(journal, record)
        verdict.double_holds += [f"{one}{_of(node)}" for one in ours]
        verdict.story += [line for conflict in ours for line in judge.explain(conflict, journal, record)]
        verdict.failures += judge.broken(journal)
        had = len({line.uid for line in journal if line.verb == "has"})
        verdict.pods += had
        if not had:
            verdict.failures.append(f"no container ever had a device{_of(node)}")
        verdict.refusals += len(load.refused)
        forced += sum(line.verb == "forced" for line in journal)
        theirs += [f"{one}{_of(node)}" for one in kubelets]
        had_seconds += judge.device_seconds(journal)
    verdict.failures += [line for memory in memories for line in memory.grown]
    say(f"faults: {listed(storm.counts)}; pods force-deleted {forced}")
    created, deaths, failed = (
        sum((getattr(load, what) for load in loads), Counter[str]()) for what in ("created", "deaths", "failed")
    )
    say(f"pods created: {listed(created)}; ends: {listed(deaths)}; failed: {listed(failed)}")
    for line in starts.lines():
        say(line)
    both = max(1, had_seconds.total())
    share = had_seconds["limits"] / both
    say(f"device-seconds: {both:.0f}, of which pods with limits had {share:.0%}, claims {1 - share:.0%}")
    if nodes[0].shared and demand >= DEMAND and seconds >= JUDGED_SECONDS and not THIRD <= share <= 1 - THIRD:
        verdict.failures.append(f"pods with limits had {share:.0%} of the time in which devices were used")
    say(f"the longest wait for a free device: {max(load.waits.longest for load in loads):.0f} s")
    say(f"refusals: {listed(Counter(kind for load in loads for kind in load.refused.values()))}")
    for node, memory, (end, growth) in zip(nodes, memories, last, strict=True):
        say(
            f"memory of the agent{_of(node)}, anonymous, KiB: start {memory.start}, end {end}, most {memory.most}; "
            f"{growth}"
        )
    for booking in theirs:
        say(f"kubelet's own double booking: {booking}")
        nodes[0].log(f"kubelet's own double booking: {booking}")
    say(f"kubelet's own double bookings: {len(theirs)}")


def _of(node: RealNode) -> str:
    """`` on node-b``, where there are several."""
    return f" on {node.object_name}" if node.suffix else ""


async def _calm(nodes: Sequence[RealNode]) -> bool:
    for node in nodes:
        await apply_node(node, {})
    return all([await node.ready() for node in nodes])


async def _settled(node: RealNode) -> list[str]:
    """What is left over when everything had time to go."""
    found: list[str] = []
    wanted = (len(NAMES), len(NAMES)) if node.shared else (LEGACY, DRA)

    async def nothing() -> bool:
        status = await node.status() or {"devices": []}
        claims = (await node.api.list(CLAIMS, namespace=NAMESPACE)).items
        objects = [
            *(f"pod {one['metadata']['name']}" for one in await node.workload_pods() if node.has_name(one)),
            *(f"claim {one['metadata']['name']}" for one in claims if node.has_name(one)),
        ]
        found[:] = judge.left_over(
            status["devices"], len(NAMES), node.locked(), node.files(), objects, shared=node.shared
        )
        sides = Counter(side for row in status["devices"] for side in row["offered"])
        lent = (
            sum(row["lane"] == "dra" for row in status["devices"]) if node.shared else 0
        )  # for claims of the last minutes
        return not found and (sides["legacy"] + lent, sides["dra"]) == wanted

    if not await comes_true(nothing, SETTLE_SECONDS) and not found:
        found.append(f"limits and claims are not offered {wanted[0]} and {wanted[1]} devices again")
    return found


def _progress(at: float, loads: Sequence[Load], storm: Storm) -> str:
    lines = [line for load in loads for line in judge.parse(load.node.journal())]
    return (
        f"soak: {at:4.0f} s  pods {len({line.uid for line in lines if line.verb == 'has'})} "
        f"({sum(len(load.names) for load in loads)} now, {sum(len(load.waiting) for load in loads)} waiting, "
        f"{sum(load.free for load in loads)} free)  refused {sum(len(load.refused) for load in loads)}  locks taken "
        f"{sum(line.verb == 'taken' for line in lines)}  stuck {sum(len(load.waits.stuck) for load in loads)}  "
        f"faults {storm.counts.total()}"
    )


@contextlib.asynccontextmanager
async def _beside(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _follow(node: RealNode, out: TextIO | None) -> None:
    """Copy what every agent of the run says: kubelet removes a pod's log with the pod."""
    read: dict[Path, int] = {}
    while out is not None:
        with contextlib.suppress(OSError):  # the node is off
            for path in sorted(node.on_node(POD_LOGS).glob(f"{NAMESPACE}_{AGENT}-*/agent/*.log")):
                with contextlib.suppress(OSError), path.open(errors="replace") as file:
                    file.seek(read.get(path, 0))
                    out.write(file.read())
                    read[path] = file.tell()
        out.flush()
        await asyncio.sleep(1.0)
