"""A disk that hangs delays only what needs its file: kubelet and people still get answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import BOTH_LANES, bridge, claim_pod, limits_pod, set_lanes
from tests.support.agent_process import DRIVER, RESOURCE, AgentProcess
from tests.support.waiting import HANG_SECONDS, until

ANNOTATION = f"{DRIVER}/lanes"


@contextlib.asynccontextmanager
async def on_a_disk_that_may_hang(config: str = BOTH_LANES) -> AsyncIterator[tuple[AgentProcess, SimCluster, Path]]:
    """The agent and its cluster; what is written into the file says which paths hang."""

    def command(node: Path) -> tuple[str, ...]:
        return "-m", "tests.support.agent_on_hanging_disk", str(node / "hold")

    async with bridge(config, command=command) as (agent, cluster, _):
        hold = agent.root / "hold"
        try:
            yield agent, cluster, hold
        finally:
            hold.unlink(missing_ok=True)


async def all_else_works(agent: AgentProcess, cluster: SimCluster, pod: str = "") -> None:
    """Health, status, a new kubelet; and a pod with limits, if it is named."""
    kubelet = cluster.kubelets["node-a"]
    for path in ("/healthz", "/status", "/metrics"):
        assert (await asyncio.wait_for(agent.ask(path), HANG_SECONDS))[0] == 200
    await kubelet.restart()
    await kubelet.wait_for_resource(RESOURCE)
    if pod:
        await cluster.apply(limits_pod(pod))
        await cluster.wait_pod(pod)


@contextlib.asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, Any]) -> AsyncIterator[asyncio.Task[Any]]:
    task = asyncio.ensure_future(work)
    try:
        yield task
        await asyncio.wait_for(task, HANG_SECONDS)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_only_lanes_wait_while_they_cannot_be_saved() -> None:
    async with on_a_disk_that_may_hang() as (agent, cluster, hold):
        hold.write_text("/.lanes.json")
        async with meanwhile(set_lanes(agent, legacy=3, dra=1)) as setting:
            await all_else_works(agent, cluster, "a")
            assert not setting.done()
            assert (await agent.status())["resources"][0]["wanted"]["source"] == "configuration"
            hold.unlink()
        await until(lambda: _wanted(agent, "lanes set"), 15, agent.text)


async def _wanted(agent: AgentProcess, source: str) -> bool:
    return bool((await agent.status())["resources"][0]["wanted"]["source"] == source)


async def test_an_annotation_that_cannot_be_saved_is_followed() -> None:
    async with on_a_disk_that_may_hang() as (agent, cluster, hold):
        hold.write_text("/.lanes.node.json")
        lanes = json.dumps({RESOURCE: {"legacy": 3, "dra": 1}})
        cluster.api.objects.modify("nodes", "node-a", lambda n: n["metadata"].update(annotations={ANNOTATION: lanes}))
        await until(lambda: _wanted(agent, "annotation"), 15, agent.text)
        await all_else_works(agent, cluster, "a")
        hold.unlink()
        kept = agent.control.parent / "lanes.node.json"
        await until(lambda: kept.exists() and json.loads(kept.read_text()) == json.loads(lanes), 15, agent.text)


async def test_devices_get_names_that_cannot_be_saved() -> None:
    async with on_a_disk_that_may_hang() as (agent, cluster, hold):
        hold.write_text("/.identities.json")
        agent.config.write_text(BOTH_LANES.replace('"{sysname}"', '"x-{sysname}"'))
        await until(lambda: "x-zero" in agent_ids(cluster), 15, agent.text)
        await all_else_works(agent, cluster, "a")
        hold.unlink()
        kept = agent.control.parent / "identities.json"
        await until(lambda: kept.exists() and "x-zero" in kept.read_text(), 15, agent.text)


def agent_ids(cluster: SimCluster) -> set[str]:
    view = cluster.kubelets["node-a"].resources.get(RESOURCE)
    return set(view.devices) if view else set()


@pytest.mark.parametrize("file", ["/.lanes.json", ""])
async def test_an_agent_on_a_disk_that_hangs_can_be_ended(file: str) -> None:
    async with on_a_disk_that_may_hang() as (agent, _, hold):
        hold.write_text(file)
        setting = asyncio.create_task(set_lanes(agent, legacy=3, dra=1))
        await asyncio.sleep(0.2)
        assert await agent.stop(signal.SIGTERM) == 0
        setting.cancel()
        await asyncio.gather(setting, return_exceptions=True)


async def test_an_agent_that_cleans_on_a_disk_that_hangs_can_be_ended() -> None:
    async with on_a_disk_that_may_hang() as (agent, _, hold):
        await until(lambda: _drained(agent), 30, agent.text)
        agent.cdi.mkdir(exist_ok=True)
        (agent.cdi / f"{DRIVER}_metadata_00000000-0000-4000-8000-000000000000_r.json").write_text("{}")
        hold.write_text("/cdi/")
        cleaning = asyncio.create_task(agent.ask("/drain", b'{"drain": true, "clean": true}'))
        kept = agent.control.parent / "drained.json"
        await until(lambda: "true" in kept.read_text(), 30, agent.text)
        await asyncio.sleep(0.5)
        assert await agent.stop(signal.SIGTERM) == 0
        cleaning.cancel()
        await asyncio.gather(cleaning, return_exceptions=True)


async def _drained(agent: AgentProcess) -> bool:
    return bool(json.loads((await agent.ask("/drain", b'{"drain": true}'))[1])["complete"])


METADATA = BOTH_LANES.replace(f"driver: {DRIVER}", f"driver: {DRIVER}\ndra: {{metadata: true}}")


@pytest.mark.parametrize(
    ("config", "file"), [(BOTH_LANES, "/claims/"), (METADATA, "/dra-device-metadata/")], ids=["record", "metadata"]
)
async def test_a_claim_whose_files_cannot_be_written_delays_no_other(config: str, file: str) -> None:
    async with on_a_disk_that_may_hang(config) as (agent, cluster, hold):
        hold.write_text(file)
        await cluster.apply(claim_pod("c"))
        await until(lambda: cluster.kubelets["node-a"].calls.of("NodePrepareResources"), 15, agent.text)
        await all_else_works(agent, cluster, "a")
        assert _phase(cluster, "c") == "Pending"
        hold.unlink()
        await cluster.wait_pod("c")
        hold.write_text("/claims/")
        async with meanwhile(cluster.delete("pods", "c")):
            await until(lambda: cluster.kubelets["node-a"].calls.of("NodeUnprepareResources"), 15, agent.text)
            await all_else_works(agent, cluster, "b")
            hold.unlink()
        await until(lambda: _no_records(agent), 15, agent.text)


def _no_records(agent: AgentProcess) -> bool:
    return not list((agent.control.parent / "claims").glob("*.json"))


def _phase(cluster: SimCluster, pod: str) -> str:
    found = cluster.get("pods", pod)
    assert found is not None
    return str(found["status"].get("phase"))


async def test_devices_whose_cdi_files_cannot_be_written_delay_no_other() -> None:
    async with on_a_disk_that_may_hang() as (agent, cluster, hold):
        hold.write_text("/cdi/")
        await cluster.apply(limits_pod("a"))
        await cluster.apply(claim_pod("c"))
        calls = cluster.kubelets["node-a"].calls
        await until(lambda: calls.of("Allocate") and calls.of("NodePrepareResources"), 15, agent.text)
        for path in ("/healthz", "/status", "/metrics"):
            assert (await asyncio.wait_for(agent.ask(path), HANG_SECONDS))[0] == 200
        await asyncio.wait_for(set_lanes(agent, legacy=3, dra=1), HANG_SECONDS)
        assert "Running" not in (_phase(cluster, "a"), _phase(cluster, "c"))  # an Allocate is refused in the end
        hold.unlink()
        await cluster.wait_pod("c")
        await cluster.apply(limits_pod("b"))
        await cluster.wait_pod("b")
