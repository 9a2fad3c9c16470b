"""Wait in tests: for a condition, with limits that a busy machine keeps.

Limits in the tests are chosen for a machine of one's own. On one that others share everything takes several times as
long, and now and then it stands still for seconds; a limit is there to end a test that hangs, not to measure. So every
helper that waits multiplies its limit. What is measured is in tests/bench.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PATIENCE = 12

HANG_SECONDS = 5.0 * PATIENCE
"""What ends a test that hangs, where nothing else says how long it may take."""


async def until(
    condition: Callable[[], Any], seconds: float = 5.0, why: str | Callable[[], object] = "it never came true"
) -> Any:
    """Wait for a condition, plain or async, and return its value; fail with ``why`` after ``seconds`` times PATIENCE.

    It is looked at after 5 ms, then less and less often, at last every 100 ms: to look costs, most of all where another
    process is asked.
    """
    deadline, pause = time.monotonic() + seconds * PATIENCE, 0.005
    while True:
        result = condition()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result
        waited = f"waited {seconds * PATIENCE:g} s"
        assert time.monotonic() < deadline, f"{waited} for {why}" if isinstance(why, str) else f"{waited}: {why()}"
        await asyncio.sleep(pause)
        pause = min(1.3 * pause, 0.1)


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    """A new directory whose path is short: those of unix sockets stay below 108 bytes. It is removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="dra", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
