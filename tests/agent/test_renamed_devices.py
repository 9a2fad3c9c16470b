"""A changed configuration renames held devices: they stay with their holder, then get their new name."""

from __future__ import annotations

from typing import Any

import pytest

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from tests.support.agent_on_cluster import BOTH_LANES, bridge, claim_pod, devices_in_slices, end_claim
from tests.support.agent_process import CONFIG, RESOURCE, AgentProcess, node, pod, reconfigure
from tests.support.waiting import until

ALL = {"zero", "null", "full", "random"}
OTHER = "example.com/other"
QUICK = CONFIG.replace(
    "resources:\n",
    "safety: {minHoldSeconds: 0.5, unconfirmedSeconds: 2, absentSeconds: 0.3, settleSeconds: 1}\nresources:\n",
)
BOTH = f"""\
- name: {OTHER}
  match: [{{subsystem: mem, sysname: [zero, random]}}]
  id: ["{{sysname}}"]
"""

# What the changed file says, and as what (resource, ids) its two devices zero and random are known in the end.
CHANGES = {
    "name": (QUICK.replace(RESOURCE, OTHER), OTHER, {"zero", "random"}),
    "id": (QUICK.replace('id: ["{sysname}"]', 'id: ["mem-{sysname}"]'), RESOURCE, {"mem-zero", "mem-random"}),
    "match": (QUICK.replace("resources:\n", "resources:\n" + BOTH), OTHER, {"zero", "random"}),
    "match and id": (
        QUICK.replace("resources:\n", "resources:\n" + BOTH.replace("{sysname}", "other-{sysname}")),
        OTHER,
        {"other-zero", "other-random"},
    ),
}


def files(agent: AgentProcess) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in agent.cdi.glob("*.json")}


def sees(kubelet: SimKubelet, resource: str, ids: set[str]) -> bool:
    view = kubelet.resources.get(resource)
    return view is not None and ids <= view.healthy


async def held(agent: AgentProcess) -> dict[str, Any]:
    return {row["name"]: (row["presence"], row["owner"]) for row in (await agent.status())["devices"]}


@pytest.mark.parametrize(
    ("what", "restart"), [("name", False), ("id", True), ("match", True), ("match and id", False)], ids=str
)
async def test_pods_keep_their_devices_and_nobody_else_gets_them(what: str, restart: bool) -> None:
    config, resource, ids = CHANGES[what]
    async with node(QUICK) as (agent, kubelet):
        assert (await kubelet.run_pod(pod("a", 4))).phase is Phase.RUNNING
        await until(lambda: _seen(agent), 15, agent.text)
        before = files(agent)
        await reconfigure(agent, config, restart)
        await kubelet.wait_for_resource(resource)
        assert await held(agent) == dict.fromkeys(ALL, ("present", "legacy"))
        assert (await kubelet.run_pod(pod("b", 1, resource))).phase is Phase.FAILED
        assert await held(agent) == dict.fromkeys(ALL, ("present", "legacy"))
        assert files(agent) == before, "a container of the pod may be started again"
        assert kubelet.pod_status("uid-a").phase is Phase.RUNNING
        await kubelet.finish_pod("uid-a")
        await until(lambda: sees(kubelet, resource, ids), 30, agent.text)
        await kubelet.wait_for_resource(resource)  # the Node says so, too
        status = await kubelet.run_pod(pod("c", len(kubelet.resources[resource].healthy), resource))
        assert status.phase is Phase.RUNNING, status.message


async def test_the_ledger_knows_a_held_devices_place_without_the_file_of_names() -> None:
    config, resource, ids = CHANGES["id"]
    async with node(QUICK) as (agent, kubelet):
        await kubelet.run_pod(pod("a", 4))
        await until(lambda: _seen(agent), 15, agent.text)
        await agent.stop()
        (agent.root / "plugins" / agent.driver / "identities.json").unlink()
        agent.config.write_text(config)
        await agent.start()
        await agent.ready()
        await until(lambda: {f"mem-{name}" for name in ALL} <= kubelet.resources[resource].devices, 15)
        assert (await kubelet.run_pod(pod("b", 1))).phase is Phase.FAILED
        await kubelet.finish_pod("uid-a")
        await until(lambda: sees(kubelet, resource, ids), 30, agent.text)
        await kubelet.wait_for_resource(resource, healthy=4)
        assert (await kubelet.run_pod(pod("c", 4))).phase is Phase.RUNNING


async def _seen(agent: AgentProcess) -> bool:
    rows = (await agent.status())["devices"]
    return all(row["evidence"].startswith("running") for row in rows)


@pytest.mark.parametrize(("what", "restart"), [("name", True), ("id", False)], ids=str)
async def test_claims_keep_their_devices_and_nobody_else_gets_them(what: str, restart: bool) -> None:
    config = BOTH_LANES.replace("{legacy: 2, dra: 2}", "{legacy: 0, dra: 4}")
    changed = config.replace(RESOURCE, OTHER) if what == "name" else config.replace("{sysname}", "mem-{sysname}")
    names = ALL if what == "name" else {f"mem-{name}" for name in ALL}
    async with bridge(config) as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 4, 15)
        await cluster.apply(claim_pod("c", 4))
        await cluster.wait_pod("c")
        await reconfigure(agent, changed, restart)
        await cluster.apply(claim_pod("d"))
        await until(lambda: "device events" in agent.text())
        for _ in range(3):
            await until(lambda: _all_claimed(agent), 15, agent.text)
        assert cluster.api.objects.peek("pods")[-1]["status"].get("phase") != "Running"
        await end_claim(cluster, "c")
        await cluster.wait_pod("d")
        await until(lambda: devices_in_slices(cluster) == names, 30, agent.text)


async def _all_claimed(agent: AgentProcess) -> bool:
    return await held(agent) == dict.fromkeys(ALL, ("present", "dra-prepared"))
