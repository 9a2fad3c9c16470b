"""Hook commands of profiles, never two at once on one device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drabridge.config.container import Hook
from drabridge.containers.hooks import run_hook
from drabridge.dra.concurrency import KeyedLocks
from drabridge.inventory.model import Device
from drabridge.ledger.model import ClaimRef


class HookRunner:
    """Runs commands, one at a time for each device."""

    def __init__(self) -> None:
        self._locks = KeyedLocks()

    async def run(self, hook: Hook, device: Device, claim: ClaimRef, phase: str) -> None:
        """Run to the end. ``phase`` is ``prepare`` or ``unprepare``. Raises HostError with the command's output."""
        more = {
            "DRABRIDGE_PHASE": phase,
            "DRABRIDGE_CLAIM_UID": claim.uid,
            "DRABRIDGE_CLAIM": f"{claim.namespace}/{claim.name}",
        }
        async with self._locks.lock(device.name):
            await run_hook(hook, device, device.name, more)


def encode_hook(hook: Hook | None) -> dict[str, Any] | None:
    """A hook as a claim's record remembers it: the clean-up is the one that was configured at prepare."""
    return None if hook is None else {"command": list(hook.command), "timeoutSeconds": hook.timeout_seconds}


def decode_hook(entry: Mapping[str, Any] | None) -> Hook | None:
    """Raises ValueError for what is no hook."""
    if entry is None:
        return None
    return Hook(command=tuple(entry["command"]), timeout_seconds=entry["timeoutSeconds"])
