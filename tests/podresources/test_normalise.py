"""Kubelet's answers, with the quirks observed on a real 1.36.2, become one record per container and device."""

from __future__ import annotations

import pytest

from podresources.errors import ProtocolViolation
from podresources.model import (
    AllocatableDevice,
    Api,
    DeviceKey,
    Memory,
    PodAllocation,
    SocketIdentity,
    holders_by_device,
    shared_claims,
)
from podresources.normalise import allocatable, snapshot
from podresources.wire import v1_pb2 as wire
from tests.support.podresources_server import capacity, claim, claim_device, container, device, listing, pod

SOCKET = SocketIdentity(1, 2, 3)


def allocations(*containers: wire.ContainerResources) -> tuple[PodAllocation, ...]:
    return snapshot(listing(pod("p", *containers)), SOCKET).allocations


def test_a_device_on_two_numa_nodes_is_one_allocation_with_both() -> None:
    # The order and the entries are those of the observed node: d1 twice, d2 without topology.
    found = allocations(
        container("b", device("y/gpu", "d1", numa=(1,)), device("y/gpu", "d2"), device("y/gpu", "d1", numa=(0,)))
    )
    assert [(held.device_ids, held.numa_nodes) for held in found] == [(("d1",), (0, 1)), (("d2",), ())]
    assert {held.api for held in found} == {Api.DEVICE_PLUGIN}
    assert {(held.namespace, held.pod, held.container, held.resource) for held in found} == {
        ("default", "p", "b", "y/gpu")
    }


def test_an_entry_without_topology_does_not_erase_a_known_node() -> None:
    for entries in (
        [device("r/x", "d", numa=(1,)), device("r/x", "d")],
        [device("r/x", "d"), device("r/x", "d", numa=(1,))],
    ):
        assert allocations(container("c", *entries))[0].numa_nodes == (1,)


def test_equal_ids_of_two_resources_are_two_devices() -> None:
    found = allocations(container("c", device("a/x", "0"), device("b/x", "0")))
    assert [held.device_key for held in found] == [
        DeviceKey(Api.DEVICE_PLUGIN, "a/x", "", "0", ""),
        DeviceKey(Api.DEVICE_PLUGIN, "b/x", "", "0", ""),
    ]


def test_several_ids_in_one_entry_are_several_allocations() -> None:
    found = allocations(container("c", device("a/x", "1", "2", numa=(0,))))
    assert [(held.device_ids, held.numa_nodes) for held in found] == [(("1",), (0,)), (("2",), (0,))]


def test_repeated_dra_entries_count_once_and_keep_the_shortest_cdi_list() -> None:
    repeated = claim(
        "c1",
        claim_device("gpu-0", "x=0"),
        claim_device("gpu-1", "x=0", "x=1"),
        claim_device("gpu-0", "x=0", "x=1", "x=0"),
        claim_device("gpu-1", "x=0", "x=1", "x=0", "x=1"),
    )
    found = allocations(container("c", claims=(repeated,)))
    assert [(held.device, held.cdi_ids) for held in found] == [("gpu-0", ("x=0",)), ("gpu-1", ("x=0", "x=1"))]
    assert (found[0].driver, found[0].pool, found[0].claim, found[0].claim_namespace) == (
        "gpu.example.com",
        "node1",
        "c1",
        "default",
    )
    assert found[0].resource is None
    assert found[0].device_ids == ()


def test_cdi_ids_are_no_part_of_a_devices_identity() -> None:
    alone = allocations(container("c", claims=(claim("c1", claim_device("gpu-1", "x=1")),)))
    second = allocations(container("c", claims=(claim("c1", claim_device("gpu-1", "x=0", "x=1")),)))
    assert alone[0].key == second[0].key


def test_shares_of_one_device_stay_apart_and_an_absent_share_is_none() -> None:
    found = allocations(
        container(
            "c",
            claims=(claim("c1", claim_device("g", share="s1"), claim_device("g", share="s2"), claim_device("g")),),
        )
    )
    assert [held.share_id for held in found] == ["s1", "s2", None]
    assert len({held.device_key for held in found}) == 3


def test_a_shared_claim_is_one_allocation_per_container_and_known_as_shared() -> None:
    both = claim("both", claim_device("gpu-0"))
    own = claim("own", claim_device("gpu-1"))
    found = snapshot(
        listing(
            pod("p", container("a", claims=(both,)), container("b", claims=(both,))),
            pod("q", container("a", claims=(both, own))),
        ),
        SOCKET,
    ).allocations
    assert shared_claims(found) == {("default", "both")}
    assert sorted(len(holders) for holders in holders_by_device(found).values()) == [1, 3]


def test_a_claim_that_is_not_prepared_shows_as_a_claim_without_allocations() -> None:
    found = snapshot(listing(pod("p", container("c", claims=(claim("waiting"),)))), SOCKET)
    assert found.allocations == ()
    assert found.pods[0].containers[0].claims[0].name == "waiting"
    assert found.has_dynamic_resources


def test_pods_without_devices_and_pod_level_resources_are_kept() -> None:
    response = listing(pod("idle", container("c")))
    response.pod_resources[0].cpu_ids.extend([5, 4])
    response.pod_resources[0].memory.add(memory_type="hugepages-2Mi", size=2097152).topology.nodes.add(ID=1)
    response.pod_resources[0].containers[0].cpu_ids.extend([9, 7])
    found = snapshot(response, SOCKET).pods[0]
    assert (found.cpu_ids, found.memory) == ((4, 5), (Memory("hugepages-2Mi", 2097152, (1,)),))
    assert found.containers[0].cpu_ids == (7, 9)


def test_allocatable_merges_numa_entries_and_counts_devices_once() -> None:
    found = allocatable(
        capacity(
            device("y/gpu", "d1", numa=(0,)),
            device("y/gpu", "d1", numa=(1,)),
            device("y/gpu", "d2"),
            device("z/x", "d"),
        ),
        SOCKET,
    )
    assert AllocatableDevice("y/gpu", "d1", (0, 1)) in found.devices
    assert found.count_by_resource() == {"y/gpu": 2, "z/x": 1}


@pytest.mark.parametrize(
    "broken",
    [
        listing(wire.PodResources(name="p")),
        listing(wire.PodResources(namespace="n")),
        listing(pod("p", container(""))),
        listing(pod("p", container("c", device("", "d")))),
        listing(pod("p", container("c", claims=(claim("x", claim_device("", driver="d")),)))),
        listing(pod("p", container("c", claims=(claim("x", claim_device("g", driver="")),)))),
    ],
)
def test_records_without_their_names_are_the_peers_fault(broken: wire.ListPodResourcesResponse) -> None:
    with pytest.raises(ProtocolViolation, match="without a name"):
        snapshot(broken, SOCKET)
