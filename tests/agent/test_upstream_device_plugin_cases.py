"""The device-plugin cases of upstream's e2e_node tests by number: the real agent beside the simulated kubelet.

DP: device_plugin_test.go, DF: device_plugin_failures_test.go, PS: device_plugin_failures_pod_status_test.go,
DM: device_manager_test.go. Times are the simulation's fast ones; upstream's 5 minutes are ``endpoint_grace_seconds``.

Of kubelet alone, and therefore in tests/sim: DF1 (the options call fails: our agent has no way to), and the half of
DP12 and DM1 that says how kubelet rejects a pod without its plugin (here the agent stands still, and must recover).
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Container, Phase, PodSpec
from drabridge.sim.kubelet.runtime import ContainerStartError, MemoryRuntime, RunOptions
from podresources import Client
from tests.support.agent_process import CONFIG, DRIVER, RESOURCE, AgentProcess, cdi_devices, node, pod, restart_kubelet
from tests.support.agent_with_loop_devices import DRIVER as LOOP_DRIVER
from tests.support.agent_with_loop_devices import RESOURCE as LOOP
from tests.support.agent_with_loop_devices import by_name, counted
from tests.support.hardware import Loops, needs_loop_devices
from tests.support.waiting import until

Node = tuple[AgentProcess, SimKubelet]
N = 4  # devices
QUICK_RELEASE = (
    CONFIG
    + "safety: {minHoldSeconds: 0.5, unconfirmedSeconds: 2, absentSeconds: 0.3, settleSeconds: 1, quiesceSeconds: 0.3}"
)


@pytest.fixture
async def there() -> AsyncIterator[Node]:
    async with node(QUICK_RELEASE) as (agent, kubelet):
        await registered(kubelet)
        yield agent, kubelet


async def registered(kubelet: SimKubelet) -> None:
    """N of N, over one stream."""
    await kubelet.wait_for_resource(RESOURCE, healthy=N)
    status = kubelet.node_status()
    assert (status["allocatable"][RESOURCE], status["capacity"][RESOURCE]) == (N, N)
    assert kubelet.resources[RESOURCE].streams == 1


def started(kubelet: SimKubelet, uid: str, container: str = "main") -> RunOptions:
    """What the container was last started with."""
    runtime = kubelet.node.runtime
    assert isinstance(runtime, MemoryRuntime)
    return [options for pod_uid, name, options in runtime.started if (pod_uid, name) == (uid, container)][-1]


def ids(kubelet: SimKubelet, uid: str, container: str = "main") -> set[str]:
    return {id_ for _, id_ in started(kubelet, uid, container).device_ids}


async def listed(agent: AgentProcess) -> dict[tuple[str, str], list[str]]:
    """PodResources: (pod, container) -> device ids."""
    async with Client(agent.root / "pod-resources" / "kubelet.sock") as client:
        found = await client.list()
    return {
        (pod.name, container.name): sorted(id_ for device in container.devices for id_ in device.device_ids)
        for pod in found.pods
        for container in pod.containers
    }


def starts(kubelet: SimKubelet, uid: str) -> int:
    runtime = kubelet.node.runtime
    assert isinstance(runtime, MemoryRuntime)
    return sum(pod_uid == uid for pod_uid, _, _ in runtime.started)


# --- 6.1 device_plugin_test.go ----------------------------------------------------------------------------------------


async def test_dp1_registers_by_itself(there: Node) -> None:
    _, kubelet = there
    assert len(kubelet.calls.of("Register")) == 1
    assert [call.error for call in kubelet.calls.of("GetDevicePluginOptions")] == [""]


async def test_dp2_a_pod_that_asks_for_one_gets_exactly_one(there: Node) -> None:
    agent, kubelet = there
    assert (await kubelet.run_pod(pod("a"))).phase is Phase.RUNNING
    (device,) = ids(kubelet, "uid-a")
    assert await listed(agent) == {("a", "main"): [device]}


async def test_dp3_the_cdi_file_is_there_before_allocate_answers_and_stays_while_the_pod_lives(there: Node) -> None:
    agent, kubelet = there
    await kubelet.run_pod(pod("a"))
    (name,) = started(kubelet, "uid-a").cdi_devices
    (device,) = ids(kubelet, "uid-a")
    assert name == f"{DRIVER}/device=legacy-{device}"
    assert name in cdi_names(agent.cdi)
    assert await agent.stop() == 0
    assert name in cdi_names(agent.cdi)  # upstream's sample removes it; kubelet replays the name to restarted ones
    await agent.start()
    await agent.ready()
    await kubelet.delete_pod("uid-a")
    await until(lambda: not cdi_names(agent.cdi), 20, lambda: agent.text()[-3000:])


def cdi_names(directory: Path) -> set[str]:
    return {f"{device['kind']}={device['name']}" for device in cdi_devices(directory)}


async def test_dp4_a_restarted_container_keeps_its_device(there: Node) -> None:
    _, kubelet = there
    await kubelet.run_pod(pod("a"))
    before = started(kubelet, "uid-a")
    await kubelet.restart_container("uid-a", "main")
    assert starts(kubelet, "uid-a") == 2
    assert started(kubelet, "uid-a") == before
    assert len(kubelet.calls.of("Allocate")) == 1
    await kubelet.run_pod(pod("b"))
    assert not ids(kubelet, "uid-a") & ids(kubelet, "uid-b")


async def test_dp5_kubelet_restarts(there: Node) -> None:
    agent, kubelet = there
    await kubelet.run_pod(pod("a"))
    before = await listed(agent)
    await restart_kubelet(kubelet)
    await registered(kubelet)
    assert kubelet.pod_status("uid-a").phase is Phase.RUNNING
    assert starts(kubelet, "uid-a") == 1
    await until(lambda: same_list(agent, before))
    assert len(kubelet.calls.of("Allocate")) == 1


async def same_list(agent: AgentProcess, before: dict[tuple[str, str], list[str]]) -> bool:
    return await listed(agent) == before


async def test_dp6_container_and_kubelet_restart(there: Node) -> None:
    _, kubelet = there
    await kubelet.run_pod(pod("a"))
    before = started(kubelet, "uid-a")
    await restart_kubelet(kubelet)
    await registered(kubelet)
    await kubelet.restart_container("uid-a", "main")
    await until(lambda: starts(kubelet, "uid-a") == 2)
    assert started(kubelet, "uid-a") == before
    assert len(kubelet.calls.of("Allocate")) == 1


async def test_dp7_a_succeeded_pod_is_not_admitted_again_and_its_device_is_free(there: Node) -> None:
    agent, kubelet = there
    await kubelet.run_pod(pod("a"))
    await kubelet.finish_pod("uid-a")
    await agent.stop()
    await kubelet.restart()
    await until(lambda: kubelet.node_status()["allocatable"][RESOURCE] == 0)
    await until(lambda: kubelet.node_status()["capacity"][RESOURCE] == 0)
    assert kubelet.pod_status("uid-a").phase is Phase.SUCCEEDED
    await agent.start()
    await registered(kubelet)
    await kubelet.process.sources_ready.wait()  # before it knows every pod it takes none for ended
    assert (await kubelet.run_pod(pod("b", N))).phase is Phase.RUNNING


async def test_dp8_the_agent_is_killed_and_comes_again_beside_its_stale_socket(there: Node) -> None:
    agent, kubelet = there
    await kubelet.run_pod(pod("a"))
    before = await listed(agent)
    await agent.stop(signal.SIGKILL)
    assert list(kubelet.node.device_plugin_dir.glob("drabridge-*"))  # stale
    await agent.start()
    await until(lambda: len(kubelet.calls.of("Register")) == 2, 20, agent.text)
    await registered(kubelet)
    assert await listed(agent) == before
    assert len(list(kubelet.node.device_plugin_dir.glob("drabridge-*"))) == 1


async def test_dp9_kubelet_and_then_the_agent_restart(there: Node) -> None:
    agent, kubelet = there
    await kubelet.run_pod(pod("a"))
    await restart_kubelet(kubelet)
    await registered(kubelet)
    await agent.stop()
    await agent.start()
    await until(lambda: len(kubelet.calls.of("Register")) == 3, 20, agent.text)
    await registered(kubelet)
    assert kubelet.pod_status("uid-a").phase is Phase.RUNNING
    assert starts(kubelet, "uid-a") == 1


async def test_dp10_a_pod_deleted_while_kubelet_is_down_lets_go(there: Node) -> None:
    agent, kubelet = there
    await kubelet.run_pod(pod("a", 2))
    await kubelet.stop()
    await kubelet.delete_pod("uid-a", force=True)
    await kubelet.start()
    await registered(kubelet)
    await kubelet.process.sources_ready.wait()
    await until(lambda: same_list(agent, {}))
    assert (await kubelet.run_pod(pod("b", N))).phase is Phase.RUNNING


async def test_dp11_an_init_container_s_device_is_used_again(there: Node) -> None:
    agent, kubelet = there
    one = {RESOURCE: 1}
    spec = PodSpec(
        "default",
        "a",
        uid="uid-a",
        init_containers=(
            Container("init", one, run_seconds=0.05),
            Container("sidecar", one, restart_policy="Always"),
        ),
        containers=(Container("main", one),),
    )
    assert (await kubelet.run_pod(spec)).phase is Phase.RUNNING
    init, sidecar, main = (ids(kubelet, "uid-a", name) for name in ("init", "sidecar", "main"))
    assert init == sidecar
    assert main.isdisjoint(sidecar)
    assert await listed(agent) == {("a", "sidecar"): sorted(sidecar), ("a", "main"): sorted(main)}
    assert [call.error for call in kubelet.calls.of("Allocate")] == ["", "", ""]


async def test_dp12_and_dm1_reboot_while_the_plugin_does_not_register(there: Node) -> None:
    """The agent is stopped, as upstream's plugin without its control file; then it continues and serves everything."""
    agent, kubelet = there
    await kubelet.run_pod(pod("a"))
    assert agent.process is not None
    agent.process.send_signal(signal.SIGSTOP)
    await kubelet.reboot()
    await until(lambda: kubelet.pod_status("uid-a").phase is Phase.FAILED)
    rejected = kubelet.pod_status("uid-a")
    assert rejected.reason == "UnexpectedAdmissionError"
    assert "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices" in rejected.message
    await until(lambda: kubelet.node_status()["capacity"][RESOURCE] == 0)
    agent.process.send_signal(signal.SIGCONT)
    await registered(kubelet)
    await until(lambda: same_list(agent, {}))
    assert (await kubelet.run_pod(pod("b", N))).phase is Phase.RUNNING


