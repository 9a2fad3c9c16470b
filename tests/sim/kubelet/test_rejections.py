"""Why a pod gets nothing, and the texts that its owner reads."""

from __future__ import annotations

from deviceplugin.wire import v1beta1_pb2 as pb
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.runtime import MemoryRuntime
from drabridge.sim.kubelet.timings import Timings
from tests.support.kubelet_peers import GPU, device, running, short_dir

import grpc  # isort: skip
from tests.sim.kubelet.gpu_pods import NUMA, REJECTED, gpu_kubelet, pod


async def test_a_refused_allocate_reaches_the_person_word_for_word() -> None:
    async with gpu_kubelet(NUMA) as (kubelet, plugin):
        plugin.refuse = (grpc.StatusCode.FAILED_PRECONDITION, "d0 is held by claim default/c; delete it first")
        status = await kubelet.run_pod(pod("p", 1))
        bare = (
            "Allocate failed due to rpc error: code = FailedPrecondition desc = "
            "d0 is held by claim default/c; delete it first, which is unexpected"
        )
        assert (status.phase, status.reason) == (Phase.FAILED, "UnexpectedAdmissionError")
        assert status.message == f"Pod was rejected: {bare}"
        assert [(e.reason, e.message) for e in kubelet.events] == [("UnexpectedAdmissionError", bare)]
        assert kubelet.resources[GPU].allocated == frozenset(), "recounted"


async def test_more_asked_than_healthy() -> None:
    async with gpu_kubelet([device("d0"), *(device(f"d{i}", "Unhealthy") for i in (1, 2, 3))]) as (kubelet, _):
        assert kubelet.node_status() == {"capacity": {GPU: 4}, "allocatable": {GPU: 1}}
        status = await kubelet.run_pod(pod("p", 2))
        text = f"requested number of devices unavailable for {GPU}. Requested: 2, Available: 1"
        assert status.message == REJECTED.format(text)


async def test_no_healthy_device_even_for_a_request_of_zero() -> None:
    async with gpu_kubelet([device("d0", "broken")]) as (kubelet, _):
        status = await kubelet.run_pod(pod("p", 0))
        text = f"no healthy devices present; cannot allocate unhealthy devices {GPU}"
        assert status.message == REJECTED.format(text)


async def test_an_answer_without_containers_rejects() -> None:
    async with gpu_kubelet(NUMA) as (kubelet, plugin):
        plugin.response = pb.AllocateResponse()
        assert "no containers return in allocation response" in (await kubelet.run_pod(pod("p", 1))).message


async def test_a_pod_for_a_plugin_that_stopped() -> None:
    async with gpu_kubelet(NUMA) as (kubelet, plugin):
        await plugin.stop()
        await kubelet.wait_for(lambda: not kubelet.resources[GPU].healthy, what="the devices to go")
        text = f"no healthy devices present; cannot allocate unhealthy devices {GPU}"
        assert (await kubelet.run_pod(pod("p", 1))).message == REJECTED.format(text)


async def test_a_resource_that_the_node_once_had_is_out_of() -> None:
    timings = Timings.fast(endpoint_grace_seconds=0.1, node_status_seconds=0.05)
    async with gpu_kubelet(NUMA, timings=timings) as (kubelet, plugin):
        await kubelet.wait_for(lambda: GPU in kubelet.published_node_status["capacity"], what="an update")
        await plugin.stop()
        await kubelet.wait_for(lambda: kubelet.published_node_status["capacity"] == {GPU: 0}, what="the grace")
        status = await kubelet.run_pod(pod("p", 1))
        assert status.reason == f"OutOf{GPU}"
        assert status.message == (
            f"Pod was rejected: Node didn't have enough resource: {GPU}, requested: 1, used: 0, capacity: 0"
        )


async def test_an_unknown_resource_is_ignored_and_the_container_starts_without() -> None:
    async with short_dir() as root, running(root) as kubelet:
        assert (await kubelet.run_pod(pod("p", 1))).phase is Phase.RUNNING
        runtime = kubelet.node.runtime
        assert isinstance(runtime, MemoryRuntime)
        assert runtime.started[0][2].device_ids == ()


async def test_an_error_of_preferred_allocation_rejects_the_pod() -> None:
    async with gpu_kubelet(NUMA) as (kubelet, plugin):
        plugin.preferred_error = "no opinion"
        assert (await kubelet.run_pod(pod("p", 1))).message == REJECTED.format(
            "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Internal desc = no opinion"
        )
        assert "Allocate" not in dict(plugin.calls)
