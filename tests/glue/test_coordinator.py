"""A coordinator's work and what it says of itself, while its leadership, the API server and its loop come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.glue.coordinator_life import Life, play  # isort: skip  # first: it brings the clock
from drabridge.kube.claim_hints import hints_object
from drabridge.kube.leader_election import LostLeadershipError
from tests.glue.worlds import CONTROL, DRIVER, NODE

LEASE_UNSEEN = "the API server does not show the Lease of the election"


def test_one_that_does_not_lead_writes_nothing_and_is_well() -> None:
    async def script(one: Life) -> None:
        assert one.ready() == [LEASE_UNSEEN]
        one.heard()
        one.waits("c")
        await asyncio.sleep(100.0)
        assert one.hints() is None
        assert one.ready() == [LEASE_UNSEEN]
        assert one.healthy()
        one.heard()
        assert one.ready() == []
        assert [one.metric(name) for name in ("leading", "following", "pending_claims")] == [0, 0, 0]
        assert one.writes() == [0, 0]

    play(script)


def test_the_leader_names_claims_and_says_that_it_follows_them() -> None:
    async def script(one: Life) -> None:
        one.begins()
        one.waits("c")
        await asyncio.sleep(2.0)
        assert one.hints() == ["c"]
        assert [one.metric(name) for name in ("leading", "following", "pending_claims")] == [1, 1, 1]
        assert one.writes() == [1, 0]
        assert (one.ready(), one.healthy()) == ([], True)
        for _ in range(10):
            await asyncio.sleep(10.0)
            one.heard()
        assert (one.ready(), one.healthy()) == ([], True)

    play(script)


def test_hints_of_before_stay_until_the_claims_are_listed() -> None:
    """They would be emptied: the claims still wait, and their agents know of them by these hints alone."""

    async def script(one: Life) -> None:
        one.waits("c")
        one.objects.create(hints_object(DRIVER, NODE, '[{"name":"c"}]'), namespace=CONTROL)
        one.trouble.deaf_to.add("resourceclaims")
        one.begins()
        await asyncio.sleep(5.0)
        assert one.hints() == ["c"]
        one.trouble.deaf_to.clear()
        one.waits("d")
        await asyncio.sleep(40.0)
        assert one.hints() == ["c", "d"]

    play(script)


def test_a_leader_that_cannot_follow_claims_lets_another_one_try_after_a_minute() -> None:
    async def script(one: Life) -> None:
        one.begins()
        await asyncio.sleep(5.0)
        one.trouble.deaf_to.add("resourceclaims")
        one.waits("c")  # an event, at which the watch breaks
        await asyncio.sleep(30.0)
        one.heard()
        assert one.healthy()
        assert one.ready() == ["the claims have not been followed for 30 s"]
        assert one.metric("following") == 0
        await asyncio.sleep(31.0)
        assert not one.healthy()

    play(script)


def test_a_leader_that_cannot_write_lets_another_one_try_after_a_minute() -> None:
    async def script(one: Life) -> None:
        one.begins()
        await asyncio.sleep(5.0)
        one.connection.refuses = True
        one.waits("c")
        await asyncio.sleep(30.0)
        one.heard()
        assert one.healthy()
        assert one.ready() == ["some node's hints could not be written for 30 s"]
        await asyncio.sleep(31.0)
        assert not one.healthy()
        one.connection.refuses = False
        await asyncio.sleep(31.0)
        assert one.healthy()

    play(script)


def test_a_leader_whose_loop_stands_still_does_not_keep_the_leadership() -> None:
    """As when a disk or a debugger stops it: the election's thread goes on."""

    async def script(one: Life) -> None:
        loop: Any = asyncio.get_running_loop()
        one.begins()
        await asyncio.sleep(5.0)
        loop._jumping.now += 7.0
        assert one.healthy()
        loop._jumping.now += 2.0
        assert not one.healthy()
        await asyncio.sleep(1.0)
        assert one.healthy()

    play(script)


def test_one_that_waited_for_an_hour_has_a_minute_to_begin_with() -> None:
    async def script(one: Life) -> None:
        await asyncio.sleep(3600.0)
        one.trouble.deaf_to.add("resourceclaims")
        one.begins()
        await asyncio.sleep(50.0)
        assert one.healthy()
        await asyncio.sleep(11.0)
        assert not one.healthy()

    play(script)


def test_a_server_that_gets_the_resource_api_later_is_asked_ever_less_often() -> None:
    async def script(one: Life) -> None:
        one.connection.has_dra = False
        one.begins()
        one.waits("c")
        await asyncio.sleep(50.0)
        assert 5 <= one.connection.reads <= 10
        assert one.hints() is None
        one.connection.has_dra = True
        await asyncio.sleep(40.0)
        assert one.hints() == ["c"]

    play(script)


@pytest.mark.parametrize("number", [0, 1])
def test_it_ends_when_it_is_told_to(number: int) -> None:
    async def script(one: Life) -> None:
        one.begins()
        await asyncio.sleep(5.0)
        assert len(one.stops) == 2, "SIGTERM and SIGINT"
        one.stops[number]()
        await asyncio.wait_for(one.task, 1.0)

    play(script)


def test_it_ends_when_the_leadership_is_lost() -> None:
    async def script(one: Life) -> None:
        one.begins()
        await asyncio.sleep(5.0)
        one.lost.set_exception(LostLeadershipError("another one has it"))
        with pytest.raises(LostLeadershipError):
            await asyncio.wait_for(one.task, 1.0)

    play(script)
