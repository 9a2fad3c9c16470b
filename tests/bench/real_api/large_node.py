"""A node that is large in one way: what the start of its agent asks for, and takes."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import time
from collections.abc import Sequence

import drabridge.offers.slices as layout
from drabridge.kube.client import KubernetesCluster
from tests.bench.processes import anonymous_mib
from tests.bench.real_api.server import serving, until
from tests.bench.real_api.tables import Phase
from tests.bench.scale import ApiPart

NODE = "large"
SHAPES = (
    # name, devices, devices of one slice, pods
    ("8 devices, 10 pods", 8, 64, 10),
    ("1,024 devices, 64 per slice (as shipped)", 1024, 64, 10),
    ("1,024 devices, 128 per slice", 1024, 128, 10),
    ("500 pods of 4 KB", 8, 64, 500),
)


async def all_sizes(shapes: Sequence[tuple[str, int, int, int]] = SHAPES) -> list[Phase]:
    """Measure each shape in a process of its own, so that memory is that of one start."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return [await asyncio.to_thread(pool.apply, measure, (shape,)) for shape in shapes]


def measure(shape: tuple[str, int, int, int]) -> Phase:
    """Measure one shape."""
    return asyncio.run(_measure(*shape))


async def _measure(name: str, devices: int, per_slice: int, pods: int) -> Phase:
    layout.DEVICES_PER_SLICE = per_slice  # what the API allows where no device has a taint or a counter
    async with serving() as server:
        await server.add_nodes([NODE], pods)
        access = await server.access(NODE, "drabridge")
        await server.learn_rest(10)
        agent = ApiPart(lambda: KubernetesCluster(lambda: access), NODE, devices)
        gc.collect()
        cpu, memory = time.process_time(), anonymous_mib(os.getpid()) * 2**20

        async def start() -> None:
            await agent.start()
            await until(lambda: _published(agent), "the node's slices")

        try:
            phase = await server.phase(name, 1, start)
            used = time.process_time() - cpu
            return phase.of_agent(used, anonymous_mib(os.getpid()) * 2**20 - memory)
        finally:
            await agent.stop()


async def _published(agent: ApiPart) -> bool:
    return agent.published
