"""Every file of ``deploy/examples/dra`` on a simulated cluster: pods run with exactly the right devices."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from drabridge.inventory.devices import Attribute, Device, Semver
from drabridge.sim.cluster import ClusterTimings, SimCluster
from tests.support.dra_node import CONFIG, DRIVER, NODE, DraNode, gpu
from tests.support.waiting import short_directory, until

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "dra"
OURS = "drabridge.example.com"
PROFILES = "      fast:"


def a_gpu(index: int) -> Device:
    """0 and 1 are older and smaller than 2 and 3."""
    new = index >= 2
    attributes: dict[str, Attribute] = {
        "cudaComputeCapability": Semver("9.0.0" if new else "8.0.0"),
        "uuid": f"GPU-{index}",
    }
    return replace(gpu(index), attributes=attributes, capacity={"memory": (80 if new else 40) * 2**30})


def shared(index: int) -> Device:
    return replace(
        gpu(index),
        name=f"shared-{index}",
        id=f"S{index}",
        resource="example.com/shared",
        capacity={"memory": 8 * 2**30},
    )


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[tuple[SimCluster, DraNode]]:
    config = CONFIG.replace(DRIVER, OURS).replace(PROFILES, f"      compute: {{env: {{TUNED: high}}}}\n{PROFILES}")
    with short_directory() as root:
        async with SimCluster(root, timings=ClusterTimings.fast()) as sim:
            devices = (*map(a_gpu, range(4)), shared(4))
            node = DraNode(root / NODE, sim.api, config, devices)
            await node.start()
            try:
                await until(lambda: node.driver.state.ready, why="the driver")
                await sim.apply((EXAMPLES / "deviceclass.yaml").read_text())
                yield sim, node
            finally:
                await node.stop()


async def run(sim: SimCluster, example: str) -> list[str]:
    """Apply an example and wait for its pods; returns their names."""
    text = (EXAMPLES / f"{example}.yaml").read_text()
    await sim.apply(text)
    pods = [d["metadata"] for d in yaml.safe_load_all(text) if d["kind"] == "Pod"]
    for pod in pods:
        await sim.wait_pod(pod["name"], namespace=pod.get("namespace", "default"))
    return [pod["name"] for pod in pods]


def held(node: DraNode) -> list[str]:
    return sorted(name for name, entry in node.ledger_service.ledger.entries.items() if entry.holders)


def spec_files(node: DraNode) -> list[Any]:
    return [json.loads((node.root / "cdi" / name).read_text()) for name in node.cdi_files() if "metadata" not in name]


async def emptied(sim: SimCluster, node: DraNode, *pods: str, namespace: str = "default") -> None:
    """Delete the pods: nothing stays behind on the node."""
    for pod in pods:
        await sim.delete("pods", pod, namespace)
    await until(lambda: node.records() == [] and node.cdi_files() == [], why="unprepare")
    await until(lambda: held(node) == [], 10.0, "every release")


# example -> the devices that its pods hold together
PLAIN = {
    "claim": ["gpu-0"],
    "template": ["gpu-0"],
    "shared-claim": ["gpu-0"],
    "cel": ["gpu-2"],
    "extended-resource": ["gpu-0", "gpu-1"],
    "first-available": ["gpu-0", "gpu-1"],
    "all": ["gpu-0", "gpu-1", "gpu-2", "gpu-3"],
    "parameters": ["gpu-0"],
    "shared-device": ["shared-4"],
    "metadata-reader": ["gpu-0"],
}


@pytest.mark.parametrize("example", PLAIN)
async def test_an_example_runs_and_leaves_nothing_on_the_node(example: str) -> None:
    async with cluster() as (sim, node):
        pods = await run(sim, example)
        assert held(node) == PLAIN[example]
        await emptied(sim, node, *pods)


def test_every_example_is_run() -> None:
    special = {"deviceclass", "job", "admin-access"}
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == set(PLAIN) | special


async def test_a_job_has_devices_of_its_own_and_a_common_one() -> None:
    async with cluster() as (sim, node):
        await run(sim, "job")
        await until(lambda: len(held(node)) == 3, why="three devices")
        common = next(name for name in held(node) if node.holders(name) == ["common"])
        assert common in ("gpu-0", "gpu-1", "gpu-2")
        await until(lambda: held(node) == [], 15.0, "the end of the job")


async def test_admin_access_sees_what_others_hold() -> None:
    async with cluster() as (sim, node):
        await run(sim, "claim")
        await run(sim, "admin-access")
        assert held(node) == ["gpu-0"]
        assert len(node.records()) == 2
        await sim.delete("pods", "monitor", "monitoring")
        await until(lambda: len(node.records()) == 1, why="the monitor's unprepare")
        assert held(node) == ["gpu-0"]


async def test_parameters_reach_the_container() -> None:
    async with cluster() as (sim, node):
        await run(sim, "parameters")
        (spec,) = spec_files(node)
        assert spec["devices"][0]["containerEdits"]["env"] == ["GPU=0", "MODE=exclusive", "TUNED=high"]


async def test_two_pods_have_a_part_each_and_a_third_stays_pending() -> None:
    async with cluster() as (sim, node):
        await run(sim, "shared-device")
        (entry,) = [entry for entry in node.ledger_service.ledger.entries.values() if entry.holders]
        assert len({share.id for held in entry.holders for share in held.shares}) == 2
        third = next(d for d in yaml.safe_load_all((EXAMPLES / "shared-device.yaml").read_text()) if d["kind"] == "Pod")
        third["metadata"]["name"] = "part-3"
        await sim.apply(third)
        with pytest.raises(TimeoutError):  # 8 Gi hold two parts of 3 Gi
            await sim.wait_pod("part-3", timeout=0.5)


async def test_the_reader_of_metadata_finds_the_file_of_its_template() -> None:
    async with cluster() as (sim, node):
        await run(sim, "metadata-reader")
        (name,) = [name for name in node.cdi_files() if "metadata" in name]
        (mount,) = json.loads((node.root / "cdi" / name).read_text())["devices"][0]["containerEdits"]["mounts"]
        root = "/var/run/kubernetes.io/dra-device-attributes"
        assert mount["containerPath"] == f"{root}/resourceclaimtemplates/gpu/gpu/{OURS}-metadata.json"
        document, _ = json.JSONDecoder().raw_decode(Path(mount["hostPath"]).read_text())
        assert document["podClaimName"] == "gpu"
        (device,) = document["requests"][0]["devices"]
        assert device["name"] == "gpu-0"
        assert device["attributes"]["cudaComputeCapability"] == {"version": "8.0.0"}


async def test_the_status_of_a_claim_says_that_its_devices_are_ready() -> None:
    async with cluster() as (sim, _):
        await run(sim, "claim")

        def devices() -> Any:
            claim = sim.get("resourceclaims", "one-gpu")
            return claim and claim["status"].get("devices")

        await sim.wait(devices, what="the status")
        (entry,) = devices()
        assert (entry["driver"], entry["pool"], entry["device"]) == (OURS, NODE, "gpu-0")
        assert entry["conditions"][0]["type"] == "Ready"
        assert entry["conditions"][0]["status"] == "True"
        assert entry["data"]["nodes"] == ["/dev/null"]
