"""Device taints and tolerations (KEP-5055)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

JSON = dict[str, Any]
BLOCKING = ("NoSchedule", "NoExecute")


def tolerates(toleration: JSON, taint: JSON) -> bool:
    """An empty key (with Exists) matches every key, an empty effect every effect."""
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def blocking(taints: Iterable[JSON], tolerations: Sequence[JSON]) -> JSON | None:
    """The first taint that keeps a request off the device. Effect None never does."""
    for taint in taints:
        if taint["effect"] in BLOCKING and not any(tolerates(one, taint) for one in tolerations):
            return taint
    return None


def eviction_delay_seconds(taints: Iterable[JSON], tolerations: Sequence[JSON], now: datetime) -> float | None:
    """Seconds until users of the device are evicted; 0 for at once, None for never. Only NoExecute evicts."""
    delays = []
    for taint in taints:
        if taint["effect"] != "NoExecute":
            continue
        matching = [one for one in tolerations if tolerates(one, taint)]
        limits = [one["tolerationSeconds"] for one in matching if "tolerationSeconds" in one]
        if not matching:
            delays.append(0.0)
        elif limits:
            added = datetime.strptime(taint["timeAdded"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
            delays.append(max(0.0, min(limits) - (now - added).total_seconds()))
    return min(delays, default=None)
