"""The real step through every state of the largest worlds: two devices, two pods, two claims and any two faults.

``make deep`` runs it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ledger.search.search import search
from tests.ledger.search.worlds import DEEP

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("name", DEEP)
def test_no_two_faults_break_an_invariant_or_leak(name: str, record_property: Callable[[str, object], None]) -> None:
    found = search(DEEP[name])
    record_property("search", f"{name}: {str(found).splitlines()[0]}")
    assert not found.violation, str(found)
    assert found.states > 50_000
