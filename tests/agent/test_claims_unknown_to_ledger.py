"""Claims whose devices the ledger does not know: it is an older copy, or never knew their names."""

from __future__ import annotations

import asyncio
import shutil
import signal

from tests.agent.stopped_agent import become, claim_files, claimed, everything, owners, stopped_while_a_claim_runs
from tests.support.agent_on_cluster import bridge, claim_pod, end_claim
from tests.support.agent_process import AgentProcess, noted
from tests.support.waiting import until


async def test_a_claim_that_ended_after_the_ledgers_copy_was_made_ends_again() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        await agent.stop()
        await agent.start()  # the older copy is as old as this
        await agent.ready()
        await end_claim(cluster, "c")
        await become(agent, *["none"] * 4)
        for name in "dc":  # what the claim had, and another claim of the same name
            await cluster.apply(claim_pod(name))
            await cluster.wait_pod(name)
        await agent.stop(signal.SIGKILL)
        damage(agent)
        kubelet = cluster.kubelets["node-a"]
        kubelet.faults.running.clear()
        await agent.start()
        await asyncio.sleep(3)  # kubelet is slow in this very moment
        kubelet.faults.running.set()
        await agent.ready()
        await until(lambda: noted(agent, "instead and quarantined"), 10, agent.text)
        await end_claim(cluster, "d")
        await become(agent, "none", "none", "none", "dra-prepared")
        claim = cluster.get("resourceclaims", "c")
        assert claim is not None
        assert await claimed(agent) == claim["status"]["allocation"]["devices"]["results"][0]["device"]


async def test_a_ledger_copy_of_the_previous_boot_is_not_taken_for_a_reboot() -> None:
    async with bridge() as (agent, cluster, _):
        await agent.stop()
        boot_id = agent.root / "boot-id"
        boot_id.write_text("another-boot\n")
        agent.arguments = (*agent.arguments, "--boot-id-file", str(boot_id))
        await agent.start()  # the only time since
        await agent.ready()
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        used, files = await claimed(agent), claim_files(agent)
        await agent.stop(signal.SIGKILL)
        damage(agent)
        for record in (agent.control.parent / "claims").glob("*.json"):
            record.write_text("{")
        await agent.start()
        await agent.ready()
        await become(agent, "none", "none", "none", "dra-prepared")
        assert (await claimed(agent), claim_files(agent)) == (used, files)
        await cluster.delete("pods", "c")
        await become(agent, *["none"] * 4)


def damage(agent: AgentProcess) -> None:
    """One bit of the ledger is damaged; the copy that is used instead is from the agent's last start."""
    ledger = agent.control.parent / "ledger.jsonl"
    damaged = bytearray(ledger.read_bytes())
    damaged[40] ^= 1
    ledger.write_bytes(damaged)


async def test_devices_that_a_claim_knows_by_another_name_stay_in_quarantine() -> None:
    """Another driver of the same name, or a changed ``id``: it cannot be known which device a claim has."""
    async with stopped_while_a_claim_runs() as (agent, cluster, used):
        everything(agent.control.parent)
        shutil.rmtree(agent.cdi)
        agent.config.write_text(agent.config.read_text().replace('id: ["{sysname}"]', 'id: ["x-{sysname}"]'))
        await agent.start()
        await agent.up()
        await become(agent, *["quarantine"] * 4)
        words = f"otherwise or does not match: {used} of claim default/c"
        await until(lambda: noted(agent, words), 10, agent.text)
        await asyncio.sleep(3)  # longer than every doubt
        assert await owners(agent) == ["quarantine"] * 4
        await cluster.delete("pods", "c")
        await become(agent, *["none"] * 4)
