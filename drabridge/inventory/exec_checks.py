"""Run the programs of health rules (`exec:`), and keep what each said last.

Nobody waits for one of them. Until a program has ended for the first time its device is not healthy. One that takes too
long is killed, with everything of its session, and has failed. It is not run again before it has ended: one that hangs
in a driver may be there for ever, and there must not be more and more of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable

from drabridge.config.health_rules import HealthRule
from drabridge.config.template import Field, Lookup, Template
from drabridge.inventory.udev_device import clean

KEEP_SECONDS = 10.0  # udevd may take as long as it likes for an event, and its device is not asked about meanwhile
AT_ONCE = 4  # programs that run at the same time
OUTPUT_MAX_BYTES = 64 << 10  # of one run; who writes more is killed
KILLED_SECONDS = 1.0  # to wait for a killed program at the end: a driver that hangs may keep it for ever
REASON_MAX_CHARS = 512  # of the last line: kubelet cuts a device's message at 1,024 bytes

Command = tuple[str, ...]
Key = tuple[Command, int, int]  # with the seconds between two runs, and those of one: another configuration's are new


class ExecChecks:
    """The programs of all devices. Use it on one loop."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """``on_change`` is called when a program says something else than before."""
        self._on_change = on_change
        self._reasons: dict[Key, str] = {}  # "": healthy
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._asked: dict[Key, float] = {}  # when last
        self._turns = asyncio.Semaphore(AT_ONCE)

    def failures(self, rules: Iterable[HealthRule], lookup: Lookup) -> tuple[str, ...]:
        """Return why a device is not healthy, as its programs said last. One that is new is started."""
        found = []
        for check in (rule.exec_check for rule in rules if rule.exec_check is not None):
            command = tuple(argument.render(lookup) or "" for argument in check.command)
            if not all(command):
                found.append(f"{check.command[0]}: an argument has no value")
                continue
            if any(map(_is_option_of_device, check.command, command)):
                found.append(f"{check.command[0]}: a value of the device begins with a dash, as options do")
                continue
            key = (command, check.every_seconds, check.timeout_seconds)
            self._asked[key] = time.monotonic()
            if key not in self._tasks:
                self._tasks[key] = asyncio.create_task(self._repeat(key), name=command[0])
            if reason := self._reasons.get(key, f"{command[0]} has not ended yet"):
                found.append(reason)
        return tuple(found)

    def end_round(self) -> None:
        """End the programs that nobody has asked about for a while: their devices are gone."""
        now = time.monotonic()
        for key in [key for key, at in self._asked.items() if now - at > KEEP_SECONDS]:
            self._end(key)

    async def stop(self) -> None:
        """End all, and wait until they have ended, for ``KILLED_SECONDS`` at most."""
        tasks = list(self._tasks.values())
        for key in list(self._asked):
            self._end(key)
        if tasks:
            await asyncio.wait(tasks)

    def _end(self, key: Key) -> None:
        self._tasks.pop(key).cancel()
        self._reasons.pop(key, None)
        del self._asked[key]

    async def _repeat(self, key: Key) -> None:
        command, pause, limit = key
        while True:
            async with self._turns:
                reason, process = await _run(command, limit)
            if self._reasons.get(key) != reason:
                self._reasons[key] = reason
                self._on_change()
            if process is not None:
                await process.wait()
            await asyncio.sleep(pause)


def _is_option_of_device(argument: Template, text: str) -> bool:
    """Tell whether a device's value, its serial number for example, would be an option of the program."""
    return text.startswith("-") and isinstance(argument.parts[0], Field)


async def _run(command: Command, seconds: int) -> tuple[str, asyncio.subprocess.Process | None]:
    """Run it once; return why the device is not healthy, "" when it is, and the process, which may be about to end."""
    try:
        process, output, pipe = await _start(command)
    except OSError as error:
        return f"{command[0]} cannot be started: {error.strerror}", None
    try:
        return await _verdict(command[0], process, output, seconds), process
    except asyncio.CancelledError:  # the device is gone, or the agent ends
        _kill(process)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILLED_SECONDS):
                await process.wait()
        raise
    finally:
        pipe.close()
        _kill(process)


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill it, and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _start(
    command: Command,
) -> tuple[asyncio.subprocess.Process, asyncio.StreamReader, asyncio.ReadTransport]:
    """Start it; return what it writes as well, and the pipe for that, to be closed. Raises OSError.

    asyncio's own pipe would stay open as long as anybody has its other end, and what is in another session is not
    killed.
    """
    reading, writing = os.pipe()
    output = asyncio.StreamReader()
    try:
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(reading, "rb")
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writing,
                stderr=asyncio.subprocess.DEVNULL,
                env={"PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
            )
        except BaseException:
            pipe.close()
            raise
    finally:
        os.close(writing)
    return process, output, pipe


async def _verdict(
    program: str, process: asyncio.subprocess.Process, output: asyncio.StreamReader, seconds: int
) -> str:
    """Wait until it ends, for so long; return why the device is not healthy, "" when it is."""
    said = b""
    try:
        async with asyncio.timeout(seconds):
            while data := await output.read(OUTPUT_MAX_BYTES):
                said += data
                if len(said) > OUTPUT_MAX_BYTES:
                    return f"{program} wrote more than {OUTPUT_MAX_BYTES >> 10} KiB, and was killed"
            status = await process.wait()
    except TimeoutError:
        return f"{program} did not end within {seconds} s"
    if status == 0:
        return ""
    lines = clean(said.strip().rpartition(b"\n")[2])
    return lines[:REASON_MAX_CHARS] or f"{program} ended with status {status}"
