"""The ledger's service: answers wait for the disk, bursts share an fsync, a failing disk grants nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drabridge.ledger.effects import Decision, Effect, RefusalCode
from drabridge.ledger.entries import ClaimRef, Lane, Ledger, LedgerDevice, Owner, PodRef
from drabridge.ledger.events import (
    AgentStarted,
    Allocate,
    CheckpointRead,
    ClaimDevices,
    DeviceUse,
    Discovered,
    KubeletStarted,
    NodeBooted,
    Observed,
    Prepare,
    Unprepare,
)
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.service import LedgerService
from drabridge.ledger.store import Loaded, Store, read_if_possible
from tests.support.waiting import PATIENCE, until

DEVICES = tuple(LedgerDevice(f"gpu-{n}", "r", (f"GPU-{n}",)) for n in range(4))
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


async def start(directory: Path, disk: Disk) -> LedgerService:
    ledger_service = LedgerService(Store(directory, node="n", fsync=disk.fsync), LedgerPolicy(), now=lambda: 100.0)
    await ledger_service.apply(NodeBooted("boot", 0.0))
    await ledger_service.apply(Discovered(DEVICES, 0.0, LANES))
    await ledger_service.apply(AgentStarted(0.0))
    return ledger_service


@pytest.fixture
async def ledger_service(tmp_path: Path, disk: Disk) -> AsyncIterator[LedgerService]:
    ledger_service = await start(tmp_path, disk)
    yield ledger_service
    disk.gate.set()
    disk.error = None
    await ledger_service.close()


def allocate(n: int, at: float = 1.0) -> Allocate:
    return Allocate({f"gpu-{n}": (f"GPU-{n}",)}, at)


def prepare(n: int, uid: str = "u") -> Prepare:
    return Prepare(ClaimRef(uid, "ns", "claim"), (DeviceUse(f"gpu-{n}"),), 1.0)


def owner(ledger_service: LedgerService, name: str) -> Owner:
    return ledger_service.ledger.entries[name].owner


async def test_the_answer_waits_for_the_disk(ledger_service: LedgerService, disk: Disk) -> None:
    disk.gate.clear()
    answer = asyncio.create_task(ledger_service.apply(allocate(0)))
    await asyncio.sleep(0.05)
    assert not answer.done()
    assert owner(ledger_service, "gpu-0") is Owner.NONE  # offers see what is on disk
    disk.gate.set()
    assert (await answer).accepted
    assert owner(ledger_service, "gpu-0") is Owner.LEGACY


async def test_a_burst_shares_its_fsyncs(
    ledger_service: LedgerService, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drabridge.ledger.service.BURST_SECONDS", 3600)  # however slow the machine is
    before = disk.syncs
    answers = await asyncio.gather(
        *(ledger_service.apply(event) for event in (allocate(0), allocate(1), prepare(2), prepare(3, "v")))
    )
    assert all(answer.accepted for answer in answers)
    assert disk.syncs - before == 1


async def test_a_repeated_prepare_waits_for_the_first(ledger_service: LedgerService, disk: Disk) -> None:
    disk.gate.clear()
    first, second = (asyncio.create_task(ledger_service.apply(prepare(2))) for _ in range(2))
    await asyncio.sleep(0.05)
    assert not second.done()  # "yes" to the second is a promise as well
    disk.gate.set()
    assert (await first).accepted
    assert (await second).accepted


async def test_a_disk_that_fails_grants_nothing_and_the_ledger_is_what_it_was(
    ledger_service: LedgerService, disk: Disk
) -> None:
    disk.error = OSError(28, "No space left on device")
    answers = await asyncio.gather(ledger_service.apply(allocate(0)), ledger_service.apply(prepare(2)))
    for answer in answers:
        assert not answer.accepted
        assert answer.refusals[0].code is RefusalCode.NOT_DURABLE
        assert "No space left on device" in str(answer)
    assert owner(ledger_service, "gpu-0") is Owner.NONE
    assert not ledger_service.health.ok
    assert ledger_service.health.since == 100.0
    disk.error = None
    assert (await ledger_service.apply(allocate(0))).accepted
    assert ledger_service.health.ok


async def test_an_agent_starts_on_a_disk_that_is_full_and_grants_when_it_no_longer_is(
    tmp_path: Path, disk: Disk
) -> None:
    disk.error = OSError(28, "No space left on device")
    ledger_service = LedgerService(Store(tmp_path, node="n", fsync=disk.fsync), LedgerPolicy(), now=lambda: 100.0)
    assert "No space left" in ledger_service.health.error
    assert not (await ledger_service.apply(Discovered(DEVICES, 0.0))).accepted
    disk.error = None
    assert (await ledger_service.apply(Discovered(DEVICES, 0.0))).accepted
    assert ledger_service.health.ok
    await ledger_service.close()


async def test_a_disk_that_works_again_is_noticed_without_a_request(ledger_service: LedgerService, disk: Disk) -> None:
    heard: list[bool] = []
    ledger_service.subscribe(lambda ledger, effects: heard.append(ledger_service.health.ok))
    ledger_service.retry_write()
    assert heard == []  # nothing to try
    disk.error = OSError(28, "No space left on device")
    assert not (await ledger_service.apply(allocate(0))).accepted
    assert heard == [False]
    ledger_service.retry_write()
    await until(lambda: disk.syncs >= 2)
    await ledger_service.apply(allocate(0))
    assert heard == [False], "an old story"
    disk.error = None
    ledger_service.retry_write()
    await until(lambda: ledger_service.health.ok)
    assert heard == [False, True]
    assert owner(ledger_service, "gpu-0") is Owner.NONE


async def test_a_retry_does_not_queue_behind_a_disk_that_hangs(ledger_service: LedgerService, disk: Disk) -> None:
    disk.error = OSError(28, "No space left on device")
    await ledger_service.apply(allocate(0))
    disk.error = None
    disk.gate.clear()
    began = time.monotonic()
    for _ in range(50):
        ledger_service.retry_write()
    assert time.monotonic() - began < 30
    disk.gate.set()
    await until(lambda: ledger_service.health.ok)


async def test_what_happened_while_a_write_failed_is_not_forgotten(ledger_service: LedgerService, disk: Disk) -> None:
    """Kubelet restarts while the disk hangs. Waiting requests are refused; the event of a new kubelet is kept."""
    disk.gate.clear()
    disk.error = OSError(5, "Input/output error")
    grant = ledger_service.submit(allocate(0)).answer
    told = asyncio.ensure_future(ledger_service.apply_until_accepted(KubeletStarted(50.0, "7:8:9")))
    await asyncio.sleep(0)
    disk.gate.set()
    assert not (await grant).accepted
    await told
    assert ledger_service.ledger.node.kubelet == "7:8:9"


async def test_an_unprepare_is_answered_only_when_it_is_durable(ledger_service: LedgerService, disk: Disk) -> None:
    await ledger_service.apply(prepare(2))
    disk.error = OSError(5, "Input/output error")
    assert not (await ledger_service.apply(Unprepare("u", 2.0))).accepted
    assert owner(ledger_service, "gpu-2") is Owner.DRA_PREPARED


async def test_a_cancelled_caller_does_not_undo_the_step(ledger_service: LedgerService, disk: Disk) -> None:
    disk.gate.clear()
    answer = asyncio.create_task(ledger_service.apply(allocate(0)))
    await asyncio.sleep(0.02)
    answer.cancel()
    disk.gate.set()
    await until(lambda: owner(ledger_service, "gpu-0") is Owner.LEGACY)


async def test_evidence_is_written_with_the_next_commit_without_an_fsync_of_its_own(
    ledger_service: LedgerService, disk: Disk, tmp_path: Path
) -> None:
    await ledger_service.apply(allocate(0))
    before = disk.syncs
    pods = {("r", "GPU-0"): (PodRef("ns", "p", "c"),)}
    await ledger_service.apply(Observed(50.0, ledger_service.ledger.seq, pods, CheckpointRead({}), {}))
    assert disk.syncs == before
    await ledger_service.apply(allocate(1))
    there = read_if_possible(tmp_path, node="n")
    assert there
    hold = there.entries["gpu-0"].hold
    assert hold
    assert hold.confirmed


async def test_subscribers_hear_of_changes_after_they_are_durable(ledger_service: LedgerService, disk: Disk) -> None:
    heard: list[tuple[Owner, int]] = []
    end = ledger_service.subscribe(lambda ledger, effects: heard.append((ledger.entries["gpu-0"].owner, len(effects))))
    disk.gate.clear()
    answer = asyncio.create_task(ledger_service.apply(allocate(0)))
    await asyncio.sleep(0.02)
    assert heard == []
    disk.gate.set()
    await answer
    await until(lambda: bool(heard))
    assert heard == [(Owner.LEGACY, 0)]
    assert not (await ledger_service.apply(prepare(0))).accepted
    assert heard[1][1] > 0  # a refusal changes nothing and is heard all the same
    end()
    await ledger_service.apply(allocate(1))
    assert len(heard) == 2


async def test_a_subscriber_that_fails_harms_nobody(
    ledger_service: LedgerService, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(ledger: Ledger, effects: tuple[Effect, ...]) -> None:
        raise RuntimeError("broken sink")

    ledger_service.subscribe(fail)
    assert (await ledger_service.apply(allocate(0))).accepted
    assert (await ledger_service.apply(allocate(1))).accepted
    assert "subscriber of the ledger failed" in caplog.text


async def test_nothing_is_granted_before_the_merge(tmp_path: Path, disk: Disk) -> None:
    ledger_service = await start(tmp_path, disk)
    await ledger_service.apply(allocate(0))
    await ledger_service.close()
    again = LedgerService(Store(tmp_path, node="n"), LedgerPolicy())
    assert owner(again, "gpu-0") is Owner.LEGACY
    refused = await again.apply(allocate(1))
    assert refused.refusals[0].code is RefusalCode.STARTING
    await again.apply(AgentStarted(200.0))
    assert (await again.apply(allocate(1))).accepted
    await again.close()


async def test_a_lost_ledger_is_quarantined_and_evidence_brings_it_back(tmp_path: Path, disk: Disk) -> None:
    ledger_service = await start(tmp_path, disk)
    await asyncio.gather(ledger_service.apply(allocate(0)), ledger_service.apply(prepare(2)))
    await ledger_service.close()
    (tmp_path / "ledger.jsonl").unlink()
    (tmp_path / "ledger.jsonl.previous").unlink(missing_ok=True)
    ledger_service = LedgerService(Store(tmp_path, node="n"), LedgerPolicy(), now=lambda: 300.0)
    assert ledger_service.loaded.kind is Loaded.LOST
    await ledger_service.apply(Discovered(DEVICES, 300.0, LANES))
    assert {entry.owner for entry in ledger_service.ledger.entries.values()} == {Owner.QUARANTINE}
    pods = {("r", "GPU-0"): (PodRef("ns", "p", "c"),)}
    claim = ClaimDevices(ClaimRef("u", "ns", "claim"), (DeviceUse("gpu-2"),))
    await ledger_service.apply(AgentStarted(301.0, (claim,), pods, CheckpointRead(pods)))
    owners = [entry.owner for entry in ledger_service.ledger.entries.values()]
    assert owners == [Owner.LEGACY, Owner.QUARANTINE, Owner.DRA_PREPARED, Owner.QUARANTINE]
    refused = await ledger_service.apply(allocate(1, 302.0))
    assert "the record of who holds it was lost" in str(refused)
    for at in (430.0, 445.0):
        await ledger_service.apply(Observed(at, ledger_service.ledger.seq, pods, CheckpointRead(pods), {}))
    owners = [entry.owner for entry in ledger_service.ledger.entries.values()]
    assert owners == [Owner.LEGACY, Owner.NONE, Owner.DRA_PREPARED, Owner.NONE]
    await ledger_service.close()


async def test_close_writes_what_is_only_in_memory(tmp_path: Path, disk: Disk) -> None:
    ledger_service = await start(tmp_path, disk)
    await ledger_service.apply(allocate(0))
    pods = {("r", "GPU-0"): (PodRef("ns", "p", "c"),)}
    await ledger_service.apply(Observed(50.0, ledger_service.ledger.seq, pods, CheckpointRead({}), {}))
    await ledger_service.close()
    store = Store(tmp_path, node="n")
    hold = store.load().ledger.entries["gpu-0"].hold
    assert hold
    assert hold.pods == (PodRef("ns", "p", "c"),)
    store.close()


async def test_a_subscriber_may_take_a_step_of_its_own(ledger_service: LedgerService, disk: Disk) -> None:
    """The subscriber is called during a step. The step that it starts is not finished before the disk has it."""
    inner: list[asyncio.Future[Decision]] = []

    def follow(ledger: Ledger, effects: tuple[Effect, ...]) -> None:
        if not inner:
            disk.gate.clear()
            inner.append(ledger_service.submit(allocate(1)).answer)

    ledger_service.subscribe(follow)
    await asyncio.sleep(0.01)  # calm again: the first one is written on the spot
    assert (await ledger_service.apply(allocate(0))).accepted
    (second,) = inner
    await asyncio.sleep(0.01)
    pods = {("r", "GPU-0"): (PodRef("ns", "p", "c"),)}
    third = ledger_service.submit(Observed(50.0, ledger_service.ledger.seq, pods, CheckpointRead({}), {})).answer
    await asyncio.sleep(0.05)
    assert not second.done()
    assert owner(ledger_service, "gpu-1") is Owner.NONE  # whatever else is asked meanwhile
    disk.gate.set()
    assert (await second).accepted
    assert (await third).accepted
    assert owner(ledger_service, "gpu-1") is Owner.LEGACY


async def test_a_failing_disk_is_reported_once(
    ledger_service: LedgerService, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    disk.error = OSError(5, "Input/output error")
    for _ in range(3):
        await asyncio.gather(*(ledger_service.apply(allocate(n)) for n in range(3)))
    gc.collect()  # asyncio complains of unread errors when they are collected
    (record,) = caplog.records
    assert "Input/output error" in vars(record)["reason"]


async def test_a_closed_service_refuses_every_request(ledger_service: LedgerService, disk: Disk) -> None:
    disk.seconds = 0.02
    assert (await ledger_service.apply(allocate(0))).accepted
    await ledger_service.close()
    for _ in range(2):
        refused = await asyncio.wait_for(ledger_service.apply(allocate(1)), 5 * PATIENCE)
        assert [refusal.code for refusal in refused.refusals] == [RefusalCode.NOT_DURABLE]
        assert "closed" in str(refused)
    assert owner(ledger_service, "gpu-1") is Owner.NONE


async def test_a_slow_disk_blocks_the_loop_once(
    ledger_service: LedgerService, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drabridge.ledger.service.PATIENCE_SECONDS", 0.2)  # longer than a busy machine stands still
    disk.seconds = 0.4
    held = []
    for number in range(8):
        started = time.perf_counter()
        pending = ledger_service.submit(Unprepare("u", 1.0) if number % 2 else prepare(2, "u"))
        ledger_service.settle(pending)
        held.append(time.perf_counter() - started)
        time.sleep(0.5)  # noqa: ASYNC251  # the loop is busy: when it looks, the write is long over, but was not quick
        await pending.answer
        await asyncio.sleep(0.002)  # no burst
    assert sum(seconds > 0.2 for seconds in held) <= 3  # one, and pauses of the machine


async def test_a_disk_that_hangs_is_reported_and_does_not_keep_the_agent_from_ending(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drabridge.ledger.service.HANGS_SECONDS", 0.05)
    monkeypatch.setattr("drabridge.ledger.service.CLOSE_SECONDS", 0.1)
    ledger_service = await start(tmp_path, disk)
    disk.gate.clear()
    try:
        answer = ledger_service.submit(allocate(0)).answer
        await until(lambda: not ledger_service.health.ok)
        await asyncio.sleep(0.2)
        assert not answer.done()
        assert "is silent" in ledger_service.health.error
        started = time.monotonic()
        await ledger_service.close()
        assert time.monotonic() - started < 1 * PATIENCE
    finally:
        disk.gate.set()
    assert (await answer).accepted  # the answer came when the disk worked again
    assert ledger_service.health.ok
