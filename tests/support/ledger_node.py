"""A ledger with its policy, and short functions for the events that tests apply to it."""

from __future__ import annotations

from drabridge.ledger.apply_event import step
from drabridge.ledger.effects import RefusalCode, Step
from drabridge.ledger.eligibility import dra_schedulable, legacy_healthy
from drabridge.ledger.entries import ClaimRef, Entry, Lane, Ledger, LedgerDevice, NodeState, Owner, PodRef
from drabridge.ledger.events import Allocate, ClaimAllocated, DeviceUse, Event, Prepare
from drabridge.ledger.policy import LedgerPolicy

NOON = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC
CLAIM, OTHER = ClaimRef("uid-1", "team-a", "train"), ClaimRef("uid-2", "team-b", "serve")
POD = PodRef("team-a", "notebook", "main", "pod-uid")
PODS = {("r", "GPU-0"): (POD,)}


class Node:
    """A ledger with its policy; ``do`` applies an event and returns the step."""

    def __init__(self, *entries: Entry) -> None:
        self.policy = LedgerPolicy()
        self.ledger = Ledger.of(entries, NodeState("boot", merged=True))

    def do(self, event: Event) -> Step:
        done = step(self.ledger, event, self.policy)
        self.ledger = done.applied_to(self.ledger)
        return done

    def yes(self, event: Event) -> Step:
        done = self.do(event)
        assert done.decision.accepted, done.decision
        return done

    def no(self, event: Event) -> tuple[RefusalCode, str]:
        before = self.ledger
        done = self.do(event)
        assert not done.decision.accepted
        assert self.ledger is before
        return done.decision.refusals[0].code, str(done.decision)

    def __getitem__(self, name: str) -> Entry:
        return self.ledger.entries[name]

    def owner(self, name: str) -> Owner:
        return self[name].owner

    def offers(self, name: str) -> tuple[bool, bool]:
        return (
            legacy_healthy(self.ledger, self[name]),
            dra_schedulable(self.ledger, self[name]),
        )


def device(n: int = 0, lane: Lane = Lane.LEGACY, *, root: str = "", shareable: bool = False) -> Entry:
    capacity = (("memory", 10),) if shareable else ()
    return Entry(LedgerDevice(f"gpu-{n}", "r", (f"GPU-{n}",), root, shareable=shareable, capacity=capacity), lane=lane)


def allocate(*numbers: int, at: float = NOON) -> Allocate:
    return Allocate({f"gpu-{n}": (f"GPU-{n}",) for n in numbers}, at)


def prepare(*numbers: int, claim: ClaimRef = CLAIM, at: float = NOON, admin: bool = False) -> Prepare:
    return Prepare(claim, tuple(DeviceUse(f"gpu-{n}", admin=admin) for n in numbers), at)


def uses(*numbers: int, lease: bool = True) -> tuple[DeviceUse, ...]:
    return tuple(DeviceUse(f"gpu-{n}", lease=lease) for n in numbers)


def allocated(*numbers: int, claim: ClaimRef = CLAIM, lease: bool = False) -> ClaimAllocated:
    return ClaimAllocated(claim, uses(*numbers, lease=lease), NOON)
