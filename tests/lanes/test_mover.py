"""What a lane move waits for is asked of the right side, and of nobody while that could give a device away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace as Some
from typing import Any

import pytest

from drabridge.inventory.devices import Presence
from drabridge.lanes.acknowledgements import CLAIMS_RETRY_SECONDS
from drabridge.lanes.mover import LaneMover
from drabridge.lanes.plan import HYSTERESIS_SECONDS, LaneChange, Urgency
from drabridge.ledger.entries import (
    ClaimHold,
    ClaimPhase,
    ClaimRef,
    Entry,
    Lane,
    Ledger,
    LedgerDevice,
    Move,
    MoveStep,
    Owner,
)

NOW = 1_000.0
KUBELET_SECONDS, CLAIMS_SECONDS = 7.0, 9.0
TO_DRA = LaneChange("d0", Lane.DRA, Urgency.FREE, "wanted")
BACK = LaneChange("d1", Lane.LEGACY, Urgency.TAKE_BACK, "wanted")


class Bed:
    """One pass of the mover. ``asked``: whom it asked about which devices; ``pause``: for how long it then waits."""

    def __init__(self, *entries: Entry, published: bool = True, competing: str = "", changes: Any = ()) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self.applied: list[tuple[str, Lane]] = []
        self.pause: float | None = None
        self.unmet: dict[str, list[str]] = {}
        made = Some(changes=changes, notes=[])
        service = Some(ledger=Ledger.of(entries), now=lambda: NOW, apply=self._apply)
        targets = Some(
            resources=lambda: [Some(name="unplanned"), Some(name="r")],
            plan=lambda resource: made if resource.name == "r" else None,
            divided=lambda _: ["divided"],
        )
        kubelet = Some(fetch=lambda some: self._ask("kubelet", some, KUBELET_SECONDS))
        server = Some(
            fetch_slices=lambda some: self._ask("slices", some, 0.0),
            fetch_claims=lambda some: self._ask("claims", some, CLAIMS_SECONDS),
        )
        parts: list[Any] = [service, targets, Some(unmet=self.unmet), Some(published=published), kubelet, server]
        self.mover = LaneMover(*[*parts, {competing}, self])

    async def _ask(self, whom: str, entries: list[Entry], seconds: float) -> float:
        self.asked.append((whom, [entry.name for entry in entries]))
        return seconds

    async def _apply(self, event: Any) -> None:
        self.applied.append((event.device, event.lane))

    async def wait(self, pause: float | None) -> bool:
        """Stand in for the wake-up: end after the first pass."""
        self.pause = pause
        raise asyncio.CancelledError

    async def look(self) -> Bed:
        with pytest.raises(asyncio.CancelledError):
            await self.mover.run()
        return self


def _entry(lane: Lane, step: MoveStep | None = None, **more: Any) -> Entry:
    move = None if step is None else Move(Lane.DRA, Lane.LEGACY, step, 0.0, 0.0)
    return Entry(LedgerDevice("d0", "r", **more), Owner.NONE, lane, move=move)


REVOKED, RETURNED = _entry(Lane.LEGACY_TO_DRA, MoveStep.REVOKING), _entry(Lane.DRA_TO_LEGACY, MoveStep.REVOKING)
LEASED = Entry(
    LedgerDevice("d0", "r"),
    Owner.DRA_PENDING,
    Lane.SHARED,
    claims=(ClaimHold(ClaimRef("uid"), ClaimPhase.PENDING, 0.0),),
)
FAULTY = Entry(LedgerDevice("d0", "r", presence=Presence.FAULTY), presence_since=NOW)


@pytest.mark.parametrize(
    ("entry", "more", "asked", "pause"),
    [
        (_entry(Lane.LEGACY), {}, [], None),
        (REVOKED, {}, ["kubelet"], KUBELET_SECONDS),
        (LEASED, {}, ["kubelet"], KUBELET_SECONDS),
        (REVOKED, {"competing": "r"}, [], None),  # the other plugin may offer it to kubelet again
        (REVOKED, {"published": False}, [], None),  # it may still be taken back
        (RETURNED, {}, ["slices"], CLAIMS_RETRY_SECONDS),
        (_entry(Lane.DRA_TO_LEGACY, MoveStep.QUIESCING), {}, ["claims"], CLAIMS_SECONDS),
        (_entry(Lane.DRA, MoveStep.WAITING), {}, [], None),
        (FAULTY, {}, [], HYSTERESIS_SECONDS),
    ],
)
async def test_a_move_asks_who_must_let_go_of_the_device(
    entry: Entry, more: dict[str, Any], asked: list[str], pause: float | None
) -> None:
    bed = await Bed(entry, **more).look()
    assert bed.asked == [(whom, ["d0"]) for whom in asked]
    assert bed.pause == pause


DEVICES = [Entry(LedgerDevice("d0", "r")), Entry(LedgerDevice("d1", "r"), lane=Lane.DRA)]


@pytest.mark.parametrize(
    ("published", "applied", "note"),
    [
        (True, [("d0", Lane.DRA), ("d1", Lane.LEGACY)], ["divided"]),
        (False, [("d1", Lane.LEGACY)], ["1 more for the dra lane wait until slices can be published"]),
    ],
)
async def test_no_pod_loses_a_device_to_claims_that_could_not_get_it(
    published: bool, applied: list[Any], note: list[str]
) -> None:
    bed = await Bed(*DEVICES, published=published, changes=(TO_DRA, BACK)).look()
    assert bed.applied == applied
    assert bed.unmet == {"r": note}
