"""Both APIs on one node: a real agent process beside a simulated cluster, over real sockets and HTTP."""

from __future__ import annotations

import asyncio
import json
import signal

from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import (
    BOTH_LANES,
    all_free,
    bridge,
    claim_pod,
    devices_in_slices,
    healthy,
    limits_pod,
    pools,
    set_lanes,
)
from tests.support.agent_process import DRIVER, RESOURCE, AgentProcess, noted
from tests.support.waiting import until


async def test_each_device_is_offered_on_one_side_only() -> None:
    async with bridge() as (_, cluster, _runtime):
        await until(lambda: len(devices_in_slices(cluster)) == 2)
        assert len(healthy(cluster)) == 2
        assert not devices_in_slices(cluster) & healthy(cluster)


async def test_both_kinds_of_pods_run_side_by_side() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c1") + "---\n" + claim_pod("c2"))
        await cluster.apply(limits_pod("l1") + "---\n" + limits_pod("l2"))
        for name in ("c1", "c2", "l1", "l2"):
            await cluster.wait_pod(name)
        owners = sorted(row["owner"] for row in (await agent.status())["devices"])
        assert owners == ["dra-prepared", "dra-prepared", "legacy", "legacy"]


async def test_lanes_move_while_pods_run_and_back() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(limits_pod("l1"))
        await cluster.wait_pod("l1")
        await set_lanes(agent, legacy=1, dra=3)
        await until(lambda: len(devices_in_slices(cluster)) == 3, 10, agent.text)
        assert len(healthy(cluster)) == 1
        await cluster.apply(claim_pod("c", 3))
        await cluster.wait_pod("c")
        # All goes to claims: the held one waits, marked; nothing of the running pod is disturbed.
        await set_lanes(agent, legacy=0, dra=4)
        await until(lambda: _moves(agent, "waiting"), 10)
        assert cluster.get("pods", "l1")["status"]["phase"] == "Running"  # type: ignore[index]
        await set_lanes(agent, legacy=1, dra=3)
        await until(lambda: _moves(agent, None), 10)


async def test_all_devices_move_to_claims_and_back() -> None:
    async with bridge() as (agent, cluster, _):
        await set_lanes(agent, legacy=0, dra=4)
        await until(lambda: len(devices_in_slices(cluster)) == 4, 10, agent.text)
        assert not healthy(cluster)
        await set_lanes(agent, legacy=4, dra=0)
        await until(lambda: len(healthy(cluster)) == 4, 20, agent.text)
        assert not devices_in_slices(cluster)
        await set_lanes(agent, reset=True)
        await until(lambda: len(devices_in_slices(cluster)) == 2, 20, agent.text)
        assert len(healthy(cluster)) == 2


async def test_the_device_of_an_ended_pod_is_released() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(limits_pod("l", 2))
        await cluster.wait_pod("l")
        await cluster.delete("pods", "l")
        await until(lambda: all_free(agent), 30, agent.text)
        row = (await agent.status())["devices"][-1]
        assert row["releasedBecause"]


async def _moves(agent: AgentProcess, step: str | None) -> bool:
    steps = {row["move"]["step"] for row in (await agent.status())["devices"] if row["move"]}
    return steps == ({step} if step else set())


async def test_the_annotation_of_the_node_wins_and_a_bad_one_is_not_followed() -> None:
    async with bridge() as (agent, cluster, _):
        await _annotate(cluster, json.dumps({RESOURCE: {"legacy": 1, "dra": "*"}}))
        await until(lambda: len(devices_in_slices(cluster)) == 3, 10, agent.text)
        code, body = await agent.ask("/lanes", json.dumps({"resource": RESOURCE, "legacy": 4}).encode())
        assert code == 400
        assert b"annotation" in body
        await _annotate(cluster, "{not json")
        await until(lambda: noted(agent, "annotation"), 10)
        assert len(devices_in_slices(cluster)) == 3


async def test_a_reload_turns_claims_on_and_changes_what_a_driver_cannot() -> None:
    legacy_only = BOTH_LANES.replace("{legacy: 2, dra: 2}", '{legacy: "*", dra: 0}')
    async with bridge(legacy_only) as (agent, cluster, _):
        assert len(healthy(cluster)) == 4
        assert not cluster.api.objects.peek("resourceslices")
        agent.config.write_text(BOTH_LANES)
        await until(lambda: len(devices_in_slices(cluster)) == 2, 20, agent.text)
        await until(lambda: len(healthy(cluster)) == 2)
        agent.config.write_text(BOTH_LANES.replace("resources:", "dra: {pool: another}\nresources:"))
        await until(lambda: pools(cluster) == {"another"}, 20, lambda: f"{pools(cluster)} {agent.text()}")
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")


async def _annotate(cluster: SimCluster, value: str) -> None:
    node = cluster.get("nodes", "node-a")
    assert node is not None
    await cluster.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "annotations": {f"{DRIVER}/lanes": value}}}
    )


async def test_kill_and_restart_keep_both_sides_holders() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c") + "---\n" + limits_pod("l"))
        await cluster.wait_pod("c")
        await cluster.wait_pod("l")
        before = {row["name"]: row["owner"] for row in (await agent.status())["devices"]}
        await agent.stop(signal.SIGKILL)
        await agent.start()
        await agent.ready(20)
        after = {row["name"]: row["owner"] for row in (await agent.status())["devices"]}
        assert after == before
        await until(lambda: len(healthy(cluster)) == 2, why=agent.text)


async def test_a_finished_claim_frees_its_device() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        await cluster.delete("pods", "c")
        await cluster.delete("resourceclaims", "c")
        await until(lambda: all_free(agent), 15, agent.text)
        assert not list(agent.cdi.glob("*claim*"))


async def test_without_an_api_server_the_legacy_side_works_and_says_so() -> None:
    async with bridge() as (agent, cluster, _):
        cluster.api.faults.partition()
        await agent.stop(signal.SIGKILL)
        await agent.start()
        await agent.up()
        await until(lambda: len(healthy(cluster)) == 2, 10, agent.text)
        assert (await agent.ask("/readyz"))[0] == 503
        cluster.api.faults.heal()
        await agent.ready(30)
        await asyncio.sleep(0)
