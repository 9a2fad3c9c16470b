"""Run an operator's command for a device: no shell, a bare environment, a deadline, its output kept."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Mapping

from drabridge.config.container import Hook
from drabridge.errors import HostError
from drabridge.inventory.model import Device

log = logging.getLogger(__name__)

MAX_OUTPUT = 2_000  # characters that are kept: kubelet puts the error into an Event of 1,024 bytes
READ_BYTES = 64 * 1024  # at once, as much as a pipe holds
PAUSE_SECONDS = 0.001  # after so much output at once: a chatty command must leave the loop to others
KILLED_SECONDS = 1.0  # to wait for a killed command: a driver that hangs may keep it for ever


def environment(device: Device | None, name: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the command's environment: what it is told of the device, and of the agent's own only PATH."""
    found = {"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), "DRABRIDGE_DEVICE": name}
    if device is not None:
        found |= {
            "DRABRIDGE_ID": device.id,
            "DRABRIDGE_RESOURCE": device.resource,
            "DRABRIDGE_SYSPATH": device.syspath,
            "DRABRIDGE_NODES": ":".join(node.path for node in device.nodes),
            "DRABRIDGE_PCI_BUS_ID": device.pci_bus_id,
        }
    return found | dict(more or {})


async def run_hook(hook: Hook, device: Device | None, name: str, more: Mapping[str, str] | None = None) -> str:
    """Run the hook's command and return its output. Raises HostError if it fails or takes too long.

    After ``hook.timeout_seconds`` it is killed, with everything of its session.
    """
    program = " ".join(hook.command)
    with contextlib.ExitStack() as closing:
        try:
            output = _Output()
            closing.callback(output.hand_over)
            process = await asyncio.create_subprocess_exec(
                *hook.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output.writing,
                stderr=asyncio.subprocess.STDOUT,
                env=environment(device, name, more),
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(
                f"{program} cannot be started for {name}: {error.strerror or error}",
                hint="it must exist in the agent's own file system and be executable",
            ) from error
        try:
            async with asyncio.timeout(hook.timeout_seconds):
                await process.wait()
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILLED_SECONDS):
                    await process.wait()
            if isinstance(error, TimeoutError):
                raise HostError(
                    f"{program} did not end for {name} within {hook.timeout_seconds} s; it was killed"
                ) from None
            raise
        said = output.said()
    text = said.decode("utf-8", errors="replace").strip()[-MAX_OUTPUT:]
    log.info("hook ran", extra={"device": name, "command": program, "status": process.returncode, "output": text})
    if process.returncode != 0:
        raise HostError(f"{program} failed for {name} with status {process.returncode}: {text or 'no output'}")
    return text


class _Output:
    """The last part of what a command, and the processes that it has started, write.

    The pipe is read until the last of them has ended, because they would die of a pipe that nobody reads. Nobody waits
    for that, as it may never happen; what comes after the command's end is thrown away.
    """

    def __init__(self) -> None:
        """Raises OSError."""
        self._loop = asyncio.get_running_loop()
        self._reading, self.writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reading, False)
        self._kept = b""
        self._open = True
        self._loop.add_reader(self._reading, self._take)

    def said(self) -> bytes:
        """Return the last part of the output, with what waits to be read."""
        for _ in range(16):
            if not self._read():
                break
        return self._kept

    def hand_over(self) -> None:
        """Close our end for writing: the command has it, or could not be started."""
        os.close(self.writing)

    def _take(self) -> None:
        if self._read() == READ_BYTES and self._open:
            self._loop.remove_reader(self._reading)
            self._loop.call_later(PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        if self._open:
            self._loop.add_reader(self._reading, self._take)

    def _read(self) -> int:
        """Read once and return how many bytes there were; close the pipe once all writers have."""
        if not self._open:
            return 0
        try:
            data = os.read(self._reading, READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._open = False
            self._loop.remove_reader(self._reading)
            os.close(self._reading)
        self._kept = (self._kept + data)[-4 * MAX_OUTPUT :]
        return len(data)
