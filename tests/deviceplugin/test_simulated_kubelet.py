"""The library against the full simulated kubelet, quirks and crashes included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin import AllocationError, ListedDevice, ListedHealth, PluginServer, RegistrationPhase
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Container, PodSpec
from drabridge.sim.kubelet.pods import Phase as PodPhase
from drabridge.sim.kubelet.timings import Timings
from tests.deviceplugin.small_kubelet import QUICK, RESOURCE, AllocatingPlugin, running, sockets_in

DEVICES = tuple(ListedDevice(f"d{i}", numa_nodes=(i % 2,)) for i in range(4))


def pod(name: str, count: int = 1, init: int = 0) -> PodSpec:
    plain = (Container("init", {RESOURCE: init}, run_seconds=0.01),) if init else ()
    return PodSpec("default", name, containers=(Container("main", {RESOURCE: count}),), init_containers=plain)


@pytest.fixture
async def node(directory: Path) -> AsyncIterator[SimKubelet]:
    kubelet = SimKubelet(
        directory.parent, device_plugin_dir=directory, numa_nodes=(0, 1), timings=Timings(node_status_seconds=0.1)
    )
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
def plugin() -> AllocatingPlugin:
    return AllocatingPlugin(*DEVICES)


@pytest.fixture
async def server(directory: Path, plugin: AllocatingPlugin, node: SimKubelet) -> AsyncIterator[PluginServer]:
    server = PluginServer(plugin, directory=directory, name="t", timeouts=QUICK)
    async with running(server):
        await node.wait_for_resource(RESOURCE, 4)
        yield server


async def test_pods_get_devices(server: PluginServer, plugin: AllocatingPlugin, node: SimKubelet) -> None:
    status = await node.run_pod(pod("a", 2, init=1))
    assert status.phase is PodPhase.RUNNING, status
    init, main = plugin.allocated
    assert set(init) <= set(main)  # DP11: the init container's device is used again
    assert len(main) == 2


async def test_a_refusal_reaches_the_pod(server: PluginServer, plugin: AllocatingPlugin, node: SimKubelet) -> None:
    async def held(ids: object) -> None:
        raise AllocationError("FAILED_PRECONDITION", "held by claim default/c1", hint="delete the claim")

    plugin.before = held
    status = await node.run_pod(pod("a"))
    assert status.phase is PodPhase.FAILED
    assert "code = FailedPrecondition desc = held by claim default/c1. delete the claim" in status.message


async def test_running_pods_survive_a_kubelet_restart(
    server: PluginServer, plugin: AllocatingPlugin, node: SimKubelet
) -> None:
    """Also the running pod whose completed init container held a device: slow plugins lose it (observed)."""
    spec = pod("a", 1, init=1)
    assert (await node.run_pod(spec)).phase is PodPhase.RUNNING
    for _ in range(3):
        node.faults.pods_arrive.clear()
        await node.restart(downtime_seconds=0.05)
        await node.wait_for_resource(RESOURCE, 4)
        node.faults.pods_arrive.set()
        await node.process.sources_ready.wait()
        await asyncio.sleep(0.1)
        assert node.pod_status(spec.uid).phase is PodPhase.RUNNING, node.pod_status(spec.uid)
        assert node.resources[RESOURCE].streams == 1
    assert len(plugin.allocated) == 2


async def test_any_order_of_disasters_ends_registered(server: PluginServer, node: SimKubelet, directory: Path) -> None:
    for _ in range(2):
        await node.drop_stream(RESOURCE)
        socket = server.state.socket
        assert socket is not None
        socket.unlink()
        await node.stop()
        node.delete_device_plugin_dir()
        await asyncio.sleep(0.05)
        await node.start()
        await node.wait_for_resource(RESOURCE, 4)
        node.delete_device_plugin_dir()
        await node.restart()
        await node.wait_for_resource(RESOURCE, 4)
        assert node.resources[RESOURCE].streams == 1
    assert node.crashed is None
    assert len(sockets_in(directory)) == 1


async def test_a_lost_stream_is_replaced(server: PluginServer, node: SimKubelet) -> None:
    await node.drop_stream(RESOURCE)
    await node.wait_for(lambda: server.state.phase is RegistrationPhase.LOST)
    await node.wait_for_resource(RESOURCE, 4)


async def test_a_refused_register_is_tried_again(directory: Path, node: SimKubelet) -> None:
    node.faults.refuse_register = "not today"
    server = PluginServer(AllocatingPlugin(*DEVICES), directory=directory, name="t", timeouts=QUICK)
    async with running(server):
        await node.wait_for(lambda: "not today" in server.state.error)
        node.faults.refuse_register = ""
        await node.wait_for_resource(RESOURCE, 4)


async def test_an_invalid_name_is_refused_with_kubelets_text(directory: Path, node: SimKubelet) -> None:
    plugin = AllocatingPlugin(*DEVICES, resource="kubernetes.io/gpu")
    server = PluginServer(plugin, directory=directory, name="t", timeouts=QUICK)
    async with running(server):
        await node.wait_for(lambda: server.state.phase is RegistrationPhase.BACKOFF)
        assert 'the ResourceName "kubernetes.io/gpu" is invalid' in server.state.error


async def test_an_unhealthy_device_is_still_listed(
    server: PluginServer, plugin: AllocatingPlugin, node: SimKubelet
) -> None:
    plugin.list.publish((*DEVICES[:3], ListedDevice("d3", ListedHealth.UNHEALTHY, (1,))))
    await node.wait_for(lambda: len(node.resources[RESOURCE].healthy) == 3)
    assert len(node.resources[RESOURCE].devices) == 4


async def test_a_successor_takes_over_after_the_first_has_gone(
    server: PluginServer, directory: Path, node: SimKubelet
) -> None:
    await server.stop()
    successor = PluginServer(AllocatingPlugin(*DEVICES), directory=directory, name="t", timeouts=QUICK)
    async with running(successor):
        await node.wait_for_resource(RESOURCE, 4)
        await asyncio.sleep(0.3)
        assert node.resources[RESOURCE].streams == 1
