"""Claim records on disk: what survives, what is set aside, what a newer agent wrote."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from drabridge.dra.concurrency import KeyedLocks
from drabridge.dra.records import RecordStore
from drabridge.errors import HostError
from drabridge.ledger.entries import ClaimShare
from tests.dra.sample_records import RECORD, UID


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "claims")
    assert store.load(UID) is None
    assert store.all() == ()
    store.save(RECORD)
    assert store.load(UID) == RECORD
    assert store.all() == (RECORD,)
    assert store.path(UID).stat().st_mode & 0o777 == 0o600
    store.delete(UID)
    store.delete(UID)
    assert store.load(UID) is None


def test_what_a_newer_agent_wrote_survives_an_older_one(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.save(RECORD)
    document = json.loads(store.path(UID).read_text())
    store.path(UID).write_text(json.dumps({**document, "version": 2, "future": {"x": [1]}}))
    record = store.load(UID)
    assert record is not None
    store.save(record)
    assert json.loads(store.path(UID).read_text())["future"] == {"x": [1]}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "null",
        lambda text: text.replace("PrepareCompleted", "Unknown"),
        lambda text: text.replace('"bootID"', '"other"'),
        lambda text: text.replace('"gpu-0"', "7"),
        lambda text: text.replace(f'"uid": "{UID}"', '"uid": "22222222-2222-4222-8222-222222222222"'),
        lambda text: "[" * 100_000,
        lambda text: text.replace('"createdAt": ', f'"createdAt": {"9" * 400}, "was": '),
    ],
    ids=["empty", "torn", "list", "null", "state", "field", "type", "of-another-claim", "deep", "number"],
)
def test_a_damaged_record_is_put_aside_once_and_never_believed(
    tmp_path: Path, change: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = RecordStore(tmp_path)
    store.save(RECORD)
    text = store.path(UID).read_text()
    assert change(text) != text
    store.path(UID).write_text(change(text))
    assert store.all() == ()
    assert store.load(UID) is None
    (told,) = (vars(record) for record in caplog.records if record.msg == "claim record quarantined")
    assert Path(told["path"]).read_text() == change(text)
    assert f"{UID}.json of a prepared claim is damaged" in told["reason"]


def test_a_record_that_cannot_be_read_hides_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = RecordStore(tmp_path)
    store.save(RECORD)
    store.path("0000").mkdir()  # stands for EIO, which a test cannot cause
    for _ in range(2):
        assert store.all() == (RECORD,)
    assert [record.getMessage() for record in caplog.records] == ["claim record left out"]
    assert store.unlisted(store.all()) == {"0000"}


def test_what_a_crash_left_half_written_goes_or_is_left_alone(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.save(RECORD)
    (tmp_path / ".a.json.tmp").mkdir()  # stands for EIO, which a test cannot cause
    (tmp_path / ".b.json.tmp").write_text("{")
    store.sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.json.tmp", f"{UID}.json"]
    assert store.all() == (RECORD,)
    assert store.unlisted(store.all()) == set()  # it tells of no claim


@pytest.mark.parametrize("uid", ["", "../x", "a/b", ".hidden", "a\0", "x" * 300])
def test_a_uid_that_is_no_file_name_is_refused(tmp_path: Path, uid: str) -> None:
    with pytest.raises(HostError, match="is not a claim UID"):
        RecordStore(tmp_path).load(uid)


def test_a_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot record the claim in"):
        RecordStore(tmp_path / "file" / "claims").save(RECORD)


def test_the_ledger_is_told_of_shares_and_admin_access() -> None:
    uses = [(use.device, use.share, use.admin) for use in RECORD.uses]
    part = ClaimShare("share-2", (("memory", 5),))  # a start counts what it takes
    assert uses == [("gpu-0", ClaimShare("share-1"), False), ("gpu-1", None, True), ("gpu-2", part, False)]


async def test_a_claim_has_one_worker_and_does_not_wait_for_others() -> None:
    locks = KeyedLocks()
    async with locks.lock(UID):
        async with locks.lock("another-claim"):
            pass
        second = asyncio.create_task(locks.lock(UID).acquire())
        await asyncio.sleep(0)
        assert not second.done()
    assert await second
