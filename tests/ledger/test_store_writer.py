"""The writer of the ledger's file: failing disk, removed file, another agent, and rewriting to keep it small."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from drabridge.errors import HostError
from drabridge.ledger.apply_event import step
from drabridge.ledger.entries import Lane, Owner
from drabridge.ledger.events import SetLane
from drabridge.ledger.lock import LedgerLockedError
from drabridge.ledger.store import FILE, Loaded, Store
from tests.ledger.saved_ledger import POLICY, allocate, kept, ledger_of, load, owners
from tests.support.waiting import HANG_SECONDS


def test_the_second_agent_is_told_which_process_holds_the_lock(directory: Path) -> None:
    store = Store(directory, node="n")
    script = (
        "import sys; from pathlib import Path; from drabridge.ledger.store import Store\n"
        "from drabridge.errors import HostError\n"
        "try: Store(Path(sys.argv[1]), node='n')\n"
        "except HostError as error: print(error)"
    )
    said = subprocess.run(
        [sys.executable, "-c", script, str(directory)],
        capture_output=True,
        text=True,
        timeout=5 * HANG_SECONDS,
        check=True,
    ).stdout
    assert f"another agent (pid {os.getpid()}) has the ledger in {directory}" in said
    assert "stop that one first" in said
    store.close()
    Store(directory, node="n").close()


def test_a_directory_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot be used"):
        Store(tmp_path / "file" / "state", node="n")


def test_the_journal_is_rewritten_before_it_grows_too_large(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drabridge.ledger.store._COMPACT_BYTES", 2000)
    store = Store(directory, node="n")
    ledger = ledger_of()
    store.rewrite(ledger)
    sizes = []
    for at in range(40):
        ledger = allocate(ledger, 0, float(at))
        store.append(ledger, ["gpu-0"])
        sizes.append(store.path.stat().st_size)
    store.close()
    assert max(sizes) < 5000
    assert dict(load(directory, "n").ledger.entries) == kept(ledger)
    assert (directory / f"{FILE}.previous").exists()
    assert not (directory / f"{FILE}.new").exists()


def test_after_a_failed_fsync_the_file_is_written_anew(directory: Path) -> None:
    failing = [False]

    def fsync(fd: int) -> None:
        if failing[0]:
            raise OSError(5, "Input/output error")

    store = Store(directory, node="n", fsync=fsync)
    first = ledger_of()
    store.rewrite(first)
    held = allocate(first, 0)
    failing[0] = True
    for _ in range(2):
        with pytest.raises(HostError, match="Input/output error"):
            store.append(held, ["gpu-0"])
    failing[0] = False
    other = allocate(first, 2)
    store.append(other, ["gpu-2"])
    store.close()
    assert owners(load(directory, "n").ledger) == ["gpu-0:none", "gpu-1:none", "gpu-2:legacy", "gpu-3:none"]


def _unlink(path: Path) -> None:
    path.unlink()


def _unlink_with_lock(path: Path) -> None:
    path.unlink()
    path.with_name("ledger.lock").unlink()


def _remove_the_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


def _replace_by_a_backup(path: Path) -> None:
    backup = path.with_name("backup")
    shutil.copy(path, backup)
    backup.replace(path)


@pytest.mark.parametrize("remove", [_unlink, _unlink_with_lock, _remove_the_directory, _replace_by_a_backup])
def test_a_file_that_was_removed_while_it_was_open_is_written_anew(
    directory: Path, remove: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(directory, node="node-a")
    ledger = ledger_of()
    store.rewrite(ledger)
    ledger = allocate(ledger, 0)
    store.append(ledger, ["gpu-0"])
    remove(store.path)
    ledger = allocate(ledger, 2)
    store.append(ledger, ["gpu-2"])
    assert "written anew" in caplog.text
    caplog.clear()
    ledger = step(ledger, SetLane("gpu-1", Lane.LEGACY, 5.0), POLICY).applied_to(ledger)
    store.append(ledger, ["gpu-1"])
    assert not caplog.records  # once, and not with every commit from then on
    with pytest.raises(LedgerLockedError):  # the lock is the one that another agent would meet
        Store(directory, node="node-a")
    store.close()
    loaded = Store(directory, node="node-a").load()
    assert loaded.kind is Loaded.COMPLETE
    owners = {name: entry.owner for name, entry in loaded.ledger.entries.items()}
    assert owners == {"gpu-0": Owner.LEGACY, "gpu-1": Owner.NONE, "gpu-2": Owner.LEGACY, "gpu-3": Owner.NONE}
    assert loaded.ledger.entries["gpu-1"].lane is Lane.DRA_TO_LEGACY


def test_where_another_agent_took_over_a_removed_directory_nothing_more_is_granted(directory: Path) -> None:
    store = Store(directory, node="node-a")
    store.rewrite(ledger_of())
    shutil.rmtree(directory)
    other = Store(directory, node="node-a")
    other.rewrite(ledger_of())
    other.append(allocate(ledger_of(), 2), ["gpu-2"])
    before = other.path.read_bytes()
    for _ in range(2):
        with pytest.raises(LedgerLockedError):
            store.append(allocate(ledger_of(), 0), ["gpu-0"])
    other.close()
    with pytest.raises(LedgerLockedError):  # it has gone, and gpu-2 is held: this one knows nothing of that
        store.append(allocate(ledger_of(), 0), ["gpu-0"])
    assert other.path.read_bytes() == before
    store.close()
