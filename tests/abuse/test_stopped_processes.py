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

import pytest

from drabridge.sim.kubelet.faults import ListFault
from drabridge.sim.kubelet.pods import Phase
from tests.support.agent_checks import RECOVERY_SECONDS, alive, holding, owners, said_in_one_line, unharmed
from tests.support.agent_process import CONFIG, DRIVER, RESOURCE, AgentProcess, node, noted, pod
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


async def test_an_agent_whose_files_may_not_grow_survives() -> None:
    """RLIMIT_FSIZE: every write to a file fails with EFBIG, that of the log line which would say so too."""
    async with holding() as (agent, kubelet, held):
        with limited(agent, resource.RLIMIT_FSIZE, 1):
            assert (await kubelet.run_pod(pod("refused"))).phase is Phase.FAILED
            code, body = await agent.ask("/readyz")
            assert code == 503
            assert b"ledger" in body
            assert b"File too large" in body
            assert await owners(agent) == held
            assert any("ledger" in reason for reason in (await agent.status())["notReadyBecause"])
            await kubelet.wait_for_resource(RESOURCE, healthy=2)  # what pods hold; no other pod is to fail
        await kubelet.wait_for_resource(RESOURCE, healthy=4)
        assert (await kubelet.run_pod(pod("next"))).phase is Phase.RUNNING
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


async def _confirmed(agent: AgentProcess) -> bool:
    """Kubelet has named the pod of every hold."""
    rows = [row for row in (await agent.status())["devices"] if row["owner"] == "legacy"]
    return len(rows) == 2 and all(one["pod"] for row in rows for one in row["holders"])


SHORT_WAITS = "safety: {minHoldSeconds: 0.2, unconfirmedSeconds: 0.5, absentSeconds: 0.2, settleSeconds: 0.2}\n"


@pytest.mark.parametrize("fault", [ListFault.ERROR, ListFault.GARBAGE, ListFault.NONSENSE, ListFault.HUGE])
async def test_an_agent_survives_a_kubelet_that_answers_nonsense(fault: ListFault) -> None:
    """Asked again and again, with waits so short that anything believed would free what pods hold."""
    async with node(CONFIG.replace("resources:", f"{SHORT_WAITS}resources:")) as (agent, kubelet):
        for name in ("a", "b"):
            assert (await kubelet.run_pod(pod(name))).phase is Phase.RUNNING
        await until(lambda: _confirmed(agent), why=agent.text)  # with waits so short nothing else keeps a device
        held = await owners(agent)
        assert len(held) == 2
        kubelet.faults.podresources = fault
        for _ in range(15):
            await asyncio.sleep(0.2)
            now = await owners(agent)
            assert {device: now.get(device) for device in held} == held
        assert alive(agent)
        if fault in (ListFault.ERROR, ListFault.GARBAGE):  # the others are valid answers
            await until(lambda: noted(agent, "does not tell who holds devices"), 10, agent.text)
        kubelet.faults.podresources = ListFault.NONE
        assert (await kubelet.run_pod(pod("next"))).phase is Phase.RUNNING
        assert held.items() <= (await owners(agent)).items()
