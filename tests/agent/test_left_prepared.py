"""A claim that kubelet forgot without unpreparing it: held until the operator's word, which rests on what is asked."""

from __future__ import annotations

import json
import shutil
import signal
from typing import Any

from drabridge.sim.cluster import SimCluster
from drabridge.sim.faults import ListFault
from drabridge.sim.runtime import LockingRuntime
from tests.agent.helpers import AgentProcess
from tests.agent.test_bridge_node import bridge, claim_pod


async def test_the_operator_ends_a_claim_that_nobody_remembers() -> None:
    async with bridge() as (agent, cluster, runtime):
        name = await _prepared(agent, cluster)
        await _forget(agent, cluster, runtime)
        assert cluster.get("resourceclaims", "c") is None
        assert (await agent.device(name))["owner"] == "dra-prepared"  # kubelet may yet unprepare it

        cluster.api.faults.partition()
        code, text = await release(agent, name)
        assert code == 409
        assert "prepared for claim default/c" in text
        assert "the API server could not be asked" in text
        assert (await agent.device(name))["owner"] == "dra-prepared"

        cluster.api.faults.heal()
        assert (await release(agent, name))[0] == 200
        assert (await agent.device(name))["owner"] == "none"
        await agent.stop(signal.SIGKILL)  # nothing on disk brings it back
        await agent.start()
        await agent.ready()
        assert (await agent.device(name))["owner"] == "none"


async def test_a_prepared_claim_is_not_ended_while_kubelet_or_the_api_server_knows_it() -> None:
    async with bridge() as (agent, cluster, _):
        name = await _prepared(agent, cluster)
        code, text = await release(agent, name)
        assert (code, "the API server shows it allocated to claim default/c" in text) == (409, True)

        cluster.api.objects.modify("resourceclaims", "c", _lose, namespace="default", subresource="status")
        code, text = await release(agent, name)
        assert code == 409
        assert f"claim default/c (uid {(await agent.device(name))['holders'][0]['claimUID']}) is gone" in text
        assert "used by pod default/c (container main)" in text
        assert (await agent.device(name))["owner"] == "dra-prepared"

        await cluster.kubelets["node-a"].stop()
        code, text = await release(agent, name)
        assert (code, "kubelet could not be asked" in text) == (409, True)
        assert (await agent.device(name))["owner"] == "dra-prepared"
        await cluster.kubelets["node-a"].start()


async def test_a_claim_that_only_its_cdi_file_tells_of_is_ended_when_the_api_server_has_let_go_of_it() -> None:
    async with bridge() as (agent, cluster, runtime):
        name = await _prepared_without_a_name(agent, cluster)
        code, text = await release(agent, name)
        assert (code, "prepared for claim default/c" in text, "shows allocated" in text) == (409, True, True)
        cluster.api.faults.partition()
        code, text = await release(agent, name)
        assert (code, "the API server could not be asked" in text) == (409, True)
        cluster.api.faults.heal()
        cluster.kubelets["node-a"].faults.podresources = ListFault.NONE

        await _forget(agent, cluster, runtime)
        assert (await agent.device(name))["owner"] == "dra-prepared"
        assert (await release(agent, name))[0] == 200
        assert (await agent.device(name))["owner"] == "none"
        assert not list(agent.cdi.glob("*-device-claim-*.json"))


async def test_a_claim_that_only_its_cdi_file_tells_of_is_not_ended_while_a_container_runs_with_it() -> None:
    async with bridge() as (agent, cluster, _):
        name = await _prepared_without_a_name(agent, cluster)
        cluster.api.objects.modify("resourceclaims", "c", _lose, namespace="default", subresource="status")
        code, text = await release(agent, name)
        assert (code, "kubelet could not be asked" in text) == (409, True)
        cluster.kubelets["node-a"].faults.podresources = ListFault.NONE
        code, text = await release(agent, name)
        assert (code, "used by pod default/c (container main)" in text) == (409, True)
        assert (await agent.device(name))["owner"] == "dra-prepared"


def _lose(obj: dict[str, Any]) -> None:
    """As somebody who edits the status by hand."""
    obj["status"] = {}


async def _prepared(agent: AgentProcess, cluster: SimCluster) -> str:
    """A pod runs with a claim; returns the name of its device."""
    await cluster.apply(claim_pod("c"))
    await cluster.wait_pod("c")
    (name,) = [row["name"] for row in (await agent.status())["devices"] if row["owner"] == "dra-prepared"]
    return str(name)


async def _prepared_without_a_name(agent: AgentProcess, cluster: SimCluster) -> str:
    """The same after the agent's state was lost, and kubelet, which is asked first, does not tell; it does not yet."""
    name = await _prepared(agent, cluster)
    await agent.stop()
    shutil.rmtree(agent.control.parent)
    cluster.kubelets["node-a"].faults.podresources = ListFault.ERROR
    await agent.start()
    await agent.ready()
    (holder,) = (await agent.device(name))["holders"]
    assert (holder["phase"], holder["claim"]) == ("prepared", "")
    return name


async def _forget(agent: AgentProcess, cluster: SimCluster, runtime: LockingRuntime) -> None:
    """A node whose kubelet directory was emptied by hand while kubelet was down, and its pod deleted by force."""
    kubelet = cluster.kubelets["node-a"]
    await kubelet.stop()
    (agent.root / "dra_manager_state").unlink()
    await cluster.delete("pods", "c", force=True)
    await cluster.delete("resourceclaims", "c")
    for pod, container in list(runtime.running):
        await runtime.stop_container(pod, container)
    await kubelet.start()
    await agent.ready()


async def release(agent: AgentProcess, name: str) -> tuple[int, str]:
    code, body = await agent.ask("/release", json.dumps({"device": name}).encode())
    return code, str(json.loads(body).get("error", ""))