async def test_dp12_reboot_with_the_agent_there_in_time_keeps_the_pod(there: Node) -> None:
    agent, kubelet = there
    await kubelet.run_pod(pod("a"))
    before = started(kubelet, "uid-a")
    for path in agent.cdi.glob("*.json"):
        path.unlink()  # a tmpfs
    await agent.stop(signal.SIGKILL)
    await kubelet.stop()
    await agent.start()
    await agent.up()
    kubelet.faults.pods_arrive.clear()
    await kubelet.reboot()
    await registered(kubelet)
    kubelet.faults.pods_arrive.set()
    await until(lambda: starts(kubelet, "uid-a") == 2)
    assert started(kubelet, "uid-a") == before
    await until(lambda: cdi_names(agent.cdi) >= set(before.cdi_devices), 10, agent.text)


async def test_dp13_an_agent_that_ended_registers_nothing_any_more(there: Node) -> None:
    agent, kubelet = there
    assert await agent.stop() == 0
    await kubelet.restart()
    await until(lambda: kubelet.node_status()["capacity"][RESOURCE] == 0)
    assert len(kubelet.calls.of("Register")) == 1
    assert not list(kubelet.node.device_plugin_dir.glob("drabridge-*"))


# --- 6.2 device_plugin_failures_test.go -------------------------------------------------------------------------------

