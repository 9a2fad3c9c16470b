"""Manifests of the shapes that NVIDIA's DRA driver ships do here what the page on them says of each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import textwrap
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from drabridge.config.declaration import to_data
from drabridge.config.loader import load
from drabridge.sim.cluster import ClusterTimings, SimCluster
from tests.docs.pages import blocks
from tests.support.dra_node import NODE, DraNode
from tests.support.inventory_and_ledger import Machine
from tests.support.machines import GPU_UUID
from tests.support.mig import facts, gpu, instance, nodes
from tests.support.waiting import short_directory, until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy/examples/nvidia-mig.yaml"
MANIFESTS = Path(__file__).with_name("nvidia_manifests")
PAGE = ROOT / "docs/nvidia.md"
GPUS, DIVIDED, MORE = 5, 4, 19
INSTANCES = [
    instance(index, gi, profile=profile, start=start)
    for index in range(DIVIDED)
    for gi, profile, start in ((1, "3g.40gb", 0), (3, "1g.10gb", 4), (4, "1g.10gb", 5), (5, "2g.20gb", 6))
]
PENDING = "Pending"
CLASSES = {"gpu": "gpu.nvidia.com", "mig": "mig.nvidia.com", "vfio": "vfio.gpu.nvidia.com"}
TYPE = "device.attributes['gpu.nvidia.com'].type"

# Manifest -> pod -> devices, numbered within the manifest; or the sentence that refuses it. From its first lines.
EXPECTED: Mapping[str, Mapping[str, str]] = {
    path.stem: yaml.safe_load(found[1])
    for path in sorted(MANIFESTS.iterdir())
    if (found := re.search(r"^# pods: (.*)$", path.read_text(), re.MULTILINE))
}
# by what is written on the page for a value of `--consumable-shares`: which of three pods share a GPU.
SHARES = [
    ("unlimited", "shares", {"first": "gpu1", "second": "gpu1", "third": "gpu1"}),
    ("memory", "shares", {"first": "gpu1", "second": "gpu2", "third": "gpu3"}),
    ("memory", "shares-of-memory", {"first": "gpu1", "second": "gpu1", "third": "gpu2"}),
    ("2", "shares", {"first": "gpu1", "second": "gpu1", "third": "gpu2"}),
    ("2", "shares-by-number", {"first": "gpu1", "second": "gpu1", "third": "gpu2"}),
]


@contextlib.asynccontextmanager
async def cluster(text: str) -> AsyncIterator[tuple[SimCluster, DraNode]]:
    """A node whose devices are all for claims, with the classes of NVIDIA's chart."""
    machine = Machine(load(text.replace('{legacy: "*", dra: 0}', '{dra: "*"}')), nodes(INSTANCES, GPUS))
    machine.nvidia = facts(INSTANCES, GPUS)
    devices = tuple(machine.see(*map(gpu, range(GPUS))).values())
    last = next(device for device in devices if device.attributes["uuid"] == GPU_UUID.format(GPUS - 1))
    for n in range(MORE):
        place = {"name": f"{last.name}-{n}", "id": f"{last.id}-{n}", "syspath": f"{last.syspath}-{n}", "also_at": ()}
        kind = "gpu" if n else "vfio"
        devices += (replace(last, attributes={**last.attributes, "uuid": f"GPU-{n}", "type": kind}, **place),)
    config = machine.names.config
    with short_directory() as root:
        async with SimCluster(root, timings=ClusterTimings.fast()) as sim:
            node = DraNode(root / NODE, sim.api, json.dumps(to_data(config)), devices)
            await node.start()
            try:
                await until(lambda: node.driver.state.ready, why="the driver")
                for kind, name in CLASSES.items():
                    selector = f"device.driver == 'gpu.nvidia.com' && {TYPE} == '{kind}'"
                    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": selector}}]}
                    if kind == "gpu":
                        spec["extendedResourceName"] = "nvidia.com/gpu"
                    meta = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}
                    await sim.apply({**meta, "spec": spec})
                yield sim, node
            finally:
                await node.stop()


