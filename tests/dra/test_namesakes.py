"""Two claims of one name: the old one is deleted and not unprepared yet, the new one is prepared. Nothing of one is the
other's: metadata, CDI files, records; also after a restart, in whatever order they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drabridge.inventory.devices import Presence
from drabridge.ledger.entries import Owner
from drabridge.wire import dra_v1_pb2
from tests.support.dra_node import DraNode, a_node
from tests.support.waiting import until


def metadata(node: DraNode, claim: dra_v1_pb2.Claim) -> tuple[str, list[str], int]:
    """The UID and the devices that the claim's container reads, and the inode that it has."""
    spec = json.loads(next((node.root / "cdi").glob(f"*_metadata_{claim.uid}_gpu.json")).read_text())
    path = Path(spec["devices"][0]["containerEdits"]["mounts"][0]["hostPath"])
    document: dict[str, Any] = json.JSONDecoder().raw_decode(path.read_text())[0]
    devices = [device["name"] for request in document["requests"] for device in request["devices"]]
    return document["metadata"]["uid"], devices, path.stat().st_ino


def by_name(node: DraNode) -> str:
    """The UID in the file where the Go library has it: other programs on the node look there."""
    text = (node.state / "dra-device-metadata/default_job/gpu/metadata.json").read_text()
    return str(json.JSONDecoder().raw_decode(text)[0]["metadata"]["uid"])


async def two_of_one_name(node: DraNode) -> tuple[dra_v1_pb2.Claim, dra_v1_pb2.Claim]:
    old = node.claims.add("job", "gpu-0")
    await node.prepared(old)
    node.claims.delete("job")
    new = node.claims.add("job", "gpu-1")
    await node.prepared(new)
    return old, new


async def test_each_keeps_its_own_over_restarts_changes_and_a_boot() -> None:
    for _ in range(3):  # the records are read in the order of the UIDs, which are random
        async with a_node() as node:
            old, new = await two_of_one_name(node)
            before = metadata(node, old), metadata(node, new)
            assert [found[:2] for found in before] == [(old.uid, ["gpu-0"]), (new.uid, ["gpu-1"])]
            await node.restart()
            assert (metadata(node, old), metadata(node, new)) == before
            assert by_name(node) == new.uid
            await node.change(gpu_0=(Presence.FAULTY, "xid"))
            await node.change(gpu_0=(Presence.PRESENT, ""))
            assert (metadata(node, old), metadata(node, new)) == before
            await node.reboot()
            await node.prepared(new)
            assert metadata(node, new)[:2] == (new.uid, ["gpu-1"])


async def test_the_late_unprepare_of_the_old_one_takes_its_own_away() -> None:
    async with a_node() as node:
        old, new = await two_of_one_name(node)
        before = metadata(node, new)
        assert await node.unprepare(old) == {old.uid: ""}
        assert metadata(node, new) == before
        assert all(old.uid not in name for name in (*node.cdi_files(), *node.records()))
        assert sorted(path.name for path in (node.state / "dra-device-metadata").iterdir()) == sorted(
            (new.uid, "default_job")
        )
        assert by_name(node) == new.uid
        assert node.owner("gpu-1") is Owner.DRA_PREPARED
        await until(lambda: node.owner("gpu-0") is Owner.NONE, why="the old one's device")


async def test_files_of_an_agent_that_named_them_after_the_claim_are_taken_over() -> None:
    """A container has the file itself, by its inode: it must be the one that is written."""
    async with a_node() as node:
        claim = node.claims.add("job", "gpu-0")
        await node.prepared(claim)
        root = node.state / "dra-device-metadata"
        before = metadata(node, claim)
        await node.stop()
        (root / "default_job").unlink()
        (root / claim.uid).rename(root / "default_job")
        (root / "default_gone/gpu").mkdir(parents=True)
        (root / "default_gone/gpu/metadata.json").write_text('{"metadata": {"uid": "another"}}')
        await node.start()
        assert metadata(node, claim) == before
        assert {path.name: path.is_symlink() for path in root.iterdir()} == {claim.uid: False, "default_job": True}
