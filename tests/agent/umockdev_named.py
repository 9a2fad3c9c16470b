"""Plug in the first device of a kind: ``umockdev-wrapper python -m tests.agent.umockdev_named``.

Run by test_named_resources.py. The agent is a process inside the test bed; the cluster is this process.
"""

from __future__ import annotations

import asyncio
import os

from tests.agent.umockdev_examples import node_device
from tests.support.agent_on_cluster import bridge, limits_pod
from tests.support.agent_process import DRIVER, RESOURCE
from tests.support.machines import tree
from tests.support.umockdev import Testbed
from tests.support.waiting import until

CONFIG = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
safety: {{minHoldSeconds: 0.5, unconfirmedSeconds: 2, absentSeconds: 0.3, settleSeconds: 1, tombstoneSeconds: 5}}
resources:
- name: example.com/port-{{attr:kind}}
  match: [{{subsystem: tty, attr: {{kind: "*"}}}}]
  id: ["{{sysname}}"]
"""


def port(number: int, kind: str) -> str:
    attributes = {"kind": kind}
    return node_device(f"{path(number)}", "tty", f"ttyUSB{number}", 188, number, attributes=attributes)


def path(number: int) -> str:
    return f"/devices/virtual/usbx/port{number}/tty/ttyUSB{number}"


async def check() -> None:
    """Each kind that was there is a resource; its pods keep their devices when the agent starts again."""
    bed = Testbed(tree([port(0, "fast")]))
    os.environ["UMOCKDEV_DIR"] = str(bed.root)
    async with bridge(CONFIG) as (agent, cluster, _):
        kubelet = cluster.kubelets["node-a"]

        def counts() -> dict[str, str]:
            return {name: str(count) for name, count in kubelet.node_status()["allocatable"].items()}

        async def resources() -> set[str]:
            return {row["name"] for row in (await agent.status())["resources"]}

        await until(lambda: counts() == {"example.com/port-fast": "1"}, 20, agent.text)
        bed.add(port(1, "slow+old"))
        await until(lambda: counts().get("example.com/port-slow.old") == "1", 20, agent.text)
        assert await resources() == {"example.com/port-fast", "example.com/port-slow.old"}
        await agent.ready()

        await cluster.apply(limits_pod("a").replace(RESOURCE, "example.com/port-slow.old"))
        await cluster.wait_pod("a")
        await agent.stop()
        await agent.start()
        await agent.ready()
        held = await agent.owners()
        assert held == {"ttyusb0": "none", "ttyusb1": "legacy"}

        bed.remove(path(1))
        await until(lambda: counts().get("example.com/port-slow.old") == "0", 20, agent.text)
        agent.config.write_text(CONFIG + "  env: {KIND: '{attr:kind}'}\n")
        await asyncio.sleep(3)
        assert await resources() == {"example.com/port-fast", "example.com/port-slow.old"}, "its pod is still there"
        assert (await agent.device("ttyusb1"))["owner"] == "legacy"


if __name__ == "__main__":
    asyncio.run(check())
