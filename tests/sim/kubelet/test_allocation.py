"""What a pod gets, what the plugin is asked, and the texts of a refusal: every row of the observed table."""

from __future__ import annotations

import asyncio
import base64
import json

from deviceplugin.wire import v1beta1_pb2 as pb
from drabridge.sim.kubelet.checkpoint import FILE_NAME
from drabridge.sim.kubelet.pods import Container, Phase, PodSpec
from drabridge.sim.kubelet.runtime import LockingRuntime
from tests.sim.kubelet.gpu_pods import NUMA, gpu_kubelet, pod
from tests.sim.kubelet.podresources_client import PodResourcesClient, shape
from tests.support.kubelet_peers import GPU, Plugin, device, running, serving, short_dir


async def test_the_observed_pod_with_an_init_container() -> None:
    """Three Allocate calls, a re-uses init's device; checkpoint and PodResources have the observed shapes."""
    async with gpu_kubelet(NUMA, seed=1) as (kubelet, plugin):
        plugin.preferred = ["d0"]
        spec = pod("p", 1, 2, init=1)
        status = await kubelet.run_pod(spec)
        assert status.phase is Phase.RUNNING
        assert status.running == ("a", "b")
        (first, second, third) = [ids for method, ids in plugin.calls if method == "Allocate"]
        assert (first, second) == (["d0"], ["d0"])
        assert len(third) == 2
        assert "d0" not in third
        asked = plugin.preferred_requests
        assert [(len(r.available_deviceIDs), r.allocation_size) for r in asked] == [(4, 1), (3, 2)], "not for a"
        assert all(not r.must_include_deviceIDs for r in asked)

        document = json.loads((kubelet.node.root / "device-plugins" / FILE_NAME).read_text())
        assert list(document) == ["Data", "Checksum"]
        assert list(document["Data"]) == ["PodDeviceEntries", "RegisteredDevices"]
        entries = document["Data"]["PodDeviceEntries"]
        assert [e["ContainerName"] for e in entries] == ["init", "a", "b"]
        assert list(entries[0]) == ["PodUID", "ContainerName", "ResourceName", "DeviceIDs", "AllocResp"]
        assert entries[0]["DeviceIDs"] == {"0": ["d0"]}
        cached = pb.ContainerAllocateResponse.FromString(base64.b64decode(entries[0]["AllocResp"]))
        assert cached.envs["IDS"] == "d0"
        assert {r: sorted(ids) for r, ids in document["Data"]["RegisteredDevices"].items()} == {
            GPU: ["d0", "d1", "d2", "d3"]
        }

        listed = (await PodResourcesClient(kubelet.node.root).list()).pod_resources
        assert [c.name for c in listed[0].containers] == ["a", "b"], "plain init containers do not appear"
        assert shape(listed[0].containers[0].devices) == [(GPU, "d0", 0)]
        assert {row[1] for row in shape(listed[0].containers[1].devices)} == set(third)


async def test_preferences_are_intersected_cut_and_filled_up() -> None:
    async with gpu_kubelet([device(f"d{i}") for i in range(6)]) as (kubelet, plugin):
        plugin.preferred = ["d5", "nonsense"]
        await kubelet.run_pod(pod("p", 1))
        assert plugin.calls[-1] == ("Allocate", ["d5"])
        plugin.preferred = ["d5", "d4"]  # d5 is taken: one preferred, one filled up
        await kubelet.run_pod(pod("q", 2))
        ids = plugin.calls[-1][1]
        assert "d4" in ids
        assert "d5" not in ids
        assert len(ids) == 2


async def test_a_list_may_change_while_the_plugin_is_asked_for_its_preference() -> None:
    """The kubelet's lock is open then: what it allocates afterwards may just have become unhealthy."""
    async with gpu_kubelet([device("d0")]) as (kubelet, plugin):
        plugin.preferred_gate.clear()
        admission = asyncio.create_task(kubelet.run_pod(pod("p", 1)))
        await kubelet.wait_for(lambda: plugin.preferred_requests, what="the question")
        await plugin.send([device("d0", "Unhealthy")])
        await kubelet.wait_for_resource(GPU, healthy=0)
        plugin.preferred_gate.set()
        assert (await admission).phase is Phase.RUNNING
        assert plugin.calls[-1] == ("Allocate", ["d0"])


