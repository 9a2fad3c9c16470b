"""What the agent answers to kubelet's requests: valid and unusual ones, and hooks before a container starts."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc
from drabridge.legacy.manager import ANSWER_SECONDS, QUIET_SECONDS
from drabridge.sim.kubelet.calls import Call
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.runtime import MemoryRuntime
from drabridge.sim.kubelet.timings import Timings
from tests.support.agent_process import DRIVER, AgentProcess, node, pod
from tests.support.waiting import HANG_SECONDS, short_directory, until

RESOURCE = "example.com/zero"


def config(**resource: Any) -> str:
    """One memory device; JSON is YAML, so Python's repr of plain values is nearly enough."""
    more = "".join(f"  {key}: {value}\n" for key, value in resource.items())
    return f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
resources:
- name: {RESOURCE}
  match: [{{subsystem: mem, sysname: [zero, full]}}]
  id: ["{{sysname}}"]
{more}"""


@contextlib.asynccontextmanager
async def socket(agent: AgentProcess) -> AsyncIterator[Any]:
    """The agent's socket as kubelet dials it."""
    (path,) = (agent.root / "device-plugins").glob("drabridge-*")
    options = [("grpc.default_authority", "localhost")]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        yield pb_grpc.DevicePluginStub(channel)


def allocate(*containers: list[str]) -> pb.AllocateRequest:
    requests = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
    return pb.AllocateRequest(container_requests=requests)


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, HANG_SECONDS)
    return caught.value.code(), caught.value.details() or ""


async def test_a_repeated_id_and_a_repeated_request_are_one_device() -> None:
    async with node(config()) as (agent, _), socket(agent) as plugin:
        first = await plugin.Allocate(allocate(["zero", "zero"]))
        assert [len(answer.cdi_devices) for answer in first.container_responses] == [1]
        assert await plugin.Allocate(allocate(["zero"])) == first
        both = await plugin.Allocate(allocate(["zero"], ["full"]))
        assert [answer.cdi_devices[0].name.rpartition("-")[2] for answer in both.container_responses] == [
            "zero",
            "full",
        ]


async def test_an_unknown_id_is_refused_and_changes_nothing() -> None:
    async with node(config()) as (agent, _), socket(agent) as plugin:
        code, text = await refused(plugin.Allocate(allocate(["zero", "gone-7"])))
        assert code is grpc.StatusCode.NOT_FOUND
        assert f"{RESOURCE} has no device gone-7 on this node" in text
        assert "delete the pod" in text
        assert set((await agent.owners()).values()) == {"none"}
        assert not list(agent.cdi.glob("*.json"))


async def test_an_unhealthy_id_is_refused_with_its_reason() -> None:
    extra = "[{path: /dev/there-is-no-such-node}]"
    async with node(config(nodes=extra)) as (agent, kubelet), socket(agent) as plugin:
        await kubelet.wait_for_resource(RESOURCE, healthy=0)
        assert kubelet.node_status()["capacity"][RESOURCE] == 2
        code, text = await refused(plugin.Allocate(allocate(["zero"])))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "/dev/there-is-no-such-node: no such file" in text


async def test_a_device_that_kubelet_forgot_that_it_gave_is_not_given_to_the_next_pod() -> None:
    """Kubelet forgets it when it is asked for its List during the Allocate, just after another pod has ended."""
    uids = [f"uid-{number}" for number in range(6)]

    def ends_meanwhile(moment: str, call: Call) -> None:
        if (moment, call.method) == ("begin", "Allocate") and len(kubelet.calls.of("Allocate")) == 5:
            kubelet.node.pods[uids[3]].running.clear()
            kubelet.node.pods[uids[3]].phase = Phase.SUCCEEDED
            kubelet.process.manager.collect()

    async with node(observer=ends_meanwhile) as (_, kubelet):
        for number in range(4):
            await kubelet.run_pod(pod(str(number)))
        await kubelet.finish_pod(uids[0])
        for number in (4, 5):
            assert (await kubelet.run_pod(pod(str(number)))).phase is Phase.RUNNING
        assert isinstance(kubelet.node.runtime, MemoryRuntime)
        running = [kubelet.node.runtime.running[uid, "main"].device_ids for uid in (*uids[1:3], *uids[4:])]
        assert len(set(running)) == 4, running


async def test_a_thousand_shares_of_one_device() -> None:
    replicas = "{count: 1000, maxPerRequest: 1}"
    text = config(replicas=replicas).replace("[zero, full]", "zero")
    async with node(text) as (agent, kubelet), socket(agent) as plugin:
        await kubelet.wait_for_resource(RESOURCE, healthy=1000)
        pods = [pod(f"p{n}", resource=RESOURCE) for n in range(20)]
        for status in await asyncio.gather(*map(kubelet.run_pod, pods)):
            assert status.phase is Phase.RUNNING, status
        assert len(list(agent.cdi.glob("*.json"))) == 1  # one device, one name, however many hold it
        greedy = await kubelet.run_pod(pod("greedy", 2, resource=RESOURCE))
        assert greedy.phase is Phase.FAILED
        assert "2 shares of example.com/zero were asked for, a container may have 1 at most" in greedy.message
        assert await plugin.Allocate(allocate(["zero::7", "zero::7"]))  # one share, named twice
        assert len(kubelet.resources[RESOURCE].healthy) == 1000  # held shares stay: their pods may be admitted again


