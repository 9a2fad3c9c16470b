"""Garbage collection: objects whose owners are all gone are deleted, a moment after the fact."""

from __future__ import annotations

import asyncio
import contextlib

from drabridge.sim.apiserver.objects import Objects
from drabridge.sim.apiserver.status import ApiError
from drabridge.sim.apiserver.store import Change

DELAY_SECONDS = 0.02
"""The real collector reacts to its watch within milliseconds, never inside the request that deletes the owner."""


def sweep(objects: Objects) -> None:
    """Delete every object with owner references if none of the owners exists (by uid)."""
    for resource, obj in objects.store.everything():
        meta = obj["metadata"]
        owners = meta.get("ownerReferences", [])
        if (
            owners
            and not meta.get("deletionTimestamp")
            and not any(objects.store.has_uid(one["uid"]) for one in owners)
        ):
            with contextlib.suppress(ApiError):
                objects.delete(resource.plural, meta["name"], meta.get("namespace", ""))


async def collect(objects: Objects, delay_seconds: float = DELAY_SECONDS) -> None:
    """Delete objects whose owners are all gone, until cancelled.

    It looks after each deletion, and after each creation of an object that claims an owner.
    """
    wake = asyncio.Event()

    def noticed(change: Change) -> None:
        if change.type == "DELETED" or (change.type == "ADDED" and change.object["metadata"].get("ownerReferences")):
            wake.set()

    unsubscribe = objects.store.subscribe(noticed)
    try:
        while True:
            await wake.wait()
            await asyncio.sleep(delay_seconds)
            wake.clear()
            sweep(objects)
    finally:
        unsubscribe()
