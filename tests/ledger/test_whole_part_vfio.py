"""A GPU whole, its MIG part and the GPU for a virtual machine: in every state that they get to, one has a holder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.inventory.devices import Presence
from drabridge.ledger.apply_event import step
from drabridge.ledger.codec import entry_from_json, entry_to_json
from drabridge.ledger.eligibility import dra_schedulable, legacy_healthy
from drabridge.ledger.entries import ClaimRef, Entry, Lane, Ledger, LedgerDevice, NodeState, Owner
from drabridge.ledger.events import (
    AgentStarted,
    Allocate,
    CheckpointRead,
    ClaimDeallocated,
    DeviceUse,
    Discovered,
    Event,
    Observed,
    Prepare,
    Unprepare,
)
from drabridge.ledger.policy import LedgerPolicy

PLACE, GROUP = "/sys/devices/pci0000:3a/0000:3b:00.0", "/dev/vfio/7"
WHOLE = LedgerDevice("whole", "gpu", ("W",), syspath=PLACE)
PART = LedgerDevice("part", "mig", ("P",), root="whole", syspath=f"{PLACE}/nvidia-mig/gi1-ci0")
VFIO = LedgerDevice("vfio", "vm", ("V",), syspath=PLACE, also_at=(PART.syspath, GROUP))
BOUND = replace(VFIO, also_at=(GROUP,))
CLAIMS = (ClaimRef("u1", "n", "one"), ClaimRef("u2", "n", "two"))
POLICY = LedgerPolicy()


def unbound_devices() -> tuple[LedgerDevice, ...]:
    return WHOLE, PART, VFIO


def bound_devices() -> tuple[LedgerDevice, ...]:
    """Bound to vfio-pci: NVIDIA's driver shows neither the GPU nor its instances."""
    return replace(WHOLE, presence=Presence.GONE), replace(PART, presence=Presence.GONE), BOUND


def events(ledger: Ledger, now: float) -> Iterator[Event]:
    for name in ledger.entries:
        yield Allocate({name: ledger.entries[name].device.units}, now)
        for claim in CLAIMS:
            yield Prepare(claim, (DeviceUse(name),), now)
    for claim in CLAIMS:
        yield Unprepare(claim.uid, now)
        yield ClaimDeallocated(claim.uid, now)
    yield Observed(now, ledger.seq, {}, CheckpointRead({}), {})
    if all(ledger.entries[name].owner is Owner.NONE for name in ("whole", "part")):
        yield Discovered(bound_devices(), now)
    yield Discovered(unbound_devices(), now)
    yield AgentStarted(now)


def restarted(ledger: Ledger) -> Ledger:
    """Read from disk by another process."""
    entries = [entry_from_json(entry_to_json(entry)) for entry in ledger.entries.values()]
    return Ledger.of(entries, ledger.node, ledger.seq)


def key(ledger: Ledger) -> Any:
    """What tells two states apart, times and numbers aside."""
    return tuple(
        (
            entry.name,
            entry.owner,
            entry.lane,
            entry.device.presence,
            entry.hold is None,
            tuple((held.claim.uid, held.phase, held.api_allocated) for held in entry.claims),
        )
        for entry in ledger.entries.values()
    )


def reached(first: Ledger) -> list[Ledger]:
    found, waiting, now = {key(first): first}, [first], 1000.0
    while waiting:
        ledger, now = waiting.pop(), now + 500
        after = [step(ledger, event, POLICY).applied_to(ledger) for event in events(ledger, now)]
        for one in (*after, restarted(ledger)):
            if key(one) not in found:
                found[key(one)] = one
                waiting.append(one)
    return list(found.values())


def both(ledger: Ledger) -> str:
    """What is wrong in a state; "" if nothing is."""
    held = [entry.name for entry in ledger.entries.values() if entry.owner is not Owner.NONE]
    offered = [e.name for e in ledger.entries.values() if legacy_healthy(ledger, e) or dra_schedulable(ledger, e)]
    return f"held: {held}, offered: {offered}" if len(held) > 1 or (held and set(offered) - set(held)) else ""


@pytest.mark.parametrize("lane", [Lane.LEGACY, Lane.DRA])
def test_at_most_one_of_the_three_is_held_and_no_other_is_offered_then(lane: Lane) -> None:
    node = NodeState("boot", merged=True)
    states = reached(Ledger.of([Entry(device, lane=lane) for device in unbound_devices()], node))
    holders = {entry.name for state in states for entry in state.entries.values() if entry.owner is not Owner.NONE}
    assert holders == {"whole", "part", "vfio"}
    assert [text for state in states if (text := both(state))] == []
    assert any(e.device.presence is Presence.GONE for s in states for e in s.entries.values())


def test_the_search_finds_a_twin_that_is_at_no_common_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "VFIO", replace(VFIO, syspath="/sys/elsewhere", also_at=(GROUP,)))
    monkeypatch.setitem(globals(), "BOUND", replace(BOUND, syspath="/sys/elsewhere"))
    node = NodeState("boot", merged=True)
    states = reached(Ledger.of([Entry(device) for device in unbound_devices()], node))
    assert any(map(both, states))
