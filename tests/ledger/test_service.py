"""The keeper: answers wait for the disk, bursts share it, and a disk that fails grants nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from drabridge.ledger import (
    Allocate,
    Allocation,
    Booted,
    Checkpoint,
    ClaimRef,
    Decision,
    Discovered,
    Effect,
    Facts,
    KubeletStarted,
    Lane,
    Ledger,
    Observed,
    Owner,
    PodRef,
    Policy,
    Prepare,
    RefusalCode,
    Restarted,
    Unprepare,
    Use,
)
from drabridge.ledger.service import Keeper
from drabridge.ledger.store import Loaded, Store, recorded
from tests.support.waiting import PATIENCE

DEVICES = tuple(Facts(f"gpu-{n}", "r", (f"GPU-{n}",)) for n in range(4))
LANES = {"gpu-2": Lane.DRA, "gpu-3": Lane.DRA}


class Disk:
    """Counts what is synced, and can fail or wait."""

    def __init__(self) -> None:
        self.syncs = 0
        self.seconds = 0.0
        self.error: OSError | None = None
        self.gate = threading.Event()
        self.gate.set()

    def fsync(self, fd: int) -> None:
        assert self.gate.wait(60)
        time.sleep(self.seconds)
        self.syncs += 1
        if self.error:
            raise self.error
        os.fsync(fd)


@pytest.fixture
def disk() -> Disk:
    return Disk()


async def start(directory: Path, disk: Disk) -> Keeper:
    keeper = Keeper(Store(directory, node="n", fsync=disk.fsync), Policy(), now=lambda: 100.0)
    await keeper.apply(Booted("boot", 0.0))
    await keeper.apply(Discovered(DEVICES, 0.0, LANES))
    await keeper.apply(Restarted(0.0))
    return keeper


@pytest.fixture
async def keeper(tmp_path: Path, disk: Disk) -> AsyncIterator[Keeper]:
    keeper = await start(tmp_path, disk)
    yield keeper
    disk.gate.set()
    disk.error = None
    await keeper.close()


def allocate(n: int, at: float = 1.0) -> Allocate:
    return Allocate({f"gpu-{n}": (f"GPU-{n}",)}, at)


def prepare(n: int, uid: str = "u") -> Prepare:
    return Prepare(ClaimRef(uid, "ns", "claim"), (Use(f"gpu-{n}"),), 1.0)


def owner(keeper: Keeper, name: str) -> Owner:
    return keeper.ledger.entries[name].owner


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10 * PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


async def test_the_answer_waits_for_the_disk(keeper: Keeper, disk: Disk) -> None:
    disk.gate.clear()
    answer = asyncio.create_task(keeper.apply(allocate(0)))
    await asyncio.sleep(0.05)
    assert not answer.done()
    assert owner(keeper, "gpu-0") is Owner.NONE  # offers see what is on disk
    disk.gate.set()
    assert (await answer).accepted
    assert owner(keeper, "gpu-0") is Owner.LEGACY


async def test_a_burst_shares_its_fsyncs(keeper: Keeper, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drabridge.ledger.service.BURST_SECONDS", 3600)  # however slow the machine is
    before = disk.syncs
    answers = await asyncio.gather(
        *(keeper.apply(event) for event in (allocate(0), allocate(1), prepare(2), prepare(3, "v")))
    )
    assert all(answer.accepted for answer in answers)
    assert disk.syncs - before == 1


async def test_a_repeated_prepare_waits_for_the_first(keeper: Keeper, disk: Disk) -> None:
    disk.gate.clear()
    first, second = (asyncio.create_task(keeper.apply(prepare(2))) for _ in range(2))
    await asyncio.sleep(0.05)
    assert not second.done()  # "yes" to the second is a promise as well
    disk.gate.set()
    assert (await first).accepted
    assert (await second).accepted


async def test_a_disk_that_fails_grants_nothing_and_the_ledger_is_what_it_was(keeper: Keeper, disk: Disk) -> None:
    disk.error = OSError(28, "No space left on device")
    answers = await asyncio.gather(keeper.apply(allocate(0)), keeper.apply(prepare(2)))
    for answer in answers:
        assert not answer.accepted
        assert answer.refusals[0].code is RefusalCode.NOT_DURABLE
        assert "No space left on device" in str(answer)
    assert owner(keeper, "gpu-0") is Owner.NONE
    assert not keeper.health.ok
    assert keeper.health.since == 100.0
    disk.error = None
    assert (await keeper.apply(allocate(0))).accepted
    assert keeper.health.ok


async def test_an_agent_starts_on_a_disk_that_is_full_and_grants_when_it_no_longer_is(
    tmp_path: Path, disk: Disk
) -> None:
    disk.error = OSError(28, "No space left on device")
    keeper = Keeper(Store(tmp_path, node="n", fsync=disk.fsync), Policy(), now=lambda: 100.0)
    assert "No space left" in keeper.health.error
    assert not (await keeper.apply(Discovered(DEVICES, 0.0))).accepted
    disk.error = None
    assert (await keeper.apply(Discovered(DEVICES, 0.0))).accepted
    assert keeper.health.ok
    await keeper.close()


async def test_a_disk_that_is_well_again_is_found_without_a_request(keeper: Keeper, disk: Disk) -> None:
    heard: list[bool] = []
    keeper.subscribe(lambda ledger, effects: heard.append(keeper.health.ok))
    keeper.retry()
    assert heard == []  # nothing to try
    disk.error = OSError(28, "No space left on device")
    assert not (await keeper.apply(allocate(0))).accepted
    assert heard == [False]
    keeper.retry()
    await until(lambda: disk.syncs >= 2)
    await keeper.apply(allocate(0))
    assert heard == [False], "an old story"
    disk.error = None
    keeper.retry()
    await until(lambda: keeper.health.ok)
    assert heard == [False, True]
    assert owner(keeper, "gpu-0") is Owner.NONE


async def test_a_try_does_not_queue_behind_a_disk_that_hangs(keeper: Keeper, disk: Disk) -> None:
    disk.error = OSError(28, "No space left on device")
    await keeper.apply(allocate(0))
    disk.error = None
    disk.gate.clear()
    began = time.monotonic()
    for _ in range(50):
        keeper.retry()
    assert time.monotonic() - began < 30
    disk.gate.set()
    await until(lambda: keeper.health.ok)


async def test_what_happened_while_a_write_failed_is_not_forgotten(keeper: Keeper, disk: Disk) -> None:
    """Kubelet is restarted while the disk hangs, and what waits for that is refused: a new kubelet is no request."""
    disk.gate.clear()
    disk.error = OSError(5, "Input/output error")
    grant = keeper.submit(allocate(0))
    told = asyncio.ensure_future(keeper.insist(KubeletStarted(50.0, "7:8:9")))
    await asyncio.sleep(0)
    disk.gate.set()
    assert not (await grant).accepted
    await told
    assert keeper.ledger.node.kubelet == "7:8:9"


async def test_an_unprepare_that_is_not_durable_is_not_answered_with_yes(keeper: Keeper, disk: Disk) -> None:
    await keeper.apply(prepare(2))
    disk.error = OSError(5, "Input/output error")
    assert not (await keeper.apply(Unprepare("u", 2.0))).accepted
    assert owner(keeper, "gpu-2") is Owner.DRA_PREPARED


async def test_a_cancelled_caller_does_not_undo_the_step(keeper: Keeper, disk: Disk) -> None:
    disk.gate.clear()
    answer = asyncio.create_task(keeper.apply(allocate(0)))
    await asyncio.sleep(0.02)
    answer.cancel()
    disk.gate.set()
    await until(lambda: owner(keeper, "gpu-0") is Owner.LEGACY)


async def test_evidence_costs_no_fsync_and_is_written_with_the_next_commit(
    keeper: Keeper, disk: Disk, tmp_path: Path
) -> None:
    await keeper.apply(allocate(0))
    before = disk.syncs
    pods = {("r", "GPU-0"): (PodRef("ns", "p", "c"),)}
    await keeper.apply(Observed(50.0, keeper.ledger.seq, pods, Checkpoint({}), {}))
    assert disk.syncs == before
    await keeper.apply(allocate(1))
    there = recorded(tmp_path, node="n")
    assert there
    hold = there.entries["gpu-0"].hold
    assert hold
    assert hold.confirmed


async def test_subscribers_hear_of_changes_after_they_are_durable(keeper: Keeper, disk: Disk) -> None:
    heard: list[tuple[Owner, int]] = []
    end = keeper.subscribe(lambda ledger, effects: heard.append((ledger.entries["gpu-0"].owner, len(effects))))
    disk.gate.clear()
    answer = asyncio.create_task(keeper.apply(allocate(0)))
    await asyncio.sleep(0.02)
    assert heard == []
    disk.gate.set()
    await answer
    await until(lambda: bool(heard))
    assert heard == [(Owner.LEGACY, 0)]
    assert not (await keeper.apply(prepare(0))).accepted
    assert heard[1][1] > 0  # a refusal changes nothing and is heard all the same
    end()
    await keeper.apply(allocate(1))
    assert len(heard) == 2


async def test_a_subscriber_that_fails_harms_nobody(keeper: Keeper, caplog: pytest.LogCaptureFixture) -> None:
    def fail(ledger: Ledger, effects: tuple[Effect, ...]) -> None:
        raise RuntimeError("broken sink")

    keeper.subscribe(fail)
    assert (await keeper.apply(allocate(0))).accepted
    assert (await keeper.apply(allocate(1))).accepted
    assert "a subscriber of the ledger failed" in caplog.text


async def test_nothing_is_granted_before_the_merge(tmp_path: Path, disk: Disk) -> None:
    keeper = await start(tmp_path, disk)
    await keeper.apply(allocate(0))
    await keeper.close()
    again = Keeper(Store(tmp_path, node="n"), Policy())
    assert owner(again, "gpu-0") is Owner.LEGACY
    refused = await again.apply(allocate(1))
    assert refused.refusals[0].code is RefusalCode.STARTING
    await again.apply(Restarted(200.0))
    assert (await again.apply(allocate(1))).accepted
    await again.close()


async def test_a_lost_ledger_is_quarantined_and_evidence_brings_it_back(tmp_path: Path, disk: Disk) -> None:
    keeper = await start(tmp_path, disk)
    await asyncio.gather(keeper.apply(allocate(0)), keeper.apply(prepare(2)))
    await keeper.close()
    (tmp_path / "ledger.jsonl").unlink()
    (tmp_path / "ledger.jsonl.previous").unlink(missing_ok=True)
    keeper = Keeper(Store(tmp_path, node="n"), Policy(), now=lambda: 300.0)
    assert keeper.loaded.kind is Loaded.LOST
    await keeper.apply(Discovered(DEVICES, 300.0, LANES))
    assert {entry.owner for entry in keeper.ledger.entries.values()} == {Owner.QUARANTINE}
    pods = {("r", "GPU-0"): (PodRef("ns", "p", "c"),)}
    claim = Allocation(ClaimRef("u", "ns", "claim"), (Use("gpu-2"),))
    await keeper.apply(Restarted(301.0, (claim,), pods, Checkpoint(pods)))
    owners = [entry.owner for entry in keeper.ledger.entries.values()]
    assert owners == [Owner.LEGACY, Owner.QUARANTINE, Owner.DRA_PREPARED, Owner.QUARANTINE]
    refused = await keeper.apply(allocate(1, 302.0))
    assert "the record of who holds it was lost" in str(refused)
    for at in (430.0, 445.0):
        await keeper.apply(Observed(at, keeper.ledger.seq, pods, Checkpoint(pods), {}))
    owners = [entry.owner for entry in keeper.ledger.entries.values()]
    assert owners == [Owner.LEGACY, Owner.NONE, Owner.DRA_PREPARED, Owner.NONE]
    await keeper.close()


async def test_close_writes_what_is_only_in_memory(tmp_path: Path, disk: Disk) -> None:
    keeper = await start(tmp_path, disk)
    await keeper.apply(allocate(0))
    pods = {("r", "GPU-0"): (PodRef("ns", "p", "c"),)}
    await keeper.apply(Observed(50.0, keeper.ledger.seq, pods, Checkpoint({}), {}))
    await keeper.close()
    store = Store(tmp_path, node="n")
    hold = store.load().ledger.entries["gpu-0"].hold
    assert hold
    assert hold.pods == (PodRef("ns", "p", "c"),)
    store.close()


async def test_a_subscriber_may_take_a_step_of_its_own(keeper: Keeper, disk: Disk) -> None:
    """It is told in the middle of ours; what it starts must not be taken for finished while the disk works."""
    inner: list[asyncio.Future[Decision]] = []

    def follow(ledger: Ledger, effects: tuple[Effect, ...]) -> None:
        if not inner:
            disk.gate.clear()
            inner.append(keeper.submit(allocate(1)))

    keeper.subscribe(follow)
    await asyncio.sleep(0.01)  # calm again: the first one is written on the spot
    assert (await keeper.apply(allocate(0))).accepted
    (second,) = inner
    await asyncio.sleep(0.01)
    pods = {("r", "GPU-0"): (PodRef("ns", "p", "c"),)}
    third = keeper.submit(Observed(50.0, keeper.ledger.seq, pods, Checkpoint({}), {}))
    await asyncio.sleep(0.05)
    assert not second.done()
    assert owner(keeper, "gpu-1") is Owner.NONE  # whatever else is asked meanwhile
    disk.gate.set()
    assert (await second).accepted
    assert (await third).accepted
    assert owner(keeper, "gpu-1") is Owner.LEGACY


async def test_a_failing_disk_is_said_once(keeper: Keeper, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    disk.error = OSError(5, "Input/output error")
    for _ in range(3):
        await asyncio.gather(*(keeper.apply(allocate(n)) for n in range(3)))
    gc.collect()  # asyncio complains of unread errors when they are collected
    (record,) = caplog.records
    assert "Input/output error" in record.getMessage()


async def test_a_closed_keeper_refuses_whatever_its_disk_was_like(keeper: Keeper, disk: Disk) -> None:
    disk.seconds = 0.02
    assert (await keeper.apply(allocate(0))).accepted
    await keeper.close()
    for _ in range(2):
        refused = await asyncio.wait_for(keeper.apply(allocate(1)), 5 * PATIENCE)
        assert [refusal.code for refusal in refused.refusals] == [RefusalCode.NOT_DURABLE]
        assert "closed" in str(refused)
    assert owner(keeper, "gpu-1") is Owner.NONE


async def test_a_slow_disk_holds_the_loop_once(keeper: Keeper, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drabridge.ledger.service.PATIENCE_SECONDS", 0.2)  # longer than a busy machine stands still
    disk.seconds = 0.4
    held = []
    for number in range(8):
        started = time.perf_counter()
        answer = keeper.submit(Unprepare("u", 1.0) if number % 2 else prepare(2, "u"))
        held.append(time.perf_counter() - started)
        time.sleep(0.5)  # noqa: ASYNC251  # the loop is busy: when it looks, the write is long over, but was not quick
        await answer
        await asyncio.sleep(0.002)  # no burst
    assert sum(seconds > 0.2 for seconds in held) <= 3  # one, and what the machine did meanwhile


async def test_a_disk_that_hangs_is_told_and_does_not_keep_the_agent(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drabridge.ledger.service.HANGS_SECONDS", 0.05)
    monkeypatch.setattr("drabridge.ledger.service.CLOSE_SECONDS", 0.1)
    keeper = await start(tmp_path, disk)
    disk.gate.clear()
    try:
        answer = keeper.submit(allocate(0))
        await until(lambda: not keeper.health.ok)
        await asyncio.sleep(0.2)
        assert not answer.done()
        assert "is silent" in keeper.health.error
        started = time.monotonic()
        await keeper.close()
        assert time.monotonic() - started < 1 * PATIENCE
    finally:
        disk.gate.set()
    assert (await answer).accepted  # it came back
    assert keeper.health.ok
