"""What the DRA side needs from the rest of the agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from drabridge.inventory.model import Snapshot

Inventory = Callable[[], Snapshot]  # the current snapshot

InUse = Callable[[set[str]], Awaitable[Mapping[str, str]]]
"""Device names -> those of them that a process has open, with that process in words. Only what is to be probed."""


async def nobody(devices: set[str]) -> Mapping[str, str]:
    """Where nothing is probed."""
    return {}
