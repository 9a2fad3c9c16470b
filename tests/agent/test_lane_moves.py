"""Moves from the dra lane to the legacy lane and what they do to claims, with a real agent over real sockets."""

from __future__ import annotations

import json
from typing import Any

from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import (
    BOTH_LANES,
    MONITOR,
    allocate,
    bridge,
    claim_pod,
    devices_in_slices,
    end_claim,
    healthy,
    set_lanes,
)
from tests.support.agent_process import DRIVER, RESOURCE, AgentProcess, drabridge, reload
from tests.support.waiting import until

# A pod that waits for another scheduler keeps its claim reserved, and kubelet does not know it.
WAITING = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: two, namespace: default}
spec: {devices: {requests: [{name: r, exactly: {deviceClassName: mem, count: 2}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: two, namespace: default}
spec:
  schedulerName: another
  resourceClaims: [{name: c, resourceClaimName: two}]
  containers: [{name: main, image: x, resources: {claims: [{name: c}]}}]
"""


async def test_a_monitoring_claim_with_admin_access_does_not_stop_a_move() -> None:
    async with bridge() as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        await cluster.apply(MONITOR)
        await cluster.wait_pod("monitor", namespace="monitoring")
        watched = [row for row in (await agent.status())["devices"] if row["holders"]]
        assert [row["owner"] for row in watched] == ["none", "none"]  # it looks, it does not hold
        await set_lanes(agent, legacy=4, dra=0)
        await until(lambda: len(healthy(cluster)) == 4, 10, agent.text)
        for row in watched:
            assert (await agent.device(row["name"]))["holders"] == row["holders"]


async def test_a_device_that_is_to_leave_is_not_given_to_the_next_claim_in_the_queue() -> None:
    async with bridge() as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        for name in ("one", "two"):
            await cluster.apply(claim_pod(name))
            await cluster.wait_pod(name)
        held = devices_in_slices(cluster)
        assert len(held) == 2
        await set_lanes(agent, legacy=3, dra=1)
        await until(lambda: len(devices_in_slices(cluster)) == 1, 10, agent.text)
        (leaving,) = held - devices_in_slices(cluster)
        await cluster.apply(claim_pod("three"))
        (first,) = (await agent.device(leaving))["holders"]
        await end_claim(cluster, first["claim"])
        await until(lambda: leaving in healthy(cluster), 20, agent.text)
        (second,) = {"one", "two"} - {first["claim"]}
        await end_claim(cluster, second)
        await cluster.wait_pod("three")


async def test_a_claim_allocated_during_the_quiet_time_keeps_all_of_its_devices() -> None:
    """A scheduler with an old cache gives both leaving devices to one claim: the ledger hears of both at once."""
    async with bridge() as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        leaving = sorted(devices_in_slices(cluster))
        cluster.api.faults.fail(1_000_000, 503, verb="list", resource="resourceclaims")  # however late this test is
        await set_lanes(agent, legacy=4, dra=0)
        await until(lambda: _in(agent, leaving, move="quiescing"), 10, agent.text)
        await cluster.apply(WAITING)
        allocate(cluster, "two", leaving)
        cluster.api.faults.heal()
        await until(lambda: _in(agent, leaving, owner="dra-granted", move="waiting"), 20, agent.text)
        assert not healthy(cluster) & set(leaving)
        rows = (await agent.status())["devices"]
        assert {row["name"] for row in rows if row["drain"]} == set(leaving)
        await set_lanes(agent, legacy=2, dra=2)  # withdrawn
        await until(lambda: _in(agent, leaving, owner="dra-granted", move=None), 10, agent.text)
        assert not [row for row in (await agent.status())["devices"] if row["drain"]]


async def _in(agent: AgentProcess, names: list[str], *, move: str | None, owner: str = "none") -> bool:
    rows = [row for row in (await agent.status())["devices"] if row["name"] in names]  # all of one moment
    return all(row["owner"] == owner and (row["move"] or {}).get("step") == move for row in rows)


async def annotate(cluster: SimCluster, **lanes: Any) -> None:
    def write(node: dict[str, Any]) -> None:
        node["metadata"].setdefault("annotations", {})[f"{DRIVER}/lanes"] = json.dumps({RESOURCE: lanes})

    cluster.api.objects.modify("nodes", "node-a", write)


async def test_floors_hold_and_an_impossible_request_is_reported() -> None:
    async with bridge(BOTH_LANES.replace("dra: 2}", "dra: 2, minLegacy: 2}")) as (agent, cluster, _):

        async def noted(text: str) -> bool:
            return any(text in note for note in (await agent.status())["notes"])

        await annotate(cluster, dra={"match": [{"sysname": ["random", "zero"]}]})
        await until(lambda: devices_in_slices(cluster) == {"random", "zero"}, 10, agent.text)
        await annotate(cluster, dra={"match": [{"subsystem": "mem"}]})  # all four
        await until(lambda: noted("2 of 4 chosen devices: minLegacy"), 10, agent.text)
        await until(lambda: len(healthy(cluster)) == 2 and len(devices_in_slices(cluster)) == 2, 10, agent.text)
        await annotate(cluster, dra={"match": [{"subsystem": "typo"}]})
        await until(lambda: noted("no device matches what is to be in the dra lane"), 10, agent.text)
        await annotate(cluster, legacy={"match": [{"sysname": ["zero", "full"]}]}, dra=1)
        await until(lambda: noted("the dra lane has what the chosen devices leave, 2 and not 1"), 10, agent.text)
        await until(lambda: devices_in_slices(cluster) == {"null", "random"}, 10, agent.text)
        (row,) = (await agent.status())["resources"]
        assert row["wanted"] == {"legacy": "selected", "dra": "*", "source": "annotation"}
        await annotate(cluster, legacy=2, dra=1)
        await until(lambda: noted("the legacy lane has 3 and not 2"), 10, agent.text)
        await annotate(cluster, legacy=9, dra=9)
        await until(lambda: noted("the dra lane has 0 and not 9"), 10, agent.text)
        assert "the dra lane has 0 and not 9" in (await drabridge(agent, "lanes"))[1]
        await annotate(cluster, legacy="50%", dra="50%")
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        assert not await noted("and not")


async def test_an_annotation_that_a_reload_allows_is_followed_though_the_node_does_not_change() -> None:
    async with bridge(BOTH_LANES.replace("dra: 2}", "dra: 2, minLegacy: 2}")) as (agent, cluster, _):
        await annotate(cluster, legacy=1, dra=3)

        async def refused() -> bool:
            return any("is not followed: " in note for note in (await agent.status())["notes"])

        await until(refused, 10, agent.text)
        assert len(devices_in_slices(cluster)) == 2
        reload(agent, BOTH_LANES)
        await until(lambda: len(devices_in_slices(cluster)) == 3, 10, agent.text)
        assert not await refused()
