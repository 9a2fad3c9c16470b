"""A disk that is bound to vfio-pci for a pod, on a node that loses its power.

``run``: bind it, tell the host which function it is, wait for the end. ``after``: {"held": ..., "driver": ..., "back":
whether the function is as before when kubelet is offered its disk again, once the pod is known to be gone}. The file of
what was taken stays, and says nothing: it is of another boot.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.timings import Timings
from tests.lab.inside.hardware import note
from tests.lab.inside.nodes import DISKS, DRIVER, HEAD, NVME, VM, VM_DISKS, as_before, driver_of, ids
from tests.support.agent_process import AgentProcess, pod
from tests.support.waiting import until

ROOT = Path("/state/node")


def _agent() -> AgentProcess:
    subprocess.run(["modprobe", "vfio-pci"], check=True)
    ROOT.mkdir(exist_ok=True)
    return AgentProcess(ROOT, HEAD + DISKS + VM_DISKS, DRIVER)


def _taken() -> dict[str, Any]:
    return dict(json.loads((ROOT / "plugins" / DRIVER / "vfio.json").read_text())["functions"])


async def _run() -> None:
    agent, kubelet = _agent(), SimKubelet(ROOT, timings=Timings.fast())
    await kubelet.start()
    await agent.start()
    await agent.ready()
    await until(lambda: ids(kubelet, VM)[0], 30, agent.text)
    status = await kubelet.run_pod(pod("vm", 1, VM))
    assert status.phase == "Running", status.message
    (function,) = _taken()
    assert driver_of(function) == "vfio-pci"
    note(function)
    await asyncio.sleep(3600)


async def _after() -> None:
    agent = _agent()
    (function,) = _taken()
    await agent.start()
    kubelet = SimKubelet(ROOT, timings=Timings.fast())
    try:
        await agent.up(60)

        async def row() -> dict[str, Any]:
            rows = (await agent.status())["devices"]
            return next((one for one in rows if one["id"] == f"vfio-{function}"), {})

        await until(row, 60, agent.text)
        found = {"held": (await row())["owner"], "driver": driver_of(function)}
        await kubelet.start()
        await until(lambda: ids(kubelet, NVME)[0], 30, agent.text)
        print(json.dumps({**found, "back": as_before(function, "nvme")}))
    finally:
        with contextlib.suppress(ProcessLookupError):
            await agent.stop(signal.SIGKILL)
        await kubelet.stop()


if __name__ == "__main__":
    asyncio.run(_run() if sys.argv[1] == "run" else _after())
