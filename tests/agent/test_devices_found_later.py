"""Devices that a running agent sees for the first time may belong to pods of the former plugin."""

from __future__ import annotations

import asyncio
import json

from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import BOTH_LANES, bridge, claim_pod, devices_in_slices, limits_pod
from tests.support.agent_process import RESOURCE, AgentProcess, reload
from tests.support.kubelet_peers import Plugin, device
from tests.support.waiting import until

NAMES = ("zero", "null", "random")
OTHER = BOTH_LANES.partition("resources:")[0] + (
    'resources: [{name: example.com/other, match: [{subsystem: mem, sysname: full}], id: ["{sysname}"]}]\n'
)
ADDED = f"""\
- name: {RESOURCE}
  match: [{{subsystem: mem, sysname: [zero, "null", random]}}]
  id: ["{{sysname}}"]
  lanes: {{legacy: 0, dra: "*"}}
"""
BOTH = OTHER.replace("resources: [", "resources:\n- ").replace("}]\n", "}\n") + ADDED
LISTED = limits_pod("old", 2)
# A List leaves plain init containers out: of this one only kubelet's checkpoint knows.
UNLISTED = LISTED.replace("containers: [{", "containers: [{name: b, image: x}]\n  initContainers: [{runSeconds: 3600, ")


async def taken_over(agent: AgentProcess, cluster: SimCluster, manifest: str) -> set[str]:
    """The plugin before us gives two devices to a pod and ends; returns the devices."""
    kubelet = cluster.kubelets["node-a"]
    vendor = Plugin(agent.root, "vendor.sock", map(device, NAMES), RESOURCE)
    await vendor.serve()
    await vendor.register()
    await kubelet.wait_for_resource(RESOURCE, healthy=3)
    await cluster.apply(manifest)
    await until(lambda: any("main" in pod.running for pod in kubelet.node.pods.values()), 20, agent.text)
    held = set(kubelet.resources[RESOURCE].allocated)
    assert len(held) == 2
    await vendor.stop()
    return held


async def given_to_claims(agent: AgentProcess, cluster: SimCluster, held: set[str]) -> None:
    """Free devices are offered to claims; a claim for all devices gets none of ``held``."""
    (free,) = set(NAMES) - held
    await until(lambda: free in devices_in_slices(cluster), 20, agent.text)
    await cluster.apply(claim_pod("c", 3))
    await cluster.apply(claim_pod("d"))
    await cluster.wait_pod("d")
    assert (await agent.device(free))["owner"] == "dra-prepared"

    async def known() -> bool:
        return {row["name"] for row in (await agent.status())["devices"] if row["owner"] == "legacy"} == held

    await until(known, 10, agent.text)
    await asyncio.sleep(1)  # many times what the claim for all would need; the runtime's locks tell of a second holder
    assert await known()
    assert not devices_in_slices(cluster) & held


async def test_a_reload_that_adds_a_resource_gives_claims_no_device_that_a_pod_has() -> None:
    async with bridge(OTHER) as (agent, cluster, _):
        held = await taken_over(agent, cluster, UNLISTED)
        reload(agent, BOTH)
        await given_to_claims(agent, cluster, held)


async def test_a_resource_that_comes_back_may_have_been_served_by_another_plugin() -> None:
    async with bridge(BOTH) as (agent, cluster, _):
        await until(lambda: devices_in_slices(cluster) == set(NAMES), 20, agent.text)
        reload(agent, OTHER)
        await until(lambda: not devices_in_slices(cluster), 20, agent.text)
        held = await taken_over(agent, cluster, LISTED)
        reload(agent, BOTH)
        await given_to_claims(agent, cluster, held)


async def test_new_devices_wait_for_kubelet() -> None:
    async with bridge(OTHER) as (agent, cluster, _):
        kubelet = cluster.kubelets["node-a"]
        await kubelet.stop()
        reload(agent, BOTH)

        async def waits() -> bool:
            rows = [row for row in (await agent.status())["devices"] if row["name"] in NAMES]
            return [(row["owner"], (row["move"] or {}).get("step")) for row in rows] == [("none", "revoking")] * 3

        await until(waits, 20, agent.text)
        await asyncio.sleep(0.5)
        assert await waits()
        assert not devices_in_slices(cluster)
        await kubelet.start()
        await until(lambda: devices_in_slices(cluster) == set(NAMES), 20, agent.text)


async def test_new_devices_that_left_again_do_not_delay_other_resources() -> None:
    """No plugin serves their resource any more, so kubelet reports nothing about it."""
    async with bridge(OTHER) as (agent, cluster, _):
        kubelet = cluster.kubelets["node-a"]
        await kubelet.stop()
        reload(agent, BOTH)
        await until(lambda: _presence(agent, {"present"}), 20, agent.text)
        reload(agent, OTHER)
        await until(lambda: _presence(agent, {"gone"}), 20, agent.text)
        await kubelet.start()
        body = json.dumps({"resource": "example.com/other", "legacy": 0, "dra": 1}).encode()
        assert (await agent.ask("/lanes", body))[0] == 200
        await until(lambda: devices_in_slices(cluster) == {"full"}, 10, agent.text)
        assert await _presence(agent, {"gone"}), "they still waited"


async def _presence(agent: AgentProcess, wanted: set[str]) -> bool:
    rows = (await agent.status())["devices"]
    return {row["presence"] for row in rows if row["name"] in NAMES} == wanted
