"""What keeps an agent from being removed, rule by rule: each that is forgotten costs a claim's pod its driver."""

from __future__ import annotations

import socket
from types import SimpleNamespace as Some
from typing import Any, cast

import pytest
from msgspec.structs import replace

from drabridge.agent.drain import ClaimsLeft, Drain, is_state_unneeded, remove_state
from drabridge.errors import RefusedError
from drabridge.inventory.devices import Presence
from drabridge.ledger.entries import (
    ClaimHold,
    ClaimPhase,
    ClaimRef,
    Entry,
    Hold,
    Lane,
    Ledger,
    LedgerDevice,
    Move,
    MoveStep,
    NodeState,
    Owner,
    PodRef,
)
from tests.support.waiting import short_directory

DEVICE = LedgerDevice("g0", "r", ("G0",))
FREE = Entry(DEVICE)
KNOWN = NodeState("boot", merged=True, releases_suspended_until=1.0)
CLAIM = ClaimRef("uid-1", "team-a", "train")
DENIED, ADMIN = (
    ClaimHold(CLAIM, ClaimPhase.DENIED, 0.0),
    ClaimHold(CLAIM, ClaimPhase.PREPARED, 0.0, admin=True),
)
POD = PodRef("team-a", "notebook", "main", "pod-uid")


@pytest.mark.parametrize(
    ("entry", "node", "drained", "clean", "unneeded"),
    [
        (FREE, KNOWN, True, True, True),
        (FREE, KNOWN, False, True, False),
        (FREE, KNOWN, True, False, False),
        (FREE, replace(KNOWN, lost="unreadable"), True, True, False),
        (FREE, replace(KNOWN, releases_suspended_until=0.0), True, True, False),
        (replace(FREE, owner=Owner.LEGACY, hold=Hold(("G0",))), KNOWN, True, True, False),
        (replace(FREE, claims=(DENIED,)), KNOWN, True, True, False),
        (replace(FREE, claims=(ADMIN,)), KNOWN, True, True, False),
    ],
)
def test_the_record_of_who_holds_what_goes_only_when_nobody_holds_anything(
    entry: Entry, node: NodeState, drained: bool, clean: bool, unneeded: bool
) -> None:
    desired: Any = Some(drained=drained, clean_at_end=clean)
    assert is_state_unneeded(Ledger.of([FREE, entry], node), desired) is unneeded


def test_a_vendors_driver_keeps_its_files_when_ours_go() -> None:
    with socket.socket(socket.AF_UNIX) as theirs, short_directory() as state:
        theirs.bind(str(state / "theirs.sock"))
        theirs.listen()
        (state / "dra").mkdir()
        for name in ("ledger.jsonl", "ledger.lock", "dra/claim.json"):
            (state / name).touch()
        (state / "link").symlink_to(state / "dra")
        remove_state(state)
        assert [path.name for path in state.iterdir()] == ["theirs.sock"]


def _moving(lane: Lane, owner: Owner = Owner.NONE, **device: Any) -> Entry:
    move = Move(lane, Lane.LEGACY, MoveStep.WAITING, 0.0, 0.0, "the device is held")
    return Entry(replace(DEVICE, **device), owner, lane, move=move if owner is not Owner.NONE else None)


@pytest.mark.parametrize(
    ("entry", "because", "moving"),
    [
        (FREE, [], 0),
        (_moving(Lane.DRA), ["g0 is in lane dra: its move has not begun"], 1),
        (_moving(Lane.SHARED), ["g0 is in lane shared: its move has not begun"], 1),
        (_moving(Lane.DRA, Owner.DRA_PREPARED), [], 1),  # its claim is named
        (_moving(Lane.DRA, presence=Presence.GONE), [], 0),
        (_moving(Lane.DRA, resource="of another configuration"), [], 0),
        (replace(FREE, owner=Owner.QUARANTINE, hold=Hold(pods=(POD,))), ["g0 is in doubt (quarantine): "], 0),
        (replace(FREE, owner=Owner.CONFLICT, hold=Hold(("G0",))), ["g0 is in doubt (conflict): "], 0),
    ],
)
async def test_a_node_is_drained_when_nothing_is_left_to_say(entry: Entry, because: list[str], moving: int) -> None:
    document = await _document(Ledger.of([entry], KNOWN))
    said = document["because"]
    assert len(said) == len(because)
    assert all(one.startswith(words) for one, words in zip(said, because, strict=True))
    assert (document["complete"], len(document["moving"])) == (not because, moving)
    assert document["inLegacyLane"] == (entry.lane is Lane.LEGACY)
    assert not (entry.owner is Owner.QUARANTINE and document["pods"]), "nobody knows that the pod has it"


