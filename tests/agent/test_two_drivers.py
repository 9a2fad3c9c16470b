"""Agents of two drivers on one node, at once and one after the other: a piece of hardware has one holder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
from collections.abc import AsyncIterator

from tests.support.agent_on_cluster import BOTH_LANES, CLASS, bridge, claim_pod, limits_pod
from tests.support.agent_process import DRIVER, RESOURCE, AgentProcess, holder_shown
from tests.support.waiting import HANG_SECONDS, until

OTHER_DRIVER, OTHER_RESOURCE = "other.example.com", "example.com/memory"
RENAMED = BOTH_LANES.replace(DRIVER, OTHER_DRIVER)
OTHER = RENAMED.replace(RESOURCE, OTHER_RESOURCE)
ALL_FOR_PODS = ("lanes: {legacy: 2, dra: 2}", "lanes: {legacy: 4, dra: 0}")


@contextlib.asynccontextmanager
async def beside(agent: AgentProcess, config: str) -> AsyncIterator[AgentProcess]:
    """An agent of the other driver on the same node, with a file and a log of its own."""
    before = agent.config.read_text()
    second = AgentProcess(agent.root, config, OTHER_DRIVER, agent.arguments)
    second.config, second.log = agent.root / "second.yaml", agent.root / "second.log"
    second.config.write_text(config)
    agent.config.write_text(before)
    await second.start()
    try:
        yield second
    finally:
        await second.stop(signal.SIGKILL)


async def presences(agent: AgentProcess) -> dict[str, str]:
    return {row["name"]: row["presence"] for row in (await agent.status())["devices"]}


async def test_the_second_driver_serves_nothing_that_the_first_one_serves() -> None:
    async with bridge() as (agent, cluster, runtime), beside(agent, OTHER) as second:
        await until(lambda: _all_withheld(second), 15, second.text)
        await cluster.apply(CLASS.replace("name: mem", "name: mem2").replace(DRIVER, OTHER_DRIVER))
        await cluster.apply(claim_pod("one", 2))
        await cluster.wait_pod("one")
        for n in range(2):
            await cluster.apply(claim_pod(f"two-{n}").replace("deviceClassName: mem", "deviceClassName: mem2"))
            await cluster.apply(limits_pod(f"three-{n}").replace(RESOURCE, OTHER_RESOURCE))
        row = (await second.status())["devices"][0]
        assert f"it is {row['name']} of the driver {DRIVER}, whose agent serves it on this node" in row["reason"]
        assert row["offered"] == []
        assert set((await presences(agent)).values()) == {"present"}
        kubelet = cluster.kubelets["node-a"]
        await kubelet.wait_for_resource(OTHER_RESOURCE, healthy=0)
        assert len(kubelet.resources[RESOURCE].healthy) == 2
        assert runtime.conflicts == []


async def _all_withheld(agent: AgentProcess) -> bool:
    try:
        found = await presences(agent)
    except (OSError, IndexError):
        return False
    return len(found) == 4 and set(found.values()) == {"faulty"}


async def test_devices_of_an_ended_driver_are_withheld_until_its_file_is_removed() -> None:
    async with bridge() as (agent, cluster, runtime):
        await cluster.apply(claim_pod("train"))
        await cluster.wait_pod("train")
        (used,) = [row["name"] for row in (await agent.status())["devices"] if row["owner"].startswith("dra")]
        await agent.stop()
        agent.config.write_text(OTHER.replace(*ALL_FOR_PODS))
        agent.driver = OTHER_DRIVER
        await agent.start()
        await agent.ready()
        await cluster.kubelets["node-a"].wait_for_resource(OTHER_RESOURCE, healthy=3)
        found = await agent.device(used)
        assert (
            f"it is {used} of the driver {DRIVER} on this node, which is held by claim default/train" in found["reason"]
        )
        await cluster.apply(limits_pod("new", 3).replace(RESOURCE, OTHER_RESOURCE))
        await cluster.wait_pod("new")
        assert runtime.conflicts == []
        file, directory = (
            agent.root / "plugins_registry" / f".drabridge-{DRIVER}.hardware",
            agent.root / "plugins" / DRIVER,
        )
        assert f"remove {file} and {directory}" in found["reason"]
        file.unlink()  # a person knows better
        shutil.rmtree(directory)
        await cluster.kubelets["node-a"].wait_for_resource(OTHER_RESOURCE, healthy=4)


async def test_an_unreadable_ledger_of_the_former_driver_withholds_every_device() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("train"))
        await cluster.wait_pod("train")
        await agent.stop()
        ledger = agent.control.parent / "ledger.jsonl"
        ledger.write_bytes(ledger.read_bytes()[:40])
        agent.config.write_text(RENAMED.replace(*ALL_FOR_PODS))
        await agent.start()
        assert agent.process is not None
        assert await asyncio.wait_for(agent.process.wait(), 60) == 2
        assert f"the driver {DRIVER} may hold configured devices" in agent.text()


def left_by(agent: AgentProcess, driver: str) -> list[str]:
    """The devices that the file of a driver names."""
    file = agent.root / "plugins_registry" / f".drabridge-{driver}.hardware"
    return [piece["name"] for piece in json.loads(file.read_bytes())["pieces"]]


async def test_devices_of_a_removed_driver_are_free_once_no_workload_can_have_them() -> None:
    """Killed while its pods run or have just ended, its state directory in a place that the other one lacks."""
    async with bridge(dra_reconcile_seconds=0.2) as (agent, cluster, runtime):
        kubelet = cluster.kubelets["node-a"]
        for pod in (limits_pod("train"), claim_pod("learn")):
            await cluster.apply(pod)
        for name in ("train", "learn"):
            await cluster.wait_pod(name)
        await until(lambda: holder_shown(agent), 15, agent.text)
        with contextlib.suppress(ProcessLookupError):
            await agent.stop(signal.SIGKILL)
        shutil.rmtree(agent.control.parent)
        async with beside(agent, OTHER.replace(*ALL_FOR_PODS)) as second:
            await kubelet.wait_for_resource(OTHER_RESOURCE, healthy=0)  # which of them it held is not known
            await cluster.delete("pods", "train")
            # Without its driver kubelet cannot end a pod with a claim as usual.
            await cluster.delete("pods", "learn", force=True)
            await cluster.delete("resourceclaims", "learn")
            await until(lambda: left_by(agent, DRIVER) == [], 10, second.text)
            await kubelet.wait_for_resource(OTHER_RESOURCE, timeout=HANG_SECONDS, healthy=4)
            await cluster.apply(limits_pod("new", 4).replace(RESOURCE, OTHER_RESOURCE))
            await cluster.wait_pod("new")
            assert runtime.conflicts == []
