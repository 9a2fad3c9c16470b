"""The upstream e2e_node DRA cases (dra_test.go), by number, against the simulated kubelet over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

from drabridge.dra.sockets import PluginSockets, is_dead
from drabridge.errors import HostError
from drabridge.inventory.devices import Presence
from drabridge.ledger.entries import Owner
from drabridge.sim.kubelet.pods import Phase
from drabridge.wire import health_v1_pb2, health_v1_pb2_grpc
from tests.dra.kubelet_beside import kubelet_beside, pod, ran, registered
from tests.support.dra_node import CONFIG, DRIVER, NODE, DraNode, a_node, with_profile
from tests.support.waiting import PATIENCE, short_directory, until


async def test_dr1_dr20_a_kubelet_restart_registers_again_and_slices_come_back() -> None:
    async with a_node() as node, kubelet_beside(node) as kubelet:
        await registered(node)
        await until(node.published, why="slices")
        since = node.driver.state.registration.since
        await kubelet.restart()
        await until(lambda: node.driver.state.registration.since > since, why="another registration")
        await until(lambda: node.published() and node.driver.state.ready, why="slices after the wipe")


async def test_dr2_a_driver_that_was_killed_registers_again_over_its_dead_sockets() -> None:
    async with a_node(start=False) as node:
        registry, plugin = node.root / "plugins_registry", node.root / "plugins" / DRIVER
        uid = "2d774059-b029-4135-9455-b1c2988702cd"
        theirs = registry / f"{DRIVER}-{uid}-reg.sock", plugin / f"dra-{uid}.sock"  # of another driver of this name
        other = registry / "other.example.com-reg.sock"
        plugin.mkdir(parents=True)
        for path in (registry / f"{DRIVER}-reg.sock", plugin / "dra.sock", *theirs, other):
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
        async with kubelet_beside(node):
            await node.start()
            await registered(node)
        assert not any(path.exists() for path in theirs)
        assert other.exists()  # dead as well, but not ours


async def test_dr4_a_refused_registration_is_reported_and_repeated_by_kubelet() -> None:
    async with a_node() as node, kubelet_beside(node) as kubelet:
        await registered(node)
        kubelet.faults.notify_error = "kubelet says no"
        await kubelet.restart()
        await until(lambda: not node.driver.state.registration.registered, why="the refusal")
        assert node.driver.state.registration.error == "kubelet says no"
        assert not node.driver.state.ready
        since = node.driver.state.registration.since
        await until(lambda: node.driver.state.registration.since > since, why="another refusal")
        assert not node.driver.state.registration.registered
        kubelet.faults.notify_error = ""
        await registered(node)
        spec = pod(node, "p", "cl", "gpu-0")
        await ran(kubelet, spec)


SLOW = "prepare: {command: [/bin/sleep, '0.6'], timeoutSeconds: 60}"


async def test_dr6_a_prepare_longer_than_kubelets_deadline_leaves_the_pod_pending_until_it_is_done() -> None:
    async with a_node(with_profile(SLOW)) as node, kubelet_beside(node, dra_call_seconds=0.2) as kubelet:
        await registered(node)
        spec = pod(node, "p", "cl", "gpu-0")
        await kubelet.run_pod(spec)
        assert kubelet.pod_status(spec.uid).phase is Phase.PENDING
        await kubelet.wait_for(lambda: kubelet.pod_status(spec.uid).phase is Phase.RUNNING, what="the pod")
        outcomes = [fact.outcome for fact in node.handled("prepare")]
        assert outcomes[0] == "ok"
        assert set(outcomes[1:]) <= {"replayed"}  # the hook ran once


async def test_dr13_a_pod_that_is_deleted_during_a_slow_prepare_leaves_nothing() -> None:
    async with a_node(with_profile(SLOW)) as node, kubelet_beside(node, dra_call_seconds=0.2) as kubelet:
        await registered(node)
        spec = pod(node, "p", "cl", "gpu-0")
        await kubelet.run_pod(spec)
        await kubelet.delete_pod(spec.uid)
        node.claims.delete("cl")
        await until(lambda: node.handled("unprepare"), why="unprepare")
        await asyncio.sleep(1.0)  # longer than the prepare would have taken
        await until(lambda: not node.records() and not node.cdi_files(), why="the end of it")
        await until(lambda: node.owner("gpu-0") is Owner.NONE, why="the release")


async def test_dr18_two_drivers_prepare_their_parts_of_one_claim() -> None:
    other = "other.example.com"
    async with a_node() as node, kubelet_beside(node) as kubelet:
        second = DraNode(node.root, node.api, CONFIG.replace(DRIVER, other))
        await second.start()
        try:
            await registered(node)
            await registered(second)
            holder = node.claims.add("holder", {"device": "gpu-0", "driver": other})
            await second.prepared(holder)
            node.claims.add("cl", "gpu-0", {"device": "gpu-0", "driver": other})
            spec = pod(node, "p", "cl")
            await kubelet.run_pod(spec)
            await until(lambda: any(f.outcome == "refused" for f in second.handled("prepare")), why="a refusal")
            await second.unprepare(holder)
            node.claims.delete("holder")
            await kubelet.wait_for(lambda: kubelet.pod_status(spec.uid).phase is Phase.RUNNING, what="the pod")
            assert node.owner("gpu-0") is Owner.DRA_PREPARED
            assert second.owner("gpu-0") is Owner.DRA_PREPARED
            await kubelet.delete_pod(spec.uid)
            await until(lambda: node.records() == second.records() == [], why="both unprepares")
        finally:
            await second.stop()


async def test_dr7_a_failed_prepare_is_tried_again_and_succeeds() -> None:
    async with a_node() as node, kubelet_beside(node) as kubelet:
        await registered(node)
        holder = node.claims.add("holder", "gpu-0")
        await node.prepared(holder)
        spec = pod(node, "p", "cl", "gpu-0")
        await kubelet.run_pod(spec)
        await kubelet.wait_for(
            lambda: any("gpu-0 is held by claim default/holder" in event.message for event in kubelet.events),
            what="our words in the pod's events",
        )
        await node.unprepare(holder)
        node.claims.delete("holder")
        await kubelet.wait_for(lambda: kubelet.pod_status(spec.uid).phase is Phase.RUNNING, what="the pod")


async def test_dr8_dr11_unprepare_is_retried_until_it_succeeds_though_the_claim_is_gone(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    hook = f"unprepare: {{command: [/bin/sh, -c, 'test ! -e {broken} || {{ echo stuck; exit 3; }}']}}"
    async with a_node(with_profile(hook)) as node, kubelet_beside(node) as kubelet:
        await registered(node)
        spec = pod(node, "p", "cl", "gpu-0")
        await ran(kubelet, spec)
        deleting = asyncio.ensure_future(kubelet.delete_pod(spec.uid))
        await until(lambda: len(node.handled("unprepare")) > 1, why="two tries")
        assert "failed for gpu-0 with status 3: stuck" in node.handled("unprepare")[0].error
        assert node.owner("gpu-0") is Owner.DRA_PREPARED  # not clean, so not free
        node.claims.delete("cl")
        broken.unlink()
        await deleting
        await until(lambda: node.records() == [] and node.cdi_files() == [], why="unprepare")
        await until(lambda: node.owner("gpu-0") is Owner.NONE, why="the release")


async def test_dr9_dr19_kubelet_and_driver_restarts_around_a_running_pod() -> None:
    async with a_node() as node, kubelet_beside(node) as kubelet:
        await registered(node)
        spec = pod(node, "p", "cl", "gpu-0", "gpu-1")
        await ran(kubelet, spec)
        files = node.cdi_files()
        await kubelet.restart()
        await registered(node)
        await node.restart()
        await registered(node)
        assert node.cdi_files() == files
        assert kubelet.pod_status(spec.uid).phase is Phase.RUNNING
        await kubelet.delete_pod(spec.uid)
        await until(lambda: node.records() == [], why="unprepare")


async def test_dr15_dr16_a_lost_service_socket_is_bound_again() -> None:
    async with a_node() as node, kubelet_beside(node) as kubelet:
        await registered(node)
        spec = pod(node, "p", "cl", "gpu-0")
        await ran(kubelet, spec)
        sockets = node.driver._server.sockets
        sockets.service.unlink()
        sockets.registration.unlink()
        await node.driver._server.check()
        assert sockets.service.exists()
        await registered(node)
        await kubelet.delete_pod(spec.uid)
        await until(lambda: node.records() == [], why="unprepare")


async def test_dr15_dr21_a_long_stop_has_the_slices_wiped_and_published_again() -> None:
    async with a_node() as node, kubelet_beside(node):
        await registered(node)
        await until(node.published, why="slices")
        await node.stop()
        await until(lambda: not node.slices(), why="the wipe")
        await node.start()
        await registered(node)
        await until(node.published, why="slices again")


async def test_dr23_dr24_health_reaches_the_pod_and_comes_back_after_a_restart() -> None:
    async with a_node() as node, kubelet_beside(node) as kubelet:
        await registered(node)
        spec = pod(node, "p", "cl", "gpu-0")
        await ran(kubelet, spec)

        def health() -> str:
            return str(kubelet.allocated_resources_status(spec.uid))

        await kubelet.wait_for(lambda: "'Healthy'" in health(), what="Healthy")
        await node.change(gpu_0=(Presence.FAULTY, "ECC errors"))
        await kubelet.wait_for(lambda: "Unhealthy" in health() and "ECC errors" in health(), what="Unhealthy")
        await node.change(gpu_0=(Presence.PRESENT, ""))
        await kubelet.wait_for(lambda: "'Healthy'" in health(), what="Healthy again")
        await node.stop()
        await kubelet.wait_for(lambda: "Unknown" in health(), what="Unknown")
        await node.start()
        await kubelet.wait_for(lambda: "'Healthy'" in health(), what="Healthy after a restart")


async def test_dr23_the_health_stream_is_a_full_list_at_once_on_change_and_as_a_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drabridge.dra.health_stream.HEARTBEAT_SECONDS", 0.2)
    async with a_node() as node:
        call = health_v1_pb2_grpc.DRAResourceHealthStub(node._channel).NodeWatchResources(
            health_v1_pb2.NodeWatchResourcesRequest()
        )
        first: Any = await call.read()
        beat: Any = await call.read()
        assert [d.device.device_name for d in first.devices] == [f"gpu-{n}" for n in range(4)]
        assert {d.device.pool_name for d in first.devices} == {NODE}
        assert first == beat
        assert all(d.health == health_v1_pb2.HEALTHY and d.health_check_timeout_seconds == 30 for d in first.devices)
        await node.change(gpu_2=(Presence.GONE, "unplugged"))
        changed: Any = first
        while changed == first:
            changed = await call.read()
        assert [d.message for d in changed.devices if d.health == health_v1_pb2.UNHEALTHY] == ["unplugged"]
        call.cancel()


async def test_sockets_that_are_served_are_kept() -> None:
    async with a_node() as node:
        sockets = PluginSockets.of(node.root, DRIVER)
        assert sockets.prepare(DRIVER) == ()
        assert not is_dead(sockets.registration)
        assert not is_dead(sockets.service)


def test_names_that_no_socket_can_have_are_refused() -> None:
    longest = "a-rather-long-driver-name-indeed.subdomain.department.example.com"[:63]
    sockets = PluginSockets.of(Path("/var/lib/kubelet"), longest)
    assert len(str(sockets.registration)) <= 107
    with pytest.raises(HostError, match="bytes, and a socket's path 107 at most"):
        PluginSockets.of(Path("/var/lib/kubelet-of-another-root"), longest)


async def test_a_file_in_the_place_of_a_socket_is_named() -> None:
    async with a_node(start=False) as node:
        sockets = PluginSockets.of(node.root, DRIVER)
        sockets.service.parent.mkdir(parents=True)
        sockets.service.write_text("a regular file")
        with pytest.raises(HostError, match="is in the way: a socket belongs there"):
            sockets.prepare(DRIVER)
        sockets.service.unlink()
        (node.root / "plugins_registry").rmdir()
        with pytest.raises(HostError, match="is not there"):
            sockets.prepare(DRIVER)


async def test_sockets_are_accessible_by_root_only() -> None:
    async with a_node() as node:
        sockets = node.driver._server.sockets
        for path in (sockets.service, sockets.registration):
            assert os.stat(path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("turns", range(3))  # of the loop, which a start takes
@pytest.mark.parametrize("lost", [False, True])
async def test_stopping_while_a_socket_is_bound_logs_nothing_and_leaves_no_socket(
    lost: bool, turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The socket is bound for the first time, or again after it was removed."""
    async with a_node(start=lost) as node:
        sockets = PluginSockets.of(node.root, DRIVER)
        if lost:
            sockets.service.unlink()
        binding = asyncio.ensure_future(node.driver._server.check() if lost else node.start())
        while not sockets.service.exists():
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        if lost:
            binding.cancel()
            await asyncio.sleep(0)
        await node.stop()
        binding.cancel()
        await asyncio.gather(binding, return_exceptions=True)
        await asyncio.sleep(0.1)
        gc.collect()  # asyncio reports errors that were not fetched now
        assert not sockets.service.exists()
        assert not sockets.registration.exists()
        assert not [record.message for record in caplog.records if record.name == "asyncio"]


