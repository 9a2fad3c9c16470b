"""Leases of shared devices: a real agent process beside a simulated cluster with its scheduler."""

from __future__ import annotations

import asyncio
import statistics
import time

from drabridge.sim.apiserver.request import Request
from drabridge.sim.cluster import SimCluster
from tests.bench.core import Benchmark, awaited
from tests.support.agent_on_cluster import BOTH_LANES, bridge, claim_pod, devices_in_slices, healthy
from tests.support.waiting import until

ROUNDS = 15
SHARED = BOTH_LANES.replace("{legacy: 2, dra: 2}", '{shared: "*"}')
DEVICES = 4
PATIENCE_SECONDS = 20.0


def _about(cluster: SimCluster, since: int, claim: str) -> list[Request]:
    """What was asked about one claim, its status included, by somebody who is not the simulation itself."""
    return [one for one in cluster.api.requests[since:] if one.resource == "resourceclaims" and one.name == claim]


async def _lease(cluster: SimCluster, name: str) -> tuple[float, int]:
    """Seconds from the pod's nomination to the answer to the PATCH of the condition, and requests until then."""
    since = len(cluster.api.requests)
    nominated = 0.0
    await cluster.apply(claim_pod(name))
    begin = time.perf_counter()
    while True:
        asked = _about(cluster, since, name)
        done = [number for number, one in enumerate(asked, 1) if one.verb == "patch" and one.status == 200]
        if not nominated and any(
            pod["metadata"]["name"] == name and pod.get("status", {}).get("nominatedNodeName")
            for pod in cluster.api.objects.peek("pods")
        ):
            nominated = time.perf_counter()
        if done:
            assert nominated, "the condition was set before the pod was nominated"
            return time.perf_counter() - nominated, done[0]
        assert time.perf_counter() - begin < PATIENCE_SECONDS, f"{name} gets no lease"
        await asyncio.sleep(0.0005)


async def _leases() -> list[tuple[float, int]]:
    found = []
    async with bridge(SHARED) as (agent, cluster, _):
        await until(lambda: len(healthy(cluster) & devices_in_slices(cluster)) == DEVICES, 20, agent.text)
        for turn in range(ROUNDS):
            name = f"claim-{turn}"
            found.append(await _lease(cluster, name))
            await cluster.wait_pod(name)
            await cluster.delete("pods", name)
            await cluster.delete("resourceclaims", name)
            await until(lambda: len(healthy(cluster) & devices_in_slices(cluster)) == DEVICES, 20, agent.text)
    return found


async def lease_grant_ms() -> float:
    """From the event of the nominated pod to the answer to the PATCH that grants the lease; the median of 15."""
    return statistics.median(seconds for seconds, _ in await _leases()) * 1000


async def lease_requests_per_claim() -> float:
    """Requests of the agent about a claim until its lease is granted; the most of 15."""
    return float(max(requests for _, requests in await _leases()))


def benchmarks() -> list[Benchmark]:
    """The budgets of leases."""
    return [
        Benchmark("lease_grant_ms", "ms", 150, awaited(lease_grant_ms)),
        Benchmark("lease_requests_per_claim", "requests", 4, awaited(lease_requests_per_claim)),
    ]