async def test_sidecars_keep_their_device_plain_init_containers_do_not() -> None:  # DP11
    async with gpu_kubelet([device("d0"), device("d1")]) as (kubelet, plugin):
        spec = PodSpec(
            "default",
            "p",
            init_containers=(Container("i", {GPU: 1}), Container("s", {GPU: 1}, restart_policy="Always")),
            containers=(Container("m", {GPU: 1}),),
        )
        assert (await kubelet.run_pod(spec)).running == ("s", "m")
        init, sidecar, main = (ids for method, ids in plugin.calls if method == "Allocate")
        assert init == sidecar != main
        (listed,) = (await PodResourcesClient(kubelet.node.root).list()).pod_resources
        assert [(c.name, [d.device_ids[0] for d in c.devices]) for c in listed.containers] == [
            ("s", sidecar),
            ("m", main),
        ]


async def test_dropping_an_id_of_an_allocate_in_flight_kills_the_kubelet() -> None:
    async with gpu_kubelet([device("d0")]) as (kubelet, plugin):
        plugin.allocate_gate.clear()
        spec = pod("p", 1)
        running_pod = asyncio.create_task(kubelet.run_pod(spec))
        await kubelet.wait_for(lambda: plugin.calls[-1][0] == "Allocate", what="Allocate")
        await plugin.send([device("d9")])
        await kubelet.wait_for(lambda: kubelet.resources[GPU].devices == {"d9"}, what="the new list")
        plugin.allocate_gate.set()
        assert (await running_pod).phase is Phase.PENDING
        assert kubelet.crashed is not None
        assert "nil pointer dereference" in kubelet.crashed
        assert "allocateContainerResources" in kubelet.crashed
        assert not kubelet.is_running
        kubelet.faults.pods_arrive.clear()  # else it is admitted, and fails, before the plugin is there
        await kubelet.start()
        await plugin.stop()
        await plugin.serve()
        await plugin.register()
        await kubelet.wait_for_resource(GPU, healthy=1)
        kubelet.faults.pods_arrive.set()
        await kubelet.wait_for(lambda: kubelet.pod_status(spec.uid).phase is Phase.RUNNING, what="re-admission")


async def test_a_hung_allocate_stops_every_admission_on_the_node() -> None:
    async with gpu_kubelet([device("d0")]) as (kubelet, plugin):
        plugin.allocate_gate.clear()
        hung = asyncio.create_task(kubelet.run_pod(pod("p", 1)))
        await kubelet.wait_for(lambda: plugin.calls[-1][0] == "Allocate", what="Allocate")
        other = asyncio.create_task(kubelet.run_pod(PodSpec("default", "plain", containers=(Container("c"),))))
        await asyncio.sleep(0.2)
        assert not other.done()
        plugin.allocate_gate.set()
        assert {(await hung).phase, (await other).phase} == {Phase.RUNNING}


async def test_a_force_deleted_pod_gives_its_device_away_while_it_is_in_use() -> None:
    async with short_dir() as root:
        (root / "locks").mkdir()
        runtime = LockingRuntime(root / "locks")
        async with running(root, runtime=runtime) as kubelet:
            plugin = Plugin(root, "p.sock", [device("d0")])
            async with serving(plugin):
                await plugin.register()
                await kubelet.wait_for_resource(GPU, healthy=1)
                first, second = pod("first", 1), pod("second", 1)
                await kubelet.run_pod(first)
                await kubelet.delete_pod(first.uid, force=True, linger_seconds=0.4)
                listed = (await PodResourcesClient(root).list()).pod_resources
                assert list(listed) == [], "not shown, though its container runs"
                assert (first.uid, "a") in runtime.running
                status = await kubelet.run_pod(second)
                assert "is used by default/first/a" in status.waiting["a"]
                assert len(runtime.conflicts) == 1
                await kubelet.wait_for(lambda: kubelet.pods[second.uid].phase is Phase.RUNNING, what="the lock to go")
