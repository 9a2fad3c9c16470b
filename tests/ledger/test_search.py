"""The real step in every reachable state of small worlds: no invariant broken, and everything drains in the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from drabridge.ledger.common_rows import ignore
from drabridge.ledger.model import Lane, Owner
from drabridge.ledger.table import Signal
from tests.ledger.mutants import MUTANTS, Mutant, other_rows
from tests.ledger.search import search
from tests.ledger.states import Config

WORLDS = {
    "2 devices, 2 pods, 2 claims, moves": Config(faults=0, moves=1, late_evidence=False),
    "2 devices, 2 pods, 2 claims, a fault": Config(faults=1, moves=0, whole_claims=False, late_evidence=False),
    "2 devices, a pod, a claim, moves, a fault": Config(pods=1, claims=1, faults=1, moves=1, late_evidence=False),
    "1 device, late evidence, moves, a fault": Config(devices=1, pods=1, claims=1, faults=1, moves=2),
    "1 device, moves, two faults": Config(devices=1, faults=2, moves=1, late_evidence=False),
    "1 device, the API server instead of the checkpoint": Config(
        devices=1, pods=1, faults=2, moves=1, checkpoint=False, claims=1, late_evidence=False
    ),
    "1 device, physical probe, pods that will not die": Config(
        devices=1, pods=1, faults=2, moves=1, probe=True, claims=1, late_evidence=False
    ),
    "2 devices, unplugged": Config(
        pods=1,
        claims=1,
        kinds=frozenset({"unplug", "crash", "kubelet"}),
        moves=0,
        late_evidence=False,
    ),
    "1 device, unplugged, moves": Config(
        devices=1, pods=1, faults=2, kinds=frozenset({"unplug", "crash", "reboot"}), moves=1, late_evidence=False
    ),
}


@pytest.mark.parametrize("name", WORLDS)
def test_no_reachable_state_breaks_an_invariant_or_leaks(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    found = search(WORLDS[name])
    record_property("search", f"{name}: {str(found).splitlines()[0]}")
    assert not found.violation, str(found)
    assert found.states > 1000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_every_broken_ledger_is_found(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    found = mutant.hunt()
    record_property("search", f"mutant, {mutant.name}: {len(found.trace)} steps to {found.violation}")
    assert found.violation, f"the mutant {mutant.name!r} survived {found}"
    assert found.trace


def test_a_leak_is_found() -> None:
    """The liveness half has teeth: without Unprepare's way back, a prepared claim never drains."""
    config = Config(devices=1, pods=0, claims=1, faults=0, moves=0, lanes=(Lane.DRA, Lane.DRA), late_evidence=False)
    assert not search(config).violation
    found = search(replace(config, step=other_rows(Signal.UNPREPARE, set(Owner), ignore)))
    assert found.violation.startswith("I7")
