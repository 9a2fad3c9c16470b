"""Entries as they are on disk, also those that older agents wrote."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from drabridge.inventory.devices import Presence
from drabridge.ledger.codec import ENTRY_FIELDS, entry_from_json, entry_to_json
from drabridge.ledger.entries import (
    ClaimHold,
    ClaimPhase,
    ClaimRef,
    Entry,
    Hold,
    Lane,
    LedgerDevice,
    Move,
    MoveStep,
    Owner,
    PodRef,
)


def test_stamps_are_saved_and_a_file_of_an_older_agent_has_one_for_all() -> None:
    entry = Entry(
        LedgerDevice("gpu-0", "r", ("GPU-0",)), lane=Lane.DRA, since=3.0, presence_since=1.0, legacy_until=2.0
    )
    data = entry_to_json(entry)
    assert entry_from_json(data) == entry
    older = entry_from_json({key: data[key] for key in data.keys() - {"presence_since", "legacy_until"}})
    assert (older.since, older.presence_since, older.legacy_until) == (3.0, 3.0, 3.0)


def test_every_field_that_is_written_is_known_when_it_is_read() -> None:
    """A field that is not read is kept as a newer agent's: it would come back after a reset to its default."""
    facts = LedgerDevice("a", "r", ("A",), root="whole", shareable=True, syspath="/sys/a", also_at=("/sys/b",))
    facts = replace(facts, cordoned="fan", presence=Presence.FAULTY, capacity=(("memory", 1),))
    hold, move = Hold(("A",)), Move(Lane.LEGACY, Lane.DRA, MoveStep.WAITING, 1.0, 1.0)
    claims = (ClaimHold(ClaimRef("u"), ClaimPhase.PREPARED, 1.0, admin=True),)
    entry = Entry(facts, Owner.LEGACY, Lane.LEGACY, hold, claims, move, 1.0, 1, "because", 2.0, 3.0, ("c188:0",))
    entry = replace(entry, former=(PodRef(),))
    assert entry_to_json(entry).keys() == ENTRY_FIELDS


def test_a_hold_counts_anew_and_is_damaged_without_the_time_of_its_allocate() -> None:
    """A time that is missing is not the epoch: the hold would look old, and end sooner."""
    entry = Entry(LedgerDevice("a", "r", ("A",)), Owner.LEGACY, hold=Hold(("A",), 5.0))
    data = entry_to_json(entry)
    counted = {"absences": 7, "absent_since": 1.0, "unseen_since": 1.0, "known": True}
    assert entry_from_json({**data, "hold": {**data["hold"], **counted}}) == entry
    with pytest.raises(KeyError):
        entry_from_json({**data, "hold": {key: data["hold"][key] for key in data["hold"].keys() - {"allocated_at"}}})
