"""A small ledger, and what a new agent would read of it from the disk."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from drabridge.ledger.apply_event import step
from drabridge.ledger.entries import Entry, Lane, Ledger, LedgerDevice, NodeState
from drabridge.ledger.events import Allocate
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.store import LoadResult, Store

POLICY = LedgerPolicy()


def ledger_of(count: int = 4) -> Ledger:
    entries = [
        Entry(LedgerDevice(f"gpu-{n}", "r", (f"GPU-{n}",)), lane=Lane.DRA if n % 2 else Lane.LEGACY)
        for n in range(count)
    ]
    return Ledger.of(entries, NodeState("boot-1", merged=True))


def allocate(ledger: Ledger, n: int, at: float = 1.0) -> Ledger:
    done = step(ledger, Allocate({f"gpu-{n}": (f"GPU-{n}",)}, at), POLICY)
    assert done.decision.accepted
    return done.applied_to(ledger)


def load(directory: Path, node: str = "node-a") -> LoadResult:
    store = Store(directory, node=node)
    try:
        return store.load()
    finally:
        store.close()


def kept(ledger: Ledger) -> dict[str, Entry]:
    """What is on disk of the entries: a new agent learns anew what kubelet knows."""
    holds = {name: entry.hold and replace(entry.hold, known=False) for name, entry in ledger.entries.items()}
    return {name: replace(entry, hold=holds[name]) for name, entry in ledger.entries.items()}


def owners(ledger: Ledger) -> list[str]:
    return [f"{name}:{entry.owner}" for name, entry in ledger.entries.items()]
