"""A disk is pulled out of a PCIe slot and plugged into another under a real agent, free and held."""

from __future__ import annotations

import asyncio

from drabridge.sim.kubelet.pods import Phase
from tests.lab.inside.found import devnode
from tests.lab.inside.hardware import plug, take_out, unplug
from tests.lab.inside.nodes import DISKS, DRIVER, HEAD, NVME, give, given_nodes, holder, ids, listed
from tests.support.agent_process import node
from tests.support.waiting import until


async def test_a_disk_in_a_slot_comes_and_goes_free_and_held() -> None:
    disks = {"NV-0002", "NV-0003"}
    async with node(HEAD + DISKS, DRIVER) as (agent, kubelet):
        await listed(agent, kubelet, NVME, disks, set())
        try:
            plug("nvme4")
            await listed(agent, kubelet, NVME, disks | {"NV-0004"}, set())
            uid = await give(agent, kubelet, "NV-0004", disks | {"NV-0004"}, NVME)
            await until(lambda: [one["hostPath"] for one in given_nodes(agent)] == [devnode("nvme4")], 10, agent.text)
            await asyncio.to_thread(unplug, "nvme4")
            await listed(agent, kubelet, NVME, disks, {"NV-0004"})
            assert await holder(agent, "nv-0004") == ("gone", "legacy")
            plug("nvme4", bus="hot2")  # another slot, another PCI address
            await listed(agent, kubelet, NVME, disks | {"NV-0004"}, set())
            assert await holder(agent, "nv-0004") == ("present", "legacy")
            assert kubelet.pod_status(uid).phase is Phase.RUNNING
            await kubelet.delete_pod(uid)
        finally:
            await asyncio.to_thread(take_out, "nvme4")
        await until(lambda: "NV-0004" not in ids(kubelet, NVME)[0], 20, agent.text)
