"""How the status document is said to people, on the terminal as on the page: ages, holders."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def holder(one: Mapping[str, Any]) -> str:
    """``ns/pod/container``, or ``claim ns/name``."""
    if one["api"] == "dra":
        return f"claim {one['namespace']}/{one['claim'] or one['claimUID']}{' (admin)' if one['admin'] else ''}"
    if one["pod"]:
        return f"{one['namespace']}/{one['pod']}/{one['container']}"
    return f"pod uid {one['podUID']}" if one["podUID"] else "a pod, not yet seen"


def seconds_of(stamp: str) -> float:
    """The document's RFC 3339 time as wall seconds; 0.0 for none."""
    try:
        return datetime.fromisoformat(stamp).astimezone(UTC).timestamp()
    except ValueError:
        return 0.0


def age(now: float, since: float) -> str:
    """As kubectl writes it: 45s, 12m, 5h, 3d."""
    if not since:
        return "-"
    seconds = max(0, int(now - since))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
