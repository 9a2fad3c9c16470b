"""What Prometheus reads: scraped over HTTP or collected in process, from real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
from prometheus_client import CollectorRegistry, generate_latest

from podresources import KubeletFeatures, NodeSnapshot, Support
from podresources.exporter import Exposition, KnownDevices
from podresources.model import Api, DeviceKey, SocketIdentity
from podresources.normalise import allocatable, snapshot
from podresources.table import printable
from podresources.wire import v1_pb2 as wire
from tests.podresources.metrics_page import Scraped, count, parse, value
from tests.support.podresources_server import (
    Kubelet,
    capacity,
    claim,
    claim_device,
    container,
    device,
    fails,
    kubelet,
    large_listing,
    listing,
    pod,
    says,
)

SOCKET = SocketIdentity(1, 2, 3)


HELD = pod("train-0", container("main", device("n.com/gpu", "G0", numa=(0,)), device("n.com/gpu", "G0", numa=(1,))))
SHARED = claim("both", claim_device("gpu-0", "x=0"), claim_device("part-1", share="s1"))
CLAIMS = pod("infer-0", container("a", claims=(SHARED,)), container("b", claims=(SHARED,)), namespace="ml")
CAPACITY = capacity(device("n.com/gpu", "G0", numa=(0,)), device("n.com/gpu", "G1"), device("e.com/x", "0"))


async def test_one_info_metric_joins_both_apis_to_their_containers() -> None:
    async with kubelet({"List": says(listing(HELD, CLAIMS)), "GetAllocatableResources": says(CAPACITY)}) as server:
        series = await Scraped(server.path).scrape()
    info = "podresources_device_allocation_info"
    plugin = {"api": "deviceplugin", "resource": "n.com/gpu", "device": "G0", "numa_node": "0,1"}
    assert value(series, info, namespace="default", pod="train-0", container="main", **plugin) == 1
    dra = {"api": "dra", "driver": "gpu.example.com", "pool": "node1", "claim": "both", "claim_namespace": "default"}
    for name in ("a", "b"):
        holder = {"namespace": "ml", "pod": "infer-0", "container": name}
        assert value(series, info, **holder, **dra, device="gpu-0") == 1
        assert value(series, info, **holder, **dra, device="part-1", share_id="s1") == 1
    assert count(series, info) == 5


async def test_counts_are_of_devices_not_of_holders() -> None:
    async with kubelet({"List": says(listing(HELD, CLAIMS)), "GetAllocatableResources": says(CAPACITY)}) as server:
        series = await Scraped(server.path).scrape()
    allocated = "podresources_allocated_devices"
    assert value(series, allocated, api="deviceplugin", resource="n.com/gpu") == 1
    assert value(series, allocated, api="deviceplugin", resource="e.com/x") == 0
    assert value(series, allocated, api="dra", driver="gpu.example.com", pool="node1") == 2
    assert value(series, "podresources_allocatable_devices", resource="n.com/gpu") == 2
    holders = "podresources_device_holders"
    shared = {"api": "dra", "driver": "gpu.example.com", "pool": "node1", "device": "gpu-0"}
    assert value(series, holders, **shared) == 2
    assert value(series, holders, api="deviceplugin", resource="n.com/gpu", device="G1") == 0
    assert value(series, "podresources_pods") == 2


async def test_devices_that_nobody_holds_never_vanish() -> None:
    """Neither when their holder ends, nor when their plugin goes, over both APIs."""
    async with kubelet({"List": says(listing(HELD, CLAIMS)), "GetAllocatableResources": says(CAPACITY)}) as server:
        scraped = Scraped(server.path)
        before = await scraped.scrape()
        server.answers |= {"List": says(listing()), "GetAllocatableResources": says(capacity())}
        after = await scraped.scrape()
    holders = "podresources_device_holders"
    assert count(before, holders) == count(after, holders) == 5
    assert {after[key] for key in after if key[0] == holders} == {0}
    assert value(before, "podresources_device_allocatable", resource="n.com/gpu", device="G0") == 1
    assert value(after, "podresources_device_allocatable", resource="n.com/gpu", device="G0") == 0
    assert value(after, "podresources_allocatable_devices", resource="n.com/gpu") == 0
    assert value(after, "podresources_allocated_devices", api="deviceplugin", resource="n.com/gpu") == 0
    assert count(after, "podresources_device_allocation_info") == 0


async def test_an_outage_keeps_the_last_answer_and_says_so() -> None:
    async with kubelet({"List": says(listing(HELD)), "GetAllocatableResources": says(CAPACITY)}) as server:
        scraped = Scraped(server.path)
        before = await scraped.scrape()
        assert value(before, "podresources_up") == 1
        server.answers["List"] = fails(grpc.StatusCode.INTERNAL, "broken")
        after = await scraped.scrape()
    last = "podresources_last_success_timestamp_seconds"
    assert value(after, "podresources_up") == 0
    assert value(after, last) == value(before, last)
    assert count(after, "podresources_device_allocation_info") == 1
    assert value(after, "podresources_request_errors_total", rpc="List", code="INTERNAL") == 1


async def test_without_any_kubelet_there_is_still_an_exposition(tmp_path: Path) -> None:
    scraped = Scraped(tmp_path / "kubelet.sock")
    series = await scraped.scrape()
    assert value(series, "podresources_up") == 0
    assert value(series, "podresources_last_success_timestamp_seconds") == 0
    assert "There is no kubelet.sock" in str(scraped.exporter.last_error)


async def test_requests_are_timed_by_method_and_code() -> None:
    async with kubelet(
        {"List": says(listing(HELD)), "Get": fails(grpc.StatusCode.UNKNOWN, "pod x not found")}
    ) as server:
        scraped = Scraped(server.path)
        await scraped.scrape()
        series = await scraped.scrape()
    duration = "podresources_request_duration_seconds"
    assert value(series, f"{duration}_count", rpc="List", code="OK") == 2
    assert value(series, f"{duration}_bucket", rpc="List", code="OK", le="+Inf") == 2
    unsupported = {"rpc": "GetAllocatableResources", "code": "UNIMPLEMENTED"}
    assert value(series, f"{duration}_count", **unsupported) == 2
    assert value(series, "podresources_request_errors_total", **unsupported) == 2
    assert value(series, "podresources_kubelet_feature", feature="allocatable") == 0
    assert value(series, "podresources_kubelet_feature", feature="get") == 1


async def test_several_scrapers_share_one_answer() -> None:
    async with kubelet({"List": says(listing(HELD)), "GetAllocatableResources": says(CAPACITY)}) as server:
        scraped = Scraped(server.path, max_age_seconds=60)
        await asyncio.gather(*(scraped.scrape() for _ in range(5)))
        assert server.requests.count("List") == 1


async def test_a_kubelet_that_restarts_between_scrapes_is_met_again() -> None:
    async with kubelet({"List": says(listing(HELD))}) as old:
        scraped = Scraped(old.path)
        await scraped.scrape()
        await old.stop()
        new = Kubelet(old.path, {"List": says(listing(CLAIMS))})
        await new.start()
        try:
            series = await scraped.scrape()
            assert value(series, "podresources_up") == 1
            assert count(series, "podresources_device_allocation_info") == 4
        finally:
            await new.stop()


async def test_series_beyond_the_limit_are_cut_in_order_and_counted() -> None:
    pods = [pod(f"p{n:02}", container("c", device("e.com/x", f"{n:02}"))) for n in range(10)]
    async with kubelet({"List": says(listing(*reversed(pods)))}) as server:
        scraped = Scraped(server.path, max_series=4)
        series = await scraped.scrape()
        again = await scraped.scrape()
    info = "podresources_device_allocation_info"
    kept = {dict(labels)["pod"] for name, labels in series if name == info}
    assert kept == {"p00", "p01", "p02", "p03"}
    assert kept == {dict(labels)["pod"] for name, labels in again if name == info}
    assert count(series, "podresources_device_holders") == 4
    dropped = "podresources_dropped_series_total"
    assert (await scraped.scrape())[(dropped, frozenset({("metric", info)}))] >= 12
    assert value(again, dropped, metric="podresources_device_holders") is not None
    assert value(series, "podresources_allocated_devices", api="deviceplugin", resource="e.com/x") == 10


async def test_500_pods_with_4096_devices_are_scraped_whole() -> None:
    big = large_listing()
    free = capacity(*(entry for found in big.pod_resources for entry in found.containers[0].devices))
    async with kubelet({"List": says(big), "GetAllocatableResources": says(free)}) as server:
        series = await Scraped(server.path).scrape()
    for name in ("device_allocation_info", "device_holders", "device_allocatable"):
        assert count(series, f"podresources_{name}") == 4096
    assert count(series, "podresources_dropped_series_total") == 0


def test_pods_listed_twice_by_an_old_kubelet_give_no_series_twice() -> None:
    """Before 1.34 a pod that ended and its successor of the same name are both listed; Prometheus refuses repeats."""
    twice = listing(HELD, HELD)
    twice.pod_resources[0].containers[0].cpu_ids.append(1)
    twice.pod_resources[1].containers[0].cpu_ids.append(2)
    series = parse(exposed(snapshot(twice, SOCKET)))
    assert count(series, "podresources_device_allocation_info") == 1
    assert count(series, "podresources_exclusive_cpus") == 1


def test_cpus_and_memory_of_containers_and_of_the_node() -> None:
    response = listing(pod("p", container("c")))
    owner = response.pod_resources[0].containers[0]
    owner.cpu_ids.extend([2, 3])
    for size in (1 << 30, 1 << 30):
        owner.memory.add(memory_type="memory", size=size).topology.nodes.add(ID=0)
    node = wire.AllocatableResourcesResponse(cpu_ids=[1, 2, 3])
    node.memory.add(memory_type="hugepages-2Mi", size=4 << 20).topology.nodes.add(ID=1)
    exposition = Exposition()
    exposition.update(snapshot(response, SOCKET), allocatable(node, SOCKET), KubeletFeatures())
    registry = CollectorRegistry()
    registry.register(exposition)
    series = parse(generate_latest(registry).decode())
    holder = {"namespace": "default", "pod": "p", "container": "c"}
    assert value(series, "podresources_exclusive_cpus", **holder) == 2
    assert value(series, "podresources_pinned_memory_bytes", **holder, memory_type="memory", numa_node="0") == 2 << 30
    assert value(series, "podresources_allocatable_cpus") == 3
    labels = {"memory_type": "hugepages-2Mi", "numa_node": "1"}
    assert value(series, "podresources_allocatable_memory_bytes", **labels) == 4 << 20


def test_what_a_pod_has_beside_its_containers_is_counted_once() -> None:
    """Kubelet 1.37: the pod's CPUs and memory as a whole, and the parts that containers have for themselves."""
    response = listing(pod("p", container("c"), container("d")))
    whole, one = response.pod_resources[0], response.pod_resources[0].containers[0]
    whole.cpu_ids.extend([1, 2, 3, 4])
    one.cpu_ids.extend([2, 3])
    for owner, size in ((whole, 5 << 30), (one, 2 << 30)):
        owner.memory.add(memory_type="memory", size=size).topology.nodes.add(ID=0)
    series = parse(exposed(snapshot(response, SOCKET)))
    of_pod = {"namespace": "default", "pod": "p"}  # an empty label is none to Prometheus
    assert count(series, "podresources_exclusive_cpus") == 2
    assert value(series, "podresources_exclusive_cpus", **of_pod) == 2
    assert value(series, "podresources_exclusive_cpus", **{**of_pod, "container": "c"}) == 2
    memory = {"memory_type": "memory", "numa_node": "0"}
    assert value(series, "podresources_pinned_memory_bytes", **of_pod, **memory) == 3 << 30
    one.cpu_ids.extend([1, 4])
    one.memory[0].size = 5 << 30
    series = parse(exposed(snapshot(response, SOCKET)))
    assert count(series, "podresources_exclusive_cpus") == count(series, "podresources_pinned_memory_bytes") == 1


def test_label_values_that_need_escaping_survive() -> None:
    odd = 'a"b\\c\nd'
    series = parse(exposed(snapshot(listing(pod("p", container("c", device("e.com/x", odd)))), SOCKET)))
    shown = printable(odd)
    assert value(series, "podresources_device_holders", api="deviceplugin", resource="e.com/x", device=shown) == 1


def test_known_devices_forget_the_least_recently_seen() -> None:
    def key(name: str) -> DeviceKey:
        return DeviceKey(Api.DEVICE_PLUGIN, "e.com/x", "", name, "")

    known = KnownDevices(3)
    assert known.see([key("a"), key("b"), key("c")]) == 0
    assert known.see([key("a"), key("d")]) == 1
    assert [found.device for found in known] == ["c", "a", "d"]


def exposed(found: NodeSnapshot) -> str:
    exposition = Exposition()
    exposition.update(found, None, KubeletFeatures(get=Support.YES))
    registry = CollectorRegistry()
    registry.register(exposition)
    return generate_latest(registry).decode()
