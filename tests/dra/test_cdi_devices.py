"""Claims whose devices enter by CDI files of other programs: what kubelet is told, and told again."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from drabridge.dra import prepare
from drabridge.inventory import cdi_index
from drabridge.inventory.cdi_index import CdiIndex
from drabridge.inventory.devices import DeviceNode, Fallback
from drabridge.ledger.entries import Owner
from tests.support.cdi_files import KIND, write_spec
from tests.support.dra_node import DRIVER, DraNode, a_node, gpu, text_of

THEIRS = f"{KIND}=GPU-0"
FALLBACK = Fallback((DeviceNode("/dev/null", "/dev/null", "rw", "c", 1, 3),), {"THEIRS": "0"})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi_index, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(prepare, "RETURN_SECONDS", 0.5)


@contextlib.asynccontextmanager
async def node_with(**changes: Any) -> AsyncIterator[tuple[DraNode, Any]]:
    """A node with one GPU and its vendor's file, and what restarts the node's agent."""
    async with a_node(devices=(gpu(0, **changes),), start=False) as node:
        (node.root / "cdi").mkdir()
        write_spec(node.root / "cdi/nvidia.yaml", "GPU-0")

        async def start() -> None:
            await node.stop()
            index = CdiIndex((node.root / "cdi",), DRIVER, lambda: None)
            await index.use(frozenset({KIND}))
            await node.start(confirm_cdi=index.confirm)

        await start()
        yield node, start


def ours(uid: str) -> str:
    return f"{DRIVER}/device=claim-{uid}-gpu-gpu-0"


async def test_kubelet_is_told_theirs_then_ours_and_the_same_after_a_restart() -> None:
    async with node_with(cdi_devices=(THEIRS,)) as (node, start):
        claim = node.claims.add("c", "gpu-0")
        (device,) = await node.prepared(claim)
        names = list(device.cdi_device_ids)
        assert names[:2] == [THEIRS, ours(claim.uid)]
        (record,) = [json.loads((node.state / "claims" / name).read_text()) for name in node.records()]
        assert record["version"] == 1
        assert record["devices"][0]["cdiDeviceIDs"] == names
        await start()
        (device,) = await node.prepared(claim)
        assert list(device.cdi_device_ids) == names
        assert THEIRS not in text_of(node, claim)  # theirs is in their file
        assert await node.unprepare(claim) == {claim.uid: ""}
        assert node.cdi_files() == ["nvidia.yaml"]


async def test_with_nothing_of_our_own_theirs_is_all() -> None:
    async with node_with(cdi_devices=(THEIRS,), nodes=(), env={}) as (node, start):
        claim = node.claims.add("c", "gpu-0")
        (device,) = await node.prepared(claim)
        assert list(device.cdi_device_ids) == [THEIRS, f"{DRIVER}/metadata={claim.uid}_gpu"]
        await start()
        assert node.owner("gpu-0") is Owner.DRA_PREPARED
        (device,) = await node.prepared(claim)
        assert device.cdi_device_ids[0] == THEIRS


async def test_a_claim_waits_for_a_file_that_comes_back_and_fails_in_words_for_one_that_does_not() -> None:
    async with node_with(cdi_devices=(THEIRS,)) as (node, _):
        path = node.root / "cdi/nvidia.yaml"
        claim = node.claims.add("c", "gpu-0")
        path.unlink()
        said = await node.refused(claim)
        assert f"CDI device {THEIRS} is in no file of {path.parent}" in said
        assert "nvidia-ctk cdi generate" in said
        assert node.owner("gpu-0") is Owner.NONE
        assert node.records() == []
        asyncio.get_running_loop().call_later(0.1, write_spec, path, "GPU-0")
        (device,) = await node.prepared(claim)
        assert device.cdi_device_ids[0] == THEIRS
        path.unlink()  # a second pod with the claim must not start with half of it
        assert f"CDI device {THEIRS} is in no file" in await node.refused(claim)
        assert node.owner("gpu-0") is Owner.DRA_PREPARED
        write_spec(path, "GPU-0")
        assert list((await node.prepared(claim))[0].cdi_device_ids) == list(device.cdi_device_ids)


async def test_a_claim_keeps_the_fallback_that_it_was_given() -> None:
    missing = {"fallback": FALLBACK, "cdi_missing": "it is in no file"}
    async with node_with(**missing) as (node, start):
        claim = node.claims.add("c", "gpu-0")
        (device,) = await node.prepared(claim)
        names = list(device.cdi_device_ids)
        assert names[:2] == [f"{ours(claim.uid)}.fallback", ours(claim.uid)]
        await node.set_devices(gpu(0, cdi_devices=(THEIRS,), fallback=FALLBACK))  # the file came
        await start()
        (device,) = await node.prepared(claim)
        assert list(device.cdi_device_ids) == names
        entries = {entry["name"] for entry in json.loads(text_of(node, claim))["devices"]}
        assert {f"{DRIVER}/device={name}" for name in entries} == set(names[:2])
        other = node.cdi.claims()[claim.uid]
        assert [(one.text, one.admin) for one in other] == [("gpu-gpu-0", False)]  # one device, by either name


async def test_a_record_of_an_agent_before_this_is_answered_as_it_was() -> None:
    async with node_with() as (node, start):
        claim = node.claims.add("c", "gpu-0")
        (device,) = await node.prepared(claim)
        await node.set_devices(gpu(0, cdi_devices=(THEIRS,)))
        await start()
        (again,) = await node.prepared(claim)
        assert list(again.cdi_device_ids) == list(device.cdi_device_ids)
        assert THEIRS not in again.cdi_device_ids
