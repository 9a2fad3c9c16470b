"""Why a pod gets nothing, and the texts that its owner reads."""

from __future__ import annotations

from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.runtime import MemoryRuntime
from tests.sim.kubelet.gpu_pods import REJECTED, gpu_kubelet, pod
from tests.support.kubelet_peers import GPU, device, running, short_dir


async def test_no_healthy_device_even_for_a_request_of_zero() -> None:
    async with gpu_kubelet([device("d0", "broken")]) as (kubelet, _):
        status = await kubelet.run_pod(pod("p", 0))
        text = f"no healthy devices present; cannot allocate unhealthy devices {GPU}"
        assert status.message == REJECTED.format(text)


async def test_an_unknown_resource_is_ignored_and_the_container_starts_without() -> None:
    async with short_dir() as root, running(root) as kubelet:
        assert (await kubelet.run_pod(pod("p", 1))).phase is Phase.RUNNING
        runtime = kubelet.node.runtime
        assert isinstance(runtime, MemoryRuntime)
        assert runtime.started[0][2].device_ids == ()
