"""``list``, ``get`` and ``allocatable``: one question, one answer."""

from __future__ import annotations

import sys
from argparse import Namespace

from podresources import render
from podresources.cli.output import dump, exposition, tell_notes, width
from podresources.cli.parser import selection
from podresources.facts import Facts
from podresources.model import Snapshot
from podresources.select import Selection
from podresources.sync import SyncClient


def connect(options: Namespace) -> SyncClient:
    """A client as the command line wants it."""
    return SyncClient(
        options.socket,
        timeout_seconds=options.timeout,
        receive_limit_bytes=options.receive_limit_mib * 1024 * 1024,
    )


def run_list(options: Namespace) -> int:
    """Print who holds what."""
    chosen = selection(options)
    with connect(options) as client:
        snapshot = client.list()
        facts = client.facts if snapshot.has_dynamic_resources else client.probe()
    selected = chosen.snapshot(snapshot)
    _print(selected, chosen, facts, options.output)
    if not selected.allocations and options.output in ("table", "wide"):
        print(f"No device is held in the {len(selected.pods)} pods selected.", file=sys.stderr)
    tell_notes(facts)
    return 0


def run_get(options: Namespace) -> int:
    """Print what one pod holds."""
    with connect(options) as client:
        snapshot = client.get(options.namespace, options.pod)
        facts = client.facts
    _print(snapshot, Selection(), facts, options.output)
    if not snapshot.allocations and options.output in ("table", "wide"):
        print(f"Pod {options.namespace}/{options.pod} holds no device.", file=sys.stderr)
    tell_notes(facts)
    return 0


def run_allocatable(options: Namespace) -> int:
    """Print what kubelet may give out."""
    with connect(options) as client:
        capacity = selection(options).allocatable(client.allocatable())
    match options.output:
        case "table":
            print(render.allocatable_table(capacity, width()))
        case "wide":
            print(render.allocatable_wide(capacity))
        case "prom":
            from podresources.families import capacity_families

            print(exposition(capacity_families(capacity)))
        case output:
            print(dump(render.allocatable_document(capacity), output))
    return 0


def _print(snapshot: Snapshot, chosen: Selection, facts: Facts, output: str) -> None:
    match output:
        case "table":
            print(render.list_table(snapshot, chosen, width()))
        case "wide":
            print(render.list_wide(snapshot, chosen))
        case "prom":
            from podresources.families import snapshot_families

            print(exposition(snapshot_families(snapshot, facts)))
        case _:
            print(dump(render.list_document(snapshot, chosen, facts), output))
