"""Run the hook commands of profiles, never two at once on one device."""

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
        """Run a hook to its end. ``phase``: ``prepare`` or ``unprepare``. Raises HostError with its output."""
        environment = {
            "DRABRIDGE_PHASE": phase,
            "DRABRIDGE_CLAIM_UID": claim.uid,
            "DRABRIDGE_CLAIM": f"{claim.namespace}/{claim.name}",
        }
        async with self._locks.lock(device.name):
            await run_hook(hook, device, device.name, environment)


def encode_hook(hook: Hook | None) -> dict[str, Any] | None:
    """Encode a hook for a claim's record: clean-up runs as it was configured at prepare."""
    return None if hook is None else {"command": list(hook.command), "timeoutSeconds": hook.timeout_seconds}


def decode_hook(entry: Mapping[str, Any] | None) -> Hook | None:
    """Decode a hook of a record. Raises ValueError for what is no hook."""
    if entry is None:
        return None
    return Hook(command=tuple(entry["command"]), timeout_seconds=entry["timeoutSeconds"])
