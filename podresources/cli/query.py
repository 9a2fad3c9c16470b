"""``list``, ``get`` and ``allocatable``: one question, one answer."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from podresources import render
from podresources.cli.output import dump, exposition, tell_notes, width
from podresources.cli.parser import selection
from podresources.features import KubeletFeatures
from podresources.filters import Filters
from podresources.model import NodeSnapshot
from podresources.sync import SyncClient
from podresources.table import printable

if TYPE_CHECKING:
    from podresources.resolve.resolver import Resolved


def connect(options: Namespace) -> SyncClient:
    """Return a client as the command line wants it."""
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
        features = client.features if snapshot.has_dynamic_resources else client.probe()
    selected = chosen.snapshot(snapshot)
    resolved = _resolve(snapshot, options)
    _print(selected, chosen, features, options.output, resolved)
    if not selected.allocations and options.output in ("table", "wide"):
        print(f"No device is held in the {len(selected.pods)} pods selected.", file=sys.stderr)
    tell_notes(features)
    _tell_problems(resolved)
    return 0


def run_get(options: Namespace) -> int:
    """Print what one pod holds."""
    with connect(options) as client:
        snapshot = client.get(options.namespace, options.pod)
        features = client.features
    resolved = _resolve(snapshot, options)
    _print(snapshot, Filters(), features, options.output, resolved)
    if not snapshot.allocations and options.output in ("table", "wide"):
        print(f"Pod {options.namespace}/{options.pod} holds no device.", file=sys.stderr)
    tell_notes(features)
    _tell_problems(resolved)
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


def _resolve(snapshot: NodeSnapshot, options: Namespace) -> Resolved | None:
    """Find the hardware behind the devices, of all pods: kubelet repeats CDI names within a claim."""
    if not options.resolve:
        return None
    from podresources.cli.resolving import make_resolver

    resolver = make_resolver(options, wait=True)
    try:
        return resolver.resolve(snapshot.allocations, options.timeout)
    finally:
        resolver.close()


def _tell_problems(resolved: Resolved | None) -> None:
    """Say on stderr which sources failed: what they know is missing."""
    for sentences in resolved.problems.values() if resolved is not None else ():
        for sentence in sentences:
            print(printable(f"note: not resolved by {sentence}"), file=sys.stderr)


def _print(
    snapshot: NodeSnapshot, chosen: Filters, features: KubeletFeatures, output: str, resolved: Resolved | None
) -> None:
    match output:
        case "table" if resolved is not None:
            print(render.resolved_table(snapshot, resolved, width()))
        case "wide" if resolved is not None:
            print(render.resolved_wide(snapshot, resolved))
        case "table":
            print(render.list_table(snapshot, chosen, width()))
        case "wide":
            print(render.list_wide(snapshot, chosen))
        case "prom":
            from podresources.families import snapshot_families

            print(exposition(snapshot_families(snapshot, features, resolved)))
        case _:
            print(dump(render.list_document(snapshot, chosen, features, resolved), output))
