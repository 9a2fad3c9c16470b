"""Records of claims that an agent began to prepare and did not live to finish, or to take back after a refusal."""

from __future__ import annotations

import shutil
import signal
import uuid
from pathlib import Path

import pytest

from drabridge.dra.records import ClaimRecord, PreparedDevice, RecordStore, State
from drabridge.ledger.model import ClaimRef
from drabridge.sim.faults import ListFault
from tests.agent.helpers import RESOURCE, AgentProcess, until
from tests.agent.test_bridge_node import bridge, claim_pod, limits_pod

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _begun(agent: AgentProcess, device: str) -> str:
    """What a killed agent leaves of another claim on this device; returns the claim's UID."""
    claim = ClaimRef(str(uuid.uuid4()), "default", "other")
    devices = (PreparedDevice("r", "node-a", device),)
    record = ClaimRecord(claim, State.STARTED, BOOT_ID.read_text().strip(), devices)
    RecordStore(agent.control.parent / "claims").save(record)
    return claim.uid


@pytest.mark.parametrize("pod", [claim_pod("p"), limits_pod("p")], ids=["claim", "limits"])
async def test_a_claim_that_was_refused_holds_nothing_after_a_crash(pod: str) -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(pod)
        await cluster.wait_pod("p")
        (before,) = [row for row in (await agent.status())["devices"] if row["owner"] != "none"]
        await agent.stop(signal.SIGKILL)
        _begun(agent, before["name"])
        await agent.start()
        await agent.ready()
        after = await agent.device(before["name"])
        assert after["owner"] == before["owner"]
        assert [holder["api"] for holder in after["holders"]] == [holder["api"] for holder in before["holders"]]
        view = cluster.kubelets["node-a"].resources[RESOURCE]
        assert (before["name"] in view.healthy) == (before["owner"] == "legacy")  # and its pod is not disturbed


async def test_where_the_ledger_is_lost_it_holds_its_device() -> None:
    async with bridge() as (agent, cluster, _):
        await agent.stop()
        state = agent.control.parent
        shutil.rmtree(state / "claims", ignore_errors=True)
        for file in state.glob("ledger.jsonl*"):
            file.unlink()
        uid = _begun(agent, "zero")
        cluster.kubelets["node-a"].faults.podresources = ListFault.ERROR
        await agent.start()
        await agent.up()

        async def held() -> bool:
            return [holder.get("claimUID") for holder in (await agent.device("zero"))["holders"]] == [uid]

        await until(held, 10, agent.text)
