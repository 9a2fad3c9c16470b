"""DRA as the simulated kubelet does it: registration, prepare and unprepare, health, wiping, over real sockets."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from drabridge.sim.claims import FILE_NAME
from drabridge.sim.pods import Container, ContainerClaim, ExtendedClaim, Phase, PodClaim, PodSpec, RequestMapping
from drabridge.sim.runtime import MemoryRuntime
from drabridge.sim.timings import Timings
from drabridge.wire import dra_v1_pb2, health_v1alpha1_pb2
from tests.sim.kubelet_peers import (
    GPU,
    Driver,
    FakeApi,
    Plugin,
    PodResourcesClient,
    device,
    running,
    serving,
    short_dir,
)

DRIVER = "obs.example.com"
_uids = (f"34553fd1-cf06-469c-b877-{number:012}" for number in itertools.count())


def claim_pod(name: str, *claims: str, containers: int = 1, requests: tuple[str, ...] = ("",)) -> PodSpec:
    """Every container uses every claim; claim ``x`` is called ``pod-x`` in the pod."""
    refs = tuple(ContainerClaim(f"pod-{c}", request) for c in claims for request in requests)
    return PodSpec(
        "default",
        name,
        uid=next(_uids),
        containers=tuple(Container(f"c{i}", claims=refs) for i in range(containers)),
        resource_claims=tuple(PodClaim(f"pod-{c}", c) for c in claims),
    )


def gpu(name: str, *requests: str, share_id: str | None = None) -> dra_v1_pb2.Device:
    return dra_v1_pb2.Device(
        pool_name="node-a",
        device_name=name,
        request_names=requests,
        cdi_device_ids=[f"{DRIVER}/gpu=c-{name}"],
        share_id=share_id,
    )


def grant(api: FakeApi, pods: list[PodSpec], *drivers: str) -> None:
    """Allocate every claim of the pods to the drivers."""
    for name in {claim for spec in pods for claim in spec.claim_names()}:
        users = [spec.uid for spec in pods if name in spec.claim_names()]
        api.add_claim(name, f"uid-{name}", users, *(drivers or (DRIVER,)))


async def registered(driver: Driver) -> None:
    """Wait until the driver was told that it is registered."""
    for _ in range(1000):
        if driver.statuses and driver.statuses[-1].plugin_registered:
            return
        await asyncio.sleep(0.005)
    raise TimeoutError(f"never registered: {driver.statuses}")


async def test_registration_get_info_notify_health() -> None:
    async with short_dir() as root, running(root, api=FakeApi()) as kubelet:
        driver = Driver(root)
        async with serving(driver):
            await registered(driver)
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
            assert 0.3 <= second.at - first.at < 0.6
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
    async with short_dir() as root, running(root, api=FakeApi()) as kubelet:
        driver = Driver(root)
        async with serving(driver):
            await registered(driver)
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
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api) as kubelet:
            driver = Driver(root)
            driver.devices = {"cl1": [gpu("gpu-0", "gpu")]}
            async with serving(driver):
                await registered(driver)
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
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api) as kubelet:
            driver = Driver(root)
            async with serving(driver):
                await registered(driver)
                spec = claim_pod("p", "x", "y")
                grant(api, [spec])
                await kubelet.run_pod(spec)
                assert driver.calls[-1] == ("Prepare", ["x", "y"])


async def test_an_error_becomes_the_observed_event_and_is_retried_late() -> None:
    assert Timings().dra_retry_seconds == (60.0, 90.0)
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api) as kubelet:
            driver = Driver(root)
            driver.error = "device gpu-0 is held by pod default/legacy; delete it first"
            async with serving(driver):
                await registered(driver)
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
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api) as kubelet:
            driver = Driver(root)
            async with serving(driver):
                await registered(driver)
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
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api) as kubelet:
            driver = Driver(root)
            driver.devices = {"cl1": [gpu("gpu-0", "gpu")]}
            async with serving(driver):
                await registered(driver)
                first, second = claim_pod("b1", "cl1"), claim_pod("b2", "cl1")
                grant(api, [first, second])
                await kubelet.run_pod(first)
                state = json.loads((root / FILE_NAME).read_text())
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
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api) as kubelet:
            driver = Driver(root)
            async with serving(driver):
                await registered(driver)
                spec = claim_pod("p", "cl1")
                grant(api, [spec])
                await kubelet.run_pod(spec)
                await kubelet.stop()
                await kubelet.delete_pod(spec.uid, force=True)
                await kubelet.start()
                await kubelet.wait_for(lambda: driver.calls[-1][0] == "Unprepare", what="the reconcile loop")
                assert sum(c[0] == "Prepare" for c in driver.calls) == 1


async def test_slices_go_at_every_start_and_after_thirty_seconds_without_a_driver() -> None:  # DR20, DR21
    assert Timings().slice_wipe_seconds == 30.0
    async with short_dir() as root:
        api = FakeApi()
        api.failures = 1  # asked again a second later
        async with running(root, api=api, timings=Timings.fast(slice_wipe_seconds=0.4)) as kubelet:
            await kubelet.wait_for(lambda: api.deleted, what="the wipe at start")
            assert api.deleted[0][:2] == ("node-a", None)
            assert "failed to delete ResourceSlices" in kubelet.node.log[0]
            driver = Driver(root)
            async with serving(driver):
                await registered(driver)
                await kubelet.wait_for(lambda: kubelet.process.dra.plugins.is_connected(DRIVER), what="a connection")
                await driver.stop()
                await asyncio.sleep(0.15)
                driver.statuses.clear()
                await driver.serve()
                await registered(driver)
                await asyncio.sleep(0.5)
                assert len(api.deleted) == 1, "back in time: slices unchanged"
                await driver.stop()
                await kubelet.wait_for(lambda: len(api.deleted) == 2, what="the wipe")
                assert api.deleted[1][:2] == ("node-a", DRIVER)
                await asyncio.sleep(0.5)
                assert len(api.deleted) == 2, "once"


async def test_a_driver_that_registers_and_never_listens_loses_its_slices() -> None:  # DR22, DR14
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api, timings=Timings.fast(slice_wipe_seconds=0.3)) as kubelet:
            driver = Driver(root)
            driver.registration_socket.parent.mkdir(parents=True, exist_ok=True)
            await driver.serve_registration()
            await registered(driver)
            await kubelet.wait_for(lambda: len(api.deleted) == 2, what="the wipe")
            await driver.serve(register=False)  # the service comes after the registration
            await kubelet.wait_for(lambda: driver.health_streams == 1, what="the late connection")
            await driver.stop()


async def test_health_reaches_the_pod_status_and_expires() -> None:  # DR23, DR24
    async with short_dir() as root:
        api = FakeApi()
        timings = Timings.fast(health_default_timeout_seconds=0.3)
        async with running(root, api=api, timings=timings) as kubelet:
            driver = Driver(root)
            driver.devices = {"cl1": [gpu("gpu-0", "gpu")]}
            async with serving(driver):
                await registered(driver)
                spec = claim_pod("p", "cl1")
                grant(api, [spec])
                await kubelet.run_pod(spec)

                def health() -> dict[str, str]:
                    ((entry,),) = kubelet.allocated_resources_status(spec.uid).values()
                    assert entry["name"] == "claim:pod-cl1"
                    return dict(entry["resources"][0])

                unknown = {"health": "Unknown", "resourceID": f"{DRIVER}/gpu=c-gpu-0"}
                assert health() == unknown
                report = health_v1alpha1_pb2.NodeWatchResourcesResponse()
                entry = report.devices.add(health=health_v1alpha1_pb2.UNHEALTHY, message="ECC errors")
                entry.device.pool_name, entry.device.device_name = "node-a", "gpu-0"
                await driver.health.put(report)
                await kubelet.wait_for(lambda: health() != unknown, what="the report")
                assert health() == {
                    "health": "Unhealthy",
                    "message": "ECC errors",
                    "resourceID": f"{DRIVER}/gpu=c-gpu-0",
                }
                await kubelet.wait_for(lambda: health() == unknown, what="the report to be too old")


async def test_the_end_of_the_health_stream_clears_what_it_said() -> None:
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api, timings=Timings.fast(health_default_timeout_seconds=30)) as kubelet:
            driver = Driver(root)
            driver.devices = {"cl1": [gpu("gpu-0", "gpu")]}
            async with serving(driver):
                await registered(driver)
                spec = claim_pod("p", "cl1")
                grant(api, [spec])
                await kubelet.run_pod(spec)

                def health() -> str:
                    return str(kubelet.allocated_resources_status(spec.uid)["c0"][0]["resources"][0]["health"])

                report = health_v1alpha1_pb2.NodeWatchResourcesResponse()
                entry = report.devices.add(health=health_v1alpha1_pb2.HEALTHY)
                entry.device.pool_name, entry.device.device_name = "node-a", "gpu-0"
                await driver.health.put(report)
                await kubelet.wait_for(lambda: health() == "Healthy", what="the report")
            await kubelet.wait_for(lambda: health() == "Unknown", what="the end of the stream")


async def test_podresources_shows_whole_claims_and_accumulates_cdi_names() -> None:
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api) as kubelet:
            driver = Driver(root)
            driver.devices = {"cl1": [gpu("gpu-0", "a"), gpu("gpu-1", "b", share_id="s-1")]}
            async with serving(driver):
                await registered(driver)
                spec = claim_pod("p", "cl1", requests=("a",))
                grant(api, [spec])
                await kubelet.run_pod(spec)
                (container,) = (await PodResourcesClient(root).list()).pod_resources[0].containers
                (resource,) = container.dynamic_resources
                assert (resource.claim_namespace, resource.claim_name) == ("default", "cl1")
                first, second = resource.claim_resources
                assert (first.driver_name, first.pool_name, first.device_name) == (DRIVER, "node-a", "gpu-0")
                assert [c.name for c in first.cdi_devices] == [f"{DRIVER}/gpu=c-gpu-0"]
                assert [c.name for c in second.cdi_devices] == [f"{DRIVER}/gpu=c-gpu-0", f"{DRIVER}/gpu=c-gpu-1"]
                assert (first.HasField("share_id"), second.share_id) == (False, "s-1")
                runtime = kubelet.node.runtime
                assert isinstance(runtime, MemoryRuntime)
                assert runtime.running[spec.uid, "c0"].cdi_devices == (f"{DRIVER}/gpu=c-gpu-0",), "its request only"


@pytest.mark.parametrize(("version", "listed"), [("1.33", None), ("1.37", [1, 1])])
async def test_dynamic_resources_of_other_releases(version: str, listed: list[int] | None) -> None:
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api, version=version) as kubelet:
            driver = Driver(root)
            driver.devices = {"cl1": [gpu("gpu-0", "a"), gpu("gpu-1", "b")]}
            async with serving(driver):
                await registered(driver)
                spec = claim_pod("p", "cl1")
                grant(api, [spec])
                await kubelet.run_pod(spec)
                (container,) = (await PodResourcesClient(root).list()).pod_resources[0].containers
                if listed is None:
                    assert not container.dynamic_resources
                    assert ("Prepare v1beta1", ["cl1"]) in driver.calls, "v1 came with 1.34"
                else:
                    found = [len(r.cdi_devices) for r in container.dynamic_resources[0].claim_resources]
                    assert found == listed


async def test_a_failing_second_driver_duplicates_the_first_ones_devices() -> None:  # DR18
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api, seed=3) as kubelet:
            drivers = Driver(root, "a.example.com"), Driver(root, "b.example.com")
            for driver in drivers:
                driver.devices = {"cl1": [gpu("gpu-0")]}
            async with serving(*drivers):
                for driver in drivers:
                    await registered(driver)
                drivers[1].error = "not now"
                spec = claim_pod("p", "cl1")
                grant(api, [spec], "a.example.com", "b.example.com")
                await kubelet.run_pod(spec)
                await kubelet.wait_for(lambda: ("Prepare", ["cl1"]) in drivers[0].calls, what="the first driver")
                count = len(drivers[1].calls)
                await kubelet.wait_for(lambda: len(drivers[1].calls) >= count + 3, what="retries", timeout=10)
                drivers[1].error = ""
                await kubelet.wait_for(lambda: kubelet.pod_status(spec.uid).phase is Phase.RUNNING, what="success")
                (info,) = kubelet.process.dra.cache.values()
                prepared = sum(c[0] == "Prepare" for c in drivers[0].calls)
                assert len(info.drivers["a.example.com"]) == prepared > 1
                assert len(info.drivers["b.example.com"]) == 1


async def test_an_extended_resource_served_by_a_claim_never_reaches_the_device_plugin() -> None:
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api) as kubelet:
            driver, plugin = Driver(root), Plugin(root, "p.sock", [device("d0")])
            request = "container-0-request-0"
            driver.devices = {"b6-extended-resources-pdm4n": [gpu("gpu-0", request), gpu("gpu-1", request)]}
            async with serving(driver, plugin):
                await registered(driver)
                await plugin.register()
                await kubelet.wait_for_resource(GPU, healthy=1)
                spec = PodSpec(
                    "default",
                    "b6",
                    containers=(Container("c", {GPU: 2}),),
                    extended_claim=ExtendedClaim("b6-extended-resources-pdm4n", (RequestMapping("c", GPU, request),)),
                )
                grant(api, [spec])
                assert (await kubelet.run_pod(spec)).phase is Phase.RUNNING
                assert driver.calls[-1] == ("Prepare", ["b6-extended-resources-pdm4n"])
                (container,) = (await PodResourcesClient(root).list()).pod_resources[0].containers
                assert not container.devices
                (resource,) = container.dynamic_resources
                assert [len(r.cdi_devices) for r in resource.claim_resources] == [1, 2]


async def test_a_hung_prepare_ends_at_the_deadline_and_the_pod_stays_pending() -> None:  # DR6
    async with short_dir() as root:
        api = FakeApi()
        async with running(root, api=api, timings=Timings.fast(dra_call_seconds=0.2)) as kubelet:
            driver = Driver(root)
            async with serving(driver):
                await registered(driver)
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
