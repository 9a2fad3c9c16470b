"""For how long nothing is released after a start of kubelet, and of an agent that may meet another kubelet."""

from __future__ import annotations

import signal

from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import BOTH_LANES, all_free, bridge, limits_pod
from tests.support.agent_process import AgentProcess
from tests.support.waiting import until

LONG = BOTH_LANES.replace("settleSeconds: 1", "settleSeconds: 3600")


async def again(agent: AgentProcess, number: signal.Signals) -> None:
    """Another agent, which waits for an hour if it has to wait."""
    await agent.stop(number)
    agent.config.write_text(LONG)
    await agent.start()
    await agent.ready()


async def pod_runs(agent: AgentProcess, cluster: SimCluster, name: str) -> None:
    """A pod with limits runs, and no release waits any more."""
    await cluster.apply(limits_pod(name, 2))
    await cluster.wait_pod(name)

    async def settled() -> bool:
        found = await agent.status()
        held = [row for row in found["devices"] if "running" in row["evidence"]]
        return len(held) == 2 and not found["releasesSuspendedUntil"]

    await until(settled, 20, agent.text)


async def waits(agent: AgentProcess) -> bool:
    return bool((await agent.status())["releasesSuspendedUntil"])


async def test_an_agent_restarted_beside_the_same_kubelet_releases_at_once() -> None:
    """An agent that is killed every few seconds must not wait from the beginning each time."""
    async with bridge() as (agent, cluster, _):
        await pod_runs(agent, cluster, "l")
        for _ in range(2):
            await again(agent, signal.SIGKILL)
        await cluster.delete("pods", "l")
        await until(lambda: all_free(agent), 30, agent.text)
        assert not await waits(agent)


async def test_an_agent_restarted_beside_a_new_kubelet_waits_before_it_releases() -> None:
    async with bridge() as (agent, cluster, _):
        kubelet = cluster.kubelets["node-a"]
        await pod_runs(agent, cluster, "l")
        await agent.stop()
        await kubelet.stop()
        await kubelet.start()
        await again(agent, signal.SIGTERM)
        assert await waits(agent)
        notes = (await agent.status())["notes"]
        assert any("no device whose pod is not proven to have ended is released before" in note for note in notes), (
            notes
        )


async def test_a_kubelet_that_comes_after_the_agent_is_waited_for() -> None:
    """Kubelet was stopped when the agent started, and its socket file was still there."""
    async with bridge() as (agent, cluster, _):
        kubelet = cluster.kubelets["node-a"]
        await pod_runs(agent, cluster, "l")
        await agent.stop()
        await kubelet.stop()
        agent.config.write_text(LONG)
        await agent.start()
        await agent.up()
        await kubelet.start()
        await agent.ready()
        await until(lambda: waits(agent), 10, agent.text)
