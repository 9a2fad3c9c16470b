"""DRA as the simulated kubelet does it: registration, prepare and unprepare, over real sockets."""

from __future__ import annotations

import asyncio
import json

from drabridge.sim.kubelet.dra_claims import FILE_NAME
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.runtime import MemoryRuntime
from drabridge.wire import dra_v1_pb2
from tests.sim.kubelet.dra_pods import DRIVER, claim_pod, dra_kubelet, gpu, grant, registered
from tests.support.kubelet_peers import (
    Driver,
    FakeApi,
    running,
    serving,
    short_dir,
)


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


async def test_unprepare_is_retried_until_the_driver_agrees() -> None:  # DR8, DR11
    async with dra_kubelet() as (kubelet, driver, api):
        spec = claim_pod("p", "cl1")
        grant(api, [spec])
        await kubelet.run_pod(spec)
        driver.unprepare_error = "busy"
        end = asyncio.create_task(kubelet.finish_pod(spec.uid))
        await kubelet.wait_for(lambda: len(kubelet.calls.of("NodeUnprepareResources")) >= 2, what="retries")
        assert kubelet.pod_status(spec.uid).phase is Phase.RUNNING, "not final yet"
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
