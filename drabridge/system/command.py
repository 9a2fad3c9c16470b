"""Run a program of the operator's: no shell, a bare environment, a session of its own, a deadline.

The last part of its output is kept. The pipe is read until the last process that writes to it has ended: a pipe without
a reader would kill that process. Nothing waits for that end, as it may never come.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

KEPT_BYTES = 8_000  # of the output's end
READ_BYTES = 64 * 1024  # at once, as much as a pipe holds
PAUSE_SECONDS = 0.001  # after so much output at once: a chatty program must leave the loop to others
KILLED_SECONDS = 1.0  # to wait for a killed program: a driver that hangs may keep it forever

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # if the agent itself has no PATH


class Command:
    """A program that was started. Use it on one loop."""

    def __init__(self, process: asyncio.subprocess.Process, reading: int) -> None:
        """Begin to read the program's output. ``reading``: our end of the pipe."""
        self.process = process
        self._loop = asyncio.get_running_loop()
        self._reading = reading
        self._kept = b""
        self._open = True
        self._loop.add_reader(reading, self._take)

    @classmethod
    async def start(
        cls, command: Sequence[str], env: Mapping[str, str] | None = None, *, stderr: int = asyncio.subprocess.STDOUT
    ) -> Command:
        """Start a program with the variables ``env``, and PATH. Raises OSError."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=stderr,
                env={"PATH": os.environ.get("PATH", _PATH), **(env or {})},
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return cls(process, reading)

    async def ended(self, seconds: float) -> bool:
        """Wait until the program ends; return False if that takes longer than ``seconds``.

        After that, and if the caller is cancelled, its session is killed. This waits for its end for
        ``KILLED_SECONDS`` at most.
        """
        try:
            async with asyncio.timeout(seconds):
                await self.process.wait()
        except BaseException as error:
            self._kill_session()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILLED_SECONDS):
                    await self.process.wait()
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def kill(self) -> None:
        """Kill all processes in the program's process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _kill_session(self) -> None:
        """Kill the program and all of its session. A process with a session of its own, such as a daemon, goes on.

        No other process gets the session's number while one of its processes exists.
        """
        self.kill()
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) == self.process.pid:
                    os.kill(pid, signal.SIGKILL)

    def output(self) -> bytes:
        """Return the last part of the output, including what still waits in the pipe."""
        for _ in range(16):
            if not self._read():
                break
        return self._kept

    def close(self) -> None:
        """Stop reading. A process that the program left behind dies at its next write."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._reading)
            os.close(self._reading)

    def _take(self) -> None:
        if self._read() == READ_BYTES and self._open:
            self._loop.remove_reader(self._reading)
            self._loop.call_later(PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        if self._open:
            self._loop.add_reader(self._reading, self._take)

    def _read(self) -> int:
        """Read once; return the number of bytes. Close the pipe when all writers have closed it."""
        if not self._open:
            return 0
        try:
            data = os.read(self._reading, READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self.close()
        self._kept = (self._kept + data)[-KEPT_BYTES:]
        return len(data)