on_loop_devices = [pytest.mark.loopdev, pytest.mark.root, needs_loop_devices]


class TestHealth:
    """DF2 to DF4, PS1 and PS2, on devices that really go."""

    pytestmark = on_loop_devices

    @pytest.fixture
    async def loops(self, no_udevd: None, loop: Loops) -> AsyncIterator[Node]:
        for index in range(N):
            loop.add(index)
        async with node(by_name(loop), LOOP_DRIVER, runtime=NoImage()) as (agent, kubelet):
            await until(lambda: counted(kubelet) == (N, N), 10, agent.text)
            yield agent, kubelet

    async def test_df2_and_df4_flips_of_one_and_two(self, loops: Node, loop: Loops) -> None:
        agent, kubelet = loops
        for step, count in ((loop.remove, 3), (loop.add, 4)):
            step(0)
            await until(lambda count=count: counted(kubelet) == (count, N), 5, agent.text)  # type: ignore[misc]
        loop.remove(0)
        loop.remove(1)
        await until(lambda: counted(kubelet) == (2, N), 5, agent.text)
        loop.add(1)
        await until(lambda: counted(kubelet) == (3, N), 5, agent.text)
        loop.add(0)
        await until(lambda: counted(kubelet) == (4, N), 5, agent.text)
        lists = [call.request for call in kubelet.calls.of("ListAndWatchResponse", LOOP)]
        assert len(lists) >= 6
        assert {len(one.devices) for one in lists} == {N}  # type: ignore[attr-defined]  # the whole list every time

    async def test_df3_with_a_running_pod(self, loops: Node, loop: Loops) -> None:
        agent, kubelet = loops
        await kubelet.run_pod(pod("a", resource=LOOP))
        (name,) = ids(kubelet, "uid-a")
        loop.remove(int(name.removeprefix("loop")) - loop.base)
        await until(lambda: counted(kubelet) == (N - 1, N), 5, agent.text)
        assert kubelet.pod_status("uid-a").phase is Phase.RUNNING
        await kubelet.delete_pod("uid-a")
        assert counted(kubelet) == (N - 1, N)

    @pytest.mark.parametrize("pulled", [True, False], ids=["ps1", "ps2"])
    async def test_ps1_and_ps2_the_pods_status_says_so(self, loops: Node, loop: Loops, pulled: bool) -> None:
        agent, kubelet = loops
        name = "a" if pulled else "no-image"
        status = await kubelet.run_pod(pod(name, resource=LOOP))
        assert status.phase is (Phase.RUNNING if pulled else Phase.PENDING)
        (device,) = next(iter((await listed(agent)).values()))
        assert told(kubelet, f"uid-{name}") == (device, "Healthy")
        loop.remove(int(device.removeprefix("loop")) - loop.base)
        await until(lambda: told(kubelet, f"uid-{name}") == (device, "Unhealthy"), 5, agent.text)