async def test_devices_and_mounts_for_runtimes_without_cdi(tmp_path: Path) -> None:
    (tmp_path / "firmware").write_text("42")
    text = config(
        nodes="[{from: devnode, as: /dev/our-zero, permissions: r}]",
        env="{WHICH: zero}",
        mounts=f"[{{hostPath: {tmp_path}/firmware, containerPath: /firmware}}]",
        inject="devices",
    ).replace("[zero, full]", "zero")
    async with node(text) as (agent, _), socket(agent) as plugin:
        (answer,) = (await plugin.Allocate(allocate(["zero"]))).container_responses
        assert [(d.container_path, d.host_path, d.permissions) for d in answer.devices] == [
            ("/dev/our-zero", "/dev/zero", "r")
        ]
        (mount,) = answer.mounts
        assert (mount.container_path, mount.host_path, mount.read_only) == (
            "/firmware",
            f"{tmp_path}/firmware",
            True,
        )
        assert dict(answer.envs) == {"WHICH": "zero"}
        assert not answer.cdi_devices
        assert not list(agent.cdi.glob("*.json"))


async def test_kubelet_is_not_asked_who_holds_what_while_an_allocate_is_open() -> None:
    """A List makes kubelet forget what it is just allocating, and the next pod would be given the same device."""
    with short_directory() as root:
        hold = root / "hold"
        command = ("-m", "tests.support.agent_on_hanging_disk", str(hold))
        agent = AgentProcess(root, config(), command=command)
        async with SimKubelet(root, timings=Timings.fast()) as kubelet:
            await agent.start()
            try:
                await agent.ready()
                await kubelet.wait_for_resource(RESOURCE, healthy=2)
                await until(lambda: len(kubelet.calls.of("List")) >= 2, 10, agent.text)  # those of every start
                hold.touch()
                running = asyncio.create_task(kubelet.run_pod(pod("a", resource=RESOURCE)))
                await until(lambda: kubelet.calls.of("Allocate"), 10, agent.text)
                (open_call,) = kubelet.calls.of("Allocate")
                lists = len(kubelet.calls.of("List"))
                asked = asyncio.create_task(agent.ask("/release", b'{"device": "zero"}'))  # a round of evidence, now
                while time.monotonic() < open_call.at + QUIET_SECONDS / 2:
                    assert open_call.seconds is None
                    assert len(kubelet.calls.of("List")) == lists, agent.text()
                    await asyncio.sleep(0.01)
                hold.unlink()
                assert (await running).phase is Phase.RUNNING
                await asked
                answered_at = open_call.at + (open_call.seconds or 0.0)
                assert kubelet.calls.of("List")[lists].at > answered_at + ANSWER_SECONDS / 2, "it is not recorded yet"
            finally:
                hold.unlink(missing_ok=True)
                await agent.stop(signal.SIGKILL)


# --- before a container starts ----------------------------------------------------------------------------------------


def hook(script: str, seconds: int = 25) -> str:
    return f"{{command: [/bin/sh, -c, '{script}'], timeoutSeconds: {seconds}}}"


async def started(kubelet: SimKubelet, name: str = "a") -> bool:
    return kubelet.pod_status(f"uid-{name}").phase is Phase.RUNNING


async def test_the_reset_hook_runs_before_every_start(tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = config(preStart=hook(f"echo $DRABRIDGE_DEVICE $DRABRIDGE_NODES $DRABRIDGE_RESOURCE >> {out}"))
    async with node(text) as (_, kubelet):
        assert (await kubelet.run_pod(pod("a", 2, resource=RESOURCE))).phase is Phase.RUNNING
        once = ["full /dev/full example.com/zero", "zero /dev/zero example.com/zero"]
        assert out.read_text().splitlines() == once
        await kubelet.restart_container("uid-a", "main")
        await until(lambda: out.read_text().splitlines() == once * 2)


async def test_a_hook_that_fails_keeps_the_container_waiting_until_it_succeeds(tmp_path: Path) -> None:
    script = f"test -e {tmp_path}/mended || {{ echo the card does not answer; exit 3; }}"
    async with node(config(preStart=hook(script))) as (agent, kubelet):
        status = await kubelet.run_pod(pod("a", resource=RESOURCE))
        assert status.phase is Phase.PENDING
        waiting = kubelet.pod_status("uid-a").waiting["main"]
        assert "PreStartContainer rpc failed" in waiting
        assert "status 3: the card does not answer" in waiting
        (tmp_path / "mended").touch()
        await until(lambda: started(kubelet), 10, agent.text)


async def test_a_hook_that_hangs_is_killed_with_all_its_processes(tmp_path: Path) -> None:
    """What the hook starts in the background goes too, and the agent answers others meanwhile."""
    script = f"sleep 7654321 & echo $! > {tmp_path}/pid; wait"
    async with node(config(preStart=hook(script, 3))) as (agent, _), socket(agent) as plugin:
        request = pb.PreStartContainerRequest(devices_ids=["zero"])
        hanging = asyncio.create_task(refused(plugin.PreStartContainer(request)))
        await until(lambda: (tmp_path / "pid").exists())
        assert await plugin.Allocate(allocate(["full"]))
        code, text = await hanging
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "did not end for zero within 3 s; it was killed" in text
        await until(lambda: not Path("/proc", (tmp_path / "pid").read_text().strip()).exists() or _zombie(tmp_path))


def _zombie(directory: Path) -> bool:
    """Dead, and not yet reaped by this machine's init."""
    status = Path("/proc", (directory / "pid").read_text().strip(), "status")
    try:
        return "State:\tZ" in status.read_text()
    except OSError:  # reaped by now
        return True


async def test_without_a_hook_pre_start_container_is_served_and_not_required() -> None:
    async with node(config()) as (agent, _), socket(agent) as plugin:
        options = await plugin.GetDevicePluginOptions(pb.Empty())
        assert (options.pre_start_required, options.get_preferred_allocation_available) == (False, True)
        assert await plugin.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["zero"])) is not None
