"""CDI files, claim records, the ledger or kubelet's checkpoint are there but cannot be read."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator

import pytest

from drabridge.agent import startup_merge
from drabridge.sim.cluster import SimCluster
from drabridge.sim.kubelet import checkpoint
from drabridge.sim.kubelet.faults import ListFault
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.runtime import LockingRuntime
from drabridge.sim.kubelet.timings import Timings
from tests.agent.stopped_agent import (
    become,
    claim_files,
    claimed,
    lost_while_a_claim_runs,
    owners,
    rows,
    stopped_while_a_claim_runs,
)
from tests.support.agent_on_cluster import BOTH_LANES, bridge, claim_pod, healthy, limits_pod, not_started
from tests.support.agent_process import CONFIG as LEGACY_ONLY
from tests.support.agent_process import IDS, RESOURCE, AgentProcess, noted
from tests.support.kubelet_peers import Plugin, device
from tests.support.waiting import short_directory, until

CHECK_DISK = b"check free space and the disk"


async def test_no_device_is_free_while_cdi_files_cannot_be_read() -> None:
    async with lost_while_a_claim_runs() as (agent, cluster, used):
        kubelet = cluster.kubelets["node-a"]
        kubelet.faults.podresources = ListFault.ERROR
        aside = agent.cdi.rename(agent.cdi.with_name("aside"))
        agent.cdi.symlink_to(agent.cdi)  # a loop
        await agent.start()
        await agent.up()
        await become(agent, *["quarantine"] * 4)
        await until(lambda: noted(agent, "Too many levels of symbolic links"), 10, agent.text)
        agent.cdi.unlink()
        aside.rename(agent.cdi)
        kubelet.faults.podresources = ListFault.NONE
        await become(agent, "none", "none", "none", "quarantine")
        assert (await rows(agent))[used]["owner"] == "quarantine"


async def test_an_agent_that_cannot_read_cdi_files_serves_what_its_ledger_knows() -> None:
    async with stopped_while_a_claim_runs() as (agent, _, used):
        aside = agent.cdi.rename(agent.cdi.with_name("aside"))
        agent.cdi.symlink_to(agent.cdi)
        await agent.start()
        await agent.up()

        async def served() -> bool:
            _, body = await agent.ask("/readyz")
            return b"CDI" in body and b"served" not in body

        await until(served, 20, lambda: agent.text()[-3000:])
        assert await claimed(agent) == used
        agent.cdi.unlink()
        aside.rename(agent.cdi)
        await agent.ready()


async def test_an_agent_that_cannot_read_a_claims_record_serves_what_its_ledger_knows() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        used, files = await claimed(agent), claim_files(agent)
        await agent.stop()
        (record,) = (agent.control.parent / "claims").iterdir()
        record.unlink()
        record.mkdir()  # stands for EIO, which a test cannot cause
        await agent.start()
        await agent.ready()
        assert await claimed(agent) == used
        assert claim_files(agent) == files

        await agent.stop()
        for file in agent.control.parent.glob("ledger*"):
            file.unlink()
        for file in agent.cdi.glob("*"):
            file.unlink()
        cluster.kubelets["node-a"].faults.podresources = ListFault.ERROR
        await agent.start()
        await agent.up()
        await become(agent, *["quarantine"] * 4)  # with files but no ledger this is no new node


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("r-gpu-1", ["gpu-1"]),
        ("r-gpu-1-0e1669b7-57c4-4873-aa03-f781ee2f4685", ["gpu-1"]),  # a share of it
        ("my-gpu-1-gpu-12", ["gpu-12"]),
        ("r-gpu-1-part-2", ["gpu-1-part-2"]),
        ("r-big-gpu-1", ["gpu-1", "big-gpu-1"]),  # which of the two cannot be known
        ("r-fpga-0", []),
    ],
)
def test_the_devices_of_a_claim_are_read_from_its_cdi_file(text: str, devices: list[str]) -> None:
    assert startup_merge._named(text, ["gpu-1", "gpu-12", "gpu-1-part-2", "big-gpu-1"]) == devices


def _init_pod(name: str, count: int) -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  initContainers: [{{name: init, image: x, runSeconds: 90, resources: {{limits: {{"{RESOURCE}": {count}}}}}}}]
  containers: [{{name: main, image: x}}]
"""