class NoImage(MemoryRuntime):
    """A runtime that never has one image."""

    async def start_container(self, pod: PodSpec, container: Container, options: RunOptions) -> None:
        if pod.name == "no-image":
            raise ContainerStartError("ImagePullBackOff")
        await super().start_container(pod, container, options)


def told(kubelet: SimKubelet, uid: str) -> tuple[str, str]:
    (resource,) = kubelet.allocated_resources_status(uid)["main"]
    assert resource["name"] == LOOP
    (found,) = resource["resources"]
    return found["resourceID"], found["health"]


async def test_df5_and_df6_a_lost_stream_is_registered_again(there: Node) -> None:
    """Kubelet never opens it again: two calls and no more, so the agent must."""
    _, kubelet = there
    await kubelet.run_pod(pod("a"))
    for expected in (2, 3):
        await kubelet.drop_stream(RESOURCE)
        await until(lambda: kubelet.node_status()["allocatable"][RESOURCE] == 0)
        await registered(kubelet)
        assert len(kubelet.calls.of("Register")) == expected
    assert kubelet.pod_status("uid-a").phase is Phase.RUNNING


async def test_df7_the_agent_stops(there: Node) -> None:
    agent, kubelet = there
    kubelet.node.timings.endpoint_grace_seconds = 300.0
    await agent.stop()
    await until(lambda: kubelet.node_status()["allocatable"][RESOURCE] == 0)
    assert kubelet.node_status()["capacity"][RESOURCE] == N
    kubelet.node.timings.endpoint_grace_seconds = 0.0  # it is over
    await until(lambda: kubelet.node_status()["capacity"][RESOURCE] == 0)
    await agent.start()
    await registered(kubelet)
