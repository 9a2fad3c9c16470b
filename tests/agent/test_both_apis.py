"""Both APIs on one node: a real agent process beside a simulated cluster, over real sockets and HTTP."""

from __future__ import annotations

import json

from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import (
    bridge,
    claim_pod,
    devices_in_slices,
    healthy,
    limits_pod,
    set_lanes,
)
from tests.support.agent_process import DRIVER, RESOURCE, AgentProcess, noted
from tests.support.waiting import until


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


async def _annotate(cluster: SimCluster, value: str) -> None:
    node = cluster.get("nodes", "node-a")
    assert node is not None
    await cluster.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a", "annotations": {f"{DRIVER}/lanes": value}}}
    )
