"""Pods that ask for GPUs, a kubelet that has some, devices with NUMA nodes, and the text of a refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from deviceplugin.wire import v1beta1_pb2 as pb
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Container, PodSpec
from tests.support.kubelet_peers import GPU, Plugin, device, running, serving, short_dir

NUMA = [device("d0", numa=[0]), device("d1", numa=[0, 1]), device("d2"), device("d3", numa=[])]
REJECTED = "Pod was rejected: Allocate failed due to {}, which is unexpected"


def pod(name: str, *numbers: int, init: int = 0, **options: object) -> PodSpec:
    """Containers a, b, … asking for ``numbers`` devices each."""
    containers = tuple(Container(chr(97 + i), {GPU: n}) for i, n in enumerate(numbers))
    inits = (Container("init", {GPU: init}),) if init else ()
    return PodSpec("default", name, containers=containers, init_containers=inits, **options)  # type: ignore[arg-type]


@asynccontextmanager
async def gpu_kubelet(devices: Sequence[pb.Device], **options: object) -> AsyncIterator[tuple[SimKubelet, Plugin]]:
    """A kubelet in a directory of its own and a registered plugin, once its healthy devices are allocatable."""
    async with short_dir() as root, running(root, **options) as kubelet:
        plugin = Plugin(root, "p.sock", devices)
        async with serving(plugin):
            await plugin.register()
            await kubelet.wait_for_resource(GPU, healthy=sum(one.health == "Healthy" for one in devices))
            yield kubelet, plugin
