"""Rows that change nothing: a signal that means nothing here, or a refusal.

A row gets the tx of the step, the entry as it is, and the signal's argument; it returns the entry as it will be (the
same object if nothing changes) or a refusal. Which row runs is the table alone to say. So it is in all ``*_rows``.
"""

from __future__ import annotations

from typing import Any

from drabridge.ledger import refusals
from drabridge.ledger.effects import (
    Side,
)
from drabridge.ledger.model import (
    Entry,
)
from drabridge.ledger.ownership import obstacle
from drabridge.ledger.transaction import Outcome, Transaction


def ignore(tx: Transaction, entry: Entry, what: Any) -> Outcome:
    """The signal means nothing here."""
    return entry


def refuse_held(tx: Transaction, entry: Entry, what: Any) -> Outcome:
    """Somebody has it."""
    return refusals.held(entry, tx.at)


def refuse_lane_legacy(tx: Transaction, entry: Entry, what: Any) -> Outcome:
    """It is free, but not for pods with limits."""
    return obstacle(tx, entry) or refusals.other_lane(entry, Side.LEGACY)


def refuse_lane_dra(tx: Transaction, entry: Entry, what: Any) -> Outcome:
    """It is free, but not for claims."""
    return obstacle(tx, entry) or refusals.other_lane(entry, Side.DRA)
