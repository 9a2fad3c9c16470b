"""The agent without file descriptors or stopped, and beside a stopped kubelet: it keeps what is held and recovers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from drabridge.sim.kubelet.pods import Phase
from tests.support.agent_checks import RECOVERY_SECONDS, alive, holding, owners, said_in_one_line, unharmed
from tests.support.agent_process import DRIVER, RESOURCE, AgentProcess, pod
from tests.support.hostile_callers import connect
from tests.support.kubelet_process import Kubelet, child
from tests.support.waiting import PATIENCE, short_directory, until


@contextlib.contextmanager
def limited(agent: AgentProcess, which: int, soft: int) -> Iterator[None]:
    """The running agent under another limit of its own."""
    assert agent.process is not None
    before = resource.prlimit(agent.process.pid, which)
    resource.prlimit(agent.process.pid, which, (soft, before[1]))
    try:
        yield
    finally:
        resource.prlimit(agent.process.pid, which, before)


def cpu_seconds(agent: AgentProcess) -> float:
    """User and system time of the agent so far (proc(5), stat, fields 14 and 15)."""
    assert agent.process is not None
    fields = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_no_file_descriptors_left() -> None:
    async with holding() as (agent, kubelet, held):
        assert agent.process is not None
        before = cpu_seconds(agent)
        with limited(agent, resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{agent.process.pid}/fd"))):
            callers = connect(socket.AF_UNIX, str(agent.control), 20)
            status = await kubelet.run_pod(pod("starved"))
            await kubelet.restart()  # its new stream finds nobody who could accept it
            await asyncio.sleep(2)
            assert alive(agent)
            for caller in callers:
                caller.close()
            await until(lambda: said_in_one_line(agent, "Too many open files"), 5, lambda: agent.text()[-3000:])
            assert agent.text().count("Too many open files") < 15, "a flood of the same"
        assert cpu_seconds(agent) - before < 1.5, "it spins while there are none"
        if status.phase is Phase.RUNNING:  # what was granted with the last descriptors is held like any other
            held = await owners(agent)
            assert len(held) == 3
        await unharmed(agent, kubelet, held)


async def test_the_agent_is_stopped_and_continued() -> None:
    """SIGSTOP for longer than kubelet waits for anything in this test; pods come meanwhile and kubelet restarts."""
    async with holding() as (agent, kubelet, held):
        assert agent.process is not None
        agent.process.send_signal(signal.SIGSTOP)
        try:
            waiting = asyncio.create_task(kubelet.run_pod(pod("patient")))
            await asyncio.sleep(1.0)
            assert not waiting.done()
        finally:
            agent.process.send_signal(signal.SIGCONT)
        assert (await asyncio.wait_for(waiting, RECOVERY_SECONDS * PATIENCE)).phase is Phase.RUNNING
        held = await owners(agent)
        assert len(held) == 3
        agent.process.send_signal(signal.SIGSTOP)
        await kubelet.restart()
        await asyncio.sleep(0.5)
        agent.process.send_signal(signal.SIGCONT)
        await unharmed(agent, kubelet, held)


@contextlib.asynccontextmanager
async def two_processes() -> AsyncIterator[tuple[AgentProcess, Kubelet]]:
    """Agent and simulated kubelet, each a process of its own."""
    with short_directory() as root:
        async with child(root) as kubelet:
            agent = AgentProcess(root, driver=DRIVER)
            await agent.start()
            try:
                await agent.ready()
                yield agent, kubelet
            finally:
                with contextlib.suppress(ProcessLookupError):
                    await agent.stop(signal.SIGKILL)


def manifest(name: str) -> dict[str, Any]:
    containers = [{"name": "main", "resources": {"limits": {RESOURCE: "1"}}}]
    return {
        "metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}"},
        "spec": {"containers": containers},
    }


async def test_kubelet_is_stopped_and_continued() -> None:
    async with two_processes() as (agent, kubelet):
        await kubelet.status_with(lambda status: status["published"]["allocatable"].get(RESOURCE) == 4)
        assert (await kubelet.do("run_pod", pod=manifest("a")))["phase"] == "Running"
        held = await owners(agent)
        assert len(held) == 1
        kubelet.process.send_signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            while time.monotonic() - began < 2.0:
                assert (await agent.ask("/healthz"))[0] == 200
                assert await owners(agent) == held  # silence is no evidence
                await asyncio.sleep(0.2)
        finally:
            kubelet.process.send_signal(signal.SIGCONT)
        await agent.ready(RECOVERY_SECONDS)
        assert await owners(agent) == held
        assert (await kubelet.do("run_pod", pod=manifest("b")))["phase"] == "Running"
        status = await kubelet.do("status")
        assert status["crashed"] is None
        assert status["resources"][RESOURCE]["streams"] == 1


async def test_a_kubelet_that_is_stopped_while_it_registers_us() -> None:
    """The agent starts beside a kubelet whose socket accepts and never answers; it says so, and gets through later."""
    with short_directory() as root:
        async with child(root) as kubelet:
            kubelet.process.send_signal(signal.SIGSTOP)
            agent = AgentProcess(root)
            try:
                await agent.start()
                await agent.up()
                await until(lambda: _not_ready(agent), 10)
                kubelet.process.send_signal(signal.SIGCONT)
                await agent.ready()
                await kubelet.status_with(lambda status: status["published"]["allocatable"].get(RESOURCE) == 4)
                assert (await kubelet.do("run_pod", pod=manifest("a")))["phase"] == "Running"
            finally:
                kubelet.process.send_signal(signal.SIGCONT)
                with contextlib.suppress(ProcessLookupError):
                    await agent.stop(signal.SIGKILL)


async def _not_ready(agent: AgentProcess) -> bool:
    code, body = await agent.ask("/readyz")
    return code == 503 and RESOURCE.encode() in body