@pytest.mark.parametrize(
    ("drained", "merged", "allocated", "said"),
    [
        (False, True, (), "the node is not drained"),
        (True, False, (), "has not been compared"),
        (True, True, None, "the API server cannot be asked"),
    ],
)
async def test_what_is_not_known_yet_is_not_drained(drained: bool, merged: bool, allocated: Any, said: str) -> None:
    document = await _document(Ledger.of([FREE], replace(KNOWN, merged=merged)), drained, allocated)
    assert not document["complete"]
    assert said in document["because"][0]


ROW = {
    "namespace": "team-a",
    "name": "train",
    "uid": "uid-1",
    "phase": "prepared",
    "lingersUntil": "",
    "devices": ["g0"],
}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"pods": ["web"]}, "claim team-a/train has g0, prepared (pod web)"),
        ({"name": "", "devices": [], "phase": "on record"}, "claim uid uid-1 has devices, on record"),
        ({"lingersUntil": "12:00"}, "claim team-a/train has g0, prepared, its processes may go on until 12:00"),
    ],
    ids=str,
)
async def test_each_claim_that_is_left_is_named(more: dict[str, Any], said: str) -> None:
    drain = _drain(Ledger.of([FREE], KNOWN), Desired(drained=True), [], claims=[{**ROW, "pods": [], **more}])
    assert (await drain.document())["because"] == [said]


class Sources:
    """Everything that may know of a claim; ``asked`` counts the LISTs of all claims."""

    def __init__(self, **known: Any) -> None:
        self.known, self.asked, self.nobody_to_ask = known, 0, False
        service, anything = Some(ledger=Ledger.of(known.get("entries", ()), KNOWN)), cast("Any", self)
        self.left = ClaimsLeft(cast("Any", service), anything, anything, anything)

    async def recorded_uids(self) -> Any:
        return self.known.get("records", ())

    async def allocated(self) -> Any:
        self.asked += 1
        return self.known.get("allocated", ())

    async def claim_users(self) -> Any:
        return self.known.get("users")


HELD = [
    Entry(LedgerDevice(name, "r"), Owner.DRA_PREPARED, Lane.DRA, claims=(ClaimHold(CLAIM, ClaimPhase.PREPARED, 0.0),))
    for name in ("g0", "g1")
]
USES = (Some(claim=ClaimRef("uid-2", "team-b", "serve"), uses=[Some(device="g2")]),)


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ({}, []),
        ({"entries": HELD}, [("uid-1", "prepared", ["g0", "g1"], [])]),
        ({"entries": HELD, "records": ("uid-1",)}, [("uid-1", "prepared", ["g0", "g1"], [])]),
        ({"records": ("uid-9", "uid-8")}, [("uid-8", "on record", [], []), ("uid-9", "on record", [], [])]),
        ({"allocated": USES}, [("uid-2", "allocated", ["g2"], [])]),
        ({"records": ("uid-9",), "allocated": USES}, [("uid-9", "on record", [], [])]),  # one is enough to wait for
        (
            {"entries": HELD, "users": {ClaimRef("", "team-a", "train"): ["web"], ClaimRef("", "x", "train"): ["no"]}},
            [("uid-1", "prepared", ["g0", "g1"], ["web"])],
        ),
    ],
    ids=str,
)
async def test_a_claim_that_any_source_knows_needs_the_driver(known: dict[str, Any], found: list[Any]) -> None:
    sources = Sources(**known)
    rows = await sources.left.rows(ask_api_server=True)
    assert [(row["uid"], row["phase"], row["devices"], row["pods"]) for row in rows] == found
    once = not found or found[0][1] == "allocated"
    assert sources.asked == once, "it is a LIST of the whole cluster"
    await sources.left.rows(ask_api_server=True)
    sources.left.ask_again()
    await sources.left.rows(ask_api_server=False)
    assert sources.asked == once
    await sources.left.rows(ask_api_server=True)
    assert sources.asked == 2 * once