async def test_get_info_answers_in_well_under_a_second_while_a_prepare_waits() -> None:
    async with a_node() as node:
        node.api.faults.fail(20, 503, verb="get", resource="resourceclaims")
        waiting = asyncio.ensure_future(node.prepare(node.claims.add("cl", "gpu-0")))
        from drabridge.wire import pluginregistration_pb2, pluginregistration_pb2_grpc

        path = node.driver._server.sockets.registration
        async with grpc.aio.insecure_channel(f"unix://{path}") as channel:
            stub = pluginregistration_pb2_grpc.RegistrationStub(channel)
            info = await stub.GetInfo(pluginregistration_pb2.InfoRequest(), timeout=0.5 * PATIENCE)
        assert not waiting.done()
        assert (info.type, info.name) == ("DRAPlugin", DRIVER)
        plugin, health = ["v1.DRAPlugin", "v1beta1.DRAPlugin"], ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
        assert list(info.supported_versions) == [*plugin, *health]
        assert info.endpoint == str(node.driver._server.sockets.service)
        waiting.cancel()


def test_a_socket_whose_server_is_busy_is_not_dead() -> None:
    with short_directory() as root, contextlib.ExitStack() as stack:
        path = root / "busy.sock"
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        assert is_dead(path)  # bound, without a listener
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
                client.connect(str(path))
        assert not is_dead(path)
        assert not is_dead(root / "missing.sock")
