"""Other plugins beside and before the agent: their resources' names decide whether an id of theirs is ours."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

from drabridge.sim.cluster import SimCluster
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.timings import Timings
from tests.support.agent_on_cluster import (
    claim_pod,
    devices_in_slices,
    healthy,
    limits_pod,
    not_started,
    set_lanes,
)
from tests.support.agent_process import IDS, QUICK, RESOURCE, AgentProcess, noted, pod
from tests.support.kubelet_peers import plugin
from tests.support.waiting import short_directory, until

VENDOR = "vendor.example.com/gpu"


async def test_a_takeover_under_another_resource_name_gives_nobody_what_pods_have() -> None:
    with short_directory() as root:
        async with SimKubelet(root, timings=Timings.fast()) as kubelet:
            async with plugin(kubelet, VENDOR, IDS):
                await kubelet.run_pod(pod("a", 2, VENDOR))
                held = set(kubelet.resources[VENDOR].allocated)
            agent = AgentProcess(root, QUICK)
            await agent.start()
            try:
                await agent.ready()
                await kubelet.wait_for_resource(RESOURCE, healthy=2)
                assert {name for name, owner in (await agent.owners()).items() if owner == "legacy"} == held
                assert (await kubelet.run_pod(pod("b", 4))).phase is Phase.FAILED
                assert (await kubelet.run_pod(pod("c", 2))).phase is Phase.RUNNING
                await agent.stop()
                await agent.start()
                await agent.ready()
                await until(lambda: kubelet.resources[RESOURCE].healthy == set(IDS) - held, 10, agent.text)
                await kubelet.delete_pod("uid-a")
                await kubelet.wait_for_resource(RESOURCE, healthy=4)
                assert (await kubelet.run_pod(pod("d", 2))).phase is Phase.RUNNING
            finally:
                await agent.stop(signal.SIGKILL)


@contextlib.asynccontextmanager
async def claim_node(count: int = 1) -> AsyncIterator[tuple[AgentProcess, SimCluster]]:
    """A ready agent, and a pod with a claim. Without the judge, which knows devices by their ids alone."""
    async with not_started() as (agent, cluster):
        await agent.start()
        await agent.ready()
        await cluster.apply(claim_pod("c", count))
        await cluster.wait_pod("c")
        yield agent, cluster


async def test_equal_ids_of_another_plugin_are_not_our_devices() -> None:
    async with claim_node() as (agent, cluster):
        kubelet = cluster.kubelets["node-a"]
        before = await agent.owners()
        assert sorted(before.values()) == ["dra-prepared", "none", "none", "none"]
        async with plugin(kubelet, VENDOR, IDS):
            await cluster.apply(limits_pod("stranger", 4).replace(RESOURCE, VENDOR))
            await cluster.wait_pod("stranger")
            await agent.stop()
            await agent.start()
            await agent.ready()
            assert await agent.owners() == before
            await set_lanes(agent, legacy=0, dra=4)
            await until(lambda: devices_in_slices(cluster) == set(IDS), 10, agent.text)
            assert await agent.owners() == before
            assert not {"DeviceConflict", "DeviceAdopted"} & {one["reason"] for one in cluster.events()}


async def test_a_plugin_that_registers_our_resource_is_noticed_and_replaced() -> None:
    """Kubelet reports nothing: the agent's stream stays open, and pods would get devices that claims have."""
    async with claim_node(2) as (agent, cluster):
        kubelet = cluster.kubelets["node-a"]
        ours = {name for name, owner in (await agent.owners()).items() if owner == "none"}
        await until(lambda: healthy(cluster) == ours, 10, agent.text)
        async with plugin(kubelet, RESOURCE, IDS) as other:
            await until(lambda: unready_because(agent, f"{RESOURCE}: another plugin"), 30, agent.text)
            await until(lambda: healthy(cluster) == ours, 20, agent.text)
            await cluster.apply(limits_pod("l", 2))
            await cluster.wait_pod("l")
            assert "Allocate" not in [method for method, _ in other.calls]
            assert {name for name, owner in (await agent.owners()).items() if owner == "legacy"} == ours


async def test_pods_with_another_plugins_ids_put_free_devices_in_doubt() -> None:
    async with claim_node() as (agent, cluster):
        kubelet = cluster.kubelets["node-a"]
        before = await agent.owners()
        (claimed,) = [name for name, owner in before.items() if owner != "none"]
        async with plugin(kubelet, RESOURCE, [f"v{n}" for n in range(4)]):
            await cluster.apply(limits_pod("l"))
            await cluster.wait_pod("l")
            doubted = dict.fromkeys(before, "quarantine") | {claimed: "dra-prepared"}
            await until(lambda: is_owned(agent, doubted), 30, agent.text)
        words = "no device here has such an id"
        await until(lambda: any(words in one["message"] for one in cluster.events()), 10, agent.text)
        await until(lambda: doubted_because(agent, "pod-unaccounted"), 20, agent.text)
        assert await agent.owners() == doubted
        await cluster.delete("pods", "l")
        await until(lambda: is_owned(agent, before), 20, agent.text)


async def is_owned(agent: AgentProcess, wanted: dict[str, str]) -> bool:
    return await agent.owners() == wanted


async def unready_because(agent: AgentProcess, words: str) -> bool:
    code, body = await agent.ask("/readyz")
    return code == 503 and words in body.decode()


async def test_pods_with_unknown_ids_put_every_device_in_doubt_while_they_run() -> None:
    """The resource name is ours but the ids are not: the former plugin made them from another attribute."""
    async with not_started() as (agent, cluster):
        kubelet = cluster.kubelets["node-a"]
        async with plugin(kubelet, RESOURCE, [f"v{n}" for n in range(4)]):
            await cluster.apply(limits_pod("old"))
            await cluster.wait_pod("old")
        (used,) = kubelet.resources[RESOURCE].allocated
        await agent.start()
        await agent.up()
        await until(lambda: is_all(agent, "quarantine"), 10, agent.text)
        words = f"calls otherwise or does not match: {RESOURCE} {used}"
        await until(lambda: noted(agent, words), 10, agent.text)  # a note is written after the ledger
        await until(lambda: doubted_because(agent, "pod-unaccounted"), 10, agent.text)
        await until(lambda: noted(agent, "are asked for by default/old"), 10, agent.text)
        await asyncio.sleep(1)  # longer than every doubt
        assert await is_all(agent, "quarantine")
        await cluster.delete("pods", "old")
        await until(lambda: is_all(agent, "none"), 20, agent.text)


async def is_all(agent: AgentProcess, owner: str) -> bool:
    return await is_owned(agent, dict.fromkeys(IDS, owner))


async def doubted_because(agent: AgentProcess, reason: str) -> bool:
    return f'drabridge_hold_reason{{reason="{reason}"}}'.encode() in (await agent.ask("/metrics"))[1]
