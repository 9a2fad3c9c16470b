"""The stream of changes over real sockets: kubelet restarts and fails, and nothing is released by that."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import pairwise
from typing import Any, cast

import grpc
import pytest

from podresources import Backoff, Client, errors
from podresources.changes import CapacityChanged, DeviceAssigned, DeviceReleased
from podresources.watch import Event, Interrupted, Resumed, Started, pause, watch
from podresources.wire import v1_pb2 as wire
from tests.support.podresources_server import Kubelet, capacity, container, device, fails, kubelet, listing, pod, says
from tests.support.waiting import PATIENCE, until

FAST = 0.02


def holders(*names: str) -> wire.ListPodResourcesResponse:
    """Pods that hold the device of their name."""
    return listing(*(pod(name, container("c", device("e.com/x", name))) for name in names))


@asynccontextmanager
async def watching(server: Kubelet, settle_seconds: float = 0.3) -> AsyncIterator[AsyncIterator[Event]]:
    backoff = Backoff(initial_seconds=0.02, maximum_seconds=0.05)
    async with Client(server.path, timeout_seconds=2, backoff=backoff) as client:
        events = watch(client, interval_seconds=FAST, floor_seconds=FAST, settle_seconds=settle_seconds)
        async with aclosing(cast(Any, events)):
            yield events


async def next_of(events: AsyncIterator[Event], seconds: float = 3.0) -> Event:
    return await asyncio.wait_for(anext(events), seconds * PATIENCE)


async def silence(events: AsyncIterator[Event], seconds: float) -> asyncio.Task[Event]:
    """Nothing is said for so long. Returns the pending read, to be awaited for the next event."""
    task = asyncio.ensure_future(next_of(events, 10))
    done, _ = await asyncio.wait([task], timeout=seconds)
    assert not done, f"said {task.result()}"
    return task


async def silence_to_the_end(events: AsyncIterator[Event], seconds: float) -> None:
    """Nothing is said for so long, and nobody listens any more."""
    await ended(await silence(events, seconds))


async def ended(task: asyncio.Task[Event]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_snapshot_first_then_changes() -> None:
    answers = {"List": says(holders("a")), "GetAllocatableResources": says(capacity(device("e.com/x", "a")))}
    async with kubelet(answers) as server, watching(server) as events:
        started = await next_of(events)
        assert isinstance(started, Started)
        assert [held.pod for held in started.snapshot.allocations] == ["a"]
        assert started.allocatable is not None
        server.answers["List"] = says(holders("a", "b"))
        assigned = await next_of(events)
        assert isinstance(assigned, DeviceAssigned)
        assert assigned.allocation.pod == "b"
        server.answers["GetAllocatableResources"] = says(capacity(device("e.com/x", "a", "b")))
        assert await next_of(events) == CapacityChanged("e.com/x", 1, 2, added=("b",))
        server.answers["List"] = says(holders("b"))
        released = await next_of(events)
        assert isinstance(released, DeviceReleased)
        assert released.allocation.pod == "a"


async def test_restart_in_the_middle_of_a_watch_releases_only_what_stays_away() -> None:
    """The new kubelet first knows no pods and no plugins, as a real one does; later one of two pods is really gone."""
    answers = {"List": says(holders("a", "b")), "GetAllocatableResources": says(capacity(device("e.com/x", "a", "b")))}
    async with kubelet(answers) as old, watching(old, settle_seconds=4) as events:
        await next_of(events)
        await old.stop(unlink=False)
        await asyncio.sleep(0.1)
        new = Kubelet(old.path, {"List": says(listing()), "GetAllocatableResources": says(capacity())})
        await new.start()
        try:
            quiet = await silence(events, 0.3)
            new.answers["List"] = says(holders("a"))
            new.answers["GetAllocatableResources"] = says(capacity(device("e.com/x", "a", "b")))
            released = await quiet
            assert isinstance(released, DeviceReleased)
            assert released.allocation.pod == "b"
            await silence_to_the_end(events, 0.2)
        finally:
            await new.stop()


async def test_a_long_outage_is_said_once_and_ends_with_resumed() -> None:
    async with kubelet({"List": says(holders("a"))}) as server, watching(server, settle_seconds=0.1) as events:
        await next_of(events)
        await server.stop()
        interrupted = await next_of(events)
        assert isinstance(interrupted, Interrupted)
        assert interrupted.error.code == "UNAVAILABLE"
        quiet = await silence(events, 0.5)
        await server.start()
        assert isinstance(await quiet, Resumed)
        await silence_to_the_end(events, 0.3)


async def test_a_limiter_interrupts_and_releases_nothing() -> None:
    async with kubelet({"List": says(holders("a"))}) as server, watching(server) as events:
        await next_of(events)
        server.answers["List"] = fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        interrupted = await next_of(events)
        assert isinstance(interrupted, Interrupted)
        assert isinstance(interrupted.error, errors.RateLimited)
        server.answers["List"] = says(holders("a"))
        assert isinstance(await next_of(events), Resumed)


async def test_the_first_snapshot_must_succeed() -> None:
    async with kubelet({"List": fails(grpc.StatusCode.INTERNAL, "broken")}) as server, watching(server) as events:
        with pytest.raises(errors.ProtocolViolation):
            await next_of(events)


async def test_a_kubelet_without_allocatable_is_asked_once() -> None:
    async with kubelet({"List": says(holders("a"))}) as server, watching(server) as events:
        started = await next_of(events)
        assert isinstance(started, Started)
        assert started.allocatable is None
        quiet = await silence(events, 0.2)
        await until(lambda: server.requests.count("List") > 2)
        assert not quiet.done()
        await ended(quiet)
        assert server.requests.count("GetAllocatableResources") == 1


async def test_closing_the_client_ends_the_iteration() -> None:
    async with kubelet({"List": says(holders("a"))}) as server:
        client = Client(server.path)
        events = watch(client, interval_seconds=FAST, floor_seconds=FAST)
        await next_of(events)
        await client.close()
        with pytest.raises(StopAsyncIteration):
            await next_of(events)


async def test_an_interval_below_the_floor_is_refused() -> None:
    async with kubelet({"List": says(holders())}) as server, Client(server.path) as client:
        with pytest.raises(ValueError, match="below the floor"):
            await anext(watch(client, interval_seconds=1.0))
        assert server.requests == []


async def test_polls_keep_the_interval() -> None:
    times: list[float] = []

    async def answer(request: bytes, context: object) -> bytes:
        times.append(asyncio.get_running_loop().time())
        return b""

    async with kubelet({"List": answer}) as server, Client(server.path) as client:
        events = watch(client, interval_seconds=0.1, floor_seconds=0.1)
        await next_of(events)
        await silence_to_the_end(events, 1.2)
    waits = [after - before for before, after in pairwise(times)]
    assert min(waits) >= 0.095


def test_pauses_are_spread_above_the_interval() -> None:
    pauses = [pause(10.0, random.Random(seed)) for seed in range(200)]
    assert min(pauses) >= 10.0
    assert max(pauses) <= 12.0
    assert max(pauses) - min(pauses) > 1.5
