"""The scheduler writes claims and pods as a real 1.36.2 control plane was recorded to write them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.compare import Correspondence
from tests.sim.scheduler.world import World, fixture


@pytest.fixture
async def world() -> World:
    """The recorded node's slice and classes; the node's Node has a uid of its own."""
    world = World()
    recorded = fixture("resourceslice")
    recorded["metadata"] = {"name": recorded["metadata"]["name"]}
    world.objects.create(recorded)
    world.device_class("obs", 'device.driver == "obs.example.com"')
    world.device_class("obs-ext", 'device.driver == "obs.example.com"', extendedResourceName="obs.example.com/gpu")
    return world


def claim_from(recorded: Any) -> Any:
    """What its author applied."""
    return {**recorded, "metadata": {"name": recorded["metadata"]["name"]}, "status": {}}


def assert_like(recorded: Any, ours: Any, names: dict[str, str] | None = None) -> None:
    ours["metadata"].pop("managedFields", None)
    recorded["metadata"].pop("managedFields", None)
    known = Correspondence(names=dict(names or {}))
    assert known.differences(recorded, ours) == []


async def test_claim_with_selector_and_configuration(world: World) -> None:
    recorded = fixture("resourceclaim-allocated")
    world.objects.create(claim_from(recorded))
    world.pod("b1", "cl1")
    world.step()
    assert_like(recorded, world.get("resourceclaims", "cl1"))


async def test_claim_shared_by_two_pods(world: World) -> None:
    recorded = fixture("resourceclaim-shared")
    world.objects.create(claim_from(recorded))
    for pod in ("b1", "b2"):
        world.pod(pod, "cl1")
        world.step()
    assert_like(recorded, world.get("resourceclaims", "cl1"))


async def test_claim_from_a_template_takes_the_second_alternative(world: World) -> None:
    recorded = fixture("resourceclaim-from-template")
    request = {"name": "any", "firstAvailable": recorded["spec"]["devices"]["requests"][0]["firstAvailable"]}
    world.template("t", request)
    world.pod("b3", template="t")
    world.step()
    (entry,) = world.get("pods", "b3")["status"]["resourceClaimStatuses"]
    name = entry["resourceClaimName"]
    assert entry["name"] == "g"
    assert name.startswith("b3-g-")
    assert len(name) == len(recorded["metadata"]["name"])
    assert_like(recorded, world.get("resourceclaims", name), {recorded["metadata"]["name"]: name})


async def test_extended_resource_without_a_device_plugin(world: World) -> None:
    recorded, pod = fixture("resourceclaim-extended"), fixture("pod-extended-resource")
    world.pod("b6", limits={"obs.example.com/gpu": "2"})
    world.step()
    status = world.get("pods", "b6")["status"]["extendedResourceClaimStatus"]
    assert status["requestMappings"] == pod["status"]["extendedResourceClaimStatus"]["requestMappings"]
    name = status["resourceClaimName"]
    assert_like(recorded, world.get("resourceclaims", name), {recorded["metadata"]["name"]: name})
    assert world.node_of("b6") == "node-a"
    assert world.get("pods", "b6")["metadata"]["generation"] == pod["metadata"]["generation"] == 1


async def test_claim_is_empty_again_after_its_last_pod(world: World) -> None:
    world.objects.create(claim_from(fixture("resourceclaim-allocated")))
    for pod in ("b1", "b2"):
        world.pod(pod, "cl1")
    world.step()
    world.end("b1")
    world.step()
    assert [one["name"] for one in world.get("resourceclaims", "cl1")["status"]["reservedFor"]] == ["b2"]
    world.end("b2")
    world.step()
    claim = world.get("resourceclaims", "cl1")
    assert claim["status"] == {}
    assert "finalizers" not in claim["metadata"]


async def test_generated_claim_goes_with_its_pod(world: World) -> None:
    world.template("t", {"name": "r", "exactly": {"deviceClassName": "obs"}})
    world.pod("b3", template="t")
    world.step()
    assert len(world.objects.list("resourceclaims")) == 1
    world.objects.delete("pods", "b3", "default", grace_seconds=0)
    world.step()
    assert world.objects.list("resourceclaims") == []
