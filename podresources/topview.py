"""Render the text of ``podresources top``. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from podresources import table
from podresources.model import (
    Allocatable,
    AllocationKey,
    Api,
    DeviceKey,
    NodeSnapshot,
    PodAllocation,
    holders_by_device,
)

HEADER = ("RESOURCE", "DEVICE", "NUMA", "HOLDER", "FOR", "CLAIM")


def frame(
    snapshot: NodeSnapshot,
    allocatable: Allocatable | None,
    since: Mapping[AllocationKey, float],
    now: float,
    *,
    width: int | None,
    height: int | None,
) -> str:
    """Render totals, then a line per device and holder, free devices included; cut to ``width`` and ``height``.

    ``since`` tells when each allocation was first seen, 0 meaning before this view began.
    """
    held = holders_by_device(snapshot.allocations)
    nodes = {device.device_key: device.numa_nodes for device in (allocatable.devices if allocatable else ())}
    keys = sorted(held.keys() | nodes.keys())
    rows = [row for key in keys for row in _rows(key, held.get(key, []), nodes.get(key, ()), since, now)]
    lines = [_totals(keys, held), "", *table.render(HEADER, rows, width).splitlines()]
    if width is not None:
        lines[0] = lines[0][:width]
    if height is not None and len(lines) > height:
        lines = [*lines[: height - 1], f"… and {len(lines) - height + 1} more lines"]
    return "\n".join(lines)


def age(seconds: float) -> str:
    """``45s``, ``12m``, ``3h``, ``5d``: one unit, rounded down."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def _totals(keys: list[DeviceKey], held: Mapping[DeviceKey, list[PodAllocation]]) -> str:
    total = Counter((key.api, key.source) for key in keys)
    busy = Counter((key.api, key.source) for key in held)
    parts = []
    for (api, source), count in sorted(total.items()):
        of = f"/{count}" if api is Api.DEVICE_PLUGIN else ""  # DRA devices that nobody holds are not listed
        parts.append(f"{table.printable(source)} {busy[api, source]}{of} held")
    return "   ".join(parts) or "no devices"


def _rows(
    key: DeviceKey,
    holders: list[PodAllocation],
    nodes: tuple[int, ...],
    since: Mapping[AllocationKey, float],
    now: float,
) -> list[tuple[str, ...]]:
    name = "/".join(part for part in (key.pool, key.device, key.share_id) if part)
    if not holders:
        return [(key.source, name, table.ranges(nodes), "", "", "")]
    return [
        (
            key.source,
            name,
            table.ranges(nodes or allocation.numa_nodes),
            str(allocation.holder),
            age(now - begun) if (begun := since.get(allocation.key, 0.0)) else "",
            allocation.claim or "",
        )
        for allocation in sorted(holders, key=lambda allocation: allocation.key)
    ]
