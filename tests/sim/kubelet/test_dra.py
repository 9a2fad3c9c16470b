"""DRA as the simulated kubelet does it: registration, prepare and unprepare, over real sockets."""

from __future__ import annotations

import asyncio
import json

import pytest

from drabridge.sim.kubelet.dra_claims import FILE_NAME
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.runtime import MemoryRuntime
from drabridge.sim.kubelet.timings import Timings
from drabridge.wire import dra_v1_pb2
from tests.sim.kubelet.dra_pods import DRIVER, claim_pod, dra_kubelet, gpu, grant, registered
from tests.support.kubelet_peers import (
    Driver,
    FakeApi,
    running,
    serving,
    short_dir,
)


async def test_registration_get_info_notify_health() -> None:
    async with dra_kubelet() as (kubelet, driver, _api):
        await kubelet.wait_for(lambda: driver.health_streams == 1, what="the health stream")
        out = [c.method for c in kubelet.calls]
        assert out == ["GetInfo", "NotifyRegistrationStatus", "NodeWatchResources"]
        (info,), (notify,) = kubelet.calls.of("GetInfo"), kubelet.calls.of("NotifyRegistrationStatus")
        assert (info.deadline_seconds, notify.deadline_seconds) == (1.0, 5.0)


async def test_refused_versions_are_told_to_the_plugin_and_tried_again() -> None:
    timings = Timings.fast(plugin_backoff_seconds=0.3)
    async with short_dir() as root, running(root, api=FakeApi(), timings=timings) as kubelet:
        driver = Driver(root)
        driver.versions = ["v9.DRAPlugin"]
        async with serving(driver):
            await kubelet.wait_for(lambda: len(driver.statuses) >= 2, what="two refusals")
            assert not driver.statuses[0].plugin_registered
            assert "plugin validation failed" in driver.statuses[0].error
            first, second, *_ = kubelet.calls.of("GetInfo")
            assert second.at - first.at >= 0.3
            driver.versions = ["v1.DRAPlugin"]
            await registered(driver)


async def test_get_info_and_notify_failures_are_retried() -> None:  # DR3, DR4
    async with short_dir() as root, running(root, api=FakeApi()) as kubelet:
        driver = Driver(root)
        driver.info_error = "not yet"
        kubelet.faults.notify_error = "injected"
        async with serving(driver):
            await kubelet.wait_for(lambda: kubelet.node.log, what="a failure")
            assert "failed to get plugin info using RPC GetInfo" in kubelet.node.log[0]
            driver.info_error = ""
            await kubelet.wait_for(lambda: driver.statuses, what="the injected status")
            assert not driver.statuses[0].plugin_registered
            kubelet.faults.notify_error = ""
            await registered(driver)


async def test_a_socket_that_is_replaced_registers_again_and_a_deleted_one_deregisters() -> None:  # DR2
    async with dra_kubelet() as (kubelet, driver, _api):
        await driver.stop()
        await kubelet.wait_for(lambda: kubelet.process.dra.plugins.get(DRIVER) is None, what="deregistration")
        driver.statuses.clear()
        await driver.serve()
        await registered(driver)


async def test_a_socket_renamed_over_another_is_a_new_plugin() -> None:
    async with short_dir() as root, running(root, api=FakeApi()) as kubelet:
        old, new = Driver(root), Driver(root)
        new.service_socket = new.service_socket.with_name("new.sock")
        new.registration_socket = new.registration_socket.with_name(".new-reg.sock")
        async with serving(old):
            await registered(old)
            first = kubelet.process.dra.plugins.get(DRIVER)
            async with serving(new):
                await asyncio.sleep(0.2)
                assert not new.statuses, "names with a dot are not looked at"
                new.registration_socket.rename(old.registration_socket)
                await registered(new)
                second = kubelet.process.dra.plugins.get(DRIVER)
                assert first is not second
                assert second is not None
                assert second.endpoint == new.service_socket


async def test_the_first_known_version_of_the_plugins_own_list_is_used() -> None:
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api) as kubelet:
            driver = Driver(root)
            driver.versions = ["v1beta1.DRAPlugin", "v1.DRAPlugin"]
            async with serving(driver):
                await registered(driver)
                spec = claim_pod("p", "cl1")
                grant(api, [spec])
                assert (await kubelet.run_pod(spec)).phase is Phase.RUNNING
                assert ("Prepare v1beta1", ["cl1"]) in driver.calls


async def test_one_prepare_per_pod_and_one_unprepare_after_the_last() -> None:
    async with dra_kubelet() as (kubelet, driver, api):
        driver.devices = {"cl1": [gpu("gpu-0", "gpu")]}
        first, second = claim_pod("b1", "cl1", containers=2), claim_pod("b2", "cl1")
        grant(api, [first, second])
        assert (await kubelet.run_pod(first)).phase is Phase.RUNNING
        assert (await kubelet.run_pod(second)).phase is Phase.RUNNING
        assert [c for c in driver.calls if c[0] == "Prepare"] == [("Prepare", ["cl1"])]
        assert 44.0 < driver.remaining[0] < 45.5, "grpc rounds up a little"
        request = kubelet.calls.of("NodePrepareResources")[0].request
        assert isinstance(request, dra_v1_pb2.NodePrepareResourcesRequest)
        assert [(c.namespace, c.uid, c.name) for c in request.claims] == [("default", "uid-cl1", "cl1")]
        runtime = kubelet.node.runtime
        assert isinstance(runtime, MemoryRuntime)
        assert runtime.running[first.uid, "c0"].cdi_devices == (f"{DRIVER}/gpu=c-gpu-0",)
        assert runtime.running[first.uid, "c0"].dra_devices == ((DRIVER, "node-a", "gpu-0"),)
        await kubelet.finish_pod(first.uid)
        assert "Unprepare" not in dict(driver.calls)
        await kubelet.finish_pod(second.uid)
        assert driver.calls[-1] == ("Unprepare", ["cl1"])
        assert kubelet.process.dra.cache == {}


