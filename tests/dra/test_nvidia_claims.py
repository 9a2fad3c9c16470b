"""Claims written for NVIDIA's DRA driver get what they ask for from this one: classes, selectors, constraints."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drabridge.config.declaration import to_data
from drabridge.config.loader import load
from drabridge.sim.cluster import ClusterTimings, SimCluster
from tests.support.dra_node import NODE, DraNode
from tests.support.inventory_and_ledger import Machine
from tests.support.machines import GPU_UUID
from tests.support.mig import MIG_UUID, facts, gpu, instance, nodes
from tests.support.waiting import short_directory, until

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "nvidia-mig.yaml"
GPUS = 3  # the first two are divided, into instances that differ
INSTANCES = (
    instance(0, 1, profile="3g.40gb"),
    instance(0, 3, profile="1g.10gb", start=4),
    instance(0, 4, profile="1g.10gb+me", start=5),
    instance(1, 1, profile="3g.40gb"),
    instance(1, 3, profile="2g.20gb", start=4),
)
ATTRIBUTES, CAPACITY = "device.attributes['gpu.nvidia.com']", "device.capacity['gpu.nvidia.com']"


def mig(index: int, gi: int) -> str:
    return MIG_UUID.format(index, gi * 16).lower()


def whole(index: int) -> str:
    return GPU_UUID.format(index).lower()


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[tuple[SimCluster, DraNode]]:
    """A node with the example's configuration, all of whose devices are for claims, and the example's classes."""
    machine = Machine(load(EXAMPLE.read_text().replace('{legacy: "*", dra: 0}', '{dra: "*"}')), nodes(INSTANCES, GPUS))
    machine.nvidia = facts(INSTANCES, GPUS)
    devices = tuple(machine.see(*map(gpu, range(GPUS))).values())
    config = machine.names.config
    text = json.dumps(to_data(config))
    with short_directory() as root:
        async with SimCluster(root, timings=ClusterTimings.fast()) as sim:
            node = DraNode(root / NODE, sim.api, text, devices)
            await node.start()
            try:
                await until(lambda: node.driver.state.ready, why="the driver")
                for one in {resource.device_class for resource in config.resources if resource.device_class}:
                    await sim.apply(json.dumps(_class(one.name, one.selector)))
                yield sim, node
            finally:
                await node.stop()


def _class(name: str, selector: str | None) -> dict[str, Any]:
    spec = {"selectors": [{"cel": {"expression": selector}}]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def request(name: str, device_class: str, *selectors: str, count: int = 1) -> dict[str, Any]:
    chosen = [{"cel": {"expression": one}} for one in selectors]
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count, "selectors": chosen}}


def manifests(*requests: dict[str, Any], constraints: tuple[dict[str, Any], ...] = ()) -> str:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": list(requests), "constraints": list(constraints)}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {
            "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
            "containers": [{"name": "main", "image": "x", "resources": {"claims": [{"name": "c"}]}}],
        },
    }
    return f"{json.dumps(claim)}\n---\n{json.dumps(pod)}\n"


@pytest.mark.parametrize(
    ("requests", "constraints", "devices"),
    [
        pytest.param([request("g", "gpu.nvidia.com")], (), {whole(2)}, id="a GPU that is not divided"),
        pytest.param([request("g", "gpu.nvidia.com", count=2)], (), None, id="not a divided one"),
        pytest.param(
            [
                request(
                    "g",
                    "gpu.nvidia.com",
                    f"{ATTRIBUTES}.productName.lowerAscii().matches('^.*h100.*$')",
                    f"{ATTRIBUTES}.cudaComputeCapability.compareTo(semver('9.0.0')) >= 0",
                    f"{CAPACITY}.memory.compareTo(quantity('40Gi')) >= 0",
                )
            ],
            (),
            {whole(2)},
            id="by model, capability and memory",
        ),
        pytest.param(
            [request("m", "mig.nvidia.com", f"{ATTRIBUTES}.profile == '1g.10gb+me'")], (), {mig(0, 4)}, id="by profile"
        ),
        pytest.param(
            [request("m", "mig.nvidia.com", f"{CAPACITY}.multiprocessors.compareTo(quantity('32')) == 0")],
            (),
            {mig(1, 3)},
            id="by what an instance has",
        ),
        pytest.param(
            # the example of KEP-4381: instances of one GPU
            [
                request("a", "mig.nvidia.com", f"{ATTRIBUTES}.profile == '3g.40gb'"),
                request("b", "mig.nvidia.com", f"{ATTRIBUTES}.profile == '2g.20gb'"),
            ],
            ({"requests": ["a", "b"], "matchAttribute": "gpu.nvidia.com/parentUUID"},),
            {mig(1, 1), mig(1, 3)},
            id="on one GPU",
        ),
        pytest.param(
            [
                request("a", "mig.nvidia.com", f"{ATTRIBUTES}.profile == '1g.10gb'"),
                request("b", "mig.nvidia.com", f"{ATTRIBUTES}.profile == '2g.20gb'"),
            ],
            ({"requests": ["a", "b"], "matchAttribute": "gpu.nvidia.com/parentUUID"},),
            None,
            id="on one GPU, which has not both",
        ),
    ],
)
async def test_a_claim_gets_what_it_asks_for(
    requests: list[dict[str, Any]], constraints: tuple[dict[str, Any], ...], devices: set[str] | None
) -> None:
    async with cluster() as (sim, node):
        await sim.apply(manifests(*requests, constraints=constraints))
        if devices is None:
            with pytest.raises(TimeoutError):
                await sim.wait_pod("p", timeout=0.5)
            return
        await sim.wait_pod("p")
        entries = node.ledger_service.ledger.entries.values()
        assert {entry.name for entry in entries if entry.holders} == devices
        found = [json.loads((node.root / "cdi" / name).read_text()) for name in node.cdi_files() if "meta" not in name]
        given = {one["path"] for file in found for each in file["devices"] for one in _nodes(each)}
        assert any(path.startswith("/dev/nvidia-caps/") for path in given) is (not devices & {whole(2)})


def _nodes(device: dict[str, Any]) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = device["containerEdits"].get("deviceNodes", [])
    return nodes
