"""Claim records of an agent that died while it prepared a claim or took back a refused one."""

from __future__ import annotations

import shutil
import signal
import uuid
from pathlib import Path

import pytest

from drabridge.dra.recorded_claims import recorded_claims
from drabridge.dra.records import ClaimRecord, PreparedDevice, RecordState, RecordStore
from drabridge.ledger.entries import ClaimRef, Lane
from drabridge.ledger.events import AgentStarted
from drabridge.sim.kubelet.faults import ListFault
from tests.support.agent_on_cluster import bridge, claim_pod, healthy, limits_pod
from tests.support.agent_process import BOOT_ID, AgentProcess
from tests.support.ledger_node import CLAIM, NOON, OTHER, Node, allocated, device, prepare
from tests.support.waiting import until


def _begun(agent: AgentProcess, device: str) -> str:
    """What a killed agent leaves of another claim on this device; returns the claim's UID."""
    claim = ClaimRef(str(uuid.uuid4()), "default", "other")
    devices = (PreparedDevice("r", "node-a", device),)
    record = ClaimRecord(claim, RecordState.STARTED, BOOT_ID.read_text().strip(), devices)
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
        theirs = before["owner"] == "legacy"
        await until(lambda: (before["name"] in healthy(cluster)) == theirs, 10, agent.text)  # its pod is not disturbed


async def test_a_half_prepared_claim_holds_its_device_when_the_ledger_is_lost() -> None:
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
            return [holder.get("claimUID") for holder in (await agent.device("zero")).get("holders", ())] == [uid]

        await until(held, 10, agent.text)


def test_the_ledger_knows_the_devices_of_a_reallocated_claim(tmp_path: Path) -> None:
    """It had gpu-0, is to have gpu-1 and gpu-2 as well, and was refused when the agent died."""
    node = Node(device(0, Lane.DRA), device(1, Lane.DRA), device(2, Lane.DRA))
    node.yes(AgentStarted(NOON))
    node.yes(prepare(0))
    node.yes(allocated(1, 2, claim=OTHER))
    devices = tuple(PreparedDevice("r", "node-a", name) for name in ("gpu-0", "gpu-1", "gpu-2"))
    store = RecordStore(tmp_path / "claims")
    for state, boot, expected in (
        (RecordState.STARTED, "boot", ["gpu-0"]),
        (RecordState.COMPLETED, "boot", ["gpu-0", "gpu-1", "gpu-2"]),
        (RecordState.STARTED, "earlier", None),
    ):
        store.save(ClaimRecord(CLAIM, state, boot, devices))
        found, before = recorded_claims(tmp_path / "claims", "boot", node.ledger)
        assert [[use.device for use in one.uses] for one in found] == ([expected] if expected else [])
        assert before == (set() if expected else {CLAIM.uid})
    store.save(ClaimRecord(ClaimRef("uid-3"), RecordState.STARTED, "boot", devices))
    assert recorded_claims(tmp_path / "claims", "boot", node.ledger)[0] == (), "it was refused"
