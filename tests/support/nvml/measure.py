"""Measure an agent on a machine of GPUs: ``umockdev-wrapper python -m tests.support.nvml.measure NAME``.

For tests/bench.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path

from tests.agent.umockdev_nvml import UUIDS, healthy, worker
from tests.support.agent_process import AgentProcess
from tests.support.nvml.machine import gpu_node

SETTLE_SECONDS = 5.0  # the agent gives memory of its start back after one
ROUNDS = 3


def anonymous_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no Pss_Anon for {pid}")


def _of_agent(agent: AgentProcess) -> float:
    assert agent.process is not None
    return anonymous_mib(agent.process.pid)


async def memory_mib() -> float:
    """What the extra adds: the process that asks NVML, and what the agent grows by."""
    added = []
    for _ in range(ROUNDS):
        async with gpu_node(nvml=False) as (_, agent, _):
            await asyncio.sleep(SETTLE_SECONDS)
            without = _of_agent(agent)
        async with gpu_node() as (_, agent, _):
            await asyncio.sleep(SETTLE_SECONDS)
            grown, process = _of_agent(agent) - without, anonymous_mib(worker(agent))
            print(f"agent {without:.2f} + {grown:.2f}, process {process:.2f} MiB", file=sys.stderr)
            added.append(grown + process)
    return statistics.median(added)


async def event_to_list_ms() -> float:
    """From an XID in the library (it looks every 2 ms) to the list at kubelet that shows its GPU Unhealthy."""
    times = []
    async with gpu_node() as (standin, agent, kubelet):
        await asyncio.sleep(1.0)
        for index, uuid in enumerate(UUIDS):
            standin.event(index, 79)
            began = time.perf_counter()
            while uuid in healthy(kubelet):
                await asyncio.sleep(0.0005)
                assert time.perf_counter() - began < 60, agent.text()
            times.append(1000 * (time.perf_counter() - began))
            await asyncio.sleep(0.3)
    print(" ".join(f"{one:.1f}" for one in times), "ms", file=sys.stderr)
    return statistics.median(times)


if __name__ == "__main__":
    print(asyncio.run({"memory": memory_mib, "event": event_to_list_ms}[sys.argv[1]]()))
