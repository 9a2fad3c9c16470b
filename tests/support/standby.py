"""Start a second agent for a node that has one, and ask it while it waits."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

from drabridge.sim.kubelet.kubelet import SimKubelet
from tests.support.agent_process import RESOURCE, AgentProcess
from tests.support.waiting import until

WAITS = "standby: waiting for another agent to end"


@contextlib.asynccontextmanager
async def beside(first: AgentProcess, name: str, config: str = "", *arguments: str) -> AsyncIterator[AgentProcess]:
    """A ready standby for the same node, with a configuration file and a log of its own."""
    agent = AgentProcess(first.root, first.config.read_text(), first.driver, (*first.arguments, *arguments))
    agent.log, agent.config = first.root / f"{name}.log", first.root / f"{name}.yaml"
    agent.config.write_text(config or first.config.read_text())
    await agent.start()
    try:
        await until(lambda: WAITS in agent.text() and "msg=listening" in agent.text(), 30, agent.text)
        await until(lambda: is_ready(agent), 30, agent.text)
        yield agent
    finally:
        with contextlib.suppress(ProcessLookupError):
            await agent.stop(signal.SIGKILL)


def standby_socket(agent: AgentProcess) -> Path:
    """Where this process answers for as long as it is a standby, as its log says."""
    line = next(line for line in agent.text().splitlines() if "standby-" in line and "msg=listening" in line)
    return Path(line.rpartition("control=")[2].strip('"'))


async def asked(path: Path, page: str) -> tuple[int, str]:
    """Status and body of a page on a unix socket."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(f"GET {page} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body.decode()


async def is_ready(agent: AgentProcess) -> bool:
    return (await asked(standby_socket(agent), "/readyz"))[0] == 200


def streams_met(kubelet: SimKubelet) -> bool:
    """Whether two lists of one resource were ever read at a time."""
    streams = sorted(kubelet.calls.of("ListAndWatch", RESOURCE), key=lambda call: call.at)
    return any(one.seconds is None or one.at + one.seconds > next_.at for one, next_ in pairwise(streams))
