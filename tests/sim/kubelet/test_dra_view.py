"""What the simulated kubelet shows of DRA: slices that it wipes, health, PodResources, and claims beside limits."""

from __future__ import annotations

import asyncio

from drabridge.sim.kubelet.pods import Container, ExtendedClaim, Phase, PodSpec, RequestMapping
from drabridge.sim.kubelet.runtime import MemoryRuntime
from drabridge.sim.kubelet.timings import Timings
from drabridge.wire import health_v1alpha1_pb2
from tests.sim.kubelet.dra_pods import DRIVER, claim_pod, dra_kubelet, gpu, grant, registered
from tests.sim.kubelet.podresources_client import PodResourcesClient
from tests.support.kubelet_peers import GPU, Driver, FakeApi, Plugin, device, running, serving, short_dir


async def test_slices_go_at_every_start_and_after_thirty_seconds_without_a_driver() -> None:  # DR20, DR21
    assert Timings().slice_wipe_seconds == 30.0
    async with short_dir() as root:
        api = FakeApi()
        api.failures = 1  # asked again a second later
        timings = Timings.fast(slice_wipe_seconds=5.0)
        async with running(root, api=api, timings=timings) as kubelet:
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
                await asyncio.sleep(timings.slice_wipe_seconds + 0.2)
                assert len(api.deleted) == 1, "back in time: slices unchanged"
                timings.slice_wipe_seconds = 0.2
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
    async with dra_kubelet(timings=Timings.fast(health_default_timeout_seconds=1)) as (kubelet, driver, api):
        driver.devices = {"cl1": [gpu("gpu-0", "gpu")]}
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
    async with dra_kubelet(timings=Timings.fast(health_default_timeout_seconds=30)) as (kubelet, driver, api):
        driver.devices = {"cl1": [gpu("gpu-0", "gpu")]}
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
        await driver.stop()
        await kubelet.wait_for(lambda: health() == "Unknown", what="the end of the stream")


async def test_podresources_shows_whole_claims_and_accumulates_cdi_names() -> None:
    async with dra_kubelet() as (kubelet, driver, api):
        driver.devices = {"cl1": [gpu("gpu-0", "a"), gpu("gpu-1", "b", share_id="s-1")]}
        spec = claim_pod("p", "cl1", requests=("a",))
        grant(api, [spec])
        await kubelet.run_pod(spec)
        (container,) = (await PodResourcesClient(kubelet.node.root).list()).pod_resources[0].containers
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


async def test_kubelets_before_1_34_list_no_claims() -> None:
    async with dra_kubelet(version="1.33") as (kubelet, driver, api):
        driver.devices = {"cl1": [gpu("gpu-0", "a"), gpu("gpu-1", "b")]}
        spec = claim_pod("p", "cl1")
        grant(api, [spec])
        await kubelet.run_pod(spec)
        (container,) = (await PodResourcesClient(kubelet.node.root).list()).pod_resources[0].containers
        assert not container.dynamic_resources
        assert ("Prepare v1beta1", ["cl1"]) in driver.calls, "v1 came with 1.34"


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
