"""Device metadata (KEP-5304) and claim status, for containers and people, are kept up to date."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.dra.observer import StatusWritten
from drabridge.inventory.devices import Presence
from tests.support.dra_node import CONFIG, DRIVER, NODE, DraNode, a_node, gpu
from tests.support.waiting import until

ROOT = "/var/run/kubernetes.io/dra-device-attributes"


def host_file(node: DraNode, claim: str = "cl", request: str = "gpu") -> Path:
    uid = str(node.claims.get(claim)["metadata"]["uid"])
    return node.state / "dra-device-metadata" / uid / request / "metadata.json"


VERSIONS = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")  # newest first


def stream(path: Path) -> list[dict[str, Any]]:
    """Every object of the file, as a reader's decoder finds them one after the other."""
    text, found = path.read_text(), []
    while text:
        document, end = json.JSONDecoder().raw_decode(text)
        found.append(document)
        text = text[end:].lstrip()
    return found


def read(path: Path) -> dict[str, Any]:
    """What the file says, the same in every version."""
    documents = stream(path)
    assert tuple(document.pop("apiVersion") for document in documents) == VERSIONS
    assert {document.pop("kind") for document in documents} == {"DeviceMetadata"}
    first, *others = documents
    assert all(other == first for other in others)
    return first


async def test_a_claim_has_one_file_for_each_request_and_the_mount_rides_on_its_first_device() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-0", "gpu-1", {"device": "gpu-2", "request": "other"})
        devices = await node.prepared(claim)

        assert [len(device.cdi_device_ids) for device in devices] == [2, 1, 2]
        assert devices[0].cdi_device_ids[1] == f"{DRIVER}/metadata={claim.uid}_gpu"
        spec = json.loads((node.root / "cdi" / f"{DRIVER}_metadata_{claim.uid}_gpu.json").read_text())
        assert spec["kind"] == f"{DRIVER}/metadata"
        assert spec["devices"][0]["containerEdits"]["mounts"] == [
            {
                "hostPath": str(host_file(node)),
                "containerPath": f"{ROOT}/resourceclaims/cl/gpu/{DRIVER}-metadata.json",
                "options": ["ro", "nosuid", "nodev", "bind"],
            }
        ]
        document = read(host_file(node))
        assert document["metadata"] == {"name": "cl", "namespace": "default", "uid": claim.uid, "generation": 1}
        assert [d["name"] for d in document["requests"][0]["devices"]] == ["gpu-0", "gpu-1"]
        assert host_file(node).stat().st_mode & 0o777 == 0o644
        await node.unprepare(claim)
        assert not host_file(node).parent.parent.exists()


async def test_a_cdi_version_fits_whatever_the_uid_begins_with() -> None:
    async with a_node() as node:
        for index in range(4):
            claim = node.claims.add(f"cl{index}", f"gpu-{index}")
            await node.prepared(claim)
            spec = json.loads((node.root / "cdi" / f"{DRIVER}_metadata_{claim.uid}_gpu.json").read_text())
            assert spec["cdiVersion"] == ("0.5.0" if claim.uid[0].isdigit() else "0.3.0")


async def test_a_change_is_written_in_place_because_containers_hold_the_inode() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-0", annotations={"resource.kubernetes.io/pod-claim-name": "mine"})
        await node.prepared(claim)
        path = host_file(node)
        inside = path.open()  # as the container's mount has it; an inode's number alone is used again
        better = replace(gpu(0), attributes={"firmware": "2"})
        await node.set_devices(better, gpu(1), gpu(2), gpu(3))

        await until(lambda: read(path)["metadata"]["generation"] == 2, why="the change")

        with inside:
            assert inside.read() == path.read_text()
            assert os.fstat(inside.fileno()).st_nlink == 1
        document = read(path)
        assert document["podClaimName"] == "mine"
        assert document["requests"][0]["devices"][0]["attributes"]["firmware"] == {"string": "2"}
        await node.change(gpu_1=(Presence.FAULTY, "x"))  # nothing about this claim
        assert read(path)["metadata"]["generation"] == 2


async def test_files_that_somebody_removed_come_back_at_a_restart() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-0", annotations={"resource.kubernetes.io/pod-claim-name": "mine"})
        await node.prepared(claim)
        before = {name: (node.root / "cdi" / name).read_bytes() for name in node.cdi_files()}
        await node.stop()
        for name in before:
            (node.root / "cdi" / name).unlink()
        stranger = node.root / "cdi" / f"{DRIVER}_metadata_11111111-2222-4333-8444-555555555555_gpu.json"
        stranger.write_text("{}")
        await node.start()
        assert {name: (node.root / "cdi" / name).read_bytes() for name in node.cdi_files()} == before


