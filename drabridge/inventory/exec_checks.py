"""Run the programs of health rules (`exec:`), and keep what each said last.

Nothing waits for these programs. Until a program has ended for the first time, its device is not healthy. A program
that takes too long is killed with all processes of its group, and counts as failed. It is not started again before it
has ended: a process that hangs in a driver may stay for ever, and such processes must not pile up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from drabridge.config.health_rules import HealthRule
from drabridge.config.template import Field, Lookup, Template
from drabridge.inventory.udev_device import clean
from drabridge.system.command import Command

KEEP_SECONDS = 10.0  # longer than udevd handles an event of a device: until then nobody asks for its programs
AT_ONCE = 4  # programs that run at the same time
REASON_MAX_CHARS = 512  # of the last line: kubelet cuts a device's message at 1,024 bytes

Key = tuple[
    tuple[str, ...], int, int
]  # command, everySeconds, timeoutSeconds: if the configuration changes one of them, it is another check


class ExecChecks:
    """The programs of all devices. Use it on one loop."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """``on_change`` is called when the result of a program changes."""
        self._on_change = on_change
        self._reasons: dict[Key, str] = {}  # "": healthy
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._asked: dict[Key, float] = {}  # when it was last asked for
        self._turns = asyncio.Semaphore(AT_ONCE)

    def failures(self, rules: Iterable[HealthRule], lookup: Lookup) -> tuple[str, ...]:
        """Return why a device is not healthy, as its programs said last. Starts programs that do not run yet."""
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
        """End the programs that :meth:`failures` was not asked for lately: their devices are gone."""
        now = time.monotonic()
        for key in [key for key, at in self._asked.items() if now - at > KEEP_SECONDS]:
            self._end(key)

    async def stop(self) -> None:
        """End all programs and wait for their end; for a killed one ``KILLED_SECONDS`` at most."""
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
        while True:
            async with self._turns:
                reason, command = await _run(key[0], key[2])
            if self._reasons.get(key) != reason:
                self._reasons[key] = reason
                self._on_change()
            if command is not None:
                await command.process.wait()
            await asyncio.sleep(key[1])


def _is_option_of_device(argument: Template, text: str) -> bool:
    """Whether a value of the device, for example its serial number, would act as an option of the program."""
    return text.startswith("-") and isinstance(argument.parts[0], Field)


async def _run(arguments: tuple[str, ...], seconds: int) -> tuple[str, Command | None]:
    """Run a program once; return why the device is not healthy ("" if it is), and the command, which may still end."""
    program = arguments[0]
    try:
        command = await Command.start(arguments, stderr=asyncio.subprocess.DEVNULL)
    except OSError as error:
        return f"{program} cannot be started: {error.strerror}", None
    try:
        if not await command.ended(seconds):
            return f"{program} did not end within {seconds} s", command
        if command.process.returncode == 0:
            return "", command
        line = clean(command.output().strip().rpartition(b"\n")[2])
        return line[:REASON_MAX_CHARS] or f"{program} ended with status {command.process.returncode}", command
    finally:
        command.kill()
        command.close()
