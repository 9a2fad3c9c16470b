"""Entries as they are on disk: what older agents wrote is read, too."""

from __future__ import annotations

from drabridge.ledger import Entry, Facts, Lane
from drabridge.ledger.codec import entry_from_json, entry_to_json


def test_stamps_come_back_and_an_older_agents_file_has_one_for_all() -> None:
    entry = Entry(Facts("gpu-0", "r", ("GPU-0",)), lane=Lane.DRA, since=3.0, presence_since=1.0, legacy_until=2.0)
    data = entry_to_json(entry)
    assert entry_from_json(data) == entry
    older = entry_from_json({key: data[key] for key in data.keys() - {"presence_since", "legacy_until"}})
    assert (older.since, older.presence_since, older.legacy_until) == (3.0, 3.0, 3.0)
