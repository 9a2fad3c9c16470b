"""A node on the disk that stays: devices held there must be held after a reboot, a power loss, a full disk.

``run``: an agent and a kubelet; pods come and go and each step is noted to the host, until the machine ends.
``held``: an agent alone, and what its ledger says: {"boot": ..., "owners": {id: owner}, "notes": [...]}.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.timings import Timings
from tests.lab.inside.hardware import note
from tests.lab.inside.nodes import DRIVER, HEAD, SERIAL, SERIAL_PORTS, ids
from tests.support.agent_process import BOOT_ID, AgentProcess, pod
from tests.support.waiting import until

ROOT = Path("/state/node")
CONFIG = HEAD + SERIAL_PORTS
HELD = 2
"""Pods that hold a device all the time; others come and go."""


def _agent() -> AgentProcess:
    ROOT.mkdir(exist_ok=True)
    return AgentProcess(ROOT, CONFIG, DRIVER)


async def _run() -> None:
    kubelet = SimKubelet(ROOT, timings=Timings.fast())
    agent = _agent()
    await kubelet.start()
    await agent.start()
    await agent.ready()
    await until(lambda: len(ids(kubelet, SERIAL)[0]) >= HELD + 2, 30, agent.text)
    for number in range(HELD):
        await kubelet.run_pod(pod(f"held-{number}", resource=SERIAL))
        note(json.dumps({"held": _id(kubelet, f"uid-held-{number}")}))
    note(json.dumps({"running": True}))
    for number in range(100_000):
        name = f"p{number}"
        status = await kubelet.run_pod(pod(name, resource=SERIAL))
        assert status.phase == "Running", status.message
        identity = _id(kubelet, f"uid-{name}")
        note(json.dumps({"held": identity}))
        note(json.dumps({"leaving": identity}))
        await kubelet.delete_pod(f"uid-{name}")
        await until(lambda: len(ids(kubelet, SERIAL)[0]) >= 1, 30, agent.text)


def _id(kubelet: SimKubelet, uid: str) -> str:
    (one,) = kubelet.allocated_resources_status(uid)["main"]
    return str(one["resources"][0]["resourceID"])


async def _held() -> None:
    agent = _agent()
    await agent.start()
    try:
        await agent.up(60)
        await until(lambda: _complete(agent), 60, agent.text)
        status = await agent.status()
        owners = {row["id"]: row["owner"] for row in status["devices"]}
        print(json.dumps({"boot": BOOT_ID.read_text().strip(), "owners": owners, "notes": status["notes"]}))
    finally:
        with contextlib.suppress(ProcessLookupError):
            await agent.stop(signal.SIGKILL)


async def _complete(agent: AgentProcess) -> bool:
    return len((await agent.status())["devices"]) > HELD


if __name__ == "__main__":
    asyncio.run(_run() if sys.argv[1] == "run" else _held())
