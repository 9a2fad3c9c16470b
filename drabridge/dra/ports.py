"""What the DRA side needs from the rest of the agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from drabridge.inventory.model import Snapshot
from drabridge.ledger.model import ClaimRef

Inventory = Callable[[], Snapshot]  # the current snapshot

InUse = Callable[[set[str]], Awaitable[Mapping[str, str]]]
"""Device names -> those of them that a process has open, with that process in words. Only what is to be probed."""


class ClaimPods(Protocol):
    """What is known of the pods with a claim."""

    def grace(self, claim: ClaimRef) -> float:
        """Seconds that they have to end when they are deleted."""

    def lingers(self, claim: ClaimRef, grace: float) -> float:
        """Seconds for which their processes may go on though kubelet has unprepared the claim; 0: none does."""


def no_pods() -> ClaimPods | None:
    """Where nobody follows pods."""
    return None


async def nobody(devices: set[str]) -> Mapping[str, str]:
    """Where nothing is probed."""
    return {}
