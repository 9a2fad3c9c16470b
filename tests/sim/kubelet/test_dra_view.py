"""What the simulated kubelet shows of DRA: slices that it wipes, health, PodResources, and claims beside limits."""

from __future__ import annotations

import asyncio

from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.timings import Timings
from tests.sim.kubelet.dra_pods import DRIVER, claim_pod, gpu, grant, registered
from tests.support.kubelet_peers import Driver, FakeApi, running, serving, short_dir


async def test_slices_go_at_every_start_and_after_thirty_seconds_without_a_driver() -> None:  # DR20, DR21
    assert Timings().slice_wipe_seconds == 30.0
    async with short_dir() as root:
        api = FakeApi()
        api.failures = 1  # asked again a second later
        timings = Timings.fast(slice_wipe_seconds=5.0)
        async with running(root, api=api, timings=timings) as kubelet:
            await kubelet.wait_for(lambda: api.deleted, what="the wipe at start")
            assert api.deleted[0][:2] == ("node-a", None)
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
