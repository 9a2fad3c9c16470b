"""A kubelet that ends, starts again, or whose machine reboots: what stays, what is wiped, which pods die."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from drabridge.sim.kubelet.checkpoint import FILE_NAME
from drabridge.sim.kubelet.kubelet import KubeletDownError
from drabridge.sim.kubelet.node import nothing
from drabridge.sim.kubelet.pods import Container, Phase, PodSpec
from drabridge.sim.kubelet.runtime import MemoryRuntime
from drabridge.sim.kubelet.timings import Timings
from tests.sim.kubelet.gpu_pods import REJECTED, gpu_kubelet, pod
from tests.sim.kubelet.podresources_client import PodResourcesClient, shape
from tests.support.kubelet_peers import GPU, back_in_time, device, running, short_dir

FOUR = [device(f"d{i}") for i in range(4)]
NO_HEALTHY = REJECTED.format(f"no healthy devices present; cannot allocate unhealthy devices {GPU}")


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True


async def test_a_stopped_kubelet_leaves_sockets_that_refuse() -> None:
    async with short_dir() as root, running(root) as kubelet:
        sockets = (kubelet.node.kubelet_socket, kubelet.node.podresources_socket)
        identity = [os.stat(path).st_ctime_ns for path in sockets]
        assert all(connects(path) for path in sockets)
        await kubelet.stop()
        assert not any(connects(path) for path in sockets)
        assert [os.stat(path).st_ctime_ns for path in sockets] == identity, "the files are untouched"
        assert kubelet.resources == {}
        with pytest.raises(KubeletDownError, match="start"):
            await kubelet.run_pod(pod("p", 1))


async def test_start_wipes_visible_sockets_and_nothing_else() -> None:
    async with short_dir() as root, running(root) as kubelet:
        directory = root / "device-plugins"
        (directory / "sub").mkdir()
        for name in ("other.sock", ".hidden.sock", "sub/inner.sock"):
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(directory / name))
        (directory / "notes.txt").write_text("mine")
        before = os.stat(kubelet.node.kubelet_socket)
        await kubelet.restart()
        after = os.stat(kubelet.node.kubelet_socket)
        assert sorted(os.listdir(directory)) == [".hidden.sock", "kubelet.sock", "notes.txt", "sub"]
        assert (directory / "sub" / "inner.sock").exists()
        assert stat.S_ISSOCK(after.st_mode)
        assert after.st_ctime_ns != before.st_ctime_ns, "the inode number may be the same, this is not"


async def test_pods_survive_when_the_plugin_is_back_before_they_are_admitted() -> None:
    async with gpu_kubelet(FOUR) as (kubelet, plugin):
        spec = pod("p", 1, 1, init=1)
        await kubelet.run_pod(spec)
        client = PodResourcesClient(kubelet.node.root)
        before = (await client.list()).pod_resources[0].containers
        kubelet.faults.pods_arrive.clear()
        await kubelet.restart()
        assert kubelet.node_status() == {"capacity": {GPU: 0}, "allocatable": {GPU: 0}}
        assert not plugin.path.exists(), "wiped: the plugin must bind again"
        await back_in_time(plugin, kubelet)
        await kubelet.process.sources_ready.wait()
        assert kubelet.pod_status(spec.uid).phase is Phase.RUNNING
        assert sum(method == "Allocate" for method, _ in plugin.calls) == 3, "no Allocate for what runs"
        after = (await client.list()).pod_resources[0].containers
        assert [(c.name, shape(c.devices)) for c in before] == [(c.name, shape(c.devices)) for c in after]
        assert kubelet.node_status()["capacity"] == {GPU: 4}


async def test_a_late_plugin_costs_the_running_pod_whose_init_container_had_a_device() -> None:
    async with gpu_kubelet(FOUR) as (kubelet, _):
        with_init, without = pod("with-init", 1, init=1), pod("without", 1)
        await kubelet.run_pod(with_init)
        await kubelet.run_pod(without)
        await kubelet.restart()
        await kubelet.process.sources_ready.wait()
        killed, alive = kubelet.pod_status(with_init.uid), kubelet.pod_status(without.uid)
        assert (killed.phase, killed.reason) == (Phase.FAILED, "UnexpectedAdmissionError")
        assert killed.message == NO_HEALTHY
        assert killed.running == ()
        assert alive.phase is Phase.RUNNING
        runtime = kubelet.node.runtime
        assert isinstance(runtime, MemoryRuntime)
        assert set(runtime.running) == {(without.uid, "a")}


async def test_the_pod_that_lived_keeps_its_device_and_gets_the_cached_answer() -> None:  # DP6
    async with gpu_kubelet(FOUR) as (kubelet, plugin):
        spec = pod("p", 1)
        await kubelet.run_pod(spec)
        held = kubelet.resources[GPU].allocated
        await kubelet.restart()
        await kubelet.process.sources_ready.wait()
        assert kubelet.resources[GPU].allocated == held
        await plugin.stop()
        await plugin.serve()
        await plugin.register()
        await kubelet.wait_for_resource(GPU, healthy=4)
        await kubelet.restart_container(spec.uid, "a")
        runtime = kubelet.node.runtime
        assert isinstance(runtime, MemoryRuntime)
        assert runtime.started[0][2] == runtime.started[1][2]
        assert (await kubelet.run_pod(pod("three", 3))).phase is Phase.RUNNING
        assert (await kubelet.run_pod(pod("none-left", 1))).message.count("Available: 0") == 1


async def test_reboot_with_the_plugin_back_in_time_replays_the_allocation() -> None:
    async with gpu_kubelet(FOUR) as (kubelet, plugin):
        spec = pod("p", 1, init=1)
        await kubelet.run_pod(spec)
        kubelet.faults.pods_arrive.clear()
        await kubelet.reboot()
        assert kubelet.pod_status(spec.uid).running == ()
        await back_in_time(plugin, kubelet)
        await kubelet.wait_for(lambda: kubelet.pod_status(spec.uid).running == ("a",), what="the pod to run again")
        assert sum(method == "Allocate" for method, _ in plugin.calls) == 2, "no RPC: the answer is replayed"
        runtime = kubelet.node.runtime
        assert isinstance(runtime, MemoryRuntime)
        assert [name for _, name, _ in runtime.started] == ["init", "a", "init", "a"]


async def test_reboot_without_the_plugin_rejects_every_pod_with_devices() -> None:  # DP12, DM1
    async with gpu_kubelet(FOUR) as (kubelet, plugin):
        spec, plain = pod("p", 1), PodSpec("default", "plain", containers=(Container("c"),))
        await kubelet.run_pod(spec)
        await kubelet.run_pod(plain)
        await plugin.stop()
        await kubelet.reboot()
        await kubelet.process.sources_ready.wait()
        assert kubelet.pod_status(spec.uid).message == NO_HEALTHY
        await kubelet.wait_for(lambda: kubelet.pod_status(plain.uid).phase is Phase.RUNNING, what="the plain pod")
        assert [p.name for p in (await PodResourcesClient(kubelet.node.root).list()).pod_resources] == ["plain"]


async def test_a_lost_checkpoint_and_a_late_plugin_start_the_container_without_its_device() -> None:
    async with gpu_kubelet(FOUR) as (kubelet, plugin):
        spec = pod("p", 1)
        await kubelet.run_pod(spec)
        await kubelet.stop()
        (kubelet.node.root / "device-plugins" / FILE_NAME).unlink()
        kubelet.node.live = kubelet.node.published = nothing()
        await kubelet.reboot()
        await kubelet.wait_for(lambda: kubelet.pod_status(spec.uid).running == ("a",), what="the pod to run")
        runtime = kubelet.node.runtime
        assert isinstance(runtime, MemoryRuntime)
        assert runtime.running[spec.uid, "a"].device_ids == ()
        await plugin.stop()
        await plugin.serve()
        await plugin.register()
        await kubelet.wait_for_resource(GPU, healthy=4)
        await kubelet.restart_container(spec.uid, "a")
        assert len(runtime.running[spec.uid, "a"].device_ids) == 1, "allocated again at the next start"


async def test_podresources_is_partial_until_the_sources_are_ready() -> None:
    timings = Timings.fast(pod_spacing_seconds=1)
    async with short_dir() as root, running(root, timings=timings) as kubelet:
        for name in ("p", "q", "r"):
            await kubelet.run_pod(PodSpec("default", name, containers=(Container("c"),)))
        kubelet.faults.pods_arrive.clear()
        await kubelet.restart()
        seen = {len((await PodResourcesClient(root).list()).pod_resources)}
        kubelet.faults.pods_arrive.set()
        while not kubelet.process.sources_ready.is_set():
            seen.add(len((await PodResourcesClient(root).list()).pod_resources))
            await asyncio.sleep(0.02)
        assert {0, 1, 2} <= seen
        assert len((await PodResourcesClient(root).list()).pod_resources) == 3


async def test_a_pod_deleted_while_the_kubelet_is_down_frees_its_device() -> None:  # DP10
    async with gpu_kubelet([device("d0")]) as (kubelet, plugin):
        spec = pod("p", 1)
        await kubelet.run_pod(spec)
        await kubelet.stop()
        await kubelet.delete_pod(spec.uid, force=True)
        runtime = kubelet.node.runtime
        assert isinstance(runtime, MemoryRuntime)
        assert list(runtime.running) == [(spec.uid, "a")], "nobody is there to stop it"
        kubelet.faults.pods_arrive.clear()
        await kubelet.start()
        await back_in_time(plugin, kubelet, healthy=1)
        await kubelet.process.sources_ready.wait()
        assert runtime.running == {}, "killed by the new kubelet"
        assert list((await PodResourcesClient(kubelet.node.root).list()).pod_resources) == []
        assert (await kubelet.run_pod(pod("q", 1))).phase is Phase.RUNNING
