"""Follow changes: which container was given a device or released one, which capacity came or went.

::

    async with podresources.Client() as client:
        async for event in watch(client):
            match event:
                case Started(snapshot): ...
                case DeviceAssigned(allocation): ...
                case DeviceReleased(allocation): ...
                case CapacityChanged(resource, before, after): ...
                case Interrupted(error): ...   # what was said so far may be out of date
                case Resumed(): ...
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

from msgspec import Struct

from podresources.changes import SETTLE_SECONDS, Change, ChangeTracker
from podresources.client import Client
from podresources.errors import ClientClosed, NotSupported, PodResourcesError
from podresources.features import Support
from podresources.model import Allocatable, NodeSnapshot

POLL_FLOOR_SECONDS = 5.0
"""This API has no watch, and kubelet has one limiter for all clients of the node. So pollers ask every 5 to 15 s."""

JITTER = 0.2
"""Share of the interval added at random, so that agents started together do not poll together."""


class Started(Struct, frozen=True):
    """Always the first event: what everybody holds now.

    ``allocatable`` is None when this kubelet does not serve it.
    """

    snapshot: NodeSnapshot
    allocatable: Allocatable | None


class Interrupted(Struct, frozen=True):
    """Polling began to fail; nothing is reported as released meanwhile. Reported once, until ``Resumed``."""

    error: PodResourcesError


class Resumed(Struct, frozen=True):
    """Polling works again. Releases may still be held back while kubelet settles."""


Event = Started | Change | Interrupted | Resumed


async def watch(
    client: Client,
    *,
    interval_seconds: float = POLL_FLOOR_SECONDS,
    floor_seconds: float = POLL_FLOOR_SECONDS,
    settle_seconds: float = SETTLE_SECONDS,
) -> AsyncIterator[Event]:
    """Yield a snapshot to start from, then changes, forever.

    The first snapshot must succeed: its error is raised. Later failures are events, and polling goes on; only closing
    the client ends the iteration. Raises ValueError for an interval below ``floor_seconds``; lower the floor only on
    a socket that nobody else uses.
    """
    if interval_seconds < floor_seconds:
        raise ValueError(f"interval_seconds={interval_seconds} is below the floor of {floor_seconds} s")
    now = asyncio.get_running_loop().time
    jitter = random.Random()
    snapshot, allocatable = await _poll(client)
    tracker = ChangeTracker(snapshot, allocatable, settle_seconds)
    yield Started(snapshot, allocatable)
    failing = False
    while True:
        await asyncio.sleep(pause(interval_seconds, jitter))
        try:
            snapshot, allocatable = await _poll(client)
        except ClientClosed:
            return
        except PodResourcesError as error:
            tracker.failed(error, now())
            if not failing:
                failing = True
                yield Interrupted(error)
            continue
        if failing:
            failing = False
            yield Resumed()
        for change in tracker.step(snapshot, allocatable, now()):
            yield change


def pause(interval_seconds: float, jitter: random.Random) -> float:
    """Return the seconds until the next poll: never less than the interval."""
    return interval_seconds * (1 + JITTER * jitter.random())


async def _poll(client: Client) -> tuple[NodeSnapshot, Allocatable | None]:
    """Return both lists. They are two requests, so a change in between is in the second one only."""
    snapshot = await client.list()
    if client.features.allocatable is Support.NO:
        return snapshot, None
    try:
        return snapshot, await client.allocatable()
    except NotSupported:
        return snapshot, None
