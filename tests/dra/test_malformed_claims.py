"""Malformed and hostile claims: other claims are served as before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.inventory.devices import DeviceNode
from drabridge.ledger.entries import Owner
from drabridge.wire import dra_v1_pb2
from tests.support.dra_node import DRIVER, DraNode, a_node, gpu
from tests.support.foreign_objects import splice
from tests.support.waiting import until

LONGEST = "a" * 253  # a claim's name (a DNS subdomain); with its namespace longer than a file's name may be
POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"


def numbers(node: DraNode, claim: dra_v1_pb2.Claim) -> list[tuple[int, int]]:
    """The device numbers in the claim's CDI file."""
    (path,) = (node.root / "cdi").glob(f"*device-claim-{claim.uid}.json")
    devices = json.loads(path.read_text())["devices"]
    return [(n["major"], n["minor"]) for d in devices for n in d["containerEdits"]["deviceNodes"]]


def mounts(node: DraNode, claim: dra_v1_pb2.Claim) -> Iterator[str]:
    """Where a container finds the claim's metadata."""
    for path in (node.root / "cdi").glob(f"*metadata_{claim.uid}*"):
        for device in json.loads(path.read_text())["devices"]:
            yield from (mount["containerPath"] for mount in device["containerEdits"]["mounts"])


async def let_go(node: DraNode, claim: dra_v1_pb2.Claim, device: str) -> None:
    assert (await node.unprepare(claim))[claim.uid] == ""
    node.claims.deallocate(claim.name)
    node.claims.delete(claim.name)
    await until(lambda: node.owner(device) == Owner.NONE, why="release")


@pytest.mark.parametrize("before", [(), ("honest",)], ids=["the first claim", "not the first claim"])
async def test_a_claim_with_the_longest_name_is_prepared_and_unprepared(before: tuple[str, ...]) -> None:
    async with a_node() as node:
        for name in before:
            await node.prepared(node.claims.add(name, "gpu-0"))
        metadata = node.state / "dra-device-metadata"
        others = {path.name for path in metadata.iterdir()} if before else set()
        claim = node.claims.add(LONGEST, "gpu-1")
        await node.prepared(claim)
        assert list(mounts(node, claim))
        await node.restart()
        await node.prepared(claim)
        await let_go(node, claim, "gpu-1")
        assert {path.name for path in metadata.iterdir()} == others
        await node.prepared(node.claims.add("next", "gpu-1"))


@pytest.mark.parametrize("text", ["../../../../etc", "a" * 64, "a\0b", "Tpl", "tpl\nname", "-a", "a/b"])
async def test_a_pod_claim_name_that_is_no_name_is_ignored(text: str) -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-0", annotations={POD_CLAIM_NAME: text})
        await node.prepared(claim)
        inside = f"/var/run/kubernetes.io/dra-device-attributes/resourceclaims/cl/gpu/{DRIVER}-metadata.json"
        assert list(mounts(node, claim)) == [inside]


async def test_a_claim_whose_files_cannot_be_written_leaves_no_other_with_old_device_numbers() -> None:
    """While the agent was stopped, a device came back with another number."""
    async with a_node() as node:
        evil, victim = node.claims.add("evil", "gpu-0"), node.claims.add("victim", "gpu-1")
        for claim in (evil, victim):
            await node.prepared(claim)
        assert numbers(node, victim) == [(1, 3)]
        await node.stop()
        damage(node, evil)
        moved = replace(gpu(1), nodes=(DeviceNode("/dev/zero", "/dev/gpu1", "rw", "c", 1, 5),))
        node.snapshot = replace(node.snapshot, version=2, devices=(gpu(0), moved, gpu(2), gpu(3)))
        await node.start()
        assert numbers(node, victim) == [(1, 5)]
        back = replace(moved, nodes=(DeviceNode("/dev/full", "/dev/gpu1", "rw", "c", 1, 7),))
        await node.set_devices(gpu(0), back, gpu(2), gpu(3))
        await until(lambda: numbers(node, victim) == [(1, 7)], why="the next number")


def damage(node: DraNode, claim: dra_v1_pb2.Claim) -> None:
    """Put a value into the record of ``claim`` that the agent itself never writes."""
    path = node.state / "claims" / f"{claim.uid}.json"
    record = json.loads(path.read_text())
    record["podClaimName"] = "x\0y"
    record["devices"][0]["env"] = {"MODE": "a\0b"}
    record["devices"][0]["unprepare"] = {"command": 7}
    path.write_text(json.dumps(record))


def opaque(driver: str, parameters: Any) -> dict[str, Any]:
    return {"source": "FromClaim", "opaque": {"driver": driver, "parameters": parameters}}


async def test_parameters_nested_without_end_are_an_error_of_their_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    splice(monkeypatch)
    ours = {"apiVersion": "drabridge/v1alpha1", "kind": "DeviceConfig"}
    async with a_node() as node:
        for n, parameters in enumerate(("DEEP", {**ours, "profile": "DEEP"}, {**ours, "env": {"MODE": "DEEP"}})):
            claim = node.claims.add(f"evil{n}", "gpu-0", config=(opaque(DRIVER, parameters),))
            assert "claim configuration" in await node.refused(claim)
        await node.prepared(node.claims.add("honest", "gpu-0"))


async def test_parameters_of_another_driver_may_be_nested_as_they_like(monkeypatch: pytest.MonkeyPatch) -> None:
    splice(monkeypatch)
    async with a_node() as node:
        await node.prepared(node.claims.add("cl", "gpu-0", config=(opaque("other.example.com", "DEEP"),)))
