"""Who has a device is known within a second of the Allocate, however short the pod's life and whoever had it before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tests.support.agent_on_cluster import BOTH_LANES, bridge, limits_pod, phase, short_pod
from tests.support.agent_process import AgentProcess
from tests.support.waiting import PATIENCE, until

ONE = BOTH_LANES.replace('[zero, "null", full, random]', "[zero]").replace("{legacy: 2, dra: 2}", '{legacy: "*"}')
ONE = ONE.replace("minHoldSeconds: 0.5, unconfirmedSeconds: 2", "minHoldSeconds: 20, unconfirmedSeconds: 20")
WITHIN_SECONDS = 1.0 * PATIENCE


async def shown(agent: AgentProcess) -> tuple[str, ...]:
    """Name the pods that the status shows on the one device."""
    (row,) = (await agent.status())["devices"]
    return tuple(one["pod"] for one in row["holders"])


def _named(agent: AgentProcess, name: str) -> Callable[[], Any]:
    async def named() -> bool:
        return await shown(agent) == (name,)

    return named


async def test_a_device_that_kubelet_passes_from_pod_to_pod_never_shows_an_earlier_one() -> None:
    async with bridge(ONE) as (agent, cluster, _):
        for turn in range(4):
            name = f"turn-{turn}"
            await cluster.apply(short_pod(name, 2.0))
            await until(lambda name=name: phase(cluster, name) == "Running")  # type: ignore[misc]
            began = time.monotonic()
            while await shown(agent) != (name,):
                assert await shown(agent) in ((name,), ("",)), "an earlier holder, or nobody"
                assert time.monotonic() - began < WITHIN_SECONDS, agent.text()
                await asyncio.sleep(0.02)
            await until(lambda name=name: phase(cluster, name) == "Succeeded")  # type: ignore[misc]


async def test_a_pod_that_ends_before_anybody_looks_is_known_by_its_name() -> None:
    """Kubelet's List never shows it: its checkpoint does."""
    async with bridge(ONE) as (agent, cluster, _):
        for turn in range(3):
            await cluster.apply(short_pod(f"short-{turn}", 0.0))
            released = f'released device=zero holder="pod default/short-{turn} (container main)"'
            await until(lambda released=released: released in agent.text(), 5, agent.text)  # type: ignore[misc]
            await until(lambda turn=turn: phase(cluster, f"short-{turn}") == "Succeeded")  # type: ignore[misc]


async def test_a_pod_that_is_rejected_after_allocate_is_known_by_its_name() -> None:
    """Its second container asks for more than there is, which the scheduler would have refused."""
    rejected = limits_pod("rejected").replace("spec:\n", "spec:\n  nodeName: node-a\n", 1)
    second = '{name: more, image: x, resources: {limits: {"example.com/mem": 9}}}'
    rejected = rejected.replace("}}}]", "}}}, " + second + "]")
    async with bridge(ONE) as (agent, cluster, _):
        await cluster.apply(rejected)
        await until(lambda: phase(cluster, "rejected") == "Failed")
        await until(_named(agent, "rejected"), 5, agent.text)
