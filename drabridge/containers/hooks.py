"""Run an operator's command for a device; report its output if it fails."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from drabridge.config.container import Hook
from drabridge.errors import HostError, host_errors
from drabridge.inventory.devices import Device
from drabridge.system.command import Command

log = logging.getLogger(__name__)

MAX_OUTPUT = 2_000  # characters that are kept: kubelet puts the error into an Event of 1,024 bytes


async def run_hook(hook: Hook, device: Device | None, name: str, more: Mapping[str, str] | None = None) -> str:
    """Run the hook's command and return its output. Raises HostError if it fails or takes too long.

    Its environment describes the device. After ``hook.timeout_seconds`` the program is killed with its session.
    """
    env = {"DRABRIDGE_DEVICE": name}
    if device is not None:
        env |= {
            "DRABRIDGE_ID": device.id,
            "DRABRIDGE_RESOURCE": device.resource,
            "DRABRIDGE_SYSPATH": device.syspath,
            "DRABRIDGE_NODES": ":".join(node.path for node in device.nodes),
            "DRABRIDGE_PCI_BUS_ID": device.pci_bus_id,
        }
    program = " ".join(hook.command)
    hint = "it must exist in the agent's own file system and be executable"
    with host_errors(f"{program} cannot be started for {name}", hint=hint):
        command = await Command.start(hook.command, env | dict(more or {}))
    if not await command.ended(hook.timeout_seconds):
        raise HostError(f"{program} did not end for {name} within {hook.timeout_seconds} s; it was killed")
    text = command.output().decode("utf-8", errors="replace").strip()[-MAX_OUTPUT:]
    status = command.process.returncode
    log.info("hook ran", extra={"device": name, "command": program, "status": status, "output": text})
    if status != 0:
        raise HostError(f"{program} failed for {name} with status {status}: {text or 'no output'}")
    return text
