"""Does the agent's memory stay flat? ``python -m tests.abuse.memory --minutes 30`` prints the curve and its slope.

A real agent process serves pods with limits and pods with claims that come and go without pause on a simulated
cluster, is scraped and asked for its status meanwhile, and sees kubelet restart now and then. Only the agent's own
memory is sampled; the cluster lives in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from drabridge.sim.cluster import ClusterTimings, SimCluster
from tests.support.agent_on_cluster import BOTH_LANES, CLASS, claim_pod, limits_pod
from tests.support.agent_process import RESOURCE, AgentProcess
from tests.support.waiting import short_directory

SAMPLE_SECONDS = 10.0
PAUSE_SECONDS = 0.1  # between two pods of one churner: a rate that leaves the cores to others
RESTART_SECONDS = 60.0  # kubelet's restarts
WARM_UP_SHARE = 0.3  # of the run: allocator arenas and caches fill, then the slope counts
BUDGET_MIB_PER_HOUR = 2.0  # a leak of this size would need a month to double what a node gives to such an agent


@dataclass(frozen=True, slots=True)
class Sample:
    """``rss_mib`` is all resident memory, ``anonymous_mib`` the part that is not files: where a leak would be."""

    seconds: float
    rss_mib: float
    anonymous_mib: float
    file_descriptors: int
    pods: int


def sample(pid: int, seconds: float, pods: int) -> Sample:
    """Read ``/proc``. Raises FileNotFoundError when the process has ended."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Rss")
    )
    resident = {name: int(value.split()[0]) / 1024 for name, value in fields.items()}
    return Sample(
        seconds,
        sum(resident.values()),
        resident["RssAnon"],
        len(list(Path(f"/proc/{pid}/fd").iterdir())),
        pods,
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Least squares, in units of y for each hour of x (seconds). 0.0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return 3600 * sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def curve(samples: Sequence[Sample], width: int = 60) -> str:
    """The samples as a chart of text: one line a sample, thinned out to 40."""
    step = max(1, len(samples) // 40)
    most = max(one.rss_mib for one in samples)
    return "\n".join(
        f"{one.seconds:7.0f} s {one.rss_mib:6.1f} MiB ({one.anonymous_mib:5.1f} anonymous) "
        f"{one.file_descriptors:3d} fd {one.pods:6d} pods {'#' * round(width * one.rss_mib / most)}"
        for one in samples[::step]
    )


class Churn:
    """Pods that come and go until cancelled. ``pods`` counts those that ran."""

    def __init__(self, cluster: SimCluster, agent: AgentProcess) -> None:
        self._cluster = cluster
        self._agent = agent
        self.pods = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods("limits", limits_pod, "pods"))
            group.create_task(self._pods("claim", claim_pod, "pods", "resourceclaims"))
            group.create_task(self._ask())
            group.create_task(self._restart())

    async def _pods(self, prefix: str, make: Callable[[str], str], *created: str) -> None:
        """One pod after another; ``created``: the kinds of objects in its manifest, deleted in this order."""
        for number in itertools.count(1):
            name = f"{prefix}-{number}"
            await self._cluster.apply(make(name))
            # Pods with limits may wait for the evidence that the one before has let go: a minute is generous.
            with contextlib.suppress(TimeoutError):
                await self._cluster.wait_pod(name, timeout=60)
                self.pods += 1
            for resource in created:
                await self._cluster.delete(resource, name)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _ask(self) -> None:
        while True:
            for path in ("/metrics", "/status", "/readyz"):
                with contextlib.suppress(OSError, TimeoutError):
                    await self._agent.ask(path)
            await asyncio.sleep(1)

    async def _restart(self) -> None:
        while True:
            await asyncio.sleep(RESTART_SECONDS)
            await self._cluster.kubelets["node-a"].restart()


async def measure(minutes: float, every_seconds: float = SAMPLE_SECONDS, least_pods: int = 0) -> list[Sample]:
    """Run it all, until so many pods have run at least; a line for each sample goes to stdout as it is taken."""
    samples: list[Sample] = []
    with short_directory() as root:
        async with SimCluster(root, timings=ClusterTimings.fast()) as cluster:
            kubeconfig = root / "kubeconfig"
            cluster.api.kubeconfig(kubeconfig)
            agent = AgentProcess(root / "node-a", BOTH_LANES, arguments=("--kubeconfig", str(kubeconfig)))
            await agent.start()
            churner: asyncio.Task[None] | None = None
            try:
                await agent.ready()
                await cluster.apply(CLASS)
                assert agent.process is not None
                churn = Churn(cluster, agent)
                churner = asyncio.create_task(churn.run())
                began = time.monotonic()
                while (elapsed := time.monotonic() - began) < minutes * 60 or churn.pods < least_pods:
                    if churner.done():
                        churner.result()
                    samples.append(sample(agent.process.pid, elapsed, churn.pods))
                    print(samples[-1], flush=True)
                    await asyncio.sleep(every_seconds)
                samples.append(sample(agent.process.pid, elapsed, churn.pods))
                row = next(row for row in (await agent.status())["resources"] if row["name"] == RESOURCE)
                assert row["inDoubt"] == 0, row
            finally:
                if churner is not None:
                    churner.cancel()
                    await asyncio.gather(churner, return_exceptions=True)
                with contextlib.suppress(ProcessLookupError):
                    await agent.stop(signal.SIGTERM)
    return samples


def report(samples: Sequence[Sample]) -> float:
    """Print the curve; returns the slope of anonymous memory after warm-up, in MiB an hour."""
    warm = [one for one in samples if one.seconds >= WARM_UP_SHARE * samples[-1].seconds]
    anonymous = slope([(one.seconds, one.anonymous_mib) for one in warm])
    resident = slope([(one.seconds, one.rss_mib) for one in warm])
    print(curve(samples))
    print(
        f"{samples[-1].pods} pods in {samples[-1].seconds / 60:.1f} min; "
        f"RSS {samples[0].rss_mib:.1f} -> {samples[-1].rss_mib:.1f} MiB; after warm-up "
        f"{resident:+.2f} MiB/h resident, {anonymous:+.2f} MiB/h anonymous (budget {BUDGET_MIB_PER_HOUR:g})"
    )
    return anonymous


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.abuse.memory", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="default: 30")
    arguments = parser.parse_args()
    return 0 if report(asyncio.run(measure(arguments.minutes))) <= BUDGET_MIB_PER_HOUR else 1


if __name__ == "__main__":
    sys.exit(main())