async def test_a_file_of_another_agent_version_gets_our_versions_in_place() -> None:
    """An agent is upgraded, or rolled back, under running containers: they hold the file's inode."""
    async with a_node() as node:
        await node.prepared(node.claims.add("cl", "gpu-0"))
        path = host_file(node)
        await node.stop()
        lines = path.read_text().splitlines(keepends=True)
        path.write_text(lines[1])  # v1alpha1 alone, as in Kubernetes 1.36
        inode = path.stat().st_ino
        await node.start()
        assert (read(path)["metadata"]["generation"], path.stat().st_ino) == (2, inode)


@pytest.mark.parametrize(
    ("content", "generation"),
    [
        ("{torn", 1),
        ("", 1),
        ("[]", 1),
        ('{"metadata": {"generation": "7"}}', 1),
        ('{"metadata": {"generation": -3}}', 1),
        ('{"metadata": 5}', 1),
        ('{"metadata": {"generation": 7}}', 8),
    ],
)
async def test_a_file_that_cannot_be_read_is_written_anew(content: str, generation: int) -> None:
    async with a_node() as node:
        await node.prepared(node.claims.add("cl", "gpu-0"))
        await node.stop()
        host_file(node).write_text(content)
        await node.start()
        document = read(host_file(node))
        assert document["metadata"]["generation"] == generation
        assert [device["name"] for device in document["requests"][0]["devices"]] == ["gpu-0"]


async def test_a_claim_of_the_same_name_does_not_inherit_files() -> None:
    async with a_node() as node:
        await node.prepared(node.claims.add("cl", "gpu-0"))
        node.claims.delete("cl")
        second = node.claims.add("cl", "gpu-1")
        await node.prepared(second)
        assert read(host_file(node))["metadata"]["uid"] == second.uid


def ready(node: DraNode, claim: str = "cl") -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = node.claims.get(claim)["status"].get("devices", [])
    return devices


async def test_the_status_of_a_claim_follows_its_devices_and_leaves_other_drivers_alone() -> None:
    async with a_node() as node:
        foreign = {"device": "nic-0", "driver": "other.example.com", "request": "nic", "pool": "p"}
        claim = node.claims.add("cl", "gpu-0", foreign)
        theirs = {"driver": "other.example.com", "pool": "p", "device": "nic-0", "data": {"x": 1}}
        obj = node.claims.get("cl")
        obj["status"]["devices"] = [theirs]
        node.api.objects.update(obj, namespace="default", subresource="status")
        await node.prepared(claim)
        await until(lambda: len(ready(node)) == 2, why="the status")

        entries = {entry["driver"]: entry for entry in ready(node)}
        assert entries["other.example.com"] == theirs
        (condition,) = entries[DRIVER]["conditions"]
        assert (condition["type"], condition["status"], entries[DRIVER]["pool"]) == ("Ready", "True", NODE)
        await node.change(gpu_0=(Presence.FAULTY, "ECC errors"))

        def condition_now() -> tuple[str, str]:
            (now,) = next(e for e in ready(node) if e["driver"] == DRIVER)["conditions"]
            return now["status"], now["message"]

        await until(lambda: condition_now() == ("False", "ECC errors"), why="the fault")
        patches = [r for r in node.api.requests if r.subresource == "status"]
        assert {r.query["fieldManager"] for r in patches} == {DRIVER}
        (ours,) = (m for m in node.claims.get("cl")["metadata"]["managedFields"] if m["manager"] == DRIVER)
        assert "gpu-0" in json.dumps(ours)
        assert "nic-0" not in json.dumps(ours)  # never sent, not even unchanged


async def test_a_status_that_is_refused_is_reported_and_the_claim_works() -> None:
    async with a_node(gates={"DRAResourceClaimDeviceStatus": True}) as node:
        node.api.faults.fail(20, 422, verb="patch", resource="resourceclaims")
        claim = node.claims.add("cl", "gpu-0")
        assert await node.prepared(claim)
        await until(lambda: any(isinstance(one, StatusWritten) and one.error for one in node.facts), why="the fact")


async def test_both_can_be_switched_off() -> None:
    config = CONFIG.replace("kind: AgentConfig", "kind: AgentConfig\ndra: {metadata: false, claimStatus: false}")
    async with a_node(config) as node:
        (device,) = await node.prepared(node.claims.add("cl", "gpu-0"))
        assert len(device.cdi_device_ids) == 1
        assert not (node.state / "dra-device-metadata").exists()
        assert not [r for r in node.api.requests if r.subresource == "status"]
