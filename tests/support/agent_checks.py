"""Check from outside that an agent is unharmed and still holds what it held."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from tests.support.agent_process import RESOURCE, AgentProcess, node, pod

RECOVERY_SECONDS = 20.0


async def owners(agent: AgentProcess) -> dict[str, str]:
    """Device -> owner, of the devices that somebody holds."""
    return {row["name"]: row["owner"] for row in (await agent.status())["devices"] if row["owner"] != "none"}


def alive(agent: AgentProcess) -> bool:
    return agent.process is not None and agent.process.returncode is None


async def unharmed(agent: AgentProcess, kubelet: SimKubelet, held: dict[str, str], name: str = "after") -> None:
    """The agent is the same process, is ready again, gave nothing away, and serves the next pod."""
    assert alive(agent), agent.text()[-3000:]
    await agent.ready(RECOVERY_SECONDS)
    now = await owners(agent)
    assert {device: now.get(device) for device in held} == held
    await kubelet.wait_for_resource(RESOURCE, healthy=4)
    assert kubelet.resources[RESOURCE].streams == 1
    assert (await kubelet.run_pod(pod(name))).phase is Phase.RUNNING
    assert len(await owners(agent)) == len(held) + 1


def said_in_one_line(agent: AgentProcess, word: str) -> bool:
    """Whether a warning or an error of one line has the word; a stack trace is no message for a person."""
    lines = [line for line in agent.text().splitlines() if "level=warning" in line or "level=error" in line]
    return any(word in line and "Traceback" not in line for line in lines)


@contextlib.asynccontextmanager
async def holding(pods: int = 2) -> AsyncIterator[tuple[AgentProcess, SimKubelet, dict[str, str]]]:
    """A node where pods hold devices, and which device has which owner."""
    async with node() as (agent, kubelet):
        for number in range(pods):
            assert (await kubelet.run_pod(pod(f"holder-{number}"))).phase is Phase.RUNNING
        yield agent, kubelet, await owners(agent)


def plugin_socket(agent: AgentProcess) -> Path:
    """The resource's socket in kubelet's directory."""
    (found,) = (agent.root / "device-plugins").glob("drabridge-*.sock")
    return found
