"""The node's clock is set while the agent runs: no device is released early or held for the length of the step."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.agent.main import Agent
from drabridge.agent.options import Options
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.timings import Timings
from drabridge.system.clock import NEVER_SET, SteadyClock
from tests.support.agent_checks import owners
from tests.support.agent_process import CONFIG, RESOURCE, AgentProcess, lists_read, pod, restart_kubelet
from tests.support.waiting import PATIENCE, short_directory, until

DAY = 86_400.0
SHORT_WAITS = "safety: {minHoldSeconds: 0.5, unconfirmedSeconds: 2, absentSeconds: 0.3, settleSeconds: 3}\n"


class Clocks:
    """Two clocks of one node by hand."""

    def __init__(self, wall: float = 1.8e9) -> None:
        self.offset = wall
        self.passed = 100.0

    def wall(self) -> float:
        return self.offset + self.passed

    def boot(self) -> float:
        return self.passed


STEPS = st.lists(st.tuples(st.floats(0, DAY), st.floats(-50 * DAY, 50 * DAY)), max_size=20)


@given(STEPS)
def test_durations_do_not_depend_on_the_wall_clock(steps: list[tuple[float, float]]) -> None:
    clocks = Clocks()
    clock = SteadyClock(clocks.wall, clocks.boot)
    began = clock()
    for seconds, step in steps:
        before = clock()
        clocks.passed += seconds
        clocks.offset += step
        assert clock() - before == pytest.approx(seconds, abs=1e-3)
    assert clock() - began == pytest.approx(clocks.passed - 100.0, abs=1e-3)


def test_a_clock_step_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    clocks = Clocks()
    clock = SteadyClock(clocks.wall, clocks.boot)
    clocks.offset += 2.0  # what a time server does
    clock()
    assert not caplog.records
    clocks.offset -= 3600
    for _ in range(5):
        clock()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.__dict__["step_seconds"] == -3598.0


def test_a_clock_without_a_battery_is_followed_once_it_is_set() -> None:
    clocks = Clocks(wall=0.0)
    clock = SteadyClock(clocks.wall, clocks.boot)
    assert clock() < NEVER_SET
    clocks.offset = 1.8e9
    assert clock() == clocks.wall()
    clocks.offset -= DAY
    assert clock() == clocks.wall() + DAY


class Wall:
    """The real clock, set by ``step`` seconds."""

    def __init__(self) -> None:
        self.step = 0.0

    def __call__(self) -> float:
        return time.time() + self.step


class InProcess(AgentProcess):
    """Only its questions: the agent runs in this process, on a clock that the test sets."""


@contextlib.asynccontextmanager
async def node() -> AsyncIterator[tuple[InProcess, SimKubelet, Wall]]:
    with short_directory() as root:
        wall, asked = Wall(), InProcess(root, CONFIG.replace("resources:", f"{SHORT_WAITS}resources:"))
        options = Options(config=asked.config, node_name="node-a", kubelet=root, cdi=asked.cdi, listen="")
        agent = Agent(options, now=SteadyClock(wall))
        async with SimKubelet(root, timings=Timings.fast()) as kubelet:
            task = asyncio.create_task(agent.run())
            try:
                await asked.ready()
                await lists_read(kubelet)
                yield asked, kubelet, wall
            finally:
                agent.stop()
                await asyncio.wait_for(task, 10 * PATIENCE)


@pytest.mark.parametrize("step", [-3600.0, 30 * DAY])
async def test_a_running_agent_keeps_and_releases_in_time_when_the_clock_is_set(step: float) -> None:
    async with node() as (agent, kubelet, wall):
        assert (await kubelet.run_pod(pod("stays"))).phase is Phase.RUNNING
        stays = await owners(agent)
        assert (await kubelet.run_pod(pod("goes"))).phase is Phase.RUNNING
        wall.step = step
        await restart_kubelet(kubelet)  # its first lists are partial: they must not be believed sooner
        await kubelet.wait_for_resource(RESOURCE, healthy=4)
        held = await owners(agent)
        assert len(held) == 2
        await kubelet.delete_pod("uid-goes")
        await until(lambda: _is(agent, stays), 20)
        assert (await agent.ask("/healthz"))[0] == 200
        assert (await kubelet.run_pod(pod("next"))).phase is Phase.RUNNING


async def _is(agent: AgentProcess, expected: dict[str, str]) -> bool:
    return await owners(agent) == expected
