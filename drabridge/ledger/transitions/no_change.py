"""Transitions that change nothing: a signal without meaning for the device, or a refusal."""

from __future__ import annotations

from typing import Any

from drabridge.ledger import refusals
from drabridge.ledger.effects import Side
from drabridge.ledger.entries import Entry
from drabridge.ledger.ownership import obstacle
from drabridge.ledger.transaction import Outcome, Transaction


def ignore(tx: Transaction, entry: Entry, argument: Any) -> Outcome:
    """Change nothing: the signal means nothing here."""
    return entry


def refuse_held(tx: Transaction, entry: Entry, argument: Any) -> Outcome:
    """Refuse: the device has a holder."""
    return refusals.held(entry, tx.at)


def refuse_to_pods(tx: Transaction, entry: Entry, argument: Any) -> Outcome:
    """Refuse: the device is free, but not for pods with resource limits."""
    return obstacle(tx, entry) or refusals.other_lane(entry, Side.LEGACY)


def refuse_to_claims(tx: Transaction, entry: Entry, argument: Any) -> Outcome:
    """Refuse: the device is free, but not for claims."""
    return obstacle(tx, entry) or refusals.other_lane(entry, Side.DRA)
