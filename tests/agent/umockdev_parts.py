"""Rename wholes and parts: ``umockdev-wrapper python -m tests.agent.umockdev_parts BY HELD HOW``.

Run by test_renamed_parts.py. The agent is a process inside the test bed; kubelet is this process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from drabridge.sim.kubelet.pods import Phase
from tests.agent import umockdev_examples
from tests.support import machines
from tests.support.agent_process import DRIVER, holder_shown, node, pod
from tests.support.umockdev import Testbed
from tests.support.waiting import until

MACHINES: dict[str, Callable[[], str]] = {
    "parent": umockdev_examples.fpga,
    "link:physfn": lambda: machines.nic(2),
}
WHOLES = {
    "parent": "{subsystem: pci, attr: {device: '0x0b30'}, sysname: '0000:3b:*'}",
    "link:physfn": f"{{subsystem: pci, sysname: '{machines.PF}'}}",
}
PARTS = {"parent": "{subsystem: uio, sysname: 'uio[01]'}", "link:physfn": "{subsystem: pci, exists: ['link:physfn']}"}


def config(by: str, whole: str, part: str) -> str:
    return f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
safety: {{minHoldSeconds: 0.5, unconfirmedSeconds: 2, absentSeconds: 0.3, settleSeconds: 1}}
resources:
- {{name: {whole}, match: [{WHOLES[by]}], id: ["{{sysname}}"], nodes: []}}
- {{name: {part}, match: [{PARTS[by]}], id: ["{{sysname}}"], nodes: [], partition: {{of: {whole}, by: "{by}"}}}}
"""


async def check(by: str, held: str, restart: bool) -> None:
    """A pod has the whole, or a part, under the old name; nobody is given the other one until it ends."""
    bed = Testbed(MACHINES[by]())
    os.environ["UMOCKDEV_DIR"] = str(bed.root)  # libumockdev tells the C library only
    whole, part = "example.com/whole", "example.com/part"
    async with node(config(by, whole, part)) as (agent, kubelet):
        assert (await kubelet.run_pod(pod("a", 1, whole if held == "whole" else part))).phase is Phase.RUNNING
        await until(lambda: holder_shown(agent), 15, agent.text)
        agent.config.write_text(config(by, whole + "2", part + "2"))
        if restart:
            await agent.stop()
            await agent.start()
            await agent.ready()
        else:
            await until(lambda: "configuration reloaded" in agent.text(), 15, agent.text)
        other = part + "2" if held == "whole" else whole + "2"
        await until(lambda: other in kubelet.resources and kubelet.resources[other].devices, 15, agent.text)
        assert (await kubelet.run_pod(pod("b", 1, other))).phase is Phase.FAILED, await agent.status()
        await kubelet.finish_pod("uid-a")
        await until(lambda: kubelet.resources[other].healthy, 30, agent.text)
        assert (await kubelet.run_pod(pod("c", 1, other))).phase is Phase.RUNNING


if __name__ == "__main__":
    asyncio.run(check(sys.argv[1], sys.argv[2], sys.argv[3] == "restart"))
