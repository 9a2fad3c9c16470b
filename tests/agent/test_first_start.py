"""What an agent finds at its start: another plugin's pods, a reboot, a ledger that cannot be read."""

from __future__ import annotations

import asyncio
import shutil
import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from drabridge.ledger.store import Store
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.cluster import SimCluster
from drabridge.sim.kubelet.faults import ListFault
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Container, Phase, PodSpec
from drabridge.sim.kubelet.timings import Timings
from tests.soak.bed import MEM, bed
from tests.support.agent_on_cluster import claim_pod, limits_pod
from tests.support.agent_process import IDS, QUICK, RESOURCE, AgentProcess, drabridge, node, pod
from tests.support.kubelet_peers import Plugin, device
from tests.support.waiting import HANG_SECONDS, short_directory, until


async def test_pods_of_the_former_plugin_are_recognised() -> None:
    with short_directory() as root:
        kubelet = SimKubelet(root, timings=Timings.fast())
        vendor = Plugin(root, "vendor.sock", [device(name) for name in IDS], RESOURCE)
        agent = AgentProcess(root, QUICK)
        async with kubelet:
            await vendor.serve()
            await vendor.register()
            await kubelet.wait_for_resource(RESOURCE, healthy=4)
            await kubelet.run_pod(pod("a", 2))
            held = set(kubelet.resources[RESOURCE].allocated)
            await vendor.stop()
            await agent.start()
            try:
                await agent.ready()
                await kubelet.wait_for_resource(RESOURCE, healthy=4)
                rows = {row["name"]: row for row in (await agent.status())["devices"]}
                assert {name for name, row in rows.items() if row["owner"] == "legacy"} == held
                assert {one["pod"] or one["podUID"] for name in held for one in rows[name]["holders"]} <= {"a", "uid-a"}
                assert (await kubelet.run_pod(pod("b", 3))).phase is Phase.FAILED
                assert (await kubelet.run_pod(pod("c", 2))).phase is Phase.RUNNING
                assert kubelet.pod_status("uid-a").phase is Phase.RUNNING
                await kubelet.delete_pod("uid-a")

                async def let_go() -> bool:
                    owners = await agent.owners()
                    return {owners[name] for name in held} == {"none"}

                await until(let_go, 15, agent.text)
            finally:
                await agent.stop(signal.SIGKILL)


async def test_a_pod_that_only_kubelet_s_checkpoint_shows_keeps_its_devices_from_claims() -> None:
    """A List leaves plain init containers out, and a fresh ledger gives everything to the lane of claims."""
    config = QUICK.replace("  match:", '  lanes: {legacy: 0, dra: "*"}\n  match:')
    assert config != QUICK
    with short_directory() as root:
        async with SimApiServer() as api, SimKubelet(root, timings=Timings.fast()) as kubelet:
            api.objects.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
            vendor = Plugin(root, "vendor.sock", [device(name) for name in IDS], RESOURCE)
            agent = AgentProcess(root, config, arguments=("--kubeconfig", str(api.kubeconfig(root / "kubeconfig"))))
            await vendor.serve()
            await vendor.register()
            await kubelet.wait_for_resource(RESOURCE, healthy=4)
            long = Container("fetch", {RESOURCE: 2}, run_seconds=3600)
            spec = PodSpec("default", "a", uid="uid-a", init_containers=(long,), containers=(Container("main"),))
            starting = asyncio.create_task(kubelet.run_pod(spec))
            await kubelet.wait_for(lambda: "fetch" in kubelet.node.pods["uid-a"].running if kubelet.pods else False)
            held = set(kubelet.resources[RESOURCE].allocated)
            assert len(held) == 2
            await vendor.stop()
            await agent.start()
            try:
                await agent.ready()

                def published() -> set[str]:
                    slices = api.objects.peek("resourceslices")
                    found = {one["name"] for each in slices for one in each["spec"].get("devices") or ()}
                    assert not found & held, agent.text()
                    return found

                await until(lambda: published() == set(IDS) - held, 10, agent.text)
                owners = await agent.owners()
                assert {name for name, owner in owners.items() if owner == "legacy"} == held
                await asyncio.sleep(2)  # longer than every wait of QUICK, with a List that never shows the pod
                assert published() == set(IDS) - held
                assert {name for name, owner in (await agent.owners()).items() if owner == "legacy"} == held
            finally:
                await agent.stop(signal.SIGKILL)
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)


