"""Benchmarks of the ledger: the pure step, a start with a thousand devices, and a durable Allocate."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from drabridge.ledger.apply_event import step
from drabridge.ledger.entries import ClaimRef, Entry, Lane, Ledger, LedgerDevice, NodeState
from drabridge.ledger.events import Allocate, DeviceUse, Prepare, Unprepare
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.service import LedgerService
from drabridge.ledger.store import Store
from tests.bench.core import Benchmark

_DEVICES = 1000
_POLICY = LedgerPolicy()


def _ledger(lane: Lane = Lane.LEGACY) -> Ledger:
    entries = [
        Entry(LedgerDevice(f"gpu-{n:04}", "nvidia.com/gpu", (f"GPU-{n:08}-1111-2222-3333-444444444444",)), lane=lane)
        for n in range(_DEVICES)
    ]
    return Ledger.of(entries, NodeState(merged=True))


def _allocate(ledger: Ledger, n: int) -> Allocate:
    name = f"gpu-{n:04}"
    return Allocate({name: ledger.entries[name].device.units}, at=float(n))


def steps_per_second() -> float:
    """Allocate each of 1,000 devices, prepare and unprepare a claim on each of 1,000 others, each with its new ledger.

    The best of five rounds, in this process's own CPU time: a pure function does not wait for anything.
    """
    legacy, dra = _ledger(), _ledger(Lane.DRA)
    claims = [ClaimRef(f"uid-{n}", "team-a", f"claim-{n}") for n in range(_DEVICES)]
    first = [_allocate(legacy, n) for n in range(_DEVICES)]
    second = [Prepare(claims[n], (DeviceUse(f"gpu-{n:04}"),), float(n)) for n in range(_DEVICES)]
    third = [Unprepare(f"uid-{n}", float(n)) for n in range(_DEVICES)]
    best = 0.0
    for _ in range(5):
        at_legacy, at_dra = legacy, dra
        begin = time.process_time()
        for allocate in first:
            at_legacy = step(at_legacy, allocate, _POLICY).applied_to(at_legacy)
        for prepare in second:
            at_dra = step(at_dra, prepare, _POLICY).applied_to(at_dra)
        for unprepare in third:
            at_dra = step(at_dra, unprepare, _POLICY).applied_to(at_dra)
        best = max(best, 3 * _DEVICES / (time.process_time() - begin))
    return best


def load_1000_ms() -> float:
    """Read a ledger of 1,000 held devices with a journal of 1,000 commits; median of five."""
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory), node="bench", fsync=lambda fd: None)
        ledger = _ledger()
        store.rewrite(ledger)
        for n in range(_DEVICES):
            ledger = step(ledger, _allocate(ledger, n), _POLICY).applied_to(ledger)
            store.append(ledger, [f"gpu-{n:04}"])
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            loaded = store.load()
            times.append(time.perf_counter() - begin)
        store.close()
        read = {name: (entry.owner, entry.device, entry.seq) for name, entry in loaded.ledger.entries.items()}
        assert read == {name: (entry.owner, entry.device, entry.seq) for name, entry in ledger.entries.items()}
    return statistics.median(times) * 1000


def keeper_apply_over_fsync_ms() -> float:
    """Allocate through the ledger_service with 1,000 devices, less one plain append and fsync beside it, p50."""
    with tempfile.TemporaryDirectory(dir=".") as directory:
        return asyncio.run(_durable_allocate(Path(directory)))


async def _durable_allocate(directory: Path) -> float:
    Store(directory, node="bench").rewrite(_ledger())
    (directory / "ledger.lock").unlink()
    store = Store(directory, node="bench")
    ledger_service = LedgerService(store, _POLICY)
    ledger_service.ledger = ledger_service.head = ledger_service.ledger.replace((), node=NodeState(merged=True))
    beside = os.open(directory / "beside", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    durable, plain = [], []
    for n in range(200):
        event = _allocate(ledger_service.ledger, n)
        begin = time.perf_counter()
        decision = await ledger_service.apply(event)
        durable.append(time.perf_counter() - begin)
        assert decision.accepted
        begin = time.perf_counter()
        os.write(beside, b"x" * 400)
        os.fsync(beside)
        plain.append(time.perf_counter() - begin)
    os.close(beside)
    await ledger_service.close()
    return (statistics.median(durable) - statistics.median(plain)) * 1000


def benchmarks() -> list[Benchmark]:
    """The ledger's numbers and their budgets."""
    return [
        Benchmark("ledger_steps_per_second", "1/s", 50_000, steps_per_second, better="higher"),
        Benchmark("ledger_1000_load_ms", "ms", 100, load_1000_ms),
        Benchmark("keeper_apply_over_fsync_ms", "ms", 1.0, keeper_apply_over_fsync_ms),
    ]