async def outcomes(sim: SimCluster, expected: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """What became of the pods of each manifest, once it is what is expected, or after a while."""
    for manifest in expected:
        await sim.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": manifest}})
        for one in yaml.safe_load_all((MANIFESTS / f"{manifest}.yaml").read_text()):
            one["metadata"]["namespace"] = manifest
            await sim.apply(one)
    with contextlib.suppress(TimeoutError):
        await sim.wait(lambda: {name: seen(sim, name, expected[name]) for name in expected} == expected, 30.0)
    return {name: seen(sim, name, expected[name]) for name in expected}


def seen(sim: SimCluster, namespace: str, expected: Mapping[str, str]) -> dict[str, str]:
    numbers: dict[str, int] = {}
    types = {
        device["name"]: device["attributes"]["type"]["string"]
        for slice_ in sim.api.objects.peek("resourceslices")
        for device in slice_["spec"].get("devices", ())
    }
    claims = sorted(
        (one for one in sim.api.objects.peek("resourceclaims") if one["metadata"]["namespace"] == namespace),
        key=lambda one: str(one["metadata"]["creationTimestamp"] + one["metadata"]["name"]),
    )
    found = {}
    for pod in sim.api.objects.peek("pods"):
        name, place = str(pod["metadata"]["name"]), pod["metadata"]["namespace"]
        short = next((one for one in expected if name.startswith(one)), name)
        if place != namespace:
            continue
        if pod["status"]["phase"] == "Succeeded":
            found[short] = "done"
            continue
        if pod["status"]["phase"] == "Pending":
            told = [event["message"] for event in sim.events(name, "FailedPrepareDynamicResources")]
            told = [text for text in told if expected.get(short, "") in text]
            found[short] = expected[short] if told and expected[short] != PENDING else PENDING
            continue
        uid = pod["metadata"]["uid"]
        held = [
            result["device"]
            for claim in claims
            if any(user["uid"] == uid for user in claim["status"].get("reservedFor", ()))
            for result in claim["status"]["allocation"]["devices"]["results"]
        ]
        found[short] = " ".join(f"{types[one]}{numbers.setdefault(one, len(numbers) + 1)}" for one in held)
    return found


async def test_manifests_of_nvidia_s_driver_do_what_the_page_says() -> None:
    async with cluster(EXAMPLE.read_text()) as (sim, node):
        assert await outcomes(sim, EXPECTED) == EXPECTED
        parents = {
            device.attributes["parentUUID"]
            for device in node.snapshot.devices
            if any(name.startswith("parts") for name in node.holders(device.name))
            and _namespace(node, device.name) == "mig-of-one-gpu"
        }
        assert len(parents) == 1


def _namespace(node: DraNode, device: str) -> str:
    return next(held.claim.namespace for held in node.ledger_service.ledger.entries[device].holders)


@pytest.mark.parametrize(("shares", "manifest", "pods"), SHARES)
async def test_consumable_shares_are_a_few_lines_of_configuration(
    shares: str, manifest: str, pods: dict[str, str]
) -> None:
    async with cluster(_configured(shares)) as (sim, _):
        found = (await outcomes(sim, {manifest: pods}))[manifest]
        assert sorted(Counter(found.values()).values()) == sorted(Counter(pods.values()).values())


async def test_an_operator_s_profile_sets_an_interval_and_takes_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (block,) = [block for block in blocks(PAGE, "yaml") if block.startswith("claimConfig:")]
    profile = textwrap.indent(block, "  ") + "  health: &health"
    async with cluster(EXAMPLE.read_text().replace("  health: &health", profile)) as (sim, node):
        expected = {"time-slicing-long": {"shared": "gpu1"}}
        assert await outcomes(sim, expected) == expected
        uuid = next(device.id for device in node.snapshot.devices if node.holders(device.name))
        await sim.delete("pods", "shared", "time-slicing-long")
        asked = tmp_path / "asked"
        await until(lambda: asked.read_text().count("\n") == 2, 30.0, "the end of the claim")
        command = f"compute-policy -i {uuid} --set-timeslice"
        assert asked.read_text().splitlines() == [f"{command} 3", f"{command} 0"]


def test_a_refusal_in_the_table_is_the_sentence_that_was_seen() -> None:
    for name, pods in EXPECTED.items():
        here = re.search(r"^# here: refused: (.*)$", (MANIFESTS / f"{name}.yaml").read_text(), re.MULTILINE)
        for told in pods.values():
            refused = told not in (PENDING, "done") and not re.fullmatch(r"((gpu|mig|vfio)\d ?)+", told)
            assert refused is (here is not None and here[1].startswith(told)), name
    assert EXPECTED.keys() | {manifest for _, manifest, _ in SHARES} == {path.stem for path in MANIFESTS.iterdir()}


def _configured(shares: str) -> str:
    """The example with those lines of the page that are for a value of ``--consumable-shares``."""
    (block,) = [block for block in blocks(PAGE, "yaml") if block.startswith("sharing:")]
    lines = re.findall(r"^( *)(?:# )?(.*?)(?: +# (.*))?$", block.strip(), re.MULTILINE)
    chosen = [f"  {indent}{text}\n" for indent, text, when in lines if not when or shares in when.split(", ")]
    capacity = "  capacity:\n    memory: {from: nvidia.memory_mib, unit: MiB}\n"
    return EXAMPLE.read_text().replace(capacity, "".join(chosen), 1)
