"""The agent's state is deleted, wholly or in part: devices that CDI files, kubelet or the API server know stay held."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from drabridge.sim.kubelet.faults import ListFault
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.timings import Timings
from tests.agent.stopped_agent import (
    become,
    claim_files,
    claimed,
    everything,
    lost_while_a_claim_runs,
    owners,
    rows,
    stopped_while_a_claim_runs,
)
from tests.support.agent_on_cluster import (
    BOTH_LANES,
    MONITOR,
    bridge,
    claim_pod,
    devices_in_slices,
    healthy,
    limits_pod,
    set_lanes,
)
from tests.support.agent_process import CONFIG as LEGACY_ONLY
from tests.support.agent_process import IDS, RESOURCE, AgentProcess, release, reload
from tests.support.waiting import short_directory, until


def _all_but_the_lock(state: Path) -> None:
    shutil.rmtree(state / "claims")
    for file in state.glob("ledger.jsonl*"):
        file.unlink()


@pytest.mark.parametrize(
    ("lose", "fault"),
    [(everything, ListFault.ERROR), (_all_but_the_lock, ListFault.NONE)],
    ids=["all", "all but the lock"],
)
async def test_a_running_claim_keeps_its_device_when_the_state_is_lost(
    lose: Callable[[Path], None], fault: ListFault
) -> None:
    async with bridge() as (agent, cluster, _):
        kubelet = cluster.kubelets["node-a"]
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        used, files = await claimed(agent), claim_files(agent)
        await agent.stop()
        lose(agent.control.parent)
        kubelet.faults.podresources = fault  # then its CDI file alone tells of the claim
        cluster.api.faults.fail(1_000_000, 503, verb="list", resource="resourceclaims")  # however late this test looks
        await agent.start()
        await agent.up()
        await become(agent, "dra-prepared", "quarantine", "quarantine", "quarantine")
        assert await claimed(agent) == used
        kubelet.faults.podresources = ListFault.NONE
        cluster.api.faults.heal()
        await become(agent, "dra-prepared", "none", "none", "none")
        assert await claimed(agent) == used
        assert claim_files(agent) == files
        # Kubelet ends it as if nothing had happened.
        await agent.ready()
        await cluster.delete("pods", "c")
        await become(agent, "none", "none", "none", "none")
        assert claim_files(agent) == []


async def test_a_running_claims_device_is_not_given_to_pods_though_the_lanes_say_so() -> None:
    async with lost_while_a_claim_runs() as (agent, cluster, used):
        agent.config.write_text(BOTH_LANES.replace("lanes: {legacy: 2, dra: 2}", "lanes: {legacy: 3, dra: 1}"))
        await agent.start()
        await agent.ready()
        await set_lanes(agent, legacy=4, dra=0)
        await until(lambda: len(healthy(cluster)) == 3, 20, lambda: agent.text()[-3000:])
        await asyncio.sleep(2)  # longer than every doubt
        assert used not in healthy(cluster)
        await cluster.apply(limits_pod("l", 3))
        await cluster.wait_pod("l")
        assert (await rows(agent))[used]["owner"] == "dra-prepared"


async def test_quarantine_does_not_end_while_kubelet_shows_a_claim_on_the_device() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        used = await claimed(agent)
        await agent.stop(signal.SIGKILL)
        everything(agent.control.parent)
        kubelet = cluster.kubelets["node-a"]
        for file in agent.cdi.glob("*"):
            file.unlink()
        kubelet.faults.podresources = ListFault.ERROR  # no source on this node shows the claim
        agent.control.parent.mkdir(parents=True)
        (agent.control.parent / "ledger.lock").touch()  # an agent ran here
        await agent.start()
        await agent.ready()
        assert await owners(agent) == ["quarantine"] * 4
        kubelet.faults.podresources = ListFault.NONE
        await become(agent, "none", "none", "none", "quarantine")
        await asyncio.sleep(2)  # longer than every doubt
        assert (await rows(agent))[used]["owner"] == "quarantine"
        assert b'drabridge_hold_reason{reason="running"} 1' in (await agent.ask("/metrics"))[1]
        await cluster.delete("pods", "c")
        await become(agent, "none", "none", "none", "none")


async def test_a_device_that_comes_after_the_merge_is_still_the_claims() -> None:
    async with stopped_while_a_claim_runs() as (agent, cluster, used):
        for file in agent.control.parent.glob("ledger.jsonl*"):
            file.unlink()
        one_less = ", ".join(f'"{name}"' for name in IDS if name != used)
        agent.config.write_text(BOTH_LANES.replace('zero, "null", full, random', one_less))
        await agent.start()
        await agent.up()
        await become(agent, *["quarantine"] * 3)  # the claim may have any of them, by another name
        assert used not in await rows(agent)
        reload(agent, BOTH_LANES.replace("2, dra: 2}", '"*", dra: 0}'))
        await until(lambda: len(healthy(cluster)) == 3, 30, agent.text)
        assert (await rows(agent))[used]["owner"] == "dra-prepared"
        await cluster.apply(limits_pod("l", 3))
        await cluster.wait_pod("l")
        await agent.ready()
        await cluster.delete("pods", "c")
        await until(lambda: used in healthy(cluster), 30, agent.text)


async def test_a_device_that_was_away_at_the_merge_is_still_the_claims_by_its_cdi_file_alone() -> None:
    async with lost_while_a_claim_runs() as (agent, cluster, used):
        kubelet = cluster.kubelets["node-a"]
        one_less = ", ".join(f'"{name}"' for name in IDS if name != used)
        agent.config.write_text(BOTH_LANES.replace('zero, "null", full, random', one_less))
        kubelet.faults.podresources = ListFault.ERROR
        await agent.start()
        await agent.up()
        await become(agent, *["quarantine"] * 3)
        kubelet.faults.podresources = ListFault.NONE  # so says kubelet that the claim may have any, by another name
        reload(agent, BOTH_LANES)
        await become(agent, "dra-prepared", *["none"] * 3)
        assert await claimed(agent) == used
        await cluster.delete("pods", "c")
        await become(agent, *["none"] * 4)
        assert claim_files(agent) == []


async def test_records_and_files_of_claims_hold_nothing_after_a_reboot() -> None:
    async with stopped_while_a_claim_runs() as (agent, cluster, _):
        shutil.rmtree(agent.control.parent / "claims")
        cluster.kubelets["node-a"].faults.podresources = ListFault.ERROR
        boot_id = agent.root / "boot-id"
        boot_id.write_text("another-boot\n")
        agent.arguments = (*agent.arguments, "--boot-id-file", str(boot_id))
        await agent.start()
        await agent.up()
        await until(lambda: not claim_files(agent), 20, agent.text)


async def test_state_that_is_removed_under_a_running_agent_is_written_again() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        used, state = await claimed(agent), agent.control.parent
        shutil.rmtree(state / "claims")
        for file in state.glob("ledger*"):
            file.unlink()
        await cluster.apply(limits_pod("l"))
        await cluster.wait_pod("l")
        await agent.stop(signal.SIGKILL)
        assert "ledger file removed or replaced; written anew" in agent.text()
        await agent.start()
        await agent.ready()
        assert await owners(agent) == ["dra-prepared", "legacy", "none", "none"]
        assert await claimed(agent) == used
        assert len(claim_files(agent)) == 1


# --- a node that no agent has seen before -----------------------------------------------------------------------------


async def test_a_new_node_whose_kubelet_comes_later_is_not_in_quarantine() -> None:
    with short_directory() as root:
        agent = AgentProcess(root, LEGACY_ONLY)
        await agent.start()
        try:
            await agent.up()
            agent.config.write_text(LEGACY_ONLY.replace(", random]", "]"))
            assert agent.process is not None
            agent.process.send_signal(signal.SIGHUP)
            async with SimKubelet(root, timings=Timings.fast()) as kubelet:
                await agent.ready()
                await kubelet.wait_for_resource(RESOURCE, healthy=3)
                assert set(await owners(agent)) == {"none"}
                assert "quarantined" not in agent.text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                await agent.stop(signal.SIGKILL)


async def test_the_operator_does_not_end_a_quarantine_of_what_the_api_server_shows_allocated() -> None:
    slowly = BOTH_LANES.replace("absentSeconds: 0.3", "absentSeconds: 600").replace("2, dra: 2}", '"*", dra: 0}')
    async with bridge(kubelet_version="1.33") as (agent, cluster, _):  # kubelet shows nobody's claims
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        used = await claimed(agent)
        await agent.stop()
        for file in [*agent.cdi.glob("*"), *agent.control.parent.glob("ledger.jsonl*")]:
            file.unlink()
        shutil.rmtree(agent.control.parent / "claims")
        agent.config.write_text(slowly)
        await agent.start()
        await agent.up()
        await become(agent, *["quarantine"] * 4)
        other = next(name for name in IDS if name != used)

        async def ended(name: str) -> bool:
            code, text = await release(agent, name)
            assert code == 200 or "kubelet does not say that no pod uses it" in text, text
            return code == 200

        await until(lambda: ended(other), 20)
        code, text = await release(agent, used)
        assert (code, "allocated to claim default/c" in text) == (409, True)
        assert (await rows(agent))[used]["owner"] == "quarantine"


async def test_a_monitoring_claim_neither_prolongs_nor_ends_a_quarantine() -> None:
    async with bridge() as (agent, cluster, _):
        await set_lanes(agent, legacy=0, dra=4)
        await until(lambda: len(devices_in_slices(cluster)) == 4, 10)
        await cluster.apply(MONITOR)
        await cluster.wait_pod("monitor", namespace="monitoring")
        await agent.stop()
        for file in agent.control.parent.glob("ledger.jsonl*"):
            file.write_text("garbage")
        cluster.kubelets["node-a"].faults.podresources = ListFault.ERROR
        await agent.start()
        await agent.up()
        await become(agent, *["quarantine"] * 4)
        cluster.kubelets["node-a"].faults.podresources = ListFault.NONE
        await become(agent, *["none"] * 4)
        assert [len(row["holders"]) for row in (await rows(agent)).values()] == [1] * 4  # it watches on


async def test_a_monitoring_claim_holds_nothing_when_the_state_is_lost() -> None:
    async with bridge() as (agent, cluster, _):
        await set_lanes(agent, legacy=0, dra=4)
        await until(lambda: len(devices_in_slices(cluster)) == 4, 10)
        await cluster.apply(MONITOR)
        await cluster.wait_pod("monitor", namespace="monitoring")
        await agent.stop()
        everything(agent.control.parent)
        cluster.kubelets["node-a"].faults.podresources = ListFault.ERROR  # then its CDI file alone tells of the claim
        await agent.start()
        await agent.up()
        await become(agent, *["quarantine"] * 4)
        cluster.kubelets["node-a"].faults.podresources = ListFault.NONE

        async def watched() -> bool:
            found = (await rows(agent)).values()
            return [(row["owner"], [h.get("admin") for h in row["holders"]]) for row in found] == [("none", [True])] * 4

        await until(watched, 20, lambda: agent.text()[-3000:])
