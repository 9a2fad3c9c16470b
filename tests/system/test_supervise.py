"""Tasks that are started again, and wake-ups that are not lost."""

from __future__ import annotations

import asyncio

import pytest

from drabridge.system import supervise


async def test_a_task_that_fails_or_ends_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "FIRST_SECONDS", 0.001)
    runs: list[int] = []

    async def work() -> None:
        runs.append(1)
        if len(runs) % 2:
            raise ValueError("broken")

    task = asyncio.create_task(supervise.forever("t", work))
    while len(runs) < 4:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_signal_is_not_lost_while_nobody_waits() -> None:
    signal = supervise.WakeUp()
    signal.set()
    assert await signal.wait(1)
    assert not await signal.wait(0.01)
