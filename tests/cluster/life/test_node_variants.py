"""Nodes with another setup: a topology policy, static pods, DRA features switched off.

Kubernetes 1.36.2 cannot run with v1beta1 or v1beta2 of resource.k8s.io alone: its API server's own informers want v1,
and /readyz stays "informer-sync failed"; the scheduler's do as well. The versions are tried on the simulated API server
(tests/dra/test_prepare.py, tests/sim/apiserver/test_verbs.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster import workloads as w
from tests.cluster.bed import RESOURCE, Bed, Settings, at_the_beginning, clear, wait_for
from tests.cluster.real_bed import ask
from tests.cluster.releases.features import gates
from tests.cluster.sim_bed import simulated
from tests.cluster.steps import a_day, legacy_pod, phase, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

STATIC = Path("/var/lib/kubelet/static")
GATES = ("DRADeviceTaints", "DRAConsumableCapacity", "DRAPartitionableDevices")
RESTS_ON = {"DRADeviceTaintRules": "DRADeviceTaints", "DRAFractionalCapacityRange": "DRAConsumableCapacity"}


@contextlib.asynccontextmanager
async def set_up(bed: Bed, settings: Settings) -> AsyncIterator[None]:
    """The cluster with these settings; without them after the block, when the workloads are gone."""
    before = await bed.configure(settings)
    try:
        yield
        await clear(bed)
    finally:
        await bed.configure(before)


async def test_a_kubelet_that_wants_one_numa_node(bed: Bed) -> None:
    async with set_up(bed, Settings(kubelet={"topologyManagerPolicy": "single-numa-node"})):
        await a_day(bed)


@pytest.mark.parametrize("off", [*([gate] for gate in GATES), [*GATES]], ids=[*GATES, "all"])
async def test_features_that_are_off(bed: Bed, off: list[str]) -> None:
    """The agent finds out what the server keeps, when it starts.

    No program of Kubernetes starts with a gate that is on while the one that it rests on is off.
    """
    if not bed.runs_programs:
        pytest.skip("with all of them off it runs on a simulated cluster of its own")
    on = await asyncio.to_thread(gates, ask)
    also = [gate for gate, below in RESTS_ON.items() if below in off and on.get(gate)]
    async with set_up(bed, Settings(gates=dict.fromkeys([*off, *also], False))):
        await bed.kill_agent()
        await a_day(bed)
    await at_the_beginning(bed)


async def test_features_that_are_off_on_a_simulated_cluster() -> None:
    async with simulated(gates=dict.fromkeys(GATES, False)) as bed:
        await bed.install()
        await a_day(bed)


async def test_a_static_pod_with_limits(bed: Bed) -> None:
    """Kubelet's own, from a file; the API server has its mirror. The setting comes with the one that is there."""
    if not bed.kubelet_directory:
        pytest.skip("the node's files are out of reach")
    async with set_up(bed, Settings(kubelet={"staticPodPath": str(STATIC)})):
        await at_the_beginning(bed)
        spec = w.pod_spec(bed.image, bed.node, {"limits": {RESOURCE: "1"}})
        del spec["nodeSelector"]
        folder = bed.kubelet_directory / STATIC.name
        folder.mkdir(exist_ok=True)
        (folder / "static.json").write_text(json.dumps(w.pod("static", spec)))
        name = f"static-{bed.node_object}"

        async def there() -> bool:
            return await phase(bed, name) == "Running"

        await wait_for(bed, "the static pod to run", there)
        await legacy_pod(bed, "l1")
        await running(bed, "l1")
        assert len({*await bed.devices(name), *await bed.devices("l1")}) == 2
        (folder / "static.json").unlink()

        async def gone() -> bool:
            return await phase(bed, name) == "gone"

        await wait_for(bed, "the static pod to be gone", gone)
        await legacy_pod(bed, "l2")
        await running(bed, "l1", "l2")
