"""Disks and directories fail below a running agent: few pods fail, and the agent recovers by itself."""

from __future__ import annotations

import asyncio
import resource
import shutil
import signal

from drabridge.sim.kubelet.pods import Phase
from tests.support.agent_on_cluster import bridge, claim_pod, devices_in_slices, end_claim, limits_pod
from tests.support.agent_process import RESOURCE, AgentProcess, node, pod
from tests.support.waiting import until


def limit_files(agent: AgentProcess, soft: int) -> None:
    """With 1, every write to a file fails with EFBIG, whoever the agent runs as: as good as a full disk."""
    assert agent.process is not None
    hard = resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_costs_one_pod() -> None:
    async with node() as (agent, kubelet):
        assert (await kubelet.run_pod(pod("holder"))).phase is Phase.RUNNING
        held = set(kubelet.resources[RESOURCE].allocated)
        limit_files(agent, 1)
        first = await kubelet.run_pod(pod("first"))
        assert first.phase is Phase.FAILED
        assert "the ledger cannot be written" in first.message
        await until(lambda: kubelet.resources[RESOURCE].healthy == held, 1, agent.text)
        assert kubelet.resources[RESOURCE].devices > held
        assert (await agent.ask("/readyz"))[0] == 503
        await asyncio.sleep(3.5)  # tries in between change nothing
        assert kubelet.resources[RESOURCE].healthy == held
        limit_files(agent, resource.RLIM_INFINITY)
        await kubelet.wait_for_resource(RESOURCE, healthy=4)
        await agent.ready(5)
        assert (await kubelet.run_pod(pod("next"))).phase is Phase.RUNNING


async def test_a_cdi_directory_that_is_a_file_costs_one_pod_at_most() -> None:
    async with node() as (agent, kubelet):
        assert (await kubelet.run_pod(pod("holder"))).phase is Phase.RUNNING
        held = set(kubelet.resources[RESOURCE].allocated)
        (file,) = agent.cdi.iterdir()
        shutil.rmtree(agent.cdi)
        agent.cdi.write_text("in the way")
        await kubelet.run_pod(pod("first"))  # unless the agent has looked by now, this one fails
        await until(lambda: kubelet.resources[RESOURCE].healthy == held, 10, agent.text)
        code, body = await agent.ask("/readyz")
        assert code == 503
        assert b"CDI: cannot keep CDI files" in body
        agent.cdi.unlink()
        await kubelet.wait_for_resource(RESOURCE, healthy=4)
        await agent.ready(5)
        await until(file.exists, 10, agent.text)  # the holder's container may be started again at any time
        assert (await kubelet.run_pod(pod("next"))).phase is Phase.RUNNING
        assert agent.text().count("CDI files cannot be written:") <= 1


async def test_removed_cdi_files_are_written_again() -> None:
    async with bridge() as (agent, cluster, _):
        for name, manifest in (("c", claim_pod("c")), ("l", limits_pod("l"))):
            await cluster.apply(manifest)
            await cluster.wait_pod(name)
        before = {path.name: path.read_bytes() for path in agent.cdi.iterdir()}
        assert len(before) == 3  # the claim's, its metadata's, and the legacy device's
        shutil.rmtree(agent.cdi)
        await until(lambda: agent.cdi.exists() and before.keys() <= {path.name for path in agent.cdi.iterdir()}, 10)
        await asyncio.sleep(0.1)
        assert {path.name: path.read_bytes() for path in agent.cdi.iterdir()} == before
        assert agent.text().count("CDI files were removed by somebody else") == 1


async def test_the_reason_why_claims_are_not_served_is_reported() -> None:
    async with bridge() as (agent, _, _runtime):
        await agent.stop()
        registry = agent.root / "plugins_registry"
        shutil.rmtree(registry)
        registry.write_text("")
        await agent.start()
        await agent.up()

        async def said() -> bool:
            return str(registry).encode() in (await agent.ask("/readyz"))[1]

        await until(said, 10, agent.text)
        assert any(str(registry) in one["error"] for one in (await agent.status())["endpoints"])
        registry.unlink()
        registry.mkdir()
        await agent.ready(20)