async def test_a_reboot_keeps_pods_holds_until_proven_free_and_drops_prepared_marks() -> None:
    async with bed(0, loop_devices=0) as stage:
        await stage.cluster.apply(limits_pod("l").replace(RESOURCE, MEM))
        await stage.cluster.apply(claim_pod("c"))
        await stage.cluster.wait_pod("l")
        await stage.cluster.wait_pod("c")
        assert sorted((await stage.agent.owners()).values()) == ["dra-prepared", "legacy", "none", "none"]
        files = _legacy_files(stage.agent)
        # Everything is killed and the agent starts first: only its ledger knows the holders.
        await stage.agent.stop(signal.SIGKILL)
        await stage.kubelet.stop()
        stage.boot_id.write_text(str(uuid.uuid4()))
        shutil.rmtree(stage.agent.cdi)  # as /var/run after a boot
        await stage.start_agent()
        await stage.agent.up()
        await until(lambda: _is(stage.agent, ["dra-granted", "legacy", "none", "none"]), 10, stage.agent.text)
        await asyncio.sleep(2)  # longer than every doubt, but kubelet says nothing
        assert await _is(stage.agent, ["dra-granted", "legacy", "none", "none"]), stage.agent.text()
        assert len(files) == 1
        # Its pod's container starts again without an Allocate.
        await until(lambda: _legacy_files(stage.agent) == files, 10, stage.agent.text)
        # Kubelet's pods come again, on the devices that they had.
        before = {name for name, owner in (await stage.agent.owners()).items() if owner == "legacy"}
        stage.kubelet.faults.pods_arrive.clear()
        await stage.kubelet.reboot()
        await stage.kubelet.wait_for_resource(MEM)
        stage.kubelet.faults.pods_arrive.set()
        await stage.cluster.wait_pod("c")
        await until(lambda: _is(stage.agent, ["dra-prepared", "legacy", "none", "none"]), 20, stage.agent.text)
        assert {name for name, owner in (await stage.agent.owners()).items() if owner == "legacy"} == before
        await stage.cluster.delete("pods", "l")
        await until(lambda: _is(stage.agent, ["dra-prepared", "none", "none", "none"]), 20, stage.agent.text)
        assert not stage.judge.conflicts


def _legacy_files(agent: AgentProcess) -> list[str]:
    return [path.name for path in agent.cdi.glob("*-device-legacy-*.json")]


async def _is(agent: AgentProcess, owners: list[str]) -> bool:
    return sorted((await agent.owners()).values()) == owners


def _garbage(file: Path) -> None:
    file.write_bytes(b"\0" * 300)


@pytest.mark.parametrize("damage", [_garbage, Path.unlink], ids=["garbage", "missing"])
async def test_an_unreadable_ledger_means_quarantine_until_the_operator_releases(
    damage: Callable[[Path], None],
) -> None:
    async with node(QUICK) as (agent, kubelet):
        await kubelet.run_pod(pod("a"))
        (used,) = kubelet.resources[RESOURCE].allocated
        await _restart(agent)  # its start writes a snapshot with every device
        await agent.stop(signal.SIGKILL)
        state = agent.control.parent
        (state / "ledger.jsonl.previous").unlink(missing_ok=True)
        damage(state / "ledger.jsonl")
        await agent.start()
        await agent.ready()
        document = await agent.status()
        assert any(str(state / "ledger.jsonl") in note for note in document["notes"]), document["notes"]
        owners = await agent.owners()
        assert owners[used] in ("legacy", "quarantine")
        doubtful = {name for name, owner in owners.items() if owner == "quarantine"}
        assert doubtful, owners
        # In doubt nothing is handed out...
        assert (await kubelet.run_pod(pod("b", 4 - len(doubtful)))).phase is Phase.FAILED
        # ... and a manual release is refused while a pod runs, and granted otherwise.
        await until(lambda: _settled(agent), 15, agent.text)
        code, said = await _lanes_release(agent, used)
        assert code == 1, said
        for name in sorted(doubtful - {used}):
            code, said = await _lanes_release(agent, name)
            assert code == 0, said
        owners = await agent.owners()
        assert {name: owner for name, owner in owners.items() if name != used} == dict.fromkeys(
            set(IDS) - {used}, "none"
        )
        await kubelet.wait_for_resource(RESOURCE, healthy=4)
        assert (await kubelet.run_pod(pod("c", 3))).phase is Phase.RUNNING


