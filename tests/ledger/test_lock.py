"""The lock of the ledger's directory: its holder is named, and it can be taken many times."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from drabridge.errors import HostError
from drabridge.ledger.lock import LedgerLockedError, Lock


def _opened(directory: Path) -> int:
    """How many files of this directory the process has open, removed ones too."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith(f"{directory}/")
        except FileNotFoundError:  # of the listing itself
            continue
    return found


def test_a_shorter_pid_overwrites_a_longer_one(tmp_path: Path) -> None:
    (tmp_path / "ledger.lock").write_text("4194303999\n")
    lock = Lock(tmp_path)
    assert (tmp_path / "ledger.lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(LedgerLockedError, match=rf"another agent \(pid {os.getpid()}\) has the ledger"):
        Lock(tmp_path)
    lock.close()


def test_a_lock_whose_file_is_removed_is_taken_anew_and_not_kept_twice(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    for _ in range(3):
        (tmp_path / "ledger.lock").unlink()
        lock.renew()
        assert _opened(tmp_path) == 1
        with pytest.raises(LedgerLockedError):
            Lock(tmp_path)
    lock.close()
    assert _opened(tmp_path) == 0


def test_a_closed_lock_is_not_taken_again_by_renewing_it(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    lock.close()
    with pytest.raises(HostError, match="was closed by this process"):
        lock.renew()
    again = Lock(tmp_path)
    assert again.ran_before
    again.close()


def test_who_waits_for_an_agent_that_removes_all_it_knew_begins_anew(tmp_path: Path) -> None:
    """``drain --clean`` removes the lock's file last; a successor that comes then must not miss a ledger."""
    ending, had = Lock(tmp_path), list[Lock]()
    waiting = threading.Thread(target=lambda: had.append(Lock(tmp_path, wait=True)))
    waiting.start()
    while _opened(tmp_path) < 2:
        time.sleep(0.01)
    (tmp_path / "ledger.lock").unlink()
    ending.close()
    waiting.join()
    assert not had[0].ran_before
    had[0].close()
    next_one = Lock(tmp_path)
    assert next_one.ran_before
    next_one.close()


def test_an_agent_that_lost_the_lock_never_has_it_again(tmp_path: Path) -> None:
    """Another agent owns the ledger on disk by then; what this process knows is out of date."""
    lock = Lock(tmp_path)
    (tmp_path / "ledger.lock").unlink()
    other = Lock(tmp_path)
    with pytest.raises(LedgerLockedError):
        lock.renew()
    other.close()
    with pytest.raises(LedgerLockedError):
        lock.renew()
    lock.close()
    assert _opened(tmp_path) == 0


def test_a_lock_file_removed_by_its_holder_is_not_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that cleans up removes the directory's files between our open and our flock."""
    ending = Lock(tmp_path)
    flock = fcntl.flock

    def at_the_end_of_the_other(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        (tmp_path / "ledger.lock").unlink()
        ending.close()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", at_the_end_of_the_other)
    lock = Lock(tmp_path)
    with pytest.raises(LedgerLockedError):
        Lock(tmp_path)
    lock.close()
