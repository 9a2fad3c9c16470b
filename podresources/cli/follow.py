"""``watch``: the stream of changes, one line or document each."""

from __future__ import annotations

import asyncio
import signal
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

from podresources import render
from podresources.changes import CapacityChanged, DeviceAssigned, DeviceReleased
from podresources.cli.output import dump, tell_notes
from podresources.cli.parser import INTERVAL_FLOOR_SECONDS, selection
from podresources.client import Client
from podresources.filters import Filters
from podresources.model import PodAllocation
from podresources.table import printable
from podresources.watch import Event, Interrupted, Resumed, Started, watch


def run_watch(options: Namespace) -> int:
    """Print what is held and then every change, until SIGINT or SIGTERM."""
    asyncio.run(_until_interrupted(options))
    return 0


async def _until_interrupted(options: Namespace) -> None:
    task = asyncio.ensure_future(_follow(options))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


async def _follow(options: Namespace) -> None:
    chosen = selection(options)
    limit = options.receive_limit_mib * 1024 * 1024
    async with Client(options.socket, timeout_seconds=options.timeout, receive_limit_bytes=limit) as client:
        events = watch(client, interval_seconds=options.interval, floor_seconds=INTERVAL_FLOOR_SECONDS)
        async for event in events:
            if isinstance(event, Started) and not event.snapshot.has_dynamic_resources:
                tell_notes(await client.probe())
            for document in documents(event, chosen):
                print(_text(document, options.output), flush=True)


def documents(event: Event, chosen: Filters) -> Iterator[dict[str, Any]]:
    """Yield what an event says of the selected pods and devices, as plain documents with a field ``event``."""
    match event:
        case Started(snapshot):
            for held in sorted(filter(chosen.matches, snapshot.allocations), key=lambda held: held.key):
                yield _held("held", held)
        case DeviceAssigned(allocation):
            if chosen.matches(allocation):
                yield _held("assigned", allocation)
        case DeviceReleased(allocation):
            if chosen.matches(allocation):
                yield _held("released", allocation)
        case CapacityChanged(resource, before, after, added, removed):
            if chosen.of_resource(resource) and not chosen.by_pod:
                lists = {"added": list(added), "removed": list(removed)}
                yield {"event": "capacity", "resource": resource, "before": before, "after": after, **lists}
        case Interrupted(error):
            yield {"event": "interrupted", "code": error.code, "message": str(error)}
        case Resumed():
            yield {"event": "resumed"}


def _held(event: str, held: PodAllocation) -> dict[str, Any]:
    return {"event": event, **render.allocation_document(held)}


def _text(document: dict[str, Any], output: str) -> str:
    stamped = {"time": datetime.now().astimezone().isoformat(timespec="milliseconds"), **document}
    match output:
        case "json":
            return dump(stamped, "json", one_line=True)
        case "yaml":
            return "---\n" + dump(stamped, "yaml")
        case _:
            return printable(_line(stamped, wide=output == "wide"))


def _line(document: dict[str, Any], *, wide: bool) -> str:
    """``12:30:01 released  team/train-0/main  nvidia.com/gpu  GPU-1``."""
    time = document["time"] if wide else document["time"][11:19]
    head = f"{time}  {document['event']:<11}"
    match document["event"]:
        case "capacity":
            moved = [f"+{name}" for name in document["added"]] + [f"-{name}" for name in document["removed"]]
            shown = moved if wide else moved[:4] + (["…"] if len(moved) > 4 else [])
            return f"{head}  {document['resource']}  {document['before']} -> {document['after']}  {' '.join(shown)}"
        case "interrupted":
            return f"{head}  {document['message']}"
        case "resumed":
            return head.rstrip()
    holder = "/".join((document["namespace"], document["pod"], document["container"]))
    if document["api"] == "deviceplugin":
        line = f"{head}  {holder}  {document['resource']}  {document['device_ids'][0]}"
    else:
        line = f"{head}  {holder}  {document['driver']}  {document['pool']}/{document['device']}"
        if wide:
            line += f"  claim={document['claim_namespace']}/{document['claim']}  cdi={','.join(document['cdi_ids'])}"
    return line
