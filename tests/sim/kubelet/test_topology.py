"""Topology Manager, policy single-numa-node: alignment, refusals, and the nil dereference on re-admission."""

from __future__ import annotations

import pytest

from deviceplugin.wire import v1beta1_pb2 as pb
from drabridge.sim.kubelet.pods import Phase
from tests.sim.kubelet.gpu_pods import gpu_kubelet, pod
from tests.support.kubelet_peers import device

SINGLE = {"topology_policy": "single-numa-node", "numa_nodes": (0, 1)}
TWO_SOCKETS = [device(f"n{i // 2}-{i}", numa=[i // 2]) for i in range(4)]


@pytest.mark.parametrize(
    ("devices", "asked", "phase"),
    [
        (TWO_SOCKETS, 2, Phase.RUNNING),
        (TWO_SOCKETS, 3, Phase.FAILED),
        ([device(f"d{i}") for i in range(3)], 3, Phase.RUNNING),  # no topology: no preference
        ([device("a", numa=[0, 1]), device("b", numa=[1])], 2, Phase.RUNNING),  # both on node 1
        ([device("a", numa=[0]), device("b")], 2, Phase.FAILED),  # the one without topology matches no node
        ([device("a", numa=[-1]), device("b", numa=[-1])], 1, Phase.FAILED),  # "-1" aligns to a node that is not there
        ([device("a", numa=[]), device("b", numa=[])], 2, Phase.RUNNING),  # empty TopologyInfo: not aligned
    ],
)
async def test_admission(devices: list[pb.Device], asked: int, phase: Phase) -> None:
    async with gpu_kubelet(devices, **SINGLE) as (kubelet, _):
        status = await kubelet.run_pod(pod("p", asked))
        assert status.phase is phase
        if phase is Phase.FAILED:
            assert status.reason == "TopologyAffinityError"
            assert status.message == "Pod was rejected: Resources cannot be allocated with Topology locality"


async def test_devices_of_one_container_share_a_node_and_preferences_stay_within_it() -> None:
    async with gpu_kubelet(TWO_SOCKETS, **SINGLE) as (kubelet, plugin):
        plugin.preferred = ["n1-2"]
        await kubelet.run_pod(pod("p", 1))
        assert sorted(plugin.preferred_requests[0].available_deviceIDs) == ["n0-0", "n0-1"], "the aligned ones"
        assert plugin.calls[-1][1][0].startswith("n0")
        await kubelet.run_pod(pod("q", 2))
        assert plugin.calls[-1] == ("Allocate", ["n1-2", "n1-3"]), "only node 1 has two left"
