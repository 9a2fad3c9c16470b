"""The clients, the watch and the exporter against the simulated kubelet: its limiter, its restarts, its quirks."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from drabridge.sim.kubelet.faults import ListFault
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Container, ContainerClaim, PodClaim, PodSpec
from drabridge.sim.kubelet.timings import Timings
from drabridge.wire import dra_v1_pb2
from podresources import Backoff, Client, Support, errors
from podresources.changes import CapacityChanged, DeviceAssigned, DeviceReleased
from podresources.model import Api, shared_claims
from podresources.watch import Event, Interrupted, Started, watch
from tests.podresources.clients import MakeClient
from tests.podresources.command import run
from tests.podresources.metrics_page import Scraped, count, value
from tests.support.kubelet_peers import GPU, Driver, FakeApi, Plugin, device, running, serving, short_dir
from tests.support.waiting import HANG_SECONDS, PATIENCE

_numbers = itertools.count(1)


def gpu_pod(name: str, count: int = 1, **more: object) -> PodSpec:
    return PodSpec("default", name, containers=(Container("main", {GPU: count}),), **more)  # type: ignore[arg-type]


def claim_pod(name: str, claim: str, *, containers: int = 1) -> PodSpec:
    """Every container uses the claim; kubelet rejects uids that are not its own style, so they look real."""
    refs = (ContainerClaim("c", "one"),)
    return PodSpec(
        "default",
        name,
        uid=f"34553fd1-cf06-469c-b877-{next(_numbers):012}",
        containers=tuple(Container(f"c{number}", claims=refs) for number in range(containers)),
        resource_claims=(PodClaim("c", claim),),
    )


@dataclass
class Node:
    kubelet: SimKubelet
    plugin: Plugin
    driver: Driver
    api: FakeApi

    @property
    def socket(self) -> Path:
        return self.kubelet.node.podresources_socket

    async def plugin_returns(self) -> None:
        """The plugin notices the new kubelet and registers again."""
        await self.plugin.stop()
        await self.plugin.serve()
        await self.plugin.register()
        await self.kubelet.wait_for_resource(GPU, healthy=4)


@asynccontextmanager
async def node(**options: object) -> AsyncIterator[Node]:
    """A kubelet with a plugin of four devices, of which d1 is on two NUMA nodes and d3 has an empty topology."""
    async with short_dir() as root:
        api = FakeApi()
        options.setdefault("numa_nodes", (0, 1))
        async with running(root, api=api, **options) as kubelet:
            devices = [device("d0", numa=[0]), device("d1", numa=[0, 1]), device("d2"), device("d3", numa=[])]
            plugin, driver = Plugin(root, "p.sock", devices), Driver(root)
            async with serving(plugin, driver):
                await plugin.register()
                await kubelet.wait_for_resource(GPU, healthy=4)
                await kubelet.wait_for(lambda: driver.statuses and driver.statuses[-1].plugin_registered)
                yield Node(kubelet, plugin, driver, api)


def gpu(name: str, request: str = "one") -> dra_v1_pb2.Device:
    return dra_v1_pb2.Device(
        pool_name="node-a", device_name=name, request_names=[request], cdi_device_ids=[f"obs.example.com/gpu=c-{name}"]
    )


async def test_both_apis_in_one_view(connect: MakeClient) -> None:
    async with node() as here:
        await here.kubelet.run_pod(gpu_pod("legacy", 4))
        spec = claim_pod("modern", "cl1")
        here.driver.devices = {"cl1": [gpu("gpu-0")]}
        here.api.add_claim("cl1", "uid-cl1", [spec.uid], "obs.example.com")
        await here.kubelet.run_pod(spec)
        client = connect(here.socket)
        found = await client.list()
        legacy = {held.device_ids[0]: held.numa_nodes for held in found.allocations if held.api is Api.DEVICE_PLUGIN}
        assert legacy == {"d0": (0,), "d1": (0, 1), "d2": (), "d3": ()}
        (dra,) = (held for held in found.allocations if held.api is Api.DRA)
        assert (dra.holder, dra.driver, dra.device) == (("default", "modern", "c0"), "obs.example.com", "gpu-0")
        capacity = {item.device_id: item.numa_nodes for item in (await client.allocatable()).devices}
        assert capacity == {"d0": (0,), "d1": (0, 1), "d2": ()}, "a blind spot: the empty topology of d3 hides it"
        assert (await client.get("default", "modern")).allocations == (dra,)
        with pytest.raises(errors.PodNotFound):
            await client.get("default", "nobody")
        assert client.features.get is Support.YES
        assert client.features.notes() == ()


async def test_whole_claims_are_a_blind_spot_and_sharing_is_kept(connect: MakeClient) -> None:
    """Each container names request "one" alone, and is shown with the device of request "two" too."""
    async with node() as here:
        spec = claim_pod("p", "cl1", containers=2)
        here.driver.devices = {"cl1": [gpu("gpu-0"), gpu("gpu-1", "two")]}
        here.api.add_claim("cl1", "uid-cl1", [spec.uid], "obs.example.com")
        await here.kubelet.run_pod(spec)
        found = (await connect(here.socket).list()).allocations
        assert [(held.container, held.device) for held in found] == [
            ("c0", "gpu-0"),
            ("c0", "gpu-1"),
            ("c1", "gpu-0"),
            ("c1", "gpu-1"),
        ]
        assert shared_claims(found) == {("default", "cl1")}
        assert len({held.device_key for held in found}) == 2, "accumulated CDI names do not make more devices"


async def test_devices_repeated_by_failed_prepares_count_once(connect: MakeClient) -> None:
    async with node(seed=3) as here:
        second = Driver(here.kubelet.node.root, "b.example.com")
        async with serving(second):
            await here.kubelet.wait_for(lambda: second.statuses and second.statuses[-1].plugin_registered)
            here.driver.devices = second.devices = {"cl1": [gpu("gpu-0")]}
            second.error = "not now"
            spec = claim_pod("p", "cl1")
            here.api.add_claim("cl1", "uid-cl1", [spec.uid], "obs.example.com", "b.example.com")
            await here.kubelet.run_pod(spec)
            client = connect(here.socket)
            wire_entries = 0
            for _ in range(100 * PATIENCE):
                found = await client.list()
                wire_entries = sum(len(c.devices) for p in found.pods for k in p.containers for c in k.claims)
                if wire_entries > 1:
                    break
                await asyncio.sleep(0.1)
            assert wire_entries > 1, "the simulated kubelet never repeated a device"
            assert len([held for held in found.allocations if held.driver == "obs.example.com"]) == 1


async def test_plain_init_containers_are_a_blind_spot(connect: MakeClient) -> None:
    async with node() as here:
        sidecar = Container("sidecar", {GPU: 1}, restart_policy="Always")
        init = Container("init", {GPU: 1}, run_seconds=0.01)
        await here.kubelet.run_pod(
            PodSpec("default", "p", init_containers=(sidecar, init), containers=(Container("main", {GPU: 1}),))
        )
        found = await connect(here.socket).list()
        assert {container.name for container in found.pods[0].containers} == {"sidecar", "main"}


async def test_an_old_kubelet_is_reported_by_facts_not_by_emptiness(connect: MakeClient) -> None:
    async with node(version="1.33") as here:
        spec = gpu_pod("ended")
        await here.kubelet.run_pod(spec)
        await here.kubelet.finish_pod(spec.uid)
        client = connect(here.socket)
        assert [found.name for found in (await client.list()).pods] == ["ended"], "1.33 lists pods that have ended"
        features = await client.probe()
        assert (features.get, features.dynamic_resources, features.active_pods_only) == (
            Support.NO,
            Support.NO,
            Support.NO,
        )
        assert (await client.get("default", "ended")).pods


@pytest.mark.parametrize(("on", "cpus"), [(False, ()), (True, (0, 1, 2))])
async def test_cpus_of_whole_pods_are_told_by_kubelets_with_the_gate(
    connect: MakeClient, on: bool, cpus: tuple[int, ...]
) -> None:
    async with node(version="1.37", gates={"PodLevelResourceManagers": on}) as here:
        spec = PodSpec("default", "p", containers=(Container("main"),), cpu_ids=(2, 0, 1))
        await here.kubelet.run_pod(spec)
        client = connect(here.socket)
        (found,) = (await client.list()).pods
        assert (found.cpu_ids, found.containers[0].cpu_ids) == (cpus, ())
        assert (await client.get("default", "p")).pods[0].cpu_ids == cpus


async def test_a_tight_loop_is_slowed_down_by_the_limiter_and_never_fails(connect: MakeClient) -> None:
    """10 a second in bursts of 10; whoever shares the socket here asks as fast as it can, which may not be fast."""
    slowly = Timings.fast(podresources_qps=10.0)
    async with node(timings=slowly) as here, Client(here.socket, timeout_seconds=HANG_SECONDS) as rival:

        async def hammer() -> None:
            for _ in range(20):
                await rival.list()

        rivalry = asyncio.ensure_future(hammer())
        client = connect(here.socket, timeout_seconds=HANG_SECONDS)
        for _ in range(20):
            await client.list()
        await rivalry
        answered = [call.error for call in here.kubelet.calls.of("List")]
    assert "rejected by rate limit" in answered
    assert answered.count("") == 40


async def test_restart_in_the_middle_of_a_list(connect: MakeClient) -> None:
    async with node() as here:
        await here.kubelet.run_pod(gpu_pod("p"))
        client = connect(here.socket, timeout_seconds=HANG_SECONDS)
        before = await client.list()
        here.kubelet.faults.podresources = ListFault.HANG
        call = asyncio.ensure_future(client.list())
        await here.kubelet.wait_for(lambda: len(here.kubelet.calls.of("List")) == 2)
        await here.kubelet.stop()
        here.kubelet.faults.podresources = ListFault.NONE
        await asyncio.sleep(0.2)
        await here.kubelet.start()
        after = await asyncio.wait_for(call, HANG_SECONDS)
        assert after.socket != before.socket


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (ListFault.ERROR, errors.KubeletFailed),
        (ListFault.GARBAGE, errors.ProtocolViolation),
        (ListFault.NONSENSE, errors.ProtocolViolation),
        (ListFault.HANG, errors.KubeletTimeout),
        (ListFault.HUGE, None),
    ],
)
async def test_faults(connect: MakeClient, fault: ListFault, kind: type[errors.PodResourcesError] | None) -> None:
    async with node() as here:
        client = connect(here.socket, timeout_seconds=0.5 if fault is ListFault.HANG else HANG_SECONDS)
        here.kubelet.faults.podresources = fault
        if kind is None:
            assert len((await client.list()).pods) == 18_000
        else:
            with pytest.raises(kind):
                await client.list()
        here.kubelet.faults.podresources = ListFault.NONE
        assert (await client.list(timeout_seconds=HANG_SECONDS)).pods == (), "the client lives on"


async def test_a_frozen_kubelet_costs_the_deadline(connect: MakeClient) -> None:
    async with node() as here:
        client = connect(here.socket, timeout_seconds=0.4)
        await client.list(timeout_seconds=HANG_SECONDS)
        here.kubelet.freeze()
        with pytest.raises(errors.KubeletTimeout):
            await client.list()
        here.kubelet.thaw()
        assert (await client.list(timeout_seconds=HANG_SECONDS)).pods == ()


async def test_restart_in_the_middle_of_a_watch_is_no_storm_of_releases() -> None:
    """The new kubelet is empty at first: the plugin arrives late, pods later; one pod ended in between."""
    timings = Timings.fast(pod_spacing_seconds=0.1)
    async with node(timings=timings) as here:
        stays, ends = gpu_pod("stays", 2), gpu_pod("ends")
        await here.kubelet.run_pod(stays)
        await here.kubelet.run_pod(ends)
        seen: list[Event] = []
        note = seen.append

        async def follow() -> None:
            backoff = Backoff(initial_seconds=0.02, maximum_seconds=0.1)
            async with Client(here.socket, timeout_seconds=HANG_SECONDS, backoff=backoff) as client:
                async for event in watch(client, interval_seconds=0.05, floor_seconds=0.05, settle_seconds=5):
                    note(event)

        task = asyncio.ensure_future(follow())
        await here.kubelet.wait_for(lambda: seen, what="the snapshot")
        await here.kubelet.stop()
        await here.kubelet.delete_pod(ends.uid)
        await asyncio.sleep(0.2)
        here.kubelet.faults.pods_arrive.clear()
        await here.kubelet.start()
        await asyncio.sleep(0.3)
        await here.plugin_returns()
        here.kubelet.faults.pods_arrive.set()
        await here.kubelet.wait_for(lambda: any(isinstance(e, DeviceReleased) for e in seen), what="a release")
        await here.kubelet.run_pod(gpu_pod("new"))
        await here.kubelet.wait_for(lambda: any(isinstance(e, DeviceAssigned) for e in seen), what="an assignment")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert isinstance(seen[0], Started)
    assert [event.allocation.pod for event in seen if isinstance(event, DeviceReleased)] == ["ends"]
    assert [event.allocation.pod for event in seen if isinstance(event, DeviceAssigned)] == ["new"]
    assert not [event for event in seen if isinstance(event, CapacityChanged) and event.after < event.before]
    assert not [event for event in seen if isinstance(event, Interrupted)], "the client's own retries bridge the gap"


async def test_the_exporter_survives_a_restart_and_forgets_no_device() -> None:
    async with node() as here:
        await here.kubelet.run_pod(gpu_pod("p", 2))
        scraped = Scraped(here.socket)
        before = await scraped.scrape()
        await here.kubelet.restart()
        during = await scraped.scrape()
        await here.plugin_returns()
        after = await scraped.scrape()
        free = value(after, "podresources_allocatable_devices", resource=GPU)
    assert count(before, "podresources_device_holders") >= 3
    assert count(during, "podresources_device_holders") == count(after, "podresources_device_holders")
    assert count(before, "podresources_device_holders") == count(after, "podresources_device_holders")
    assert free == 3


async def test_the_command_against_the_simulated_kubelet() -> None:
    async with node() as here:
        await here.kubelet.run_pod(gpu_pod("p", 2))
        done = await run("list", "--socket", here.socket, "-o", "json")
        assert (done.code, done.err) == (0, "")
        document = json.loads(done.out)
        assert {held["pod"] for held in document["allocations"]} == {"p"}
        assert document["facts"]["get"] == "yes"
