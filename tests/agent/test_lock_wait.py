"""How a standby waits for the ledger's lock: a thread of its own, which ends with the wait."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from drabridge.agent.standby import _wait_for_lock
from drabridge.ledger.lock import Lock
from tests.support.waiting import until


def waiting() -> bool:
    return any(thread.name == "ledger-lock" for thread in threading.enumerate())


@pytest.mark.parametrize("cancelled", [False, True])
async def test_no_thread_is_left_and_a_lock_that_comes_too_late_is_let_go_of(tmp_path: Path, cancelled: bool) -> None:
    first = Lock(tmp_path)
    task = asyncio.create_task(_wait_for_lock(tmp_path))
    await until(waiting)
    if cancelled:
        task.cancel()
        await asyncio.wait([task])
    first.close()
    if not cancelled:
        (await task).close()
    await until(lambda: not waiting())
    Lock(tmp_path).close()