async def test_two_claims_of_a_pod_travel_in_one_call() -> None:
    async with dra_kubelet() as (kubelet, driver, api):
        spec = claim_pod("p", "x", "y")
        grant(api, [spec])
        await kubelet.run_pod(spec)
        assert driver.calls[-1] == ("Prepare", ["x", "y"])


async def test_an_error_becomes_the_observed_event_and_is_retried_late() -> None:
    assert Timings().dra_retry_seconds == (60.0, 90.0)
    async with dra_kubelet() as (kubelet, driver, api):
        driver.error = "device gpu-0 is held by pod default/legacy; delete it first"
        spec = claim_pod("b4", "b4-g-lx5wn")
        grant(api, [spec])
        status = await kubelet.run_pod(spec)
        assert status.phase is Phase.PENDING
        (event,) = kubelet.events
        assert (event.type, event.reason) == ("Warning", "FailedPrepareDynamicResources")
        assert event.message == (
            "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed "
            f"for ResourceClaim b4-g-lx5wn: {driver.error}"
        )
        driver.error = ""
        await kubelet.wait_for(lambda: kubelet.pod_status(spec.uid).phase is Phase.RUNNING, what="the retry")
        first, second = kubelet.calls.of("NodePrepareResources")
        assert second.at - first.at >= kubelet.node.timings.dra_retry_seconds[0]


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        ("unregistered", "DRA driver obs.example.com is not registered"),
        ("absent", "failed to fetch ResourceClaim cl1"),
        ("not reserved", "is not allowed to use resource claim cl1 (uid-cl1)"),
    ],
)
async def test_what_keeps_a_pod_pending_before_the_driver_is_asked(prepare: str, text: str) -> None:
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api) as kubelet:
            spec = claim_pod("p", "cl1")
            if prepare != "absent":
                grant(api, [spec])
            if prepare == "not reserved":
                api.add_claim("cl1", "uid-cl1", [], DRIVER)
            assert (await kubelet.run_pod(spec)).phase is Phase.PENDING
            assert text in kubelet.events[0].message
            assert not kubelet.calls.of("NodePrepareResources")


async def test_unprepare_is_retried_until_the_driver_agrees() -> None:  # DR8, DR11
    async with dra_kubelet() as (kubelet, driver, api):
        spec = claim_pod("p", "cl1")
        grant(api, [spec])
        await kubelet.run_pod(spec)
        driver.unprepare_error = "busy"
        end = asyncio.create_task(kubelet.finish_pod(spec.uid))
        await kubelet.wait_for(lambda: len(kubelet.calls.of("NodeUnprepareResources")) >= 2, what="retries")
        assert kubelet.pod_status(spec.uid).phase is Phase.RUNNING, "not final yet"
        assert "NodeUnprepareResources failed for ResourceClaim cl1: busy" in kubelet.node.log[-1]
        api.claims.clear()
        driver.unprepare_error = ""
        assert (await end).phase is Phase.SUCCEEDED


async def test_after_a_restart_running_pods_are_left_alone_and_new_ones_prepare_again() -> None:  # DR1, DR9
    async with dra_kubelet() as (kubelet, driver, api):
        driver.devices = {"cl1": [gpu("gpu-0", "gpu")]}
        first, second = claim_pod("b1", "cl1"), claim_pod("b2", "cl1")
        grant(api, [first, second])
        await kubelet.run_pod(first)
        state = json.loads((kubelet.node.root / FILE_NAME).read_text())
        assert first.uid in json.loads(state["Data"])["ClaimInfoStateList"][0]["PodUIDs"]
        driver.statuses.clear()
        await kubelet.restart()
        await registered(driver)
        await kubelet.process.sources_ready.wait()
        await asyncio.sleep(0.4)
        assert kubelet.pod_status(first.uid).phase is Phase.RUNNING
        assert kubelet.events == []
        assert sum(c[0] == "Prepare" for c in driver.calls) == 1, "no new Prepare for what runs"
        await kubelet.run_pod(second)
        assert sum(c[0] == "Prepare" for c in driver.calls) == 2, "the flag was in memory only"
        await kubelet.finish_pod(second.uid)
        await kubelet.finish_pod(first.uid)
        assert sum(c[0] == "Unprepare" for c in driver.calls) == 1


async def test_a_pod_deleted_while_no_kubelet_runs_is_unprepared_by_the_next() -> None:  # DR12, DR13
    async with dra_kubelet() as (kubelet, driver, api):
        spec = claim_pod("p", "cl1")
        grant(api, [spec])
        await kubelet.run_pod(spec)
        await kubelet.stop()
        await kubelet.delete_pod(spec.uid, force=True)
        await kubelet.start()
        await kubelet.wait_for(lambda: driver.calls[-1][0] == "Unprepare", what="the reconcile loop")
        assert sum(c[0] == "Prepare" for c in driver.calls) == 1


async def test_a_hung_prepare_ends_at_the_deadline_and_the_pod_stays_pending() -> None:  # DR6
    async with dra_kubelet(timings=Timings.fast(dra_call_seconds=0.2)) as (kubelet, driver, api):
        driver.gate.clear()
        spec = claim_pod("p", "cl1")
        grant(api, [spec])
        assert (await kubelet.run_pod(spec)).phase is Phase.PENDING
        assert kubelet.events[0].message == (
            "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources: "
            "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
        )
        driver.gate.set()
        await kubelet.wait_for(lambda: kubelet.pod_status(spec.uid).phase is Phase.RUNNING, what="the retry")
