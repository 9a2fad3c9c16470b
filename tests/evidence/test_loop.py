"""How often kubelet is asked: at once after a hint, and never more often than agreed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from drabridge.evidence.loop import ABSENT_SECONDS, HELD_SECONDS, IDLE_SECONDS, LEAST_SECONDS, EvidenceLoop
from drabridge.ledger.effects import ACCEPTED, Decision
from drabridge.ledger.entries import Entry, Hold, Ledger, LedgerDevice, Owner, PodRef
from drabridge.ledger.events import Event, Observed
from drabridge.ledger.policy import LedgerPolicy
from tests.support.waiting import until

POD = PodRef("default", "a", "m", "uid-a")
NAMED = Hold(pods=(POD,), recorded=(POD,))


class Node:
    """The ledger and kubelet in one: nobody answers anything, and every question is counted."""

    policy = LedgerPolicy()

    def now(self) -> float:
        return self.at

    def __init__(self, *entries: Entry) -> None:
        self.ledger = Ledger.of(entries)
        self.at = 0.0
        self.looks = 0
        self.loop = EvidenceLoop(self, self)  # type: ignore[arg-type]  # only ``gather`` is used

    async def gather(self, ledger: Ledger) -> Observed:
        self.looks += 1
        return Observed(0.0, 0)

    async def apply(self, event: Event) -> Decision:
        return ACCEPTED


@asynccontextmanager
async def running() -> AsyncIterator[Node]:
    node = Node()
    task = asyncio.create_task(node.loop.run())
    try:
        await until(lambda: node.looks)
        yield node
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_hint_is_followed_at_once_and_once() -> None:
    async with running() as node:
        node.loop.changed()  # of the ledger: nothing in it is due
        await asyncio.sleep(3 * LEAST_SECONDS)
        assert node.looks == 1
        node.loop.hurry()
        await until(lambda: node.looks == 2)
        await asyncio.sleep(3 * LEAST_SECONDS)
        assert node.looks == 2


async def test_many_hints_are_followed_together() -> None:
    async with running() as node:
        began = asyncio.get_running_loop().time()
        for _ in range(50):
            node.loop.hurry()
            await asyncio.sleep(LEAST_SECONDS / 50)
        passed = asyncio.get_running_loop().time() - began
        assert 2 <= node.looks <= 2 + passed / LEAST_SECONDS


@pytest.mark.parametrize(
    ("owner", "hold", "seconds"),
    [
        (Owner.NONE, None, IDLE_SECONDS),
        (Owner.DRA_PREPARED, None, IDLE_SECONDS),
        *((owner, NAMED, HELD_SECONDS) for owner in (Owner.LEGACY, Owner.CONFLICT, Owner.QUARANTINE)),
        (Owner.QUARANTINE, Hold(), HELD_SECONDS),
        (Owner.LEGACY, Hold(), LEAST_SECONDS),  # until kubelet says whose it is
        *((owner, Hold(pods=(POD,)), LEAST_SECONDS) for owner in (Owner.LEGACY, Owner.CONFLICT)),  # and by its UID
        (Owner.LEGACY, replace(NAMED, absences=1), ABSENT_SECONDS),
        (Owner.QUARANTINE, Hold(absences=1), ABSENT_SECONDS),
    ],
)
def test_the_next_question_comes_when_a_hold_may_end(owner: Owner, hold: Hold | None, seconds: float) -> None:
    held = Entry(LedgerDevice("d0", "r", ("d0",)), owner, hold=hold)
    assert Node(held, Entry(LedgerDevice("d1", "r", ("d1",)))).loop.pause_seconds() == seconds


async def test_kubelet_is_asked_at_once_after_an_allocate_and_less_often_while_it_does_not_say() -> None:
    async with running() as node:
        loop = asyncio.get_running_loop()
        node.at = 100.0
        node.ledger = Ledger.of([Entry(LedgerDevice("d0", "r", ("d0",)), Owner.LEGACY, hold=Hold(allocated_at=100.0))])
        began = loop.time()
        node.loop.changed()
        await until(lambda: node.looks == 2)
        assert loop.time() - began < 4 * LEAST_SECONDS
        node.at = 101.0
        await asyncio.sleep(9 * LEAST_SECONDS)
        assert 4 <= node.looks <= 6, "1, 1.5 and 2.25 times the least pause"
