"""Watches over HTTP: selectors, revisions, 410, bookmarks, faults in the middle."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from drabridge.sim.apiserver.server import SimApiServer
from tests.support.api_client import MERGE, SLICES, Client, slice_body, take


def names(events: list[Any]) -> list[tuple[str, str]]:
    return [(one["type"], one["object"]["metadata"].get("name", "")) for one in events]


async def test_from_a_revision_replays_what_came_after(api: SimApiServer, client: Client) -> None:
    for name in ("s0", "s1", "s2"):
        await client("POST", SLICES, slice_body(name, "d0"))
    revision = api.objects.get("resourceslices", "s0")["metadata"]["resourceVersion"]
    async with client.watch(f"{SLICES}?watch=true&resourceVersion={revision}") as events:
        assert names(await take(events, 2)) == [("ADDED", "s1"), ("ADDED", "s2")]
        await client("DELETE", f"{SLICES}/s1")
        assert names(await take(events, 1)) == [("DELETED", "s1")]


async def test_objects_enter_and_leave_a_selection(client: Client) -> None:
    async with client.watch(f"{SLICES}?watch=true&labelSelector=mine%3Dyes") as events:
        await client("POST", SLICES, slice_body("s0", "d0"))
        await client("PATCH", f"{SLICES}/s0", {"metadata": {"labels": {"mine": "yes"}}}, MERGE)
        await client("PATCH", f"{SLICES}/s0", {"spec": {"pool": {"generation": 2}}}, MERGE)
        await client("PATCH", f"{SLICES}/s0", {"metadata": {"labels": {"mine": None}}}, MERGE)
        assert names(await take(events, 3)) == [("ADDED", "s0"), ("MODIFIED", "s0"), ("DELETED", "s0")]


async def test_history_is_bounded(api: SimApiServer, client: Client) -> None:
    api.objects.store._limit = 5
    for number in range(10):
        await client("POST", SLICES, slice_body(f"s{number}", "d0"))
    old, fresh = api.objects.store.revision - 9, api.objects.store.revision - 2
    async with client.watch(f"{SLICES}?watch=1&resourceVersion={old}") as events:
        assert (await take(events, 1))[0]["object"]["code"] == 410
    async with client.watch(f"{SLICES}?watch=1&resourceVersion={fresh}") as events:
        assert names(await take(events, 2)) == [("ADDED", "s8"), ("ADDED", "s9")]


async def test_bookmark_carries_the_revision_to_go_on_from(api: SimApiServer, client: Client) -> None:
    await client("POST", SLICES, slice_body("s0", "d0"))
    path = f"{SLICES}?watch=1&allowWatchBookmarks=true&timeoutSeconds=2&resourceVersion={api.objects.store.revision}"
    async with client.watch(path) as events:
        await client("POST", SLICES, slice_body("s1", "d0"))
        found = [one async for one in events]
    assert names(found) == [("ADDED", "s1"), ("BOOKMARK", "")]
    assert found[1]["object"]["metadata"] == {"resourceVersion": found[0]["object"]["metadata"]["resourceVersion"]}


async def test_cut_stream_and_partition(api: SimApiServer, client: Client) -> None:
    async with client.watch(f"{SLICES}?watch=1") as events:
        await client("POST", SLICES, slice_body("s0", "d0"))
        await take(events, 1)
        assert api.faults.drop_watches() == 1
        with pytest.raises(ConnectionError):
            await anext(events)
    async with client.watch(f"{SLICES}?watch=1&resourceVersion={api.objects.store.revision}") as events:
        api.faults.partition()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await anext(events)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client("GET", SLICES)
    api.faults.heal()
    assert (await client("GET", SLICES)).status == 200


async def test_lag_delays_watches_but_not_reads(api: SimApiServer, client: Client) -> None:
    api.faults.watch_lag_seconds = 60
    async with client.watch(f"{SLICES}?watch=1") as events:
        await client("POST", SLICES, slice_body("s0", "d0"))
        assert (await client("GET", f"{SLICES}/s0")).status == 200
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.15)
    api.faults.watch_lag_seconds = 0.3
    async with client.watch(f"{SLICES}?watch=1&resourceVersion={api.objects.store.revision}") as events:
        started = asyncio.get_running_loop().time()
        await client("POST", SLICES, slice_body("s1", "d0"))
        assert names(await take(events, 1)) == [("ADDED", "s1")]
        assert asyncio.get_running_loop().time() - started >= 0.3


async def test_a_late_answer_comes_after_the_event(api: SimApiServer, client: Client) -> None:
    api.faults.answer_lag_seconds = 60
    async with client.watch(f"{SLICES}?watch=1") as events:
        writing = asyncio.ensure_future(client("POST", SLICES, slice_body("s0", "d0")))
        assert names(await take(events, 1)) == [("ADDED", "s0")]
        assert not writing.done()
        assert (await client("GET", f"{SLICES}/s0")).status == 200
        writing.cancel()
    api.faults.heal()
    assert (await client("POST", SLICES, slice_body("s1", "d0"))).status == 201
