"""A device whose holder has provably ended is free for both APIs at once; where the end is not proven, it waits.

Every wait for doubt is long here. Every container takes a lock on its devices for its life: two at once would be seen.
"""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from drabridge.sim.cluster import LINGER_SECONDS_ANNOTATION, SimCluster
from tests.support.agent_on_cluster import (
    all_free,
    bridge,
    claim_pod,
    devices_in_slices,
    healthy,
    limits_pod,
    not_started,
    phase,
    short_pod,
)
from tests.support.agent_process import RESOURCE, AgentProcess, held_by, restart_kubelet
from tests.support.kubelet_peers import plugin
from tests.support.leases import ALL, SHARED, offered_twice
from tests.support.waiting import PATIENCE, until

WAITS = "minHoldSeconds: 600, unconfirmedSeconds: 600, absentSeconds: 600, settleSeconds: 1"
DOUBTFUL = SHARED.replace("minHoldSeconds: 0.5, unconfirmedSeconds: 2, absentSeconds: 0.3, settleSeconds: 1", WAITS)
UNSETTLED = DOUBTFUL.replace("settleSeconds: 1", "settleSeconds: 600")
AT_ONCE_SECONDS = 1.0 * PATIENCE


async def _free_at_once(agent: AgentProcess, cluster: SimCluster) -> None:
    began = time.monotonic()
    await until(lambda: all_free(agent), 10, agent.text)
    await until(lambda: len(devices_in_slices(cluster)) == len(healthy(cluster)) == 4, 10, agent.text)
    seconds = time.monotonic() - began
    print(f"free for both APIs after {seconds:.2f} s")
    assert seconds < AT_ONCE_SECONDS, agent.text()


@pytest.mark.parametrize("config", [DOUBTFUL, UNSETTLED], ids=["doubtful", "unsettled"])
async def test_the_device_of_a_pod_that_succeeds_is_free_at_once(config: str) -> None:
    async with bridge(config) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        for turn, seconds in enumerate((2.0, 0.0)):
            await cluster.apply(short_pod(f"job-{turn}", seconds))
            await until(lambda turn=turn: phase(cluster, f"job-{turn}") == "Succeeded", 10)  # type: ignore[misc]
            await _free_at_once(agent, cluster)


async def test_the_device_of_a_pod_that_is_deleted_as_usual_is_free_at_once() -> None:
    async with bridge(DOUBTFUL) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        await cluster.apply(limits_pod("deleted", 2))
        await cluster.wait_pod("deleted")
        await cluster.delete("pods", "deleted")
        await until(lambda: not phase(cluster, "deleted"), 10)
        await _free_at_once(agent, cluster)
        await cluster.apply(claim_pod("next", 4))
        await cluster.wait_pod("next")


async def test_the_end_of_a_pod_is_believed_of_a_kubelet_that_started_since() -> None:
    async with bridge(DOUBTFUL) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        await cluster.apply(short_pod("job", 4.0))
        await cluster.wait_pod("job")
        await restart_kubelet(cluster.kubelets["node-a"])
        await until(lambda: phase(cluster, "job") == "Succeeded", 10)
        await until(lambda: all_free(agent), 10, agent.text)


async def test_the_device_of_a_pod_that_ended_while_the_agent_was_down_is_free_soon() -> None:
    async with bridge(DOUBTFUL) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        await cluster.apply(short_pod("job", 3.0))
        await cluster.wait_pod("job")
        await until(lambda: held_by(agent, "job", 1))
        await agent.stop(signal.SIGKILL)
        await until(lambda: phase(cluster, "job") == "Succeeded", 10)
        await agent.start()
        await agent.ready()
        await until(lambda: all_free(agent), 5, agent.text)


async def test_the_device_of_a_pod_that_another_plugin_served_is_free_at_once_and_the_next_pods_too() -> None:
    """The agent starts beside the pod, and cannot make kubelet write its checkpoint before it has registered."""
    async with not_started(DOUBTFUL) as (agent, cluster):
        async with plugin(cluster.kubelets["node-a"], RESOURCE, sorted(ALL)):
            for name in ("given", "before"):
                await cluster.apply(limits_pod(name, 2))
                await cluster.wait_pod(name)
        await agent.start()
        await agent.ready()
        await asyncio.sleep(2)  # much less than between two looks at a pod that is known
        await cluster.delete("pods", "given")
        await cluster.apply(short_pod("next", 0.0).replace(f'{RESOURCE}": 1', f'{RESOURCE}": 2'))
        await until(lambda: phase(cluster, "next") == "Succeeded", 10, agent.text)
        await cluster.delete("pods", "before")
        await until(lambda: not phase(cluster, "before"), 10)
        await _free_at_once(agent, cluster)


async def test_a_pod_that_another_plugin_served_is_known_as_soon_as_kubelet_takes_the_agent() -> None:
    """However long kubelet has refused it: the longer an answer is missing, the less often kubelet is asked."""
    async with not_started(DOUBTFUL) as (agent, cluster):
        kubelet = cluster.kubelets["node-a"]
        async with plugin(kubelet, RESOURCE, sorted(ALL)):
            await cluster.apply(limits_pod("given", 2))
            await cluster.wait_pod("given")
        kubelet.faults.refuse_register = "not now"
        await agent.start()
        await asyncio.sleep(16)  # looks at 9.8, 14.9 and 22.6 s
        kubelet.faults.refuse_register = ""
        await agent.ready()
        await asyncio.sleep(2)
        await cluster.delete("pods", "given")
        await until(lambda: not phase(cluster, "given"), 10)
        await _free_at_once(agent, cluster)


async def test_a_force_deleted_pod_that_ignores_term_keeps_its_device() -> None:
    async with bridge(DOUBTFUL) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        name = "metadata: {name: zombie, namespace: default"
        stubborn = f"{name}, annotations: {{{LINGER_SECONDS_ANNOTATION}: '600'}}"
        await cluster.apply(limits_pod("zombie", 4).replace(name, stubborn))
        await cluster.wait_pod("zombie")
        await cluster.delete("pods", "zombie", force=True)
        await cluster.apply(claim_pod("next"))
        await asyncio.sleep(3)
        assert set((await agent.owners()).values()) == {"legacy"}, agent.text()
        assert phase(cluster, "next") != "Running"


async def test_the_end_of_a_pod_that_was_not_seen_proves_nothing() -> None:
    """The watch is lost while the pod is deleted: that may have been a force delete."""
    async with bridge(DOUBTFUL) as (agent, cluster, _):
        await offered_twice(agent, cluster)
        await cluster.apply(limits_pod("unseen", 4))
        await cluster.wait_pod("unseen")
        await until(lambda: held_by(agent, "unseen", 4))
        cluster.api.faults.fail(1_000_000, 410, verb="watch", resource="pods")
        cluster.api.faults.fail(1_000_000, 503, verb="list", resource="pods")
        cluster.api.faults.drop_watches()
        await until(lambda: 'msg="objects not followed" kind=pods' in agent.text(), 10, agent.text)
        await cluster.delete("pods", "unseen")
        await until(lambda: not phase(cluster, "unseen"), 10)
        cluster.api.faults.heal()
        await asyncio.sleep(3)
        assert set((await agent.owners()).values()) == {"legacy"}, agent.text()
