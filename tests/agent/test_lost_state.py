"""The agent's state is gone, all of it or some: what CDI files, kubelet and the API server know is not free."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drabridge import beginning
from drabridge.sim import checkpoint
from drabridge.sim.cluster import ClusterTimings, SimCluster
from drabridge.sim.faults import ListFault
from drabridge.sim.kubelet import SimKubelet
from drabridge.sim.runtime import LockingRuntime
from drabridge.sim.timings import Timings
from tests.agent.helpers import CONFIG as LEGACY_ONLY
from tests.agent.helpers import RESOURCE, AgentProcess, short_directory, until
from tests.agent.test_bridge_node import (
    CLASS,
    CONFIG,
    bridge,
    claim_pod,
    devices_in_slices,
    healthy,
    limits_pod,
    set_lanes,
)
from tests.agent.test_lane_moves import MONITOR
from tests.agent.test_left_prepared import release
from tests.agent.test_reloads import reload
from tests.sim.kubelet_peers import Plugin, device

IDS = ("full", "null", "random", "zero")


async def _rows(agent: AgentProcess) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in (await agent.status())["devices"]}


async def _owners(agent: AgentProcess) -> list[str]:
    return sorted(row["owner"] for row in (await _rows(agent)).values())


async def _claimed(agent: AgentProcess) -> str:
    """The one device that a claim has prepared."""
    (name,) = [name for name, row in (await _rows(agent)).items() if row["owner"] == "dra-prepared"]
    return name


async def _become(agent: AgentProcess, *owners: str) -> None:
    async def are() -> bool:
        return await _owners(agent) == sorted(owners)

    await until(are, 20, lambda: agent.text()[-3000:])


def _everything(state: Path) -> None:
    shutil.rmtree(state)


def _all_but_the_lock(state: Path) -> None:
    shutil.rmtree(state / "claims")
    for file in state.glob("ledger.jsonl*"):
        file.unlink()


def _claim_files(agent: AgentProcess) -> list[str]:
    return [path.name for path in agent.cdi.glob("*-device-claim-*.json")]


@contextlib.asynccontextmanager
async def stopped_while_a_claim_runs() -> AsyncIterator[tuple[AgentProcess, SimCluster, str]]:
    """A stopped agent, and the device that a running claim has."""
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        used = await _claimed(agent)
        await agent.stop()
        yield agent, cluster, used


@contextlib.asynccontextmanager
async def lost_while_a_claim_runs() -> AsyncIterator[tuple[AgentProcess, SimCluster, str]]:
    """The same without any state."""
    async with stopped_while_a_claim_runs() as (agent, cluster, used):
        _everything(agent.control.parent)
        yield agent, cluster, used


@pytest.mark.parametrize("lose", [_everything, _all_but_the_lock])
@pytest.mark.parametrize("fault", [ListFault.NONE, ListFault.ERROR])
async def test_a_running_claim_keeps_its_device_when_the_state_is_lost(
    lose: Callable[[Path], None], fault: ListFault
) -> None:
    async with bridge() as (agent, cluster, _):
        kubelet = cluster.kubelets["node-a"]
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        used, files = await _claimed(agent), _claim_files(agent)
        await agent.stop()
        lose(agent.control.parent)
        kubelet.faults.podresources = fault  # then its CDI file alone tells of the claim
        await agent.start()
        await agent.up()
        await _become(agent, "dra-prepared", "quarantine", "quarantine", "quarantine")
        assert await _claimed(agent) == used
        kubelet.faults.podresources = ListFault.NONE
        await _become(agent, "dra-prepared", "none", "none", "none")
        assert await _claimed(agent) == used
        assert _claim_files(agent) == files
        # Kubelet ends it as if nothing had happened.
        await agent.ready()
        await cluster.delete("pods", "c")
        await _become(agent, "none", "none", "none", "none")
        assert _claim_files(agent) == []


async def test_a_running_claims_device_is_not_given_to_pods_though_the_lanes_say_so() -> None:
    async with lost_while_a_claim_runs() as (agent, cluster, used):
        agent.config.write_text(CONFIG.replace("lanes: {legacy: 2, dra: 2}", "lanes: {legacy: 3, dra: 1}"))
        await agent.start()
        await agent.ready()
        await set_lanes(agent, legacy=4, dra=0)
        await until(lambda: len(healthy(cluster)) == 3, 20, lambda: agent.text()[-3000:])
        await asyncio.sleep(2)  # longer than every doubt
        assert used not in healthy(cluster)
        await cluster.apply(limits_pod("l", 3))
        await cluster.wait_pod("l")
        assert (await _rows(agent))[used]["owner"] == "dra-prepared"


async def test_quarantine_does_not_end_while_kubelet_shows_a_claim_on_the_device() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        used = await _claimed(agent)
        await agent.stop(signal.SIGKILL)
        _everything(agent.control.parent)
        kubelet = cluster.kubelets["node-a"]
        for file in agent.cdi.glob("*"):
            file.unlink()
        kubelet.faults.podresources = ListFault.ERROR  # nobody on this node tells of the claim
        agent.control.parent.mkdir(parents=True)
        (agent.control.parent / "ledger.lock").touch()  # an agent ran here
        await agent.start()
        await agent.ready()
        assert await _owners(agent) == ["quarantine"] * 4
        kubelet.faults.podresources = ListFault.NONE
        await _become(agent, "none", "none", "none", "quarantine")
        await asyncio.sleep(2)  # longer than every doubt
        assert (await _rows(agent))[used]["owner"] == "quarantine"
        assert b'drabridge_hold_reason{reason="running"} 1' in (await agent.ask("/metrics"))[1]
        await cluster.delete("pods", "c")
        await _become(agent, "none", "none", "none", "none")


async def test_a_device_that_comes_after_the_merge_is_still_the_claims() -> None:
    async with stopped_while_a_claim_runs() as (agent, cluster, used):
        for file in agent.control.parent.glob("ledger.jsonl*"):
            file.unlink()
        one_less = ", ".join(f'"{name}"' for name in IDS if name != used)
        agent.config.write_text(CONFIG.replace('zero, "null", full, random', one_less))
        await agent.start()
        await agent.up()
        await until(lambda: len(healthy(cluster)) + len(devices_in_slices(cluster)) == 3, 30, agent.text)
        assert used not in await _rows(agent)
        reload(agent, CONFIG.replace("2, dra: 2}", '"*", dra: 0}'))
        await until(lambda: len(healthy(cluster)) == 3, 30, agent.text)
        assert (await _rows(agent))[used]["owner"] == "dra-prepared"
        await cluster.apply(limits_pod("l", 3))
        await cluster.wait_pod("l")
        await agent.ready()
        await cluster.delete("pods", "c")
        await until(lambda: used in healthy(cluster), 30, agent.text)


async def test_a_device_that_was_away_at_the_merge_is_still_the_claims_by_its_cdi_file_alone() -> None:
    async with lost_while_a_claim_runs() as (agent, cluster, used):
        kubelet = cluster.kubelets["node-a"]
        one_less = ", ".join(f'"{name}"' for name in IDS if name != used)
        agent.config.write_text(CONFIG.replace('zero, "null", full, random', one_less))
        kubelet.faults.podresources = ListFault.ERROR
        await agent.start()
        await agent.up()
        await _become(agent, *["quarantine"] * 3)
        kubelet.faults.podresources = ListFault.NONE
        await _become(agent, *["none"] * 3)
        await agent.ready()
        reload(agent, CONFIG)
        await _become(agent, "dra-prepared", *["none"] * 3)
        assert await _claimed(agent) == used
        await cluster.delete("pods", "c")
        await _become(agent, *["none"] * 4)
        assert _claim_files(agent) == []


async def test_what_lies_there_of_claims_after_a_reboot_holds_nothing() -> None:
    async with stopped_while_a_claim_runs() as (agent, cluster, _):
        shutil.rmtree(agent.control.parent / "claims")
        cluster.kubelets["node-a"].faults.podresources = ListFault.ERROR
        boot_id = agent.root / "boot-id"
        boot_id.write_text("another-boot\n")
        agent.arguments = (*agent.arguments, "--boot-id-file", str(boot_id))
        await agent.start()
        await agent.up()
        await until(lambda: not _claim_files(agent), 20, agent.text)


async def test_with_cdi_files_that_cannot_be_read_nothing_is_free() -> None:
    async with lost_while_a_claim_runs() as (agent, cluster, used):
        kubelet = cluster.kubelets["node-a"]
        kubelet.faults.podresources = ListFault.ERROR
        aside = agent.cdi.rename(agent.cdi.with_name("aside"))
        agent.cdi.symlink_to(agent.cdi)  # a loop
        await agent.start()
        await agent.up()
        await _become(agent, *["quarantine"] * 4)
        assert any("Too many levels of symbolic links" in note for note in (await agent.status())["notes"])
        agent.cdi.unlink()
        aside.rename(agent.cdi)
        kubelet.faults.podresources = ListFault.NONE
        await _become(agent, "none", "none", "none", "quarantine")
        assert (await _rows(agent))[used]["owner"] == "quarantine"


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
        assert await _claimed(agent) == used
        agent.cdi.unlink()
        aside.rename(agent.cdi)
        await agent.ready()


async def test_an_agent_that_cannot_read_a_claims_record_serves_what_its_ledger_knows() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        used, files = await _claimed(agent), _claim_files(agent)
        await agent.stop()
        (record,) = (agent.control.parent / "claims").iterdir()
        record.unlink()
        record.mkdir()  # as good as EIO, which nobody can order
        await agent.start()
        await agent.ready()
        assert await _claimed(agent) == used
        assert _claim_files(agent) == files

        await agent.stop()
        for file in agent.control.parent.glob("ledger*"):
            file.unlink()
        for file in agent.cdi.glob("*"):
            file.unlink()
        cluster.kubelets["node-a"].faults.podresources = ListFault.ERROR
        await agent.start()
        await agent.up()
        await _become(agent, *["quarantine"] * 4)  # with files but no ledger this is no new node


async def test_state_that_is_removed_under_a_running_agent_is_written_again() -> None:
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        used, state = await _claimed(agent), agent.control.parent
        shutil.rmtree(state / "claims")
        for file in state.glob("ledger*"):
            file.unlink()
        await cluster.apply(limits_pod("l"))
        await cluster.wait_pod("l")
        await agent.stop(signal.SIGKILL)
        assert "was removed or replaced, it is written anew" in agent.text()
        await agent.start()
        await agent.ready()
        assert await _owners(agent) == ["dra-prepared", "legacy", "none", "none"]
        assert await _claimed(agent) == used
        assert len(_claim_files(agent)) == 1


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
    assert beginning._named(text, ["gpu-1", "gpu-12", "gpu-1-part-2", "big-gpu-1"]) == devices


# --- a node that no agent has seen before -----------------------------------------------------------------------------


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
    with short_directory() as root:
        locks = root / "locks"
        locks.mkdir()
        runtime = LockingRuntime(locks)
        timings = replace(ClusterTimings.fast(), kubelet=Timings.fast())
        async with SimCluster(root, timings=timings, runtime=lambda _: runtime) as cluster:
            kubeconfig = root / "kubeconfig"
            cluster.api.kubeconfig(kubeconfig)
            kubelet = cluster.kubelets["node-a"]
            vendor = Plugin(root / "node-a", "vendor.sock", [device(name) for name in IDS], RESOURCE)
            await vendor.serve()
            await vendor.register()
            await kubelet.wait_for_resource(RESOURCE, healthy=4)
            await cluster.apply(pod)
            await until(lambda: runtime.running, 10)
            await vendor.stop()
            agent = AgentProcess(root / "node-a", CONFIG, arguments=("--kubeconfig", str(kubeconfig)))
            try:
                yield agent, cluster
                assert runtime.conflicts == []
            finally:
                with contextlib.suppress(ProcessLookupError):
                    await agent.stop(signal.SIGKILL)


@pytest.mark.parametrize(
    ("pod", "fault"),
    [
        (_init_pod("p", 4), ListFault.NONE),  # List does not show it
        (limits_pod("p", 4), ListFault.HANG),
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
            await _become(agent, *["quarantine"] * 4)
            await cluster.apply(CLASS)
            await cluster.apply(claim_pod("c", 2))
            await asyncio.sleep(3)  # longer than every doubt
            assert await _owners(agent) == ["quarantine"] * 4
            assert any("checkpoint" in note for note in (await agent.status())["notes"])
            kubelet.faults.podresources = ListFault.NONE
            newer.undo()
            await cluster.delete("pods", "p")
            await cluster.wait_pod("c", timeout=30)  # kubelet and the API server account for every pod


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
                assert set(await _owners(agent)) == {"none"}
                assert "quarantined" not in agent.text()
        finally:
            with contextlib.suppress(ProcessLookupError):
                await agent.stop(signal.SIGKILL)


async def test_a_merge_that_the_disk_refuses_is_made_when_it_is_well() -> None:
    async with lost_while_a_claim_runs() as (agent, cluster, used):
        in_the_way = agent.control.parent / "ledger.jsonl.new"  # where a snapshot is written first
        (in_the_way / "x").mkdir(parents=True)
        agent.config.write_text(CONFIG.replace("lanes: {legacy: 2, dra: 2}", 'lanes: {legacy: "*", dra: 0}'))
        await agent.start()
        await agent.up()
        await until(lambda: "the ledger cannot be written" in agent.text())
        await asyncio.sleep(1)
        assert not healthy(cluster)
        (said,) = [line for line in (await agent.ask("/readyz"))[1].splitlines() if b"ledger" in line]
        assert b"before the ledger has been compared" in said
        assert b"check free space and the disk" in said
        shutil.rmtree(in_the_way)
        await until(lambda: len(healthy(cluster)) == 3, 20, lambda: agent.text()[-3000:])
        assert used not in healthy(cluster)
        assert (await _rows(agent))[used]["owner"] == "dra-prepared"


async def test_why_the_merge_fails_is_said() -> None:
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


async def test_with_an_api_server_and_no_claims_lane_quarantine_ends_by_itself_too() -> None:
    async with bridge() as (agent, _, _):
        await agent.stop()
        for file in agent.control.parent.glob("ledger.jsonl*"):
            file.write_text("garbage")
        agent.config.write_text(CONFIG.replace("lanes: {legacy: 2, dra: 2}", 'lanes: {legacy: "*", dra: 0}'))
        await agent.start()
        await agent.up()
        await _become(agent, "none", "none", "none", "none")
        assert "quarantined" in agent.text()


async def test_the_operator_does_not_end_a_quarantine_of_what_the_api_server_shows_allocated() -> None:
    slowly = CONFIG.replace("absentSeconds: 0.3", "absentSeconds: 600").replace("2, dra: 2}", '"*", dra: 0}')
    async with bridge(kubelet_version="1.33") as (agent, cluster, _):  # kubelet shows nobody's claims
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        used = await _claimed(agent)
        await agent.stop()
        for file in [*agent.cdi.glob("*"), *agent.control.parent.glob("ledger.jsonl*")]:
            file.unlink()
        shutil.rmtree(agent.control.parent / "claims")
        agent.config.write_text(slowly)
        await agent.start()
        await agent.up()
        await _become(agent, *["quarantine"] * 4)
        other = next(name for name in IDS if name != used)

        async def ended(name: str) -> bool:
            code, text = await release(agent, name)
            assert code == 200 or "kubelet does not say that no pod uses it" in text, text
            return code == 200

        await until(lambda: ended(other), 20)
        code, text = await release(agent, used)
        assert (code, "allocated to claim default/c" in text) == (409, True)
        assert (await _rows(agent))[used]["owner"] == "quarantine"


async def test_a_monitoring_claim_does_not_prolong_a_quarantine_nor_end_it() -> None:
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
        await _become(agent, *["quarantine"] * 4)
        cluster.kubelets["node-a"].faults.podresources = ListFault.NONE
        await _become(agent, *["none"] * 4)
        assert [len(row["holders"]) for row in (await _rows(agent)).values()] == [1] * 4  # it watches on


@pytest.mark.parametrize("fault", [ListFault.NONE, ListFault.ERROR])
async def test_a_monitoring_claim_holds_nothing_when_the_state_is_lost(fault: ListFault) -> None:
    async with bridge() as (agent, cluster, _):
        await set_lanes(agent, legacy=0, dra=4)
        await until(lambda: len(devices_in_slices(cluster)) == 4, 10)
        await cluster.apply(MONITOR)
        await cluster.wait_pod("monitor", namespace="monitoring")
        await agent.stop()
        _everything(agent.control.parent)
        cluster.kubelets["node-a"].faults.podresources = fault  # then its CDI file alone tells of the claim
        await agent.start()
        await agent.up()
        if fault is ListFault.ERROR:
            await _become(agent, *["quarantine"] * 4)
            cluster.kubelets["node-a"].faults.podresources = ListFault.NONE

        async def watched() -> bool:
            rows = (await _rows(agent)).values()
            return [(row["owner"], [h.get("admin") for h in row["holders"]]) for row in rows] == [("none", [True])] * 4

        await until(watched, 20, lambda: agent.text()[-3000:])
