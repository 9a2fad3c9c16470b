"""A claim that kubelet forgot without unpreparing it holds its device until the operator releases it."""

from __future__ import annotations

import shutil
import signal
import uuid
from typing import Any

from drabridge.dra.records import ClaimRecord, PreparedDevice, RecordState, RecordStore
from drabridge.ledger.entries import ClaimRef
from drabridge.sim.cluster import SimCluster
from drabridge.sim.kubelet.faults import ListFault
from drabridge.sim.kubelet.runtime import LockingRuntime
from tests.support.agent_on_cluster import bridge, claim_pod, devices_in_slices, end_claim, healthy, limits_pod
from tests.support.agent_process import BOOT_ID, AgentProcess, release
from tests.support.waiting import until


async def test_the_operator_releases_a_prepared_claim_that_kubelet_and_api_server_forgot() -> None:
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
        files = [*(agent.control.parent / "claims").glob("*.json"), *agent.cdi.glob("*-device-claim-*.json")]
        assert len(files) == 2
        assert (await release(agent, name))[0] == 200
        assert (await agent.device(name))["owner"] == "none"
        assert not [file for file in files if file.exists()]
        await agent.stop(signal.SIGKILL)  # nothing on disk brings it back
        await agent.start()
        await agent.ready()
        assert (await agent.device(name))["owner"] == "none"


async def test_new_claims_do_not_get_a_device_that_was_never_unprepared() -> None:
    async with bridge() as (agent, cluster, runtime):
        name = await _prepared(agent, cluster)
        await _forget(agent, cluster, runtime)
        await until(lambda: name in devices_in_slices(cluster), why=agent.text)  # the API server was not asked
        await cluster.apply(claim_pod("d"))
        said = f"'drabridge lanes release {name}'"
        await until(lambda: any(said in event["message"] for event in cluster.events("d")), why=agent.text)
        await until(lambda: name not in devices_in_slices(cluster), why=agent.text)
        assert "no longer allocated" in (await agent.device(name))["evidence"]
        await end_claim(cluster, "d")
        await cluster.apply(claim_pod("e"))
        await cluster.wait_pod("e")

        assert (await release(agent, name))[0] == 200
        await until(lambda: name in devices_in_slices(cluster), why=agent.text)


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


async def test_a_claim_known_by_its_cdi_file_alone_ends_once_no_other_source_knows_it() -> None:
    async with bridge() as (agent, cluster, runtime):
        name = await _prepared_without_a_name(agent, cluster)
        code, text = await release(agent, name)
        assert (code, "prepared for claim default/c" in text, "shows allocated" in text) == (409, True, True)
        cluster.api.faults.partition()
        code, text = await release(agent, name)
        assert (code, "the API server could not be asked" in text) == (409, True)
        cluster.api.faults.heal()

        cluster.api.objects.modify("resourceclaims", "c", _lose, namespace="default", subresource="status")
        code, text = await release(agent, name)
        assert (code, "kubelet could not be asked" in text) == (409, True)
        cluster.kubelets["node-a"].faults.podresources = ListFault.NONE
        code, text = await release(agent, name)
        assert (code, "used by pod default/c (container main)" in text) == (409, True)

        await _forget(agent, cluster, runtime)
        assert (await agent.device(name))["owner"] == "dra-prepared"
        assert (await release(agent, name))[0] == 200
        assert (await agent.device(name))["owner"] == "none"
        assert not list(agent.cdi.glob("*-device-claim-*.json"))


async def test_a_released_device_of_a_claim_with_two_stays_released() -> None:
    async with bridge() as (agent, cluster, runtime):
        await cluster.apply(claim_pod("c", 2))
        await cluster.wait_pod("c")
        first, second = await _prepared_devices(agent)
        await _forget(agent, cluster, runtime)
        assert (await release(agent, first))[0] == 200
        (file,) = agent.cdi.glob("*-device-claim-*.json")
        await until(lambda: f"-{first}" not in file.read_text(), why=agent.text)
        assert f"-{second}" in file.read_text()
        await cluster.apply(claim_pod("d"))
        await cluster.wait_pod("d")
        await agent.stop(signal.SIGKILL)
        await agent.start()
        await agent.ready()
        assert [holder["claim"] for holder in (await agent.device(first))["holders"]] == ["d"]
        assert (await agent.device(second))["owner"] == "dra-prepared"
        assert (await release(agent, second))[0] == 200


async def test_the_operator_ends_a_conflict_of_a_pod_with_an_ended_claim() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(limits_pod("l"))
        await cluster.wait_pod("l")
        (name,) = [row["name"] for row in (await agent.status())["devices"] if row["owner"] == "legacy"]
        await agent.stop()
        claim = ClaimRef(str(uuid.uuid4()), "default", "long-gone")
        record = ClaimRecord(
            claim, RecordState.COMPLETED, BOOT_ID.read_text().strip(), (PreparedDevice("r", "node-a", name),)
        )
        RecordStore(agent.control.parent / "claims").save(record)
        await agent.start()
        await agent.ready()
        assert (await agent.device(name))["owner"] == "conflict"
        assert (await release(agent, name))[0] == 200
        assert (await agent.device(name))["owner"] == "legacy"
        await until(lambda: name in healthy(cluster), why=agent.text)
        code, text = await release(agent, name)
        assert (code, "held by pod default/l" in text) == (409, True)


def _lose(obj: dict[str, Any]) -> None:
    """Empty the claim's status, as a user who edits it by hand."""
    obj["status"] = {}


async def _prepared(agent: AgentProcess, cluster: SimCluster) -> str:
    """A pod runs with a claim; returns the name of its device."""
    await cluster.apply(claim_pod("c"))
    await cluster.wait_pod("c")
    (name,) = await _prepared_devices(agent)
    return name


async def _prepared_devices(agent: AgentProcess) -> list[str]:
    return [row["name"] for row in (await agent.status())["devices"] if row["owner"] == "dra-prepared"]


async def _prepared_without_a_name(agent: AgentProcess, cluster: SimCluster) -> str:
    """The same after the agent's state was deleted, while kubelet does not report claims yet."""
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
