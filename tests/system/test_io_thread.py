"""The thread for slow file operations: jobs run in order, none is lost, and none keeps the process alive."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from drabridge.system.io_thread import IoThread, Job


async def test_calls_run_in_order_in_one_thread_that_is_not_the_loops() -> None:
    worker = IoThread("test")
    seen: list[tuple[int, str]] = []
    for number in range(5):
        worker.submit(lambda number=number: seen.append((number, threading.current_thread().name)))  # type: ignore[misc]
    await worker.wait_all()
    assert seen == [(number, "test") for number in range(5)]
    worker.stop()


async def test_results_and_errors_come_back() -> None:
    worker = IoThread("test")
    assert await worker.run(lambda: 3) == 3
    with pytest.raises(ValueError, match="lost"):
        await worker.run(lambda: int("lost"))
    worker.stop()


async def test_a_job_can_be_waited_for_with_a_limit() -> None:
    worker, gate = IoThread("test"), threading.Event()
    job = worker.submit(lambda: gate.wait(60))
    started = time.monotonic()
    assert not job.over(0.02)
    assert time.monotonic() - started < 30
    assert not job.over()
    gate.set()
    assert job.over(60)
    assert job.over(), "it stays over"
    assert job.result() is True
    worker.stop()


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), MemoryError()])
async def test_a_call_that_ends_by_any_exception_is_not_done_and_the_next_one_runs(error: BaseException) -> None:
    worker = IoThread("test")

    def fail() -> None:
        raise error

    job = worker.submit(fail)
    assert job.over(60)
    assert job.error is error
    assert await worker.run(lambda: "next") == "next"
    worker.stop()


async def test_a_caller_who_is_cancelled_stops_nothing() -> None:
    worker, gate, done = IoThread("test"), threading.Event(), threading.Event()

    def call() -> None:
        gate.wait(60)
        done.set()

    task = asyncio.create_task(worker.run(call))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    await worker.wait_all()
    assert done.is_set()
    worker.stop()


async def test_a_stopped_thread_finishes_its_jobs_and_takes_no_more() -> None:
    worker, gate = IoThread("test"), threading.Event()
    job = worker.submit(lambda: gate.wait(60))
    worker.stop()
    with pytest.raises(RuntimeError, match="test was stopped"):
        worker.submit(lambda: None)
    with pytest.raises(RuntimeError, match="test was stopped"):
        await worker.wait_all()
    gate.set()
    assert job.over(60)


def test_a_job_can_be_over_before_it_began() -> None:
    job: Job[None] = Job.failed(ValueError("no"))
    assert job.over()
    with pytest.raises(ValueError, match="no"):
        job.result()


def test_a_call_that_hangs_does_not_keep_the_process_from_ending() -> None:
    program = (
        "import threading, time; from drabridge.system.io_thread import IoThread; "
        "worker = IoThread('hangs'); job = worker.submit(lambda: threading.Event().wait(60)); "
        "worker.stop(); print(job.over(0.05))"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "False", "")
    assert time.monotonic() - started < 20
