"""Claim records and a power cut: which records may come back, and when kubelet is answered."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from drabridge.dra.observer import Fact, Requested
from drabridge.dra.records import RecordState, RecordStore
from drabridge.ledger.store import Store
from tests.dra.sample_records import RECORD, UID
from tests.support.disk import Disk
from tests.support.dra_node import a_node


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def test_a_record_is_complete_before_its_call_is_answered(tmp_path: Path, disk: Disk) -> None:
    RecordStore(tmp_path).save(RECORD)
    assert disk.undone == [f"rename to {UID}.json"]  # then the ledger says who holds what, and kubelet asks again
    assert not disk.torn


def test_beginning_a_record_does_not_wait_for_the_disk(tmp_path: Path, disk: Disk) -> None:
    RecordStore(tmp_path).save(replace(RECORD, state=RecordState.STARTED))
    assert not disk.synced


def test_a_record_that_was_removed_stays_removed(tmp_path: Path, disk: Disk) -> None:
    store = RecordStore(tmp_path)
    store.save(RECORD)
    store.delete(UID)
    assert not disk.undone


def test_a_damaged_record_that_was_put_aside_does_not_come_back(tmp_path: Path, disk: Disk) -> None:
    store = RecordStore(tmp_path)
    store.path(UID).write_text("{")
    assert store.load(UID) is None
    assert not disk.undone


class Facts(list[Fact]):
    """Notes what a power cut might undo at the moment of an answer; when it has arrived more may have been written."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.undone: dict[str, list[str]] = {}

    def append(self, fact: Fact) -> None:
        super().append(fact)
        if isinstance(fact, Requested):
            self.undone[fact.method] = self._disk.undone


async def test_kubelet_is_answered_only_when_the_ledger_is_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_node(start=False) as node:
        disk = Disk(node.state, monkeypatch)
        defaults = {**(Store.__init__.__kwdefaults__ or {}), "fsync": os.fsync}  # else the one of its definition
        monkeypatch.setattr(Store.__init__, "__kwdefaults__", defaults)
        facts = node.facts = Facts(disk)
        await node.start()
        claim = node.claims.add("cl1", "gpu-1")
        before = disk.synced
        await node.prepared(claim)
        assert facts.undone["NodePrepareResources"] == [f"rename to claims/{claim.uid}.json"]
        assert disk.synced > before + 1  # the ledger and the record
        assert await node.unprepare(claim) == {claim.uid: ""}
        link = "removal of dra-device-metadata/default_cl1"  # of a claim that is not known any more: a start removes it
        assert facts.undone["NodeUnprepareResources"] == [link]
