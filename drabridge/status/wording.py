"""Say the status document in words, the same on the terminal and on the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Row = Mapping[str, Any]

HOLDERS_MAX = 3  # holders named in one sentence or cell; -o wide and the page name all

_LEASES = {"dra-pending": "leasing", "dra-granted": "leased", "dra-prepared": "leased, prepared"}  # in the shared lane

DOUBT = frozenset({"conflict", "quarantine"})

_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def verdict(document: Row) -> tuple[bool, str]:
    """Return whether all is well, and a phrase for it."""
    if not document["ready"]:
        return False, "not ready"
    if any(row["inDoubt"] for row in document["resources"]):
        return False, "ready, but devices are in doubt"
    return True, "ready"


def doubts(document: Row) -> list[tuple[str, str]]:
    """Return (owner, words) for every device in conflict or quarantine. Such a device is offered to nobody."""
    found = []
    for row in document["devices"]:
        if row["owner"] in DOUBT:
            who = " and ".join(holder(one) for one in row["holders"]) or "nobody knows who holds it"
            found.append((row["owner"], f"{row['name']} ({row['resource']}): {who}"))
    return found


def owner(row: Row) -> str:
    """Return a device's owner in one or two words. In the shared lane, claims have leases."""
    word = str(row["owner"])
    return _LEASES.get(word, word) if row["lane"] == "shared" else word


def holder(one: Row) -> str:
    """Return ``namespace/pod/container``, or ``claim namespace/name``."""
    if one["api"] == "dra":
        return f"claim {one['namespace']}/{one['claim'] or one['claimUID']}{' (admin)' if one['admin'] else ''}"
    if one["pod"]:
        return f"{one['namespace']}/{one['pod']}/{one['container']}"
    return f"pod uid {one['podUID']}" if one["podUID"] else "a pod, not yet seen"


def holders(row: Row, most: int | None = None) -> list[str]:
    """Return who holds a device. ``most``: how many are named; the others are counted."""
    found = [holder(one) for one in row["holders"]] or ([] if row["owner"] == "none" else ["an unknown holder"])
    return found if most is None or len(found) <= most else [*found[:most], f"and {len(found) - most} more"]


def move_text(row: Row, now: float) -> str:
    """Return the state of a device's move, whom it waits for, and why; "" without a move.

    For example ``waiting 4m for default/a/main; ...``.
    """
    move = row["move"]
    if move is None:
        return ""
    since = age(now, parse_time(move["since"]))
    who = " and ".join(holders(row, HOLDERS_MAX)) if move["step"] == "waiting" else ""
    step = f"waiting {since} for {who}" if who else f"{move['step']} for {since}"
    return f"{step}; {move['reason']}" if move["reason"] else step


def evidence(row: Row, now: float) -> str:
    """Return why the ledger believes that the device is held or free, with ages instead of times."""
    return _STAMP.sub(lambda found: f"{age(now, parse_time(found[0]))} ago", row["evidence"])


def grouped_refusals(refusals: Sequence[Row]) -> list[Row]:
    """Return the refusals, newest first; equal ones become one with their number: kubelet retries every few seconds."""
    same: dict[tuple[str, ...], list[Row]] = {}
    for one in reversed(refusals):
        same.setdefault((one["api"], one["device"], one["reason"], one["message"]), []).append(one)
    return [
        {**alike[0], "message": f"{alike[0]['message']} ({len(alike)} times)"} if len(alike) > 1 else alike[0]
        for alike in same.values()
    ]


def parse_time(stamp: str) -> float:
    """Parse the document's RFC 3339 time into wall seconds; 0.0 for none."""
    try:
        return datetime.fromisoformat(stamp).astimezone(UTC).timestamp()
    except ValueError:
        return 0.0


def age(now: float, since: float) -> str:
    """Return how long ago a time was, as kubectl writes it: 45s, 12m, 5h, 3d."""
    if not since:
        return "-"
    seconds = max(0, int(now - since))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
