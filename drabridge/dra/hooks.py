"""Hook commands of profiles: run on the node as the configuration says, never two at once on one device."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from drabridge.config.container import Hook
from drabridge.errors import HostError
from drabridge.inventory.model import Device
from drabridge.ledger.model import ClaimRef

log = logging.getLogger(__name__)

OUTPUT_BYTES = 64 * 1024  # what is kept of a command's output; the rest is read and dropped, so that it never blocks
ERROR_CHARS = 512  # what an error shows of it: it ends up in an event of the pod (1 KiB in all)
KILL_SECONDS = 2.0  # from SIGTERM to SIGKILL
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Command:
    """A hook as it is run and remembered: program, arguments, time limit."""

    words: tuple[str, ...]
    timeout_seconds: float

    @classmethod
    def of(cls, hook: Hook) -> Command:
        return cls(hook.command, float(hook.timeout_seconds))

    @classmethod
    def decode(cls, entry: Mapping[str, Any]) -> Command:
        """From a claim's record."""
        return cls(tuple(map(str, entry["command"])), float(entry["timeoutSeconds"]))

    def encode(self) -> dict[str, Any]:
        return {"command": list(self.words), "timeoutSeconds": self.timeout_seconds}


class HookRunner:
    """Runs commands, one at a time for each device."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, command: Command, device: Device, claim: ClaimRef, phase: str) -> None:
        """Run to the end. Raises HostError with the output's tail if it fails or takes too long; killed if cancelled.

        ``phase`` is ``prepare`` or ``unprepare``. Nothing of the agent's own environment is passed on.
        """
        lock = self._locks.get(device.name) or self._locks.setdefault(device.name, asyncio.Lock())
        async with lock:
            await self._run(command, device, claim, phase)

    async def _run(self, command: Command, device: Device, claim: ClaimRef, phase: str) -> None:
        facts = {"device": device.name, "claim": claim.uid, "phase": phase, "command": command.words[0]}
        try:
            process = await asyncio.create_subprocess_exec(
                *command.words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environment(device, claim, phase),
                start_new_session=True,  # its children die with it
            )
        except (OSError, ValueError) as error:
            raise HostError(
                f"the {phase} hook {command.words[0]} of device {device.name} cannot be started: {error}",
                hint="Correct the profile in the node's configuration",
            ) from error
        assert process.stdout is not None
        output = bytearray()
        reader = asyncio.ensure_future(_collect(process.stdout, output))
        try:
            async with asyncio.timeout(command.timeout_seconds):
                await process.wait()
        except TimeoutError:
            await _kill(process)
            raise HostError(
                f"the {phase} hook {command.words[0]} of device {device.name} did not end within "
                f"{command.timeout_seconds:g} s{_tail(output)}"
            ) from None
        finally:
            if process.returncode is None:
                await asyncio.shield(_kill(process))
            # A child that left the session may hold the pipe open: its output is not waited for.
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(reader, 0.2)
            log.info("hook ended", extra={**facts, "code": process.returncode, "output": _text(output)})
        if process.returncode:
            raise HostError(
                f"the {phase} hook {command.words[0]} of device {device.name} failed with code "
                f"{process.returncode}{_tail(output)}"
            )


def environment(device: Device, claim: ClaimRef, phase: str) -> dict[str, str]:
    """What a hook can know, as variables. Paths of nodes are separated by spaces."""
    return {
        "PATH": _PATH,
        "DRABRIDGE_PHASE": phase,
        "DRABRIDGE_DEVICE": device.name,
        "DRABRIDGE_DEVICE_ID": device.id,
        "DRABRIDGE_RESOURCE": device.resource,
        "DRABRIDGE_SYSPATH": device.syspath,
        "DRABRIDGE_NODES": " ".join(node.path for node in device.nodes),
        "DRABRIDGE_PCI": device.pci_bus_id,
        "DRABRIDGE_CLAIM_UID": claim.uid,
        "DRABRIDGE_CLAIM": f"{claim.namespace}/{claim.name}",
    }


async def _collect(stream: asyncio.StreamReader, output: bytearray) -> None:
    while chunk := await stream.read(4096):
        output += chunk[: OUTPUT_BYTES - len(output)]


async def _kill(process: asyncio.subprocess.Process) -> None:
    """The whole session: SIGTERM, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), KILL_SECONDS)
            return


def _text(output: Sequence[int]) -> str:
    return bytes(output).decode("utf-8", "replace").strip()


def _tail(output: Sequence[int]) -> str:
    text = _text(output)
    return f": {text[-ERROR_CHARS:]}" if text else ""
