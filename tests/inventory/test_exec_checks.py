"""Programs that say whether a device is healthy: real ones, for this machine's memory devices."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drabridge.inventory import exec_checks
from drabridge.inventory.inventory import Inventory
from drabridge.system.command import Command
from tests.support.hardware import Watched, config, watching
from tests.support.waiting import HANG_SECONDS, until


def resource(script: Path, text: str, **more: Any) -> dict[str, Any]:
    """The devices null and zero, and what is run for each."""
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return {
        "name": "example.com/mem",
        "match": [{"subsystem": "mem", "sysname": ["null", "zero"]}],
        "id": ["{sysname}"],
        "health": [{"exec": {"command": [str(script), "{sysname}", "{devnode}"], "everySeconds": 1, **more}}],
    }


def reasons(inventory: Inventory) -> dict[str, str]:
    return {device.name: device.reason for device in inventory.current.devices}


@contextlib.asynccontextmanager
async def checked(tmp_path: Path, text: str, **more: Any) -> AsyncIterator[Watched]:
    async with watching(config(resource(tmp_path / "check", text, **more))) as watched:
        yield watched


async def shows(watched: Watched, null: str, zero: str) -> None:
    await until(
        lambda: reasons(watched.inventory) == {"null": null, "zero": zero}, 5, lambda: reasons(watched.inventory)
    )


async def test_its_last_line_says_why_one_device_is_not_healthy(tmp_path: Path) -> None:
    gate = tmp_path / "broken"
    gate.touch()
    text = f'echo checking; if [ -e {gate} ] && [ "$1" = null ]; then echo "fan of $2 stands still"; exit 3; fi'
    async with checked(tmp_path, text) as watched:
        await shows(watched, "fan of /dev/null stands still", "")
        gate.unlink()
        await shows(watched, "", "")
        gate.touch()
        await shows(watched, "fan of /dev/null stands still", "")


async def test_a_device_is_not_healthy_before_its_program_has_ended(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with checked(tmp_path, f"while [ ! -e {gate} ]; do sleep 0.02; done") as watched:
        waits = f"{tmp_path / 'check'} has not ended yet"
        assert reasons(watched.inventory) == {"null": waits, "zero": waits}
        gate.touch()
        await shows(watched, "", "")


OWN_GROUP = f"""{sys.executable} -c 'import os; os.setpgrp(); os.execlp("sleep", "sleep", "600")'"""


@pytest.mark.parametrize("child", ["sleep 600", OWN_GROUP], ids=["of its group", "of a group of its own"])
async def test_a_program_that_hangs_is_killed_with_what_it_started(tmp_path: Path, child: str) -> None:
    text = f'[ "$1" = zero ] && exit 0; {child} & echo $! > {tmp_path / "child"}; wait'
    async with checked(tmp_path, text, timeoutSeconds=1) as watched:
        await shows(watched, f"{tmp_path / 'check'} did not end within 1 s", "")
        pid = int((tmp_path / "child").read_text())
        state = Path(f"/proc/{pid}/stat")
        await until(lambda: not state.exists() or state.read_text().split()[2] == "Z")


async def test_a_program_that_cannot_be_killed_is_not_run_beside_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs in a driver."""
    monkeypatch.setattr(Command, "kill", lambda command: None)
    monkeypatch.setattr(Command, "_kill_session", lambda command: None)
    log, gate = tmp_path / "log", tmp_path / "gate"
    text = f'[ "$1" = zero ] && exit 0; echo $$ >> {log}; while [ ! -e {gate} ]; do sleep 0.1; done'
    async with checked(tmp_path, text, timeoutSeconds=1) as watched:
        await shows(watched, f"{tmp_path / 'check'} did not end within 1 s", "")
        await asyncio.sleep(3)
        assert len(log.read_text().split()) == 1
        monkeypatch.undo()
        gate.touch()
        await shows(watched, "", "")


async def test_what_a_program_leaves_behind_keeps_no_file_open_here(tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = f'[ "$1" = zero ] && exit 0; echo $$ >> {log}; setsid sleep 20 &'
    async with checked(tmp_path, text) as watched:
        await shows(watched, "", "")
        before = len(list(Path("/proc/self/fd").iterdir()))
        await until(lambda: len(log.read_text().split()) > 3, HANG_SECONDS)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2  # of the run that goes on


async def test_what_else_can_be_wrong_with_a_program(tmp_path: Path) -> None:
    program = tmp_path / "check"
    for text, why in {
        "kill -9 $$": f"{program} ended with status -9",
        "exit 7": f"{program} ended with status 7",
        "yes | head -c 5000000; echo much; exit 1": "much",
        'printf "bad\\033[31m"; exit 1': "bad\\x1b[31m",
    }.items():
        async with checked(tmp_path, text) as watched:
            await shows(watched, why, why)
    missing = resource(program, "")
    program.unlink()
    async with watching(config(missing)) as watched:
        why = f"{program} cannot be started: No such file or directory"
        await shows(watched, why, why)
    async with watching(config(missing | {"health": [{"exec": {"command": ["/bin/true", "{attr:none}"]}}]})) as watched:
        await shows(watched, "/bin/true: an argument has no value", "/bin/true: an argument has no value")


async def test_programs_end_with_their_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_checks, "KEEP_SECONDS", 0.1)
    log = tmp_path / "log"
    async with checked(tmp_path, f"echo $1 >> {log}") as watched:
        await shows(watched, "", "")
        only = resource(tmp_path / "check", f"echo $1 >> {log}")
        watched.inventory.reconfigure(config(only | {"match": [{"subsystem": "mem", "sysname": "zero"}]}))
        await until(lambda: watched.inventory.current.by_name()["null"].presence == "gone", HANG_SECONDS)
        await asyncio.sleep(0.2)
        watched.inventory.refresh()
        await asyncio.sleep(0.5)
        log.write_text("")
        await asyncio.sleep(2.5)
        assert set(log.read_text().split()) == {"zero"}


@pytest.mark.parametrize("serial", ["-fprint", "--version", "-", "--"])
@pytest.mark.parametrize("argument", ["{attr:serial}", "{property:ID_SERIAL}x", "{sysname}"])
async def test_no_value_of_a_device_is_an_option_of_the_program(tmp_path: Path, argument: str, serial: str) -> None:
    ran = tmp_path / "ran"
    of = resource(tmp_path / "check", f"touch {ran}")
    of["health"][0]["exec"]["command"][1:] = [argument]
    checks = exec_checks.ExecChecks(lambda: None)
    rules = config(of).resources[0].health
    assert checks.failures(rules, lambda field: serial) == (
        f"{tmp_path / 'check'}: a value of the device begins with a dash, as options do",
    )
    assert not checks._tasks
    of["health"][0]["exec"]["command"][1:] = [f"--serial={argument}"]  # then the operator has said what it is
    checks.failures(config(of).resources[0].health, lambda field: serial)
    await until(ran.exists, 60)
    await checks.stop()
