"""A ledger of some GPUs, and the planner's moves carried out on it."""

from __future__ import annotations

from collections.abc import Collection

from drabridge.inventory.devices import PCIE_ROOT, Device
from drabridge.lanes.plan import (
    LaneTarget,
    destination_lane,
    plan,
)
from drabridge.ledger.apply_event import step
from drabridge.ledger.entries import Entry, Lane, Ledger, LedgerDevice, NodeState
from drabridge.ledger.events import (
    Allocate,
    NoClaimListed,
    SetLane,
    WithdrawnFromKubelet,
    WithdrawnFromSlices,
)
from drabridge.ledger.policy import LedgerPolicy

POLICY = LedgerPolicy()


def devices(count: int, per_root: int = 1000) -> list[Device]:
    return [
        Device(f"gpu-{n:02}", f"GPU-{n}", "r", standard={PCIE_ROOT: f"pci{n // per_root}"}, numa_nodes=(n // per_root,))
        for n in range(count)
    ]


def ledger_of(found: list[Device], lanes: dict[int, Lane] | None = None, held: Collection[int] = ()) -> Ledger:
    lanes = lanes or {}
    ledger = Ledger.of(
        [Entry(LedgerDevice.of(device), lane=lanes.get(n, Lane.LEGACY)) for n, device in enumerate(found)],
        NodeState(merged=True),
    )
    for n in held:
        done = step(ledger, Allocate({found[n].name: found[n].units}, 0.0), POLICY)
        assert done.decision.accepted
        ledger = done.applied_to(ledger)
    return ledger


def carry_out(ledger: Ledger, found: list[Device], wanted: LaneTarget, at: float = 1000.0) -> Ledger:
    """Apply the plan and every acknowledgement that free devices need."""
    for change in plan(ledger, found, wanted, at):
        ledger = step(ledger, SetLane(change.device, change.lane, at), POLICY).applied_to(ledger)
    return acknowledge(ledger, at)


def acknowledge(ledger: Ledger, at: float) -> Ledger:
    for name in ledger.entries:
        for event in (
            WithdrawnFromKubelet(name, ledger.seq, at),
            WithdrawnFromSlices(name, ledger.seq, at),
            NoClaimListed(name, ledger.seq + 1, at + 100),
        ):
            ledger = step(ledger, event, POLICY).applied_to(ledger)
    return ledger


def lanes_of(ledger: Ledger) -> str:
    return "".join(
        "D" if destination_lane(ledger.entries[name]) is Lane.DRA else "L" for name in sorted(ledger.entries)
    )