async def test_no_device_is_offered_while_claim_records_cannot_be_written() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("holder"))
        await cluster.wait_pod("holder")
        claims = agent.control.parent / "claims"
        aside = claims.rename(claims.with_name("aside"))
        claims.symlink_to("nowhere")  # as good as a file system that is read-only
        (held,) = [row["name"] for row in (await agent.status())["devices"] if row["owner"] != "none"]
        await cluster.apply(claim_pod("c"))
        await until(lambda: devices_in_slices(cluster) == {held}, 20, agent.text)
        code, body = await agent.ask("/readyz")
        assert (code, b"cannot record the claim" in body) == (503, True)
        await end_claim(cluster, "c")  # a repeated claim would show by itself that the disk works
        claims.unlink()
        aside.rename(claims)
        await agent.ready(10)
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        await cluster.apply(claim_pod("d"))
        await cluster.wait_pod("d")


async def test_no_device_is_offered_while_cdi_files_cannot_be_written() -> None:
    async with bridge() as (agent, cluster, _):
        agent.cdi.write_text("")  # the directory was not needed yet
        await cluster.apply(claim_pod("c"))
        await until(lambda: len(devices_in_slices(cluster)) == 1, 20, agent.text)  # its own
        await end_claim(cluster, "c")
        await until(lambda: not devices_in_slices(cluster), 20, agent.text)
        agent.cdi.unlink()
        await until(lambda: len(devices_in_slices(cluster)) == 2, 20, agent.text)
        await cluster.apply(claim_pod("d"))
        await cluster.wait_pod("d")


async def test_no_device_is_offered_while_the_ledger_cannot_be_written() -> None:
    async with bridge() as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        ledger = agent.control.parent / "ledger.jsonl"
        in_the_way = ledger.with_name("ledger.jsonl.new")  # where it is written first
        (in_the_way / "x").mkdir(parents=True)
        ledger.unlink()
        await cluster.apply(claim_pod("c"))
        await until(lambda: not devices_in_slices(cluster), 20, agent.text)
        records = agent.control.parent / "claims"
        await until(
            lambda: not list(records.glob("*.json")), 10, agent.text
        )  # each attempt has one, until it is refused
        shutil.rmtree(in_the_way)
        await cluster.wait_pod("c")
        await until(lambda: len(devices_in_slices(cluster)) == 2, 20, agent.text)


async def test_a_boot_recorded_late_because_of_a_full_disk_is_not_a_second_boot() -> None:
    """The ledger kept the former boot's id: the next start in the same boot took running claims for ended ones."""
    async with bridge() as (agent, cluster, _):
        await cluster.apply(limits_pod("l"))
        await cluster.wait_pod("l")  # so that the ledger on the disk is one that was compared with kubelet's view
        kubelet = cluster.kubelets["node-a"]
        registrations = len(kubelet.calls.of("Register"))
        await agent.stop()
        boot, full = agent.root / "boot-id", agent.root / "full"
        boot.write_text("the-second-boot\n")
        full.touch()
        agent.command = ("-m", "tests.support.agent_on_full_disk", str(full))
        agent.arguments = (*agent.arguments, "--boot-id-file", str(boot))
        await agent.start()
        await until(lambda: len(kubelet.calls.of("Register")) > registrations, 20, agent.text)
        full.unlink()
        await agent.ready()
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        (device,) = [row["name"] for row in (await agent.status())["devices"] if row["owner"].startswith("dra")]
        await agent.stop(signal.SIGKILL)
        (record,) = (agent.control.parent / "claims").glob("*.json")
        record.write_bytes(b"\0")  # so that the CDI file alone tells of the claim
        await agent.start()
        await agent.ready()
        assert (await agent.device(device))["owner"] == "dra-prepared"
        assert list(agent.cdi.glob("*claim*"))