async def _restart(agent: AgentProcess) -> None:
    await agent.stop(signal.SIGKILL)
    await agent.start()
    await agent.ready()


async def test_an_older_ledger_is_corrected_by_kubelets_answers() -> None:
    async with node(QUICK) as (agent, kubelet):
        await _restart(agent)
        older = (agent.control.parent / "ledger.jsonl").read_bytes()
        await kubelet.run_pod(pod("a", 2))
        held = set(kubelet.resources[RESOURCE].allocated)
        await agent.stop(signal.SIGKILL)
        (agent.control.parent / "ledger.jsonl").write_bytes(older)
        await agent.start()
        await agent.ready()
        assert {name for name, owner in (await agent.owners()).items() if owner == "legacy"} == held


async def _settled(agent: AgentProcess) -> bool:
    """Whether kubelet has been asked about every device in doubt."""
    return b'drabridge_hold_reason{reason="no-second-witness"}' in (await agent.ask("/metrics"))[1]


async def _lanes_release(agent: AgentProcess, device: str) -> tuple[int, str]:
    return await drabridge(agent, "lanes", "release", device)


async def test_a_refused_release_says_why() -> None:
    async with node(QUICK) as (agent, kubelet):
        await kubelet.run_pod(pod("a"))
        (used,) = kubelet.resources[RESOURCE].allocated
        code, said = await _lanes_release(agent, used)
        assert code == 1
        assert "default/a" in said
        assert "delete the pod" in said
        code, said = await _lanes_release(agent, "nothing")
        assert code == 2
        assert "It has full, null, random, zero" in said
        code, said = await _lanes_release(agent, next(name for name in IDS if name != used))
        assert code == 0, said


async def test_quarantine_ends_by_itself_with_an_api_server() -> None:
    async with bed(0, loop_devices=0) as stage:
        await stage.cluster.apply(limits_pod("l").replace(RESOURCE, MEM))
        await stage.cluster.wait_pod("l")
        await stage.agent.stop(signal.SIGKILL)
        for file in stage.agent.control.parent.glob("ledger.jsonl*"):
            _garbage(file)
        stage.kubelet.faults.podresources = ListFault.ERROR  # however late this test looks
        await stage.start_agent()
        await stage.agent.up()
        await until(lambda: _doubt(stage.agent), 10, stage.agent.text)
        stage.kubelet.faults.podresources = ListFault.NONE
        await until(lambda: _told(stage.cluster, "LedgerLost"), 10, stage.agent.text)
        await until(lambda: _is(stage.agent, ["legacy", "none", "none", "none"]), 40, stage.agent.text)
        assert not stage.judge.conflicts


def _told(cluster: SimCluster, reason: str) -> bool:
    return any(
        event["reason"] == reason and event["involvedObject"]["kind"] == "Node"
        for event in cluster.api.objects.peek("events")
    )


async def _doubt(agent: AgentProcess) -> bool:
    return "quarantine" in (await agent.owners()).values()


async def test_an_agent_ends_when_another_one_has_its_ledger() -> None:
    """It starts again from the file: its own view of holders is out of date, whether or not the other agent stays."""
    async with node() as (agent, kubelet):
        state = agent.control.parent
        for name in ("ledger.lock", "ledger.jsonl"):
            (state / name).unlink()
        other = Store(state, node="node-a")
        assert (await kubelet.run_pod(pod("a"))).phase is Phase.FAILED
        assert agent.process is not None
        assert await asyncio.wait_for(agent.process.wait(), HANG_SECONDS) == 0
        assert not other.path.exists()
        other.close()
