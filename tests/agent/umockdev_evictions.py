"""Unplug and exchange sticks that pods have: ``umockdev-wrapper python -m tests.agent.umockdev_evictions``.

Run by test_evictions_unplugged.py. The agent is a process inside the test bed; the cluster is this process.
"""

from __future__ import annotations

import asyncio
import os

from drabridge.sim.cluster import SimCluster
from tests.agent.umockdev_examples import node_device
from tests.support.agent_on_cluster import bridge, claim_pod, devices_in_slices, healthy, limits_pod, phase
from tests.support.agent_process import DRIVER, RESOURCE, AgentProcess, metric
from tests.support.machines import tree
from tests.support.umockdev import Testbed
from tests.support.waiting import until

AWAY = 3  # seconds; a stick that is plugged in again is away for less
CONFIG = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
safety: {{minHoldSeconds: 0.5, unconfirmedSeconds: 2, absentSeconds: 0.3, settleSeconds: 1, quiesceSeconds: 0.5}}
resources:
- name: {RESOURCE}
  match: [{{subsystem: tty, property: {{ID_SERIAL_SHORT: "*"}}}}]
  id: ["{{property:ID_PORT}}"]
  evictHolders: {{afterSeconds: {AWAY}}}
  lanes: {{legacy: {{match: [{{subsystem: tty, property: {{ID_PORT: [p0, p1]}}}}]}}, dra: "*"}}
"""


def path(number: int) -> str:
    return f"/devices/virtual/usbx/port{number}/tty/ttyUSB{number}"


def stick(number: int, port: str, serial: str) -> str:
    """A stick in a port, which is its identity; the number is never used twice."""
    properties = {"ID_SERIAL_SHORT": serial, "ID_PORT": port}
    return node_device(path(number), "tty", f"ttyUSB{number}", 188, number, properties=properties)


async def has(agent: AgentProcess, pod: str) -> str:
    """The device of a pod, or of its claim, as soon as kubelet's record names the pod."""
    found: list[str] = []

    async def shown() -> bool:
        found[:] = [
            row["name"]
            for row in (await agent.status())["devices"]
            for one in row["holders"]
            if pod in (one.get("pod"), one.get("claim")) and (one.get("podUID") or one.get("claimUID"))
        ]
        return bool(found)

    await until(shown, 20, agent.text)
    return str(found[0])


async def presence(agent: AgentProcess, name: str, wanted: str) -> None:
    async def there() -> bool:
        return bool((await agent.device(name))["presence"] == wanted)

    await until(there, 20, agent.text)


def told(cluster: SimCluster, pod: str) -> list[str]:
    events = cluster.api.objects.peek("events")
    return [one["message"] for one in events if one["involvedObject"]["name"] == pod and one["reason"] == "DeviceLost"]


async def check() -> None:
    bed = Testbed(tree(stick(number, f"p{number}", f"s{number}") for number in range(3)))
    os.environ["UMOCKDEV_DIR"] = str(bed.root)
    async with bridge(CONFIG) as (agent, cluster, _):
        await until(lambda: (len(healthy(cluster)), len(devices_in_slices(cluster))) == (2, 1), 20, agent.text)
        for name, text in (("a", limits_pod("a")), ("b", limits_pod("b")), ("c", claim_pod("c"))):
            await cluster.apply(text)
            await cluster.wait_pod(name)
        numbers = {name: int((await has(agent, name)).removeprefix("p")) for name in "abc"}
        await asyncio.sleep(2 * AWAY)  # each was looked at since it is held

        # Plugged in again, the same: b stays. Another one in its port: c goes at once.
        for pod, later, serial in (("b", 7, f"s{numbers['b']}"), ("c", 8, "new")):
            port = f"p{numbers[pod]}"
            bed.remove(path(numbers[pod]))
            await presence(agent, port, "gone")
            bed.add(stick(later, port, serial))
            await presence(agent, port, "present")
        await until(lambda: phase(cluster, "c") == "", 20, agent.text)
        assert "exchanged: its serial was s2, and is new" in told(cluster, "c")[0]

        # Unplugged for good, and a disruption budget that allows it later.
        cluster.api.faults.fail(1, 429, verb="create", resource="pods")
        bed.remove(path(numbers["a"]))
        await until(lambda: metric(agent, "evictions_total", resource=RESOURCE, result="refused"), 20, agent.text)
        assert phase(cluster, "a") == "Running"
        await until(lambda: phase(cluster, "a") == "", 30, agent.text)
        assert "gone for" in told(cluster, "a")[0]
        assert await metric(agent, "evictions_total", resource=RESOURCE, result="evicted") == 2
        assert phase(cluster, "b") == "Running"


if __name__ == "__main__":
    asyncio.run(check())
