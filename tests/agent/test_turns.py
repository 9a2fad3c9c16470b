"""Pods with limits and claims both want more shared devices than there are: no side keeps all of them."""

from __future__ import annotations

import asyncio

from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import (
    allocatable,
    bridge,
    claim_pod,
    devices_in_slices,
    end_claim,
    healthy,
    limits_pod,
    phase,
    short_pod,
)
from tests.support.agent_process import AgentProcess
from tests.support.leases import SHARED, offered_twice
from tests.support.waiting import until

JOB_SECONDS = 0.8
QUICK = (  # the simulated kubelet tells its number at once
    "-c",
    "import sys; from drabridge.cli import main; from drabridge.offers import turns; "
    "turns.TURN_SECONDS = 1.0; sys.exit(main(sys.argv[1:]))",
)


async def _claim_was_here(agent: AgentProcess, cluster: SimCluster) -> None:
    await cluster.apply(claim_pod("before"))
    await cluster.wait_pod("before")
    await end_claim(cluster, "before")
    await offered_twice(agent, cluster)


async def test_pods_that_end_soon_are_followed_by_the_next_ones_though_claims_were_here() -> None:
    """While one pod follows the other, kubelet has a Healthy device for each: it fails them for good otherwise."""
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        await _claim_was_here(agent, cluster)
        names = [f"pod-{number}" for number in range(24)]
        for name in names:
            await cluster.apply(short_pod(name, JOB_SECONDS))
        least = 4
        while any(phase(cluster, name) in ("Pending", "Running") for name in names):
            least = min(least, len(healthy(cluster)))
            await asyncio.sleep(0.02)
        assert {phase(cluster, name) for name in names} == {"Succeeded"}, agent.text()
        assert least == 4


async def test_claims_get_a_device_of_pods_and_no_pod_is_refused_for_it() -> None:
    async with bridge(SHARED, command=lambda _: QUICK) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        await _claim_was_here(agent, cluster)
        await cluster.apply(short_pod("first", JOB_SECONDS))  # now it is known how long pods stay
        await until(lambda: phase(cluster, "first") == "Succeeded", 10, agent.text)
        await offered_twice(agent, cluster)
        names = [f"pod-{number}" for number in range(4)]
        for name in names:
            await cluster.apply(limits_pod(name))
        for name in names:
            await cluster.wait_pod(name)
        await cluster.apply(limits_pod("late"))
        await cluster.apply(claim_pod("claim"))
        await until(lambda: allocatable(cluster) == "3", 10, agent.text)  # one is promised to claims
        assert len(healthy(cluster)) == 3
        await cluster.delete("pods", "pod-0")
        await cluster.wait_pod("claim")
        assert phase(cluster, "late") == "Pending"
        await cluster.delete("pods", "pod-1")  # claims get as many as pods have, one after the other
        await cluster.wait_pod("late")
        assert {phase(cluster, name) for name in names[2:]} == {"Running"}


async def test_a_device_that_a_pod_leaves_is_not_shown_to_claims_while_the_next_pod_is_under_way() -> None:
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        await _claim_was_here(agent, cluster)
        for number in range(2):
            await cluster.apply(limits_pod(f"pod-{number}"))
            await cluster.wait_pod(f"pod-{number}")
        await cluster.apply(claim_pod("claims", 2))
        await cluster.wait_pod("claims")
        await cluster.delete("pods", "pod-0")

        async def offered() -> list[list[str]]:
            return [row["offered"] for row in (await agent.status())["devices"] if row["owner"] == "none"]

        async def is_for_pods() -> bool:
            assert devices_in_slices(cluster).isdisjoint(healthy(cluster))
            return await offered() == [["legacy"]]  # as soon as the agent has followed its ledger, 10 ms later

        await until(is_for_pods, 10, agent.text)