@contextlib.asynccontextmanager
async def _vendors_node(pod: str) -> AsyncIterator[tuple[AgentProcess, SimCluster]]:
    """Another vendor's plugin has given its devices to ``pod`` and has gone; the agent is not started yet."""
    with short_directory() as locks:
        runtime = LockingRuntime(locks)
        async with not_started(runtime=lambda _: runtime) as (agent, cluster):
            vendor = Plugin(agent.root, "vendor.sock", [device(name) for name in IDS], RESOURCE)
            await vendor.serve()
            await vendor.register()
            await cluster.kubelets["node-a"].wait_for_resource(RESOURCE, healthy=4)
            await cluster.apply(pod)
            await until(lambda: runtime.running, 10)
            await vendor.stop()
            yield agent, cluster
            assert runtime.conflicts == []


@pytest.mark.parametrize(
    ("pod", "fault"),
    [
        (_init_pod("p", 4), ListFault.NONE),  # List does not show it
        (limits_pod("p", 4), ListFault.ERROR),
    ],
)
async def test_a_checkpoint_of_another_format_makes_nothing_free(
    monkeypatch: pytest.MonkeyPatch, pod: str, fault: ListFault
) -> None:
    written = checkpoint.encode
    with monkeypatch.context() as newer:
        newer.setattr(checkpoint, "encode", lambda *held: '{"V2":' + written(*held) + "}")
        async with _vendors_node(pod) as (agent, cluster):
            kubelet = cluster.kubelets["node-a"]
            kubelet.faults.podresources = fault
            await agent.start()
            await agent.up()
            await become(agent, *["quarantine"] * 4)
            await cluster.apply(claim_pod("c", 2))
            await asyncio.sleep(3)  # longer than every doubt
            assert await owners(agent) == ["quarantine"] * 4
            await until(lambda: noted(agent, "checkpoint"), 10, agent.text)
            kubelet.faults.podresources = ListFault.NONE
            newer.undo()
            await cluster.delete("pods", "p")
            await cluster.wait_pod("c")  # kubelet and the API server account for every pod


async def test_a_startup_merge_that_the_disk_refuses_is_repeated_when_it_works_again() -> None:
    async with lost_while_a_claim_runs() as (agent, cluster, used):
        in_the_way = agent.control.parent / "ledger.jsonl.new"  # where a snapshot is written first
        (in_the_way / "x").mkdir(parents=True)
        agent.config.write_text(BOTH_LANES.replace("lanes: {legacy: 2, dra: 2}", 'lanes: {legacy: "*", dra: 0}'))
        await agent.start()
        await agent.up()
        await until(lambda: "the ledger cannot be written" in agent.text())
        await asyncio.sleep(1)
        assert not healthy(cluster)

        async def said() -> bool:
            lines = [line for line in (await agent.ask("/readyz"))[1].splitlines() if b"ledger" in line]
            return len(lines) == 1 and b"before the ledger has been compared" in lines[0] and CHECK_DISK in lines[0]

        await until(said, 10, agent.text)
        assert not healthy(cluster)
        shutil.rmtree(in_the_way)
        await until(lambda: len(healthy(cluster)) == 3, 20, lambda: agent.text()[-3000:])
        assert used not in healthy(cluster)
        assert (await rows(agent))[used]["owner"] == "dra-prepared"


async def test_the_reason_of_a_failed_startup_merge_is_reported() -> None:
    with short_directory() as root:
        boot_id = root / "boot-id"
        async with SimKubelet(root, timings=Timings.fast()):
            agent = AgentProcess(root, LEGACY_ONLY, arguments=("--boot-id-file", str(boot_id)))
            await agent.start()
            try:
                await agent.up()

                async def said() -> bool:
                    reasons = (await agent.status())["notReadyBecause"]
                    return any("before the ledger has been compared" in one and str(boot_id) in one for one in reasons)

                await until(said, 10, agent.text)
                boot_id.write_text("this-boot\n")
                await agent.ready()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    await agent.stop(signal.SIGKILL)


async def test_quarantine_ends_by_itself_without_a_claims_lane() -> None:
    async with bridge() as (agent, cluster, _):

        async def noted(text: str) -> bool:
            return any(text in note for note in (await agent.status())["notes"])

        faults, ends = cluster.kubelets["node-a"].faults, "'drabridge lanes release DEVICE'"
        await agent.stop()
        faults.podresources = ListFault.ERROR
        for file in agent.control.parent.glob("ledger.jsonl*"):
            file.write_text("garbage")
        agent.config.write_text(BOTH_LANES.replace("lanes: {legacy: 2, dra: 2}", 'lanes: {legacy: "*", dra: 0}'))
        await agent.start()
        await agent.up()
        await become(agent, *["quarantine"] * 4)
        assert await noted(ends)
        faults.podresources = ListFault.NONE
        await become(agent, "none", "none", "none", "none")
        assert not await noted(ends)
        assert await noted("(kept as ledger.jsonl.unreadable-1); there is no older copy, began without it")
        assert "quarantined" in agent.text()
