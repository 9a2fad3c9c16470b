"""Stop an agent while a claim runs, and look at what its successor knows of that claim."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import bridge, claim_pod
from tests.support.agent_process import AgentProcess
from tests.support.waiting import until


async def rows(agent: AgentProcess) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in (await agent.status())["devices"]}


async def owners(agent: AgentProcess) -> list[str]:
    return sorted(row["owner"] for row in (await rows(agent)).values())


async def claimed(agent: AgentProcess) -> str:
    """The one device that a claim has prepared."""
    (name,) = [name for name, row in (await rows(agent)).items() if row["owner"] == "dra-prepared"]
    return name


async def become(agent: AgentProcess, *wanted: str) -> None:
    async def are() -> bool:
        return await owners(agent) == sorted(wanted)

    await until(are, 20, lambda: agent.text()[-3000:])


def everything(state: Path) -> None:
    shutil.rmtree(state)


def claim_files(agent: AgentProcess) -> list[str]:
    return [path.name for path in agent.cdi.glob("*-device-claim-*.json")]


@contextlib.asynccontextmanager
async def stopped_while_a_claim_runs() -> AsyncIterator[tuple[AgentProcess, SimCluster, str]]:
    """A stopped agent, and the device that a running claim has."""
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        used = await claimed(agent)
        await agent.stop()
        yield agent, cluster, used


@contextlib.asynccontextmanager
async def lost_while_a_claim_runs() -> AsyncIterator[tuple[AgentProcess, SimCluster, str]]:
    """The same without any state."""
    async with stopped_while_a_claim_runs() as (agent, cluster, used):
        everything(agent.control.parent)
        yield agent, cluster, used
