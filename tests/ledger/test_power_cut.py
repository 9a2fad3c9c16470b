"""The ledger after a power cut: every answered change is kept, and no file is half written."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from drabridge.ledger.entries import Entry, Ledger, LedgerDevice, NodeState, Owner
from drabridge.ledger.events import AgentStarted, Allocate, Discovered
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.service import LedgerService
from drabridge.ledger.store import FILE, Store
from drabridge.system.files import Care, sync_directory, write_atomically
from tests.support.disk import Disk

DEVICES = tuple(LedgerDevice(f"gpu-{n}", "r", (f"GPU-{n}",)) for n in range(4))
LEDGER = Ledger.of(map(Entry, DEVICES), NodeState("boot", merged=True))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def store(directory: Path) -> Store:
    return Store(directory, node="n", fsync=os.fsync)  # as it is now: not the one that the class was defined with


def test_every_commit_is_on_the_disk_on_return(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drabridge.ledger.store._COMPACT_BYTES", 600)
    ledger = store(tmp_path)
    ledger.rewrite(LEDGER)
    assert not disk.undone
    rewritten = 0
    for n in range(8):
        before, file = disk.synced, ledger.path.stat().st_ino
        ledger.append(LEDGER, [f"gpu-{n % 4}"])
        assert not disk.undone
        assert disk.synced > before
        rewritten += ledger.path.stat().st_ino != file
    assert 0 < rewritten < 8  # both ways of writing were looked at
    assert not disk.torn
    ledger.close()


def test_a_complete_file_exists_at_every_moment_while_it_is_replaced(tmp_path: Path, disk: Disk) -> None:
    """At each sync, the file and its older copy can be read, whatever else a power cut loses."""
    ledger = store(tmp_path)
    ledger.rewrite(LEDGER)
    seen: list[list[str]] = []
    disk.before_sync = lambda: seen.append(disk.undone)
    ledger.rewrite(LEDGER)
    assert seen == [[f"content of {FILE}.new"], [f"rename to {FILE}", f"rename to {FILE}.previous"]]
    ledger.close()


async def test_nobody_is_told_of_a_change_before_it_is_on_the_disk(tmp_path: Path) -> None:
    """The first change is written alone at once, the others of a burst together by the worker."""
    (path := tmp_path / "state").mkdir()
    (copy := tmp_path / "copy").mkdir()
    safe = [b""]

    def fsync(fd: int) -> None:
        content = (path / FILE).read_bytes() if (path / FILE).exists() else b""
        os.fsync(fd)
        safe[:] = [content]

    ledger_service = LedgerService(Store(path, node="n", fsync=fsync), LedgerPolicy(), now=lambda: 100.0)
    await ledger_service.apply(Discovered(DEVICES, 0.0))
    await ledger_service.apply(AgentStarted(0.0))

    async def ask(n: int) -> None:
        assert (await ledger_service.apply(Allocate({f"gpu-{n}": (f"GPU-{n}",)}, 1.0))).accepted
        (copy / FILE).write_bytes(safe[0])
        after_power_cut = Store(copy, node="n")
        assert after_power_cut.load().ledger.entries[f"gpu-{n}"].owner is Owner.LEGACY
        after_power_cut.close()

    await asyncio.gather(*map(ask, range(4)))
    await ledger_service.close()


@pytest.mark.parametrize(
    ("care", "torn", "undone"),
    [
        (Care.PROCESS, ["file"], ["content of file", "rename to file"]),
        (Care.WHOLE, [], ["rename to file"]),
        (Care.DURABLE, [], []),
    ],
)
def test_a_small_file_survives_a_power_cut_as_its_level_promises(
    tmp_path: Path, disk: Disk, care: Care, torn: list[str], undone: list[str]
) -> None:
    write_atomically(tmp_path / "file", b"data", care=care)
    assert (tmp_path / "file").read_bytes() == b"data"
    assert (disk.torn, disk.undone) == (torn, undone)


def test_a_write_that_names_no_level_is_fully_durable(tmp_path: Path, disk: Disk) -> None:
    write_atomically(tmp_path / "file", b"data")
    assert disk.undone == disk.torn == []
    (tmp_path / "file").unlink()
    assert disk.undone == ["removal of file"]
    sync_directory(tmp_path)
    assert not disk.undone
