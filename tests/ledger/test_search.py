"""The real step in every reachable state of small worlds: no invariant broken, and everything drains in the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from drabridge.ledger import ownership
from drabridge.ledger.entries import Lane, Owner
from drabridge.ledger.table import DeviceSignal
from drabridge.ledger.transitions import pods
from drabridge.ledger.transitions.no_change import ignore
from tests.ledger.search.mutants import MUTANTS, STARVING, Mutant, other_rows
from tests.ledger.search.search import search
from tests.ledger.search.states import Config
from tests.ledger.search.worlds import LEASES, OTHERS, PROOFS, SMALLEST

ALL = {**OTHERS, **LEASES, **PROOFS}


@pytest.mark.parametrize("name", [pytest.param(one, marks=() if one in SMALLEST else pytest.mark.slow) for one in ALL])
def test_no_reachable_state_breaks_an_invariant_or_leaks(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    found = search(ALL[name])
    record_property("search", f"{name}: {str(found).splitlines()[0]}")
    assert not found.violation, str(found)
    assert found.states > 10_000


@pytest.mark.parametrize("mutant", [*MUTANTS, *STARVING], ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_every_broken_ledger_is_found(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    found = mutant.hunt()
    record_property("search", f"mutant, {mutant.name}: {len(found.trace)} steps to {found.violation}")
    assert found.violation, f"the mutant {mutant.name!r} survived {found}"
    assert found.trace


def test_a_leak_is_found() -> None:
    """The check for leaks finds one: without the transition for Unprepare, a prepared claim never drains."""
    config = Config(devices=1, pods=0, claims=1, faults=0, moves=0, lanes=(Lane.DRA, Lane.DRA), late_evidence=False)
    assert not search(config).violation
    found = search(replace(config, step=other_rows(DeviceSignal.UNPREPARE, set(Owner), ignore)))
    assert found.violation.startswith("I7")


def test_a_ledger_that_gives_cordoned_devices_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(devices=1, pods=1, claims=0, faults=0, late_evidence=False, cordons=True)
    assert not search(config).violation
    for module in (pods, ownership):
        monkeypatch.setattr(module, "cordoned_by", lambda ledger, entry: None)
    assert "C1" in search(config).violation
