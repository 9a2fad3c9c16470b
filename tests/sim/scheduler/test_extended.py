"""Extended resources: device plugin or DRA, per node and name; the special claim; classes that compete for a name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.scheduler.world import World

GPU = "example.com/gpu"


@pytest.fixture
async def world() -> World:
    world = World()
    world.device_class("ext", extendedResourceName=GPU)
    world.slice("d0", "d1", "d2", "d3")
    return world


def special(world: World, pod: str) -> Any:
    return world.get(
        "resourceclaims", world.get("pods", pod)["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    )


async def test_allocatable_above_zero_means_device_plugin_even_when_exhausted(world: World) -> None:
    world.allocatable(example_com__gpu="1")
    for name in ("p", "q"):
        world.pod(name, limits={GPU: "1"})
    world.step()
    assert world.node_of("p") == "node-a"
    assert "extendedResourceClaimStatus" not in world.get("pods", "p")["status"]
    assert world.why("q") == f"0/1 nodes are available: 1 Insufficient {GPU}."
    assert world.objects.list("resourceclaims") == []


async def test_allocatable_zero_counts_as_absent(world: World) -> None:
    world.allocatable(example_com__gpu="0")
    world.pod("p", limits={GPU: "2"})
    world.step()
    assert [one["device"] for one in special(world, "p")["status"]["allocation"]["devices"]["results"]] == ["d0", "d1"]


async def test_pods_served_by_dra_still_count_against_the_plugin(world: World) -> None:
    world.pod("dra", limits={GPU: "2"})
    world.step()
    world.allocatable(example_com__gpu="2")
    world.pod("p", limits={GPU: "1"})
    world.step()
    assert world.why("p") == f"0/1 nodes are available: 1 Insufficient {GPU}."
    world.end("dra")
    world.step()
    assert world.node_of("p") == "node-a"


async def test_each_node_decides_for_itself() -> None:
    world = World(nodes=("node-a", "node-b"))
    world.device_class("ext", extendedResourceName=GPU)
    world.slice("d0", node="node-b")
    world.allocatable("node-a", example_com__gpu="1")
    for name in ("p", "q"):
        world.pod(name, limits={GPU: "1"})
    world.step()
    assert (world.node_of("p"), world.node_of("q")) == ("node-a", "node-b")


async def test_without_the_gate_only_device_plugins_serve() -> None:
    world = World(gates={"DRAExtendedResource": False})
    world.device_class("ext", extendedResourceName=GPU)
    world.slice("d0")
    world.pod("p", limits={GPU: "1"})
    world.step()
    assert world.node_of("p") == ""


async def test_special_claim_goes_when_the_pod_ends(world: World) -> None:
    world.pod("p", limits={GPU: "4"})
    world.step()
    world.pod("q", limits={GPU: "4"})
    world.step()
    assert world.node_of("q") == ""
    world.end("p", "Failed")
    world.step()
    assert world.node_of("q") == "node-a"
    assert len(world.objects.list("resourceclaims")) == 1
