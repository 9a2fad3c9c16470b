"""Unplug and replug a device that a lane selects: ``umockdev-wrapper python -m tests.agent.umockdev_chosen LANE``.

Run by test_chosen_device_unplugged.py. The agent is a process inside the test bed; the cluster is this process.
"""

from __future__ import annotations

import asyncio
import os
import sys

from tests.agent.umockdev_examples import node_device
from tests.support.agent_on_cluster import bridge, devices_in_slices, healthy
from tests.support.agent_process import DRIVER, RESOURCE
from tests.support.machines import tree
from tests.support.umockdev import Testbed
from tests.support.waiting import until

CONFIG = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
resources:
- name: {RESOURCE}
  match: [{{subsystem: tty, property: {{ID_SERIAL_SHORT: "*"}}}}]
  id: ["{{property:ID_SERIAL_SHORT}}"]
  lanes: {{LANE: {{match: [{{subsystem: tty, property: {{ID_SERIAL_SHORT: sa}}}}]}}}}
"""


def stick(serial: str, number: int) -> str:
    path = f"/devices/virtual/usbx/port{number}/tty/ttyUSB{number}"
    return node_device(path, "tty", f"ttyUSB{number}", 188, number, properties={"ID_SERIAL_SHORT": serial})


async def check(lane: str) -> None:
    """It keeps its lane while it is away, and nothing else moves; what comes meanwhile is not chosen."""
    bed = Testbed(tree(stick(f"s{letter}", number) for number, letter in enumerate("abc")))
    os.environ["UMOCKDEV_DIR"] = str(bed.root)
    other = "dra" if lane == "legacy" else "legacy"
    async with bridge(CONFIG.replace("LANE", lane)) as (agent, cluster, _):

        async def lanes() -> dict[str, tuple[str, bool, str]]:
            rows = (await agent.status())["devices"]
            return {row["name"]: (row["lane"], row["move"] is not None, row["presence"]) for row in rows}

        async def are(sa: str, *names: str) -> bool:
            return await lanes() == {"sa": (lane, False, sa), **dict.fromkeys(names, (other, False, "present"))}

        await until(lambda: are("present", "sb", "sc"), 10, agent.text)
        bed.remove("/devices/virtual/usbx/port0/tty/ttyUSB0")
        await until(lambda: are("gone", "sb", "sc"), 10, agent.text)
        bed.add(stick("sd", 3))
        offered = devices_in_slices if other == "dra" else healthy
        await until(lambda: "sd" in offered(cluster), 10, agent.text)
        assert await are("gone", "sb", "sc", "sd"), await lanes()
        assert not [note for note in (await agent.status())["notes"] if "no device matches" in note]
        bed.add(stick("sa", 9))
        await until(lambda: are("present", "sb", "sc", "sd"), 10, agent.text)


if __name__ == "__main__":
    asyncio.run(check(sys.argv[1]))
