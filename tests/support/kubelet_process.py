"""Run the simulated kubelet as a process of its own, controlled by JSON lines."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import HANG_SECONDS, until

REPOSITORY = Path(__file__).resolve().parents[3]


class Kubelet:
    """One child process and its JSON lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(await asyncio.wait_for(self.process.stdout.readline(), HANG_SECONDS))

    async def send(self, **request: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        await self.process.stdin.drain()

    async def do(self, name: str, **arguments: Any) -> Any:
        await self.send(id=name, do=name, **arguments)
        answer = await self.read()
        assert answer["id"] == name
        assert "error" not in answer, answer
        return answer["result"]

    async def status_with(self, condition: Callable[[Any], object]) -> Any:
        """The first status that fulfils a condition."""
        status: Any = None

        async def fulfilled() -> object:
            nonlocal status
            status = await self.do("status")
            return condition(status)

        await until(fulfilled, why=lambda: status)
        return status


@asynccontextmanager
async def child(root: Path) -> AsyncIterator[Kubelet]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "drabridge.sim.kubelet.control",
        str(root),
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    kubelet = Kubelet(process)
    try:
        assert (await kubelet.read())["ready"]
        yield kubelet
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGCONT)
            assert process.stdin is not None
            process.stdin.close()
            await asyncio.wait_for(process.wait(), HANG_SECONDS)
