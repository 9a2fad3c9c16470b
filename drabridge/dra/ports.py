"""What the DRA side needs from the rest of the agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from drabridge.inventory.model import Snapshot
from drabridge.ledger.model import Ledger
from drabridge.ledger.outcome import Decision


class Keeper(Protocol):
    """The ledger and its only writer. All exclusivity is decided there."""

    @property
    def ledger(self) -> Ledger: ...

    async def apply(self, event: Any) -> Decision:
        """Decide on an event of :mod:`drabridge.ledger.events`; what was accepted is durable when this returns."""
        ...


Inventory = Callable[[], Snapshot]  # the current snapshot

InUse = Callable[[set[str]], Awaitable[Mapping[str, str]]]
"""Device names -> those of them that a process has open, with that process in words. Only what is to be probed."""


async def nobody(devices: set[str]) -> Mapping[str, str]:
    """Where nothing is probed."""
    return {}
