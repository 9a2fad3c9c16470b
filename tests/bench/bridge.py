"""Benchmark of lane moves: how long a free device takes from one lane to the other, on the simulated cluster."""

from __future__ import annotations

import asyncio
import statistics
import time

from tests.bench.core import Benchmark
from tests.support.agent_on_cluster import BOTH_LANES, bridge, devices_in_slices, healthy, set_lanes

ROUNDS = 7


async def lane_transfer_s() -> float:
    """From ``drabridge lanes set`` to the device in a slice that schedulers may take from: revoked, acknowledged by
    kubelet, granted, published. The median of seven.
    """
    times = []
    async with bridge(BOTH_LANES) as (agent, cluster, _):
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            await set_lanes(agent, legacy=1, dra=3)
            while len(devices_in_slices(cluster)) != 3:
                assert time.perf_counter() - begin < 20, agent.text()
                await asyncio.sleep(0.001)
            times.append(time.perf_counter() - begin)
            assert not devices_in_slices(cluster) & healthy(cluster)
            await set_lanes(agent, legacy=2, dra=2)
            while len(healthy(cluster)) != 2:
                assert time.perf_counter() - begin < 30, agent.text()
                await asyncio.sleep(0.01)
    return statistics.median(times)


def benchmarks() -> list[Benchmark]:
    """The budgets of the bridge."""
    return [Benchmark("lane_transfer_s", "s", 0.5, lambda: asyncio.run(lane_transfer_s()))]
