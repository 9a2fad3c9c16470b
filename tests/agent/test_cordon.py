"""A device that is out of service, with a real agent over real sockets: for both APIs, and over restarts."""

from __future__ import annotations

import json

from drabridge.sim.cluster import SimCluster
from drabridge.sim.kubelet.pods import Phase
from tests.support.agent_on_cluster import (
    BOTH_LANES,
    allocatable,
    bridge,
    claim_pod,
    devices_in_slices,
    end_claim,
    healthy,
    limits_pod,
    phase,
)
from tests.support.agent_process import (
    DRIVER,
    QUICK,
    AgentProcess,
    drabridge,
    metric,
    node,
    noted,
    pod,
    restart_kubelet,
)
from tests.support.waiting import until


async def cordon(agent: AgentProcess, *names: str) -> None:
    for name in names:
        code, said = await drabridge(agent, "devices", "cordon", name, "--reason", "fan, ticket 4711")
        assert code == 0, said


def annotate(cluster: SimCluster, text: str) -> None:
    key = f"{DRIVER}/cordoned"
    cluster.api.objects.modify(
        "nodes", "node-a", lambda obj: obj["metadata"].setdefault("annotations", {}).__setitem__(key, text)
    )


async def test_no_pod_is_sent_for_a_cordoned_device_and_who_has_it_keeps_it() -> None:
    """Neither a free one nor one whose pod ends: kubelet and the scheduler know of one device less before that."""
    async with bridge() as (agent, cluster, _):
        await until(lambda: len(healthy(cluster)) == 2, 10, agent.text)
        first, second = sorted(healthy(cluster))
        await cordon(agent, first)
        await until(lambda: allocatable(cluster) == "1", 10, agent.text)
        await cluster.apply(limits_pod("a"))
        await cluster.wait_pod("a")
        await cordon(agent, second)
        await until(lambda: allocatable(cluster) == "0", 10, agent.text)
        await cluster.apply(limits_pod("b"))
        assert (await agent.device(second))["owner"] == "legacy"
        await cluster.delete("pods", "a")

        async def released() -> bool:
            return bool((await agent.device(second))["owner"] == "none")

        await until(released, 20, agent.text)
        assert phase(cluster, "b") == "Pending"  # and not failed
        code, said = await drabridge(agent, "devices", "uncordon", second)
        assert code == 0, said
        await cluster.wait_pod("b")


async def test_no_claim_gets_a_cordoned_device_and_who_has_it_keeps_it() -> None:
    async with bridge() as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        await cluster.apply(claim_pod("a"))
        await cluster.wait_pod("a")
        await cordon(agent, *devices_in_slices(cluster))
        await until(lambda: not devices_in_slices(cluster), 10, agent.text)
        taints = {
            taint["value"]
            for one in cluster.api.objects.peek("resourceslices")
            for device in one["spec"]["devices"]
            for taint in device.get("taints", ())
        }
        assert taints == {"cordoned"}
        assert phase(cluster, "a") == "Running"
        await cluster.apply(claim_pod("b"))
        await end_claim(cluster, "a")
        names = [row["name"] for row in (await agent.status())["devices"] if row["cordoned"]]

        async def free() -> bool:
            return not [row for row in (await agent.status())["devices"] if row["owner"] != "none"]

        await until(free, 20, agent.text)
        assert phase(cluster, "b") == "Pending"
        for name in names:
            await drabridge(agent, "devices", "uncordon", name)
        await cluster.wait_pod("b")


async def test_the_nodes_annotation_counts_over_restarts_and_beside_the_command() -> None:
    async with bridge() as (agent, cluster, _):
        free = sorted(healthy(cluster))
        annotate(cluster, json.dumps({free[0]: "fan", "typo": "x"}))
        await until(lambda: healthy(cluster) == {free[1]}, 10, agent.text)
        await until(lambda: noted(agent, "cordoned, and not on this node: typo"), 10, agent.text)
        code, said = await drabridge(agent, "devices", "uncordon", free[0])
        assert (code, "annotation mem.example.com/cordoned" in said) == (2, True), said
        annotate(cluster, "{")
        await until(lambda: noted(agent, "annotation for cordoned devices is not followed"), 10, agent.text)
        assert healthy(cluster) == {free[1]}
        cluster.api.faults.fail(1_000_000, 503)  # it is not seen at the next start
        await agent.stop()
        await agent.start()
        await agent.up()
        await until(lambda: healthy(cluster) == {free[1]}, 10, agent.text)
        cluster.api.faults.heal()
        annotate(cluster, "{}")
        await until(lambda: healthy(cluster) == set(free), 30, agent.text)


async def test_a_command_lasts_over_restarts_of_agent_and_kubelet_and_is_shown_everywhere() -> None:
    async with node(QUICK) as (agent, kubelet):
        await kubelet.run_pod(pod("holder"))
        (held,) = [row["name"] for row in (await agent.status())["devices"] if row["owner"] == "legacy"]
        await cordon(agent, held)
        for _ in range(2):
            assert (await kubelet.run_pod(pod("more", 3))).phase is Phase.RUNNING
            await kubelet.delete_pod("uid-more")
            await agent.stop()
            await agent.start()
            await agent.ready()
        await restart_kubelet(kubelet)
        assert kubelet.pods["uid-holder"].phase is Phase.RUNNING
        assert "cordoned: fan, ticket 4711" in (await drabridge(agent, "status"))[1]
        said = (await drabridge(agent, "devices", "--config", str(agent.config)))[1]
        assert "fan, ticket 4711" in said, said
        assert b"cordoned: fan, ticket 4711" in (await agent.ask("/"))[1]
        assert await metric(agent, "device_cordoned", device=held) == 1
        assert await metric(agent, "device_healthy", device=held) == 1
        code, said = await drabridge(agent, "devices", "cordon", "none")
        assert (code, "It has full, null, random, zero" in said) == (2, True), said
        code, said = await drabridge(agent, "devices", "uncordon", "none")
        assert (code, f"Cordoned: {held}" in said) == (2, True), said


async def test_a_damaged_file_of_commands_puts_nothing_back_into_service() -> None:
    async with node(QUICK) as (agent, kubelet):
        await cordon(agent, "null")
        await agent.stop()
        (agent.control.parent / "cordons.json").write_text("{")
        await agent.start()
        await agent.ready()
        assert await noted(agent, "as the ledger remembers: cordons.json: not JSON")
        assert (await agent.device("null"))["cordoned"] == "fan, ticket 4711"
        assert (await kubelet.run_pod(pod("all", 4))).phase is not Phase.RUNNING
        assert (await drabridge(agent, "devices", "uncordon", "null"))[0] == 0
        await kubelet.wait_for_resource("example.com/mem", healthy=4)
        assert not await noted(agent, "as the ledger remembers")


async def test_kubelets_id_names_the_device_as_well() -> None:
    """It is what people copy: a GPU's UUID, where the name has small letters alone."""
    async with bridge(BOTH_LANES.replace('id: ["{sysname}"]', 'id: ["MEM-{sysname}"]')) as (agent, cluster, _):
        first, second = sorted(healthy(cluster))
        assert first.startswith("MEM-")
        await cordon(agent, first)
        annotate(cluster, json.dumps({second: "fan"}))
        await until(lambda: not healthy(cluster), 10, agent.text)
        assert not await noted(agent, "not on this node")
        assert (await agent.device(second.lower()))["cordoned"] == "fan"
        assert (await drabridge(agent, "devices", "uncordon", first))[0] == 0
        await until(lambda: healthy(cluster) == {first}, 10, agent.text)
