"""API servers of every supported release: what we write is in their schema, and what they lack is found out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.inventory.devices import Presence
from drabridge.ledger.entries import Owner
from drabridge.sim.releases import RELEASES
from tests.support.api_schemas import validate
from tests.support.dra_node import CONFIG, DraNode, a_node, gpu
from tests.support.waiting import until

WITHOUT_GATES = ("1.34", "1.35")  # taints, shares, leases and partitions are alpha there: off by default
ALL_GATES = ("DRADeviceTaints", "DRAConsumableCapacity", "DRAPartitionableDevices", "DRADeviceBindingConditions")
SHARED = replace(gpu(4), name="shared-0", id="S0", resource="example.com/shared", capacity={"memory": 8 * 2**30})


def devices() -> tuple[Any, ...]:
    return (gpu(0, numa_nodes=(1,)), gpu(1), SHARED)


async def published(node: DraNode, *names: str) -> None:
    await until(lambda: node.published() == [*names] and node.driver.state.publisher.published, why=f"{names}")


def stored(node: DraNode, plural: str) -> list[dict[str, Any]]:
    """Objects of ours as the server keeps them, without what only a server writes into them."""
    return [dict(one) for one in node.api.objects.list(plural)]


@pytest.mark.parametrize("release", RELEASES)
async def test_a_claims_life_is_in_the_schema_of_every_release(release: str) -> None:
    async with a_node(devices=devices(), release=release) as node:
        await published(node, "gpu-0", "gpu-1", "shared-0")
        claim = node.claims.add("cl", "gpu-0")
        await node.prepared(claim)
        await until(lambda: node.claims.get("cl")["status"].get("devices"), why="the claim's status")
        found = [*stored(node, "resourceslices"), *stored(node, "resourceclaims")]
        assert len(found) >= 2
        for obj in found:
            validate(obj, release)

        await node.unprepare(claim)
        node.claims.deallocate("cl")
        await until(lambda: node.owner("gpu-0") is Owner.NONE, why="the release")
        ours = [request for request in node.api.requests if request.user_agent.startswith("drabridge/")]
        assert [request for request in ours if request.status == 400] == [], "nothing that the release does not know"


@pytest.mark.parametrize("release", RELEASES)
async def test_the_numa_node_is_published_as_the_standard_attribute(release: str) -> None:
    """KEP-6072: one number, absent where it is not known. Releases before 1.37 keep it as any attribute."""
    async with a_node(devices=devices(), release=release) as node:
        await published(node, "gpu-0", "gpu-1", "shared-0")
        (slice_,) = node.slices()
        numa = [device["attributes"].get("resource.kubernetes.io/numaNode") for device in slice_["spec"]["devices"]]
        assert numa == [{"int": 1}, None, None]


@pytest.mark.parametrize("release", RELEASES)
async def test_a_faulty_device_is_tainted_or_where_taints_are_off_withdrawn(release: str) -> None:
    async with a_node(devices=devices(), release=release) as node:
        await published(node, "gpu-0", "gpu-1", "shared-0")
        await node.change(gpu_1=(Presence.FAULTY, "its node is missing"))
        if release in WITHOUT_GATES:
            await published(node, "gpu-0", "shared-0")
            await until(lambda: "DRADeviceTaints" in node.missing(), why="the gate")
        else:
            await until(lambda: node.tainted() == ["gpu-1"], why="the taint")
        for obj in node.slices():
            validate(obj, release)
        await node.change(gpu_1=(Presence.PRESENT, ""))
        await until(lambda: node.tainted() == [], why="the end of the taint")
        await published(node, "gpu-0", "gpu-1", "shared-0")


@pytest.mark.parametrize("gates", [None, dict.fromkeys(ALL_GATES, True)], ids=["defaults", "all on"])
@pytest.mark.parametrize("release", RELEASES)
async def test_what_is_missing_follows_from_the_gates_not_from_the_release(
    release: str, gates: dict[str, bool] | None
) -> None:
    async with a_node(devices=devices(), release=release, gates=gates) as node:
        await published(node, "gpu-0", "gpu-1", "shared-0")
        off = release in WITHOUT_GATES and gates is None
        # In 1.34 a device's counters must be in its own slice.
        assert node.missing() == (
            tuple(sorted(ALL_GATES)) if off else () if release != "1.34" else ("DRAPartitionableDevices",)
        )
        assert node.writes() == 1, "what is dropped is not written again and again"
        shared = node.slices()[0]["spec"]["devices"][2]
        assert shared.get("allowMultipleAllocations", False) is not off


PARTS = """\
- name: example.com/part
  match: [{subsystem: mem}]
  lanes: {legacy: 0, dra: "*"}
  partition: {of: example.com/gpu}
"""
# With partitions, a whole and its parts are offered together. In 1.34 the counters were in the devices' own slice.
IN_THE_DEVICES_SLICE = "1.34"
BY_GATE = "1.35"  # alpha


@pytest.mark.parametrize("gate", [None, True])
@pytest.mark.parametrize("release", RELEASES)
async def test_parts_are_offered_where_the_server_takes_their_counters(release: str, gate: bool | None) -> None:
    parts = [
        gpu(number, name=f"part-{number}", id=f"P{number}", resource="example.com/part", root="gpu-0")
        for number in (1, 2)
    ]
    gates = None if gate is None else {"DRAPartitionableDevices": gate}
    async with a_node(CONFIG + PARTS, (gpu(0), *parts), release=release, gates=gates) as node:
        all_of_it = release != IN_THE_DEVICES_SLICE and (gate is True or release != BY_GATE)
        await published(node, "gpu-0", *(["part-1", "part-2"] if all_of_it else []))
        assert ("DRAPartitionableDevices" in node.missing()) is not all_of_it
        for obj in node.slices():
            validate(obj, release)
        assert await node.prepared(node.claims.add("cl", "gpu-0"))
        assert "part-1" in await node.refused(node.claims.add("part", "part-1"))
