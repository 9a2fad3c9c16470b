"""Pods with limits and claims both want more shared devices than there are: no side keeps all of them."""

from __future__ import annotations

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
)
from tests.support.agent_process import AgentProcess
from tests.support.leases import SHARED, offered_twice
from tests.support.waiting import until


async def _claim_was_here(agent: AgentProcess, cluster: SimCluster) -> None:
    await cluster.apply(claim_pod("before"))
    await cluster.wait_pod("before")
    await end_claim(cluster, "before")
    await offered_twice(agent, cluster)


async def test_claims_get_a_device_of_pods_and_no_pod_is_refused_for_it() -> None:
    async with bridge(SHARED) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        await _claim_was_here(agent, cluster)
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

        seen: list[list[str]] = []

        async def is_free() -> bool:
            seen.extend(await offered())
            return bool(seen)

        await until(is_free, 10, agent.text)
        assert seen == [["legacy"]]
        assert devices_in_slices(cluster).isdisjoint(healthy(cluster))
