"""Run the command as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from tests.support import forks
from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = "import sys, warnings; warnings.simplefilter('error'); from podresources.cli import main; sys.exit(main())"


class Done(NamedTuple):
    code: int
    out: str
    err: str


async def start(*arguments: str | Path) -> Process:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = (sys.executable, "-W", "error", "-m", "podresources", *map(str, arguments))
    return await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=environment)


async def run(*arguments: str | Path) -> Done:
    return Done(*await asyncio.wait_for(forks.said("-c", PROGRAM, *map(str, arguments)), HANG_SECONDS))


async def interrupt(process: Process, number: int = signal.SIGTERM) -> Done:
    process.send_signal(number)
    out, err = await asyncio.wait_for(process.communicate(), HANG_SECONDS)
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


def fetch(port: int) -> str:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG_SECONDS) as response:
        text: bytes = response.read()
        return text.decode()
