"""When a running agent believes that a pod released a device: the four false readings of PodResources.

Each test first shows the naive reading, over the same socket that the agent asks: kubelet lists the device with nobody.
The agent must keep it all the same, say why, and let go in the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as rpc
from drabridge.sim.kubelet import checkpoint
from drabridge.sim.kubelet.faults import ListFault
from drabridge.sim.kubelet.go_grpc import unix_channel
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Container, Phase, PodSpec
from podresources import Client
from tests.soak.judge import OPENS, Judge
from tests.support.agent_process import CONFIG, RESOURCE, AgentProcess, node, pod
from tests.support.hardware import loop_devices, needs_loop_devices
from tests.support.waiting import PATIENCE, until

SAFETY = (
    "safety: {minHoldSeconds: 0.4, unconfirmedSeconds: 2, absentSeconds: 0.4, settleSeconds: 1, quiesceSeconds: 0.5}\n"
)
QUICK = CONFIG.replace("resources:\n", f"{SAFETY}resources:\n")
CLEARLY_LONGER_SECONDS = 1.5  # than minHold and absent together: the naive rule would have let go
SETTLE_SECONDS = 8  # long enough to be seen on a busy machine


async def listed(kubelet: SimKubelet) -> set[str]:
    """The devices that PodResources shows with some pod."""
    async with Client(kubelet.node.podresources_socket) as client:
        found = await client.list()
    return {
        unit
        for one in found.pods
        for container in one.containers
        for entry in container.devices
        for unit in entry.device_ids
    }


async def held(agent: AgentProcess) -> dict[str, str]:
    """Device -> evidence, of those that pods hold."""
    return {row["name"]: row["evidence"] for row in (await agent.status())["devices"] if row["owner"] == "legacy"}


async def for_a_while(seconds: float, condition: Callable[[], Awaitable[bool]], since: float = 0.0) -> None:
    """It holds all the time, from ``since`` on. An answer that comes after that, on a busy machine, does not count."""
    end = (since or time.monotonic()) + seconds
    while True:
        holds = await condition()
        if time.monotonic() >= end:
            return
        assert holds
        await asyncio.sleep(0.05)


async def released(agent: AgentProcess) -> str:
    """Wait until nothing is held; returns the recorded reason of one of the devices."""

    async def nothing() -> bool:
        return not await held(agent)

    await until(nothing, 20, agent.text)
    reasons = [row["releasedBecause"] for row in (await agent.status())["devices"] if row["releasedBecause"]]
    return str(reasons[0])


async def test_a_plain_init_container_is_not_listed_and_holds() -> None:
    async with node(QUICK) as (agent, kubelet):
        spec = PodSpec(
            "default",
            "a",
            uid="uid-a",
            init_containers=(Container("init", {RESOURCE: 1}, run_seconds=60),),
            containers=(Container("main"),),
        )
        running = asyncio.create_task(kubelet.run_pod(spec))
        await until(lambda: held(agent))

        async def kept() -> bool:
            return not await listed(kubelet) and len(await held(agent)) == 1

        await for_a_while(CLEARLY_LONGER_SECONDS, kept)

        async def named() -> bool:
            (row,) = [row for row in (await agent.status())["devices"] if row["owner"] == "legacy"]
            return [(one["podUID"], one["container"]) for one in row["holders"]] == [("uid-a", "init")]

        await until(named, 10, agent.text)
        await kubelet.delete_pod("uid-a")
        await running
        assert "PodResources and kubelet's checkpoint agreed" in await released(agent)


async def test_a_force_deleted_pod_holds_for_as_long_as_its_processes_usually_take() -> None:
    config = QUICK.replace("absentSeconds: 0.4", "absentSeconds: 2")
    async with node(config) as (agent, kubelet):
        await kubelet.run_pod(pod("a"))
        await until(lambda: held(agent))
        await asyncio.sleep(1)  # minHold is over
        deleted = time.monotonic()
        await kubelet.delete_pod("uid-a", force=True, linger_seconds=1.5)

        async def kept() -> bool:
            return not await listed(kubelet) and len(await held(agent)) == 1

        await for_a_while(1.5, kept, deleted)
        await released(agent)


@pytest.mark.root
@pytest.mark.loopdev
@needs_loop_devices
async def test_a_force_deleted_pod_holds_for_as_long_as_it_has_the_node_open(tmp_path: Path) -> None:
    with loop_devices() as loops:
        name = loops.add(0)
        config = QUICK.replace("subsystem: mem", "subsystem: block").replace('[zero, "null", full, random]', name)
        judge = Judge(tmp_path)
        async with node(config + "  probeOpen: true\n", runtime=judge) as (agent, kubelet):
            await kubelet.run_pod(pod(f"{OPENS}a"))
            await until(lambda: held(agent))
            deleted = time.monotonic()
            await kubelet.delete_pod(f"uid-{OPENS}a", force=True, linger_seconds=3600)

            async def kept() -> bool:
                return not await listed(kubelet) and bool(await held(agent))

            async def open_still() -> bool:
                assert await kept()
                return "still-open" in str(await held(agent))

            await for_a_while(3.5, kept, deleted)
            await until(open_still, 10, agent.text)
            await judge.stop_container(f"uid-{OPENS}a", "main")
            assert "the physical probe" in await released(agent)


async def test_a_new_kubelet_lists_only_the_pods_it_knows_so_far() -> None:
    async with node(QUICK.replace("settleSeconds: 1", f"settleSeconds: {SETTLE_SECONDS}")) as (agent, kubelet):
        await kubelet.run_pod(pod("a", 2))
        before = (await held(agent)).keys()
        assert len(before) == 2
        kubelet.faults.pods_arrive.clear()
        await kubelet.restart()
        assert not await listed(kubelet)

        async def kept() -> bool:
            return (await held(agent)).keys() == before

        await for_a_while(CLEARLY_LONGER_SECONDS, kept)
        kubelet.faults.pods_arrive.set()
        await for_a_while(2, kept)

        async def all_listed() -> bool:
            return await listed(kubelet) == before

        await until(all_listed, 5, agent.text)
        await kubelet.delete_pod("uid-a")
        await released(agent)


async def test_after_a_kubelet_restart_nothing_is_released_until_it_has_settled() -> None:
    async with node(QUICK.replace("settleSeconds: 1", f"settleSeconds: {SETTLE_SECONDS}")) as (agent, kubelet):
        await asyncio.sleep(SETTLE_SECONDS)  # the agent's own start
        await kubelet.run_pod(pod("a"))
        await kubelet.restart()
        began = time.monotonic()
        await kubelet.delete_pod("uid-a")

        async def unsettled() -> bool:
            return "kubelet-unsettled" in str(await held(agent))

        await until(unsettled, 3, agent.text)
        await released(agent)
        assert time.monotonic() - began > SETTLE_SECONDS - 0.5


async def test_between_allocate_and_kubelets_own_record_a_device_is_held() -> None:
    async with node(QUICK) as (agent, kubelet):
        (socket,) = kubelet.node.device_plugin_dir.glob("drabridge-*.sock")
        began = time.monotonic()
        async with unix_channel(socket) as channel:
            request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["null"])])
            await rpc.DevicePluginStub(channel).Allocate(request, timeout=5 * PATIENCE)
        evidence = set[str]()

        async def kept() -> bool:
            now = await held(agent)
            evidence.update(now.values())
            return not await listed(kubelet) and "null" in now

        await for_a_while(1.8, kept, began)
        assert "too-young" in str(evidence)
        because = await released(agent)
        assert "the pod that it was allocated to never appeared" in because
        assert time.monotonic() - began > 2  # unconfirmedSeconds


@pytest.mark.parametrize("fault", [ListFault.ERROR, ListFault.GARBAGE, ListFault.NONSENSE, ListFault.HANG])
async def test_whatever_podresources_answers_a_running_pod_keeps_its_device(fault: ListFault) -> None:
    async with node(QUICK) as (agent, kubelet):
        await kubelet.run_pod(pod("a"))
        kubelet.faults.podresources = fault

        async def kept() -> bool:
            return len(await held(agent)) == 1

        await for_a_while(CLEARLY_LONGER_SECONDS + 1, kept)
        if fault in (ListFault.ERROR, ListFault.GARBAGE):

            async def said() -> bool:
                notes = (await agent.status())["notes"]
                return "no-list" in str(await held(agent)) and "does not tell who holds devices" in str(notes)

            await until(said, 10, agent.text)
        kubelet.faults.podresources = ListFault.NONE
        assert kubelet.pod_status("uid-a").phase is Phase.RUNNING
        await kubelet.delete_pod("uid-a")
        await released(agent)


async def test_a_checkpoint_that_cannot_be_understood_holds_where_there_is_no_api_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with node(QUICK) as (agent, kubelet):
        with monkeypatch.context() as patched:
            patched.setattr(checkpoint, "encode", lambda *_: "{")  # whenever kubelet writes it
            await kubelet.run_pod(pod("a"))
            await kubelet.delete_pod("uid-a")
            assert (kubelet.node.device_plugin_dir / checkpoint.FILE_NAME).read_text() == "{"

            async def kept() -> bool:
                return not await listed(kubelet) and len(await held(agent)) == 1

            await for_a_while(3, kept)
        await released(agent)
