"""How the status document is said to people, on the terminal as on the page: its verdict, holders, moves, refusals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Row = Mapping[str, Any]

HOLDERS_MAX = 3  # named in one sentence or cell of a device that many share; -o wide and the page name all

DOUBT = frozenset({"conflict", "quarantine"})

_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def verdict(document: Row) -> tuple[bool, str]:
    """(whether all is well, in words)."""
    if not document["ready"]:
        return False, "not ready"
    if any(row["inDoubt"] for row in document["resources"]):
        return False, "ready, but devices are in doubt"
    return True, "ready"


def doubts(document: Row) -> list[tuple[str, str]]:
    """(owner, in words) of every device that is offered to nobody until its doubt ends."""
    found = []
    for row in document["devices"]:
        if row["owner"] in DOUBT:
            who = " and ".join(holder(one) for one in row["holders"]) or "nobody knows who holds it"
            found.append((row["owner"], f"{row['name']} ({row['resource']}): {who}"))
    return found


def holder(one: Row) -> str:
    """``ns/pod/container``, or ``claim ns/name``."""
    if one["api"] == "dra":
        return f"claim {one['namespace']}/{one['claim'] or one['claimUID']}{' (admin)' if one['admin'] else ''}"
    if one["pod"]:
        return f"{one['namespace']}/{one['pod']}/{one['container']}"
    return f"pod uid {one['podUID']}" if one["podUID"] else "a pod, not yet seen"


def holders(row: Row, most: int | None = None) -> list[str]:
    """Who holds a device. ``most``: the others are counted only."""
    found = [holder(one) for one in row["holders"]] or ([] if row["owner"] == "none" else ["an unknown holder"])
    return found if most is None or len(found) <= most else [*found[:most], f"and {len(found) - most} more"]


def moving(row: Row, now: float) -> str:
    """How far a device's move is, whom it waits for, and why: ``waiting 4m for default/a/main; ...``. Empty: none."""
    move = row["move"]
    if move is None:
        return ""
    since = age(now, seconds_of(move["since"]))
    who = " and ".join(holders(row, HOLDERS_MAX)) if move["step"] == "waiting" else ""
    step = f"waiting {since} for {who}" if who else f"{move['step']} for {since}"
    return f"{step}; {move['reason']}" if move["reason"] else step


def evidence(row: Row, now: float) -> str:
    """Why the ledger believes what it believes, with ages instead of times."""
    return _STAMP.sub(lambda found: f"{age(now, seconds_of(found[0]))} ago", row["evidence"])


def refused(refusals: Sequence[Row]) -> list[Row]:
    """Newest first. Those that say the same are one, with their number: kubelet tries again every few seconds."""
    same: dict[tuple[str, ...], list[Row]] = {}
    for one in reversed(refusals):
        same.setdefault((one["api"], one["device"], one["reason"], one["message"]), []).append(one)
    return [
        {**alike[0], "message": f"{alike[0]['message']} ({len(alike)} times)"} if len(alike) > 1 else alike[0]
        for alike in same.values()
    ]


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
