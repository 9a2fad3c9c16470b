"""Benchmarks of the coordinator: what its memory is with many claims that wait."""

from __future__ import annotations

import asyncio
import signal

from drabridge.sim.apiserver.server import SimApiServer
from tests.bench.core import Benchmark
from tests.bench.processes import anonymous_mib
from tests.support.coordinators import CoordinatorProcess, hinted, waiting_claim
from tests.support.waiting import short_directory, until

CLAIMS, POOLS = 10_000, 100


def benchmarks() -> list[Benchmark]:
    return [Benchmark("coordinator_rss_mib", "MiB", 80.0, rss_mib)]


def rss_mib() -> float:
    """Anonymous memory of a coordinator with 10,000 claims that wait, when it has named all of them."""
    return asyncio.run(_rss_mib())


async def _rss_mib() -> float:
    with short_directory() as root:
        async with SimApiServer() as api:
            for number in range(CLAIMS):
                waiting_claim(api.objects, f"training-job-{number:05}-worker-gpu-x7k2p", pool=f"node-{number % POOLS}")
            coordinator = CoordinatorProcess(root, api.kubeconfig(root / "kubeconfig"))
            await coordinator.start()
            try:
                for pool in range(POOLS):
                    await until(
                        lambda: len(hinted(api.objects, f"node-{pool}") or ()) == CLAIMS // POOLS,  # noqa: B023
                        60,
                        coordinator.text,
                    )
                assert coordinator.process is not None
                return anonymous_mib(coordinator.process.pid)
            finally:
                await coordinator.stop(signal.SIGKILL)
