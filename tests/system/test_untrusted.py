"""Unreadable objects are reported correctly from several threads at once."""

from __future__ import annotations

import logging
import sys
import threading

import pytest

from drabridge.system import untrusted
from drabridge.system.untrusted import Unreadable

ROUNDS = 20_000


def test_reports_from_several_threads_are_all_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        _tell_at_once()
    finally:
        sys.setswitchinterval(interval)


def _tell_at_once() -> None:
    kind = "of two threads"
    every = Unreadable(kind)

    def tell(thread: int) -> None:
        for n in range(ROUNDS):
            every.tell(f"{thread}-{n}", ValueError("odd"))

    threads = [threading.Thread(target=tell, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        every.keep(())
        untrusted.unreadable()
    assert untrusted.unreadable()[kind] == 2 * ROUNDS
