"""The ledger's file: after any damage the result is defined, and nothing unreadable counts as free."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from drabridge.ledger.apply_event import step
from drabridge.ledger.entries import (
    ClaimRef,
    ClaimShare,
    Entry,
    Lane,
    Ledger,
    LedgerDevice,
    NodeState,
    Owner,
)
from drabridge.ledger.events import Allocate, DeviceUse, Prepare, SetLane
from drabridge.ledger.service import LedgerService
from drabridge.ledger.store import FILE, Loaded, Store
from tests.ledger.saved_ledger import POLICY, allocate, kept, ledger_of, load, owners


@pytest.fixture
def path(directory: Path) -> Path:
    """A file with a snapshot of four free devices and two commits: gpu-0, then gpu-2 allocated."""
    store = Store(directory, node="node-a")
    ledger = ledger_of()
    store.rewrite(ledger)
    for n in (0, 2):
        ledger = allocate(ledger, n)
        store.append(ledger, [f"gpu-{n}"])
    store.close()
    return directory / FILE


BOTH_HELD = ["gpu-0:legacy", "gpu-1:none", "gpu-2:legacy", "gpu-3:none"]


def test_everything_comes_back(directory: Path) -> None:
    ledger = Ledger.of(
        [
            Entry(LedgerDevice("a", "r", ("A",), root="whole")),
            Entry(LedgerDevice("b", "r", ("B::0", "B::1"), shareable=True, capacity=(("memory", 80),)), lane=Lane.DRA),
            Entry(LedgerDevice("c", "r", ("C",))),
        ],
        NodeState("boot", True, "7:8:9", releases_suspended_until=61.5, lost="why"),
    )
    for event in (
        Allocate({"a": ("A",)}, 3.0),
        Prepare(
            ClaimRef("u1", "ns", "claim"),
            (DeviceUse("b", ClaimShare("s1", (("memory", 40),))), DeviceUse("c", admin=True)),
            4.0,
        ),
        SetLane("a", Lane.DRA, 5.0, "because"),
        SetLane("c", Lane.DRA, 5.0),
    ):
        done = step(ledger, event, POLICY)
        assert done.decision.accepted, done.decision
        ledger = done.applied_to(ledger)
    store = Store(directory, node="n")
    store.rewrite(ledger)
    store.close()
    loaded = load(directory, "n")
    assert loaded.kind is Loaded.COMPLETE
    assert dict(loaded.ledger.entries) == kept(ledger)
    assert loaded.ledger.node == replace(ledger.node, merged=False)  # another process merges anew
    assert loaded.ledger.seq == ledger.seq
    assert dict(loaded.ledger.by_claim) == dict(ledger.by_claim) == {"u1": ("b", "c")}
    assert dict(loaded.ledger.by_root) == {"whole": ("a",)}


def test_commits_are_replayed(path: Path) -> None:
    loaded = load(path.parent)
    assert (loaded.kind, loaded.message) == (Loaded.COMPLETE, "")
    assert owners(loaded.ledger) == BOTH_HELD


def test_the_first_start_is_fresh(directory: Path) -> None:
    assert load(directory).kind is Loaded.FRESH


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_torn_last_commit_is_dropped(path: Path, cut: int) -> None:
    path.write_bytes(path.read_bytes()[:-cut])
    loaded = load(path.parent)
    assert loaded.kind is Loaded.REPAIRED
    assert owners(loaded.ledger) == ["gpu-0:legacy", "gpu-1:none", "gpu-2:none", "gpu-3:none"]
    assert "unfinished" in loaded.message


def rot(path: Path, line: int) -> None:
    lines = path.read_bytes().split(b"\n")
    middle = len(lines[line]) // 2
    lines[line] = lines[line][:middle] + bytes([lines[line][middle] ^ 1]) + lines[line][middle + 1 :]
    path.write_bytes(b"\n".join(lines))


@pytest.mark.parametrize(("line", "held"), [(5, []), (6, ["gpu-0"])])
def test_a_rotten_commit_quarantines_what_looked_free_before_it(path: Path, line: int, held: list[str]) -> None:
    rot(path, line)
    store = Store(path.parent, node="node-a")
    ledger_service = LedgerService(store, POLICY, now=lambda: 5.0)
    assert ledger_service.loaded.kind is Loaded.PARTIAL
    assert "(kept as ledger.jsonl.unreadable-1)" in ledger_service.loaded.message
    assert (path.parent / "ledger.jsonl.unreadable-1").exists()
    for name, entry in ledger_service.ledger.entries.items():
        assert entry.owner is (Owner.LEGACY if name in held else Owner.QUARANTINE)
    store.close()
    again = load(path.parent)  # and that is durable
    assert again.kind is Loaded.COMPLETE
    assert again.ledger.node.lost


def damage(action: str) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        if action == "empty":
            path.write_bytes(b"")
        elif action == "truncated in the snapshot":
            path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[:3]) + b"\n")
        elif action == "rotten snapshot":
            rot(path, 2)
        elif action == "rotten envelope":
            rot(path, 0)
        elif action == "zeros":
            path.write_bytes(bytes(4096))
        elif action == "binary":
            path.write_bytes(bytes(range(256)) * 8)
        elif action == "missing":
            path.unlink()
        elif action == "directory":
            path.unlink()
            path.mkdir()
        elif action == "newer":
            envelope(path, version=2)
        elif action == "older":
            envelope(path, version=0)
        elif action == "foreign node":
            envelope(path, node="node-b")
        elif action == "foreign format":
            envelope(path, format="something else")

    return act


def envelope(path: Path, **changes: object) -> None:
    first, rest = path.read_bytes().split(b"\n", 1)
    body = json.dumps(json.loads(first[9:]) | changes).encode()
    path.write_bytes(b"%08x %b\n%b" % (zlib.crc32(body), body, rest))


ACTIONS = {
    "empty": "it is empty",
    "truncated in the snapshot": "ends after 2 of 4 entries",
    "rotten snapshot": "damaged",
    "rotten envelope": "checksum",
    "zeros": "ends within its first line",
    "binary": "checksum",
    "missing": "is missing though the agent ran here before",
    "directory": "is a directory",
    "newer": "newer agent (version 2, this one reads 1)",
    "older": "its version is 0",
    "foreign node": "belongs to node 'node-b', this is 'node-a'",
    "foreign format": "its format is 'something else'",
}


@pytest.mark.parametrize("action", ACTIONS)
def test_without_an_older_copy_everything_is_lost_and_nothing_is_free(path: Path, action: str) -> None:
    damage(action)(path)
    loaded = load(path.parent)
    assert loaded.kind is Loaded.LOST
    assert ACTIONS[action] in loaded.message
    assert "quarantine" in loaded.hint
    assert ("(kept as ledger.jsonl.unreadable-1)" in loaded.message) is (action != "missing")
    again = load(path.parent)
    assert again.kind is Loaded.LOST  # still not free


@pytest.mark.parametrize("action", ACTIONS)
def test_an_older_copy_keeps_exactly_its_own_holders(path: Path, action: str) -> None:
    store = Store(path.parent, node="node-a")
    ledger = allocate(merged(store.load().ledger), 0, 9.0)
    store.rewrite(ledger)  # the file with both held becomes the previous copy
    store.close()
    damage(action)(path)
    store = Store(path.parent, node="node-a")
    ledger_service = LedgerService(store, POLICY, now=lambda: 5.0)
    assert ledger_service.loaded.kind is Loaded.PARTIAL
    assert owners(ledger_service.ledger) == ["gpu-0:legacy", "gpu-1:quarantine", "gpu-2:legacy", "gpu-3:quarantine"]
    store.close()


def merged(ledger: Ledger) -> Ledger:
    return ledger.replace((), node=replace(ledger.node, merged=True))


def test_a_file_with_the_nodes_uid_as_it_was_written_once_still_loads(path: Path) -> None:
    envelope(path, node_uid="uid-a")
    loaded = load(path.parent)
    assert (loaded.kind, loaded.message) == (Loaded.COMPLETE, "")
    assert owners(loaded.ledger) == BOTH_HELD


def test_the_state_of_another_boot_is_loaded_unchanged_and_the_boot_is_an_event(path: Path) -> None:
    assert load(path.parent).ledger.node.boot_id == "boot-1"


def test_fields_of_a_newer_writer_survive(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    for number, extra in ((0, {"x_envelope": 1}), (1, {"x_entry": {"deep": [1]}})):
        body = json.dumps(json.loads(lines[number][9:]) | extra).encode()
        lines[number] = b"%08x %b" % (zlib.crc32(body), body)
    path.write_bytes(b"\n".join(lines))
    store = Store(path.parent, node="node-a")
    ledger = merged(store.load().ledger)
    store.rewrite(ledger)
    ledger = allocate(ledger, 0, 7.0)
    store.append(ledger, ["gpu-0"])
    store.close()
    values = [json.loads(line[9:]) for line in path.read_bytes().splitlines()]
    assert values[0]["x_envelope"] == 1
    assert values[1]["x_entry"] == {"deep": [1]}
    assert values[-1]["entries"][0]["x_entry"] == {"deep": [1]}


def test_a_file_open_to_others_is_closed(path: Path) -> None:
    path.chmod(0o644)
    loaded = load(path.parent)
    assert "open to others (mode 0644)" in loaded.message
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_lost(path: Path) -> None:
    path.chmod(0)
    assert load(path.parent).kind is Loaded.LOST
