"""Writing the status of claims may fail in any way: the driver goes on serving."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from drabridge.dra.claim_objects import ClaimObjects
from drabridge.dra.claim_status import StatusWriter
from drabridge.dra.observer import Fact, StatusWritten
from drabridge.dra.records import ClaimRecords, RecordStore
from drabridge.inventory.devices import Presence, Snapshot
from drabridge.system.io_thread import IoThread
from tests.support.dra_node import DRIVER, DraNode, a_node, gpu
from tests.support.waiting import until


def conditions(node: DraNode, name: str) -> list[tuple[str, str]]:
    """The pairs (device, Ready) of a claim's status."""
    devices = node.claims.get(name)["status"].get("devices", ())
    return [(one["device"], one["conditions"][0]["status"]) for one in devices]


async def test_a_damaged_record_is_reported_and_other_claims_get_their_status() -> None:
    """The writer of statuses is the first to read the record, when a device changes."""
    async with a_node() as node:
        first, second = node.claims.add("first", "gpu-1"), node.claims.add("second", "gpu-2")
        await node.prepared(first)
        await node.prepared(second)
        await until(lambda: conditions(node, "second") == [("gpu-2", "True")], why="the status")
        record = node.state / "claims" / f"{first.uid}.json"
        record.write_text('{"version": 1, "state": "Prep')

        await node.change(gpu_1=(Presence.FAULTY, "too hot"), gpu_2=(Presence.FAULTY, "too hot"))

        await until(lambda: conditions(node, "second") == [("gpu-2", "False")], why="the new status")
        aside = record.parent.glob(f"{record.name}.corrupt-*")
        assert [path.read_text() for path in aside] == ['{"version": 1, "state": "Prep']
        assert await node.unprepare(first, second) == {first.uid: "", second.uid: ""}


async def test_a_record_that_cannot_be_read_ends_neither_the_writer_nor_the_driver(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1")
        await node.prepared(claim)
        await until(lambda: conditions(node, "cl") == [("gpu-1", "True")], why="the status")
        record = node.state / "claims" / f"{claim.uid}.json"
        text = record.read_bytes()
        record.unlink()
        record.mkdir()

        await node.change(gpu_1=(Presence.FAULTY, "too hot"))
        await until(lambda: "claim record left out" in caplog.text, why="the warning")

        record.rmdir()
        record.write_bytes(text)
        await node.change(gpu_1=(Presence.PRESENT, ""))
        await until(lambda: conditions(node, "cl") == [("gpu-1", "True")], why="the status")
        assert await node.unprepare(claim) == {claim.uid: ""}


async def test_a_writer_that_meets_a_damaged_record_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The record is damaged between the claim's preparation and the write of its status."""
    caplog.set_level(logging.WARNING)
    records = ClaimRecords(RecordStore(tmp_path), IoThread("records"), "boot")
    told: list[Fact] = []
    writer = StatusWriter(ClaimObjects(None), records, DRIVER, told.append)  # type: ignore[arg-type]
    task = asyncio.create_task(writer.run())
    for uid, damage in (("a", tmp_path.joinpath("a.json").mkdir), ("b", lambda: (tmp_path / "b.json").write_text("{"))):
        damage()
        writer.claim_prepared(uid)
        await asyncio.sleep(0.01)
    await until(lambda: len(caplog.records) == len(told) == 1)
    assert not task.done()
    assert caplog.records[0].message == "claim record quarantined"
    assert isinstance(told[0], StatusWritten)
    assert told[0].error
    writer.inventory_changed(Snapshot(1, (gpu(1),)))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_defect_in_the_status_writer_leaves_the_driver_serving(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(writer: StatusWriter, uid: str) -> None:
        raise ZeroDivisionError(uid)

    monkeypatch.setattr(StatusWriter, "_write", broken)
    async with a_node() as node:
        await node.prepared(node.claims.add("first", "gpu-1"))
        await until(lambda: "task failed, starting it again" in caplog.text, why="the defect")
        second = node.claims.add("second", "gpu-2")
        await node.prepared(second)
        assert await node.unprepare(second) == {second.uid: ""}


async def test_a_new_claim_is_read_once_and_its_status_written_once() -> None:
    async with a_node() as node:
        first = len(node.api.requests)
        claim = node.claims.add("cl", "gpu-1")
        await node.prepared(claim)
        await until(lambda: conditions(node, "cl") == [("gpu-1", "True")], why="the status")
        asked = [request.verb for request in node.api.requests[first:] if request.resource == "resourceclaims"]
        assert asked == ["get", "patch"]


async def test_a_later_claim_of_the_same_name_gets_no_status() -> None:
    async with a_node() as node:
        claim = node.claims.add("cl", "gpu-1")
        await node.prepared(claim)
        await until(lambda: conditions(node, "cl") == [("gpu-1", "True")], why="the status")
        node.claims.delete("cl")
        node.claims.add("cl", "gpu-2")
        first = len(node.api.requests)

        node.driver._status.claim_prepared(claim.uid)

        def asked() -> list[str]:
            return [one.verb for one in node.api.requests[first:] if one.resource == "resourceclaims"]

        await until(lambda: asked() == ["patch", "get"], why="the refusal, and the look at why")
        assert conditions(node, "cl") == []
        assert not any(isinstance(one, StatusWritten) and one.error for one in node.facts)
        assert await node.unprepare(claim) == {claim.uid: ""}
