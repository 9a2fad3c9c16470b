"""Collect what one event has changed, refused and caused so far, while its step is computed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from msgspec import Struct, field

from drabridge.ledger.effects import Effect, Refusal
from drabridge.ledger.entries import ClaimRef, Entry, Ledger, NodeState
from drabridge.ledger.events import DeviceUse
from drabridge.ledger.policy import LedgerPolicy

Outcome = Entry | Refusal  # what a transition makes of a device; the same entry object if nothing changes


class Transaction(Struct):
    """The ledger before the step, the entries touched so far, the refusals, and the effects."""

    ledger: Ledger
    at: float
    policy: LedgerPolicy
    table: Any
    seq: int  # the new sequence number of the entries that this step changes
    touched: dict[str, Entry] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    node: NodeState | None = None
    durable_node: bool = False
    denied: dict[ClaimRef, str] = field(default_factory=dict)
    """Claims that lost a device in this step, and with it their lease -> why."""

    def get(self, name: str) -> Entry | None:
        """Return the entry with this step's changes so far; None if there is no such device."""
        return self.touched.get(name) or self.ledger.entries.get(name)

    @property
    def node_now(self) -> NodeState:
        """The node's state with this step's changes so far."""
        return self.node or self.ledger.node

    def relatives(self, entry: Entry) -> Iterable[Entry]:
        """Entries whose hardware overlaps with this one's, with this step's changes so far."""
        for relative in self.ledger.relatives(entry.device):
            yield self.touched.get(relative.device.name, relative)


class RequestedUse(NamedTuple):
    """One device that a claim shall have."""

    claim: ClaimRef
    use: DeviceUse
    grace: float = 0.0
