"""What the DRA side needs from the rest of the agent."""

from __future__ import annotations

from collections.abc import Callable
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
