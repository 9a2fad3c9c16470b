"""The lock beside the ledger: who has it is said in words, and it can be had again and again."""

from __future__ import annotations

import os
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


def test_the_pid_of_a_longer_number_leaves_nothing_behind(tmp_path: Path) -> None:
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


def test_who_gave_it_back_does_not_take_it_by_the_way(tmp_path: Path) -> None:
    lock = Lock(tmp_path)
    lock.close()
    with pytest.raises(HostError, match="was closed by this process"):
        lock.renew()
    again = Lock(tmp_path)
    assert again.ran_before
    again.close()