async def test_processes_of_an_unprepared_claim_are_waited_for() -> None:
    held = ClaimHold(CLAIM, ClaimPhase.PREPARED, 1_000.0, lingers=30.0)
    sources = Sources(entries=[Entry(DEVICE, Owner.DRA_PREPARED, Lane.DRA, claims=(held,))])
    [row] = await sources.left.rows(ask_api_server=True)
    assert (row["phase"], row["lingersUntil"]) == ("unprepared", "1970-01-01T00:17:10Z")


class Desired:
    """The operator's wishes on disk: what was written."""

    def __init__(self, drained: bool) -> None:
        self.drained, self.written = drained, list[str]()

    async def drain(self, *, clean: bool = False) -> None:
        self.drained = True
        self.written.append("clean" if clean else "drain")

    async def undo_drain(self) -> None:
        self.drained = False
        self.written.append("undo")


@pytest.mark.parametrize(
    ("drained", "body", "written", "removed"),
    [
        (False, b"", [], None),
        (False, b'{"drain": true}', ["drain"], None),
        (True, b'{"drain": true}', [], None),
        (True, b'{"drain": false}', ["undo"], None),
        (True, b'{"drain": true, "clean": true}', ["clean"], ["/cdi/old"]),
        (False, b'{"drain": true, "clean": true}', ["drain", "clean"], ["/cdi/old"]),
    ],
)
async def test_nothing_is_removed_that_was_not_asked_for(
    drained: bool, body: bytes, written: list[str], removed: list[str] | None
) -> None:
    desired, files = Desired(drained), ["/cdi/old"]
    document = await _drain(Ledger.of([FREE], KNOWN), desired, files).request(body)
    assert (desired.written, document.get("removed")) == (written, removed)
    assert files == ([] if removed else ["/cdi/old"])


async def test_nothing_is_removed_of_a_device_that_is_in_doubt() -> None:
    desired, files = Desired(drained=True), ["/cdi/old"]
    doubtful = replace(FREE, owner=Owner.CONFLICT, hold=Hold(("G0",)))
    with pytest.raises(RefusedError, match="nothing is removed: g0 is in doubt"):
        await _drain(Ledger.of([doubtful], KNOWN), desired, files).request(b'{"drain": true, "clean": true}')
    assert (desired.written, files) == ([], ["/cdi/old"])


async def _document(ledger: Ledger, drained: bool = True, allocated: Any = ()) -> dict[str, Any]:
    """What ``drabridge drain`` prints of a node without claims; only its edges are replaced."""

    desired = Desired(drained)
    return await _drain(ledger, desired, [], allocated).document()


def _drain(ledger: Ledger, desired: Desired, files: list[str], allocated: Any = (), claims: Any = ()) -> Drain:
    async def rows(**_: Any) -> Any:
        return claims

    async def api_server() -> Any:
        return allocated

    async def paths() -> list[str]:
        return [*files]

    async def remove(these: list[str], _: Ledger) -> None:
        files[:] = set(files) - set(these)

    parts: list[Any] = [
        lambda: Some(resources=[Some(name="r")], driver="x.example.com"),
        "node-a",
        Some(ledger=ledger),
        desired,
        Some(rows=rows, allocated=api_server, ask_again=lambda: None),
        Some(paths=paths, remove=remove),
    ]
    return Drain(*parts)
