"""Rename hardware to its child or parent: ``umockdev-wrapper python -m tests.agent.umockdev_overlap CASE HOW``.

Run by test_renamed_parts.py. The agent is a process inside the test bed; kubelet is this process.
"""

from __future__ import annotations

import asyncio
import os
import sys

from drabridge.sim.kubelet.pods import Phase
from tests.agent import umockdev_examples
from tests.support.agent_on_cluster import bridge, claim_pod, devices_in_slices, end_claim
from tests.support.agent_process import DRIVER, RESOURCE, holder_shown, node, pod, reconfigure
from tests.support.umockdev import Testbed
from tests.support.waiting import until

HEAD = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
safety: {{minHoldSeconds: 0.5, unconfirmedSeconds: 2, absentSeconds: 0.3, settleSeconds: 1}}
resources:
"""
CARD = f'- {{name: {RESOURCE}, match: [{{subsystem: pci, sysname: "0000:3b:*"}}], id: ["{{sysname}}"], nodes: []}}\n'
WHOLE_CARD = CARD.replace("nodes: []", "group: {match: [{subsystem: uio}]}, nodes: [{from: group}]")
CHILDREN = f'- {{name: {RESOURCE}, match: [{{subsystem: uio, sysname: "uio[01]"}}], id: ["{{sysname}}"]}}\n'
BESIDE = CHILDREN.replace(RESOURCE, "example.com/child")
CARDS, NODES = {"0000:3b:00.0"}, {"uio0", "uio1"}

# The resources before and after, and the ids of both.
CASES = {
    "group-child": (WHOLE_CARD, CHILDREN, CARDS, NODES),
    "child-group": (CHILDREN, WHOLE_CARD, NODES, CARDS),
    "parent-child": (CARD, CHILDREN, CARDS, NODES),
    "child-parent": (CHILDREN, CARD, NODES, CARDS),
}


async def renamed(case: str, restart: bool) -> None:
    """A pod has the card, or one node of it; nobody is given it under the other name until the pod ends."""
    before, after, old, new = CASES[case]
    async with node(HEAD + before) as (agent, kubelet):
        assert (await kubelet.run_pod(pod("a"))).phase is Phase.RUNNING
        await until(lambda: holder_shown(agent), 15, agent.text)
        await reconfigure(agent, HEAD + after, restart)
        await until(lambda: new <= kubelet.resources[RESOURCE].devices, 15, agent.text)
        assert (await kubelet.run_pod(pod("b"))).phase is Phase.FAILED, await agent.status()
        assert kubelet.pod_status("uid-a").phase is Phase.RUNNING
        await kubelet.finish_pod("uid-a")
        await until(lambda: kubelet.resources[RESOURCE].healthy == new, 30, agent.text)
        assert (await kubelet.run_pod(pod("c", len(new)))).phase is Phase.RUNNING
        assert not old & kubelet.resources[RESOURCE].healthy


async def claimed(case: str, restart: bool) -> None:
    """The same with claims."""
    before, after = (text.replace("- {", '- {lanes: {legacy: 0, dra: "*"}, ') for text in CASES[case][:2])
    async with bridge(HEAD + before) as (agent, cluster, _):
        await until(lambda: devices_in_slices(cluster), 15)
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        await reconfigure(agent, HEAD + after, restart)
        await until(lambda: devices_in_slices(cluster) == set(), 15, agent.text)
        await cluster.apply(claim_pod("d"))
        await asyncio.sleep(2)
        assert cluster.api.objects.peek("pods")[-1]["status"].get("phase") != "Running"
        assert set((await agent.owners()).values()) == {"dra-prepared", "none"}
        await end_claim(cluster, "c")
        await cluster.wait_pod("d")


async def side_by_side() -> None:
    """One configuration has the card with its nodes, and the nodes: one of both is given out."""
    child = "example.com/child"
    async with node(HEAD + WHOLE_CARD + BESIDE) as (agent, kubelet):
        await kubelet.wait_for_resource(child)
        for which, (first, second) in enumerate(((RESOURCE, child), (child, RESOURCE))):
            assert (await kubelet.run_pod(pod(f"a{which}", 1, first))).phase is Phase.RUNNING
            assert (await kubelet.run_pod(pod(f"b{which}", 1, second))).phase is Phase.FAILED
            assert sum(row["owner"] == "legacy" for row in (await agent.status())["devices"]) == 1
            await until(lambda: holder_shown(agent), 15, agent.text)
            await kubelet.finish_pod(f"uid-a{which}")
            await until(lambda: kubelet.resources[child].healthy == NODES, 30, agent.text)
            await until(lambda: kubelet.resources[RESOURCE].healthy == CARDS, 30, agent.text)


if __name__ == "__main__":
    bed = Testbed(umockdev_examples.fpga())
    os.environ["UMOCKDEV_DIR"] = str(bed.root)  # libumockdev tells the C library only
    what, how = sys.argv[1:]
    if what == "side-by-side":
        asyncio.run(side_by_side())
    else:
        asyncio.run((claimed if "claims" in how else renamed)(what, "restart" in how))
