"""Run an agent on a machine of GPUs: ``umockdev-wrapper python -m tests.agent.umockdev_nvml CASE``.

Started by test_nvml.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from drabridge.inventory.nvml_worker import NODE_PROCESSES
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from tests.support import machines
from tests.support.agent_process import AgentProcess, metric, noted, pod
from tests.support.nvml.machine import RESOURCE, gpu_node
from tests.support.waiting import until

CASES: dict[str, Callable[[], Awaitable[None]]] = {}
UUIDS = [machines.GPU_UUID.format(index) for index in range(8)]


def case(function: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    CASES[function.__name__] = function
    return function


def healthy(kubelet: SimKubelet) -> set[str]:
    return set(kubelet.resources[RESOURCE].healthy)


def worker(agent: AgentProcess) -> int:
    """The process that asks NVML; 0 when there is none."""
    assert agent.process is not None
    for task in Path(f"/proc/{agent.process.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # threads and processes end meanwhile
            for child in (task / "children").read_text().split():
                if b"nvml_worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return 0


@case
async def a_faulty_gpu_is_unhealthy_alone_and_recovers() -> None:
    async with gpu_node() as (standin, agent, kubelet):
        assert (await kubelet.run_pod(pod("a", resource=RESOURCE))).phase is Phase.RUNNING
        (held,) = (row["id"] for row in (await agent.status())["devices"] if row["owner"] == "legacy")
        index = UUIDS.index(held)
        standin.event(index, 31)  # the application's own fault
        standin.event(index, 79)
        await until(lambda: healthy(kubelet) == set(UUIDS) - {held}, 5, agent.text)
        (of_pod,) = kubelet.allocated_resources_status("uid-a")["main"]
        assert of_pod["resources"] == [{"resourceID": held, "health": "Unhealthy"}]
        row = await agent.device(held.lower())
        assert (row["presence"], row["reason"], row["owner"]) == ("faulty", "XID 79", "legacy")
        for number in ("31", "79"):
            assert await metric(agent, "nvml_xids_total", xid=number) == 1
        assert await metric(agent, "nvml_up") == 1

        standin.set(index, error="* 15")
        await until(lambda: _is_lost(agent, held), 10, agent.text)
        standin.set(index, error=None)
        await until(lambda: healthy(kubelet) == set(UUIDS), 30, agent.text)
        assert kubelet.pod_status("uid-a").phase is Phase.RUNNING


async def _is_lost(agent: AgentProcess, held: str) -> bool:
    return "lost" in str((await agent.device(held.lower()))["reason"])


@case
async def each_sharer_s_own_use_is_a_metric() -> None:
    async with gpu_node() as (standin, agent, _):
        uid, container = "0a0a0a0a-1111-4222-8333-444444444444", "1" * 64
        process = Path(os.environ["UMOCKDEV_DIR"], "proc/99999999")
        process.mkdir()
        (process / "cgroup").write_text(f"0::/kubepods/pod{uid}/{container}\n")
        standin.uses(2, (99999999, 7 << 20, 40))
        if os.readlink("/proc/self/ns/pid") == NODE_PROCESSES:
            await until(lambda: metric(agent, "device_used_memory_bytes", uid=uid), 30, agent.text)
            assert await metric(agent, "device_used_memory_bytes", uid=uid, device=UUIDS[2].lower()) == 7 << 20
            assert await metric(agent, "device_used_time_ratio", uid=uid) == 0.4
            assert await metric(agent, "device_use_unknown") == 0
        else:  # a container, as is the agent's pod without hostPID
            assert await metric(agent, "device_use_unknown", reason="hostpid") == 16


@case
async def what_becomes_of_nvml_changes_no_device() -> None:
    async with gpu_node() as (standin, agent, kubelet):
        first = worker(agent)
        os.kill(first, signal.SIGKILL)
        await until(lambda: "ended by SIGKILL" in agent.text(), 10, agent.text)
        standin.add("-", "crash", "nvmlDeviceGetTemperature")
        await until(lambda: "ended by SIGSEGV" in agent.text(), 10, agent.text)
        assert healthy(kubelet) == set(UUIDS)
        await until(lambda: noted(agent, "NVML: its process ended by SIGSEGV"), 10, agent.text)
        assert await metric(agent, "nvml_up") == 0
        assert (await kubelet.run_pod(pod("a", resource=RESOURCE))).phase is Phase.RUNNING
        standin.remove("-", "crash")
        standin.event(3, 48)
        await until(lambda: healthy(kubelet) == set(UUIDS) - {UUIDS[3]}, 30, agent.text)
        assert worker(agent) not in (0, first)
        pid = worker(agent)
        await agent.stop()
        assert not alive(pid)


@case
async def it_ends_with_an_agent_that_is_killed() -> None:
    async with gpu_node() as (standin, agent, _):
        pid = worker(agent)
        standin.add("-", "hang", "nvmlDeviceGetTemperature")  # else it would end for want of a reader
        standin.event(0, 31)
        await until(lambda: metric(agent, "nvml_xids_total", xid="31"), 10, agent.text)
        await asyncio.sleep(0.2)
        await agent.stop(signal.SIGKILL)
        await until(lambda: not alive(pid))


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie of a dead parent waits for init only."""
    try:
        return "Z (zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@case
async def a_library_that_lies_about_one_gpu_costs_the_others_nothing() -> None:
    async with gpu_node(files=False) as (standin, agent, kubelet):
        standin.set(2, uuid="GPU-other")
        await until(lambda: healthy(kubelet) == {*UUIDS, "GPU-other"} - {UUIDS[2]}, 30, agent.text)
        assert UUIDS[2] in kubelet.resources[RESOURCE].devices, "its id stays listed, Unhealthy"
        standin.set(2, uuid=UUIDS[3], serial="1654423000003")
        await until(lambda: noted(agent, f"NVML gives 2 GPUs the UUID {UUIDS[3]}"), 30, agent.text)
        others = {*UUIDS} - {UUIDS[2], UUIDS[3]}
        assert healthy(kubelet) >= others
        standin.set(2, uuid="\x1b[31m" * 1000, pci="no address", memory=None)
        await until(lambda: healthy(kubelet) == {*UUIDS} - {UUIDS[2]}, 30, agent.text)
        assert (await kubelet.run_pod(pod("a", resource=RESOURCE))).phase is Phase.RUNNING


@case
async def where_nvml_is_off_there_is_no_process() -> None:
    async with gpu_node(nvml=False) as (_, agent, kubelet):
        assert worker(agent) == 0
        assert healthy(kubelet) == set(UUIDS)
        assert b"\ndrabridge_nvml_up " not in (await agent.ask("/metrics"))[1]
        agent.config.write_text(agent.config.read_text().replace("nvml: false", "nvml: true"))
        await until(lambda: worker(agent), 10, agent.text)
        agent.config.write_text(agent.config.read_text().replace("nvml: true, l", "nvml: false, l"))
        await until(lambda: not worker(agent), 10, agent.text)
        assert healthy(kubelet) == set(UUIDS)


def main() -> None:
    if "umockdev" not in os.environ.get("LD_PRELOAD", ""):
        raise SystemExit("run this under umockdev-wrapper")
    asyncio.run(CASES[sys.argv[1]]())  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
