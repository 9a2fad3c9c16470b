"""NUMA nodes of real PCI roots, in kubelet's lists and in slices."""

from __future__ import annotations

from typing import Any

from drabridge.sim.cluster import SimCluster
from drabridge.sim.kubelet.pods import Phase
from tests.lab.inside.nodes import DISKS, DRIVER, HEAD, NVME, holder, listed
from tests.support.agent_on_cluster import bridge
from tests.support.agent_process import node, pod
from tests.support.waiting import until

FAR, NEAR = "NV-0003", "NV-0002"  # the second node's; the first root has no node: its firmware says nothing


async def test_kubelet_is_told_the_node_of_a_root_that_has_one() -> None:
    async with node(HEAD + DISKS, DRIVER, topology_policy="single-numa-node", numa_nodes=(0, 1)) as (agent, kubelet):
        await listed(agent, kubelet, NVME, {FAR, NEAR}, set())
        devices = kubelet.process.manager.state.all[NVME]
        assert {name: device.numa for name, device in devices.items()} == {FAR: (1,), NEAR: None}
        assert (await kubelet.run_pod(pod("a", 1, NVME))).phase is Phase.RUNNING
        assert await holder(agent, FAR.lower()) == ("present", "legacy")
        # A device without a node is in no hint of kubelet's once another of its resource has one
        # (generateDeviceTopologyHints in pkg/kubelet/cm/devicemanager/topology_hints.go).
        assert (await kubelet.run_pod(pod("b", 1, NVME))).reason == "TopologyAffinityError"


async def test_slices_tell_node_and_root() -> None:
    disks = DISKS + "  lanes: {legacy: 0, dra: '*'}\n"
    async with bridge(HEAD + disks, driver=DRIVER) as (_agent, cluster, _runtime):
        await until(lambda: len(_devices(cluster)) == 2, 20)
        found = _devices(cluster)
        far, near = found[FAR.lower()], found[NEAR.lower()]
        assert far["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:40"}
        assert near["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:00"}
        assert "resource.kubernetes.io/numaNode" not in near
        assert far["resource.kubernetes.io/numaNode"] == {"int": 1}


def _devices(cluster: SimCluster) -> dict[str, dict[str, Any]]:
    slices = cluster.api.objects.peek("resourceslices")
    return {device["name"]: device["attributes"] for one in slices for device in one["spec"].get("devices") or ()}
