"""Under a vendor's driver name nothing is served beside the vendor's software; the way to it and back works."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import BOTH_LANES, claim_pod, devices_in_slices, end_claim, limits_pod, not_started
from tests.support.agent_process import DRIVER, IDS, RESOURCE, AgentProcess, drain_command
from tests.support.kubelet_peers import Plugin, device
from tests.support.vendor_driver import DEVICE, POOL, vendor_driver
from tests.support.waiting import until

NVIDIA = "gpu.nvidia.com"
CONFIG = BOTH_LANES.replace(DRIVER, NVIDIA) + "  attributes: {type: {value: gpu}}\n"
CLASS = f"""\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: mem}}
spec:
  selectors:
  - cel: {{expression: "device.driver == '{NVIDIA}' && device.attributes['{NVIDIA}'].type == 'gpu'"}}
"""
VENDORS_SLICE = f"""\
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {{name: vendor}}
spec:
  driver: {NVIDIA}
  nodeName: node-a
  pool: {{name: {POOL}, generation: 1, resourceSliceCount: 1}}
  devices: [{{name: {DEVICE}, attributes: {{type: {{string: gpu}}}}}}]
"""


@contextlib.asynccontextmanager
async def node(driver: str = NVIDIA) -> AsyncIterator[tuple[AgentProcess, SimCluster]]:
    """A cluster, and an agent that is not started."""
    async with not_started(CONFIG.replace(NVIDIA, driver), driver) as (agent, cluster):
        await cluster.apply(CLASS.replace(NVIDIA, driver))
        yield agent, cluster


async def reasons(agent: AgentProcess) -> str:
    code, body = await agent.ask("/readyz")
    return "" if code == 200 else body.decode()


async def refuses(agent: AgentProcess, what: str) -> None:
    """It says so, in readyz and in status, and serves nothing."""

    async def said() -> bool:
        with contextlib.suppress(OSError):
            return what in await reasons(agent)
        return False

    await until(said, 20, agent.text)
    await asyncio.sleep(1.5)  # it looks again, and still finds it
    assert "nothing is served: " in await reasons(agent)
    assert what in json.dumps(await agent.status())


@pytest.mark.parametrize(
    ("driver", "vendor", "socket"),
    [
        (NVIDIA, "NVIDIA", "nvidia-gpu.sock"),
        ("gpu.amd.com", "AMD", "amd.com_gpu"),
        ("gpu.intel.com", "Intel", "gpu.intel.com-xe.sock"),
    ],
)
async def test_nothing_is_served_beside_the_vendor_s_device_plugin(driver: str, vendor: str, socket: str) -> None:
    async with node(driver) as (agent, cluster):
        kubelet = cluster.kubelets["node-a"]
        plugin = Plugin(agent.root, socket, [device(name) for name in IDS], RESOURCE)
        await plugin.serve()
        await plugin.register()
        await kubelet.wait_for_resource(RESOURCE, healthy=len(IDS))
        await cluster.apply(limits_pod("before"))
        await cluster.wait_pod("before")
        (theirs,) = kubelet.resources[RESOURCE].allocated
        await agent.start()
        await refuses(agent, f"{vendor}'s device plugin (")
        assert not list((agent.root / "device-plugins").glob("drabridge-*"))
        assert devices_in_slices(cluster) == set()
        assert plugin.streams == 1
        await plugin.stop()
        await agent.ready()  # by itself
        held = await agent.owners()
        assert held[theirs] == "legacy", "the plugin's pod keeps its device"


@pytest.mark.parametrize(
    ("driver", "words"),
    [("gpu.amd.com", "AMD's DRA driver gpu.amd.com ("), ("gpu.intel.com", "Intel's DRA driver gpu.intel.com (")],
)
async def test_nothing_is_served_beside_another_vendor_s_driver(driver: str, words: str) -> None:
    async with node(driver) as (agent, cluster):
        async with vendor_driver(agent.root, driver):
            await agent.start()
            await refuses(agent, words)
            assert devices_in_slices(cluster) == set()
        await agent.ready()


async def test_software_of_the_vendor_that_comes_later_is_named() -> None:
    async with node() as (agent, _):
        await agent.start()
        await agent.ready()
        plugin = Plugin(agent.root, "nvidia-mig-1g.10gb.sock", [], "nvidia.com/mig-1g.10gb")
        await plugin.serve()

        async def named() -> bool:
            return "NVIDIA's device plugin (" in await reasons(agent)

        await until(named, 20, agent.text)
        assert "nothing is served" not in await reasons(agent)
        await plugin.stop()
        await agent.ready()


async def test_the_way_to_the_vendor_s_driver_and_back() -> None:
    async with node() as (agent, cluster):
        checkpoint = agent.root / "plugins" / NVIDIA / "checkpoint.json"
        checkpoint.parent.mkdir(parents=True)
        checkpoint.write_text("theirs, of before")
        await agent.start()
        await agent.ready()
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10, agent.text)
        await cluster.apply(claim_pod("ours"))
        await cluster.wait_pod("ours")
        await end_claim(cluster, "ours")
        code, _, error = await drain_command("--socket", str(agent.control), "--wait", "60", "--clean")
        assert code == 0, error
        await agent.stop()
        assert list(checkpoint.parent.iterdir()) == [checkpoint], "what is theirs is left alone"

        async with vendor_driver(agent.root, NVIDIA):
            # as Go's resourceslice controller does with slices of its driver and node that it did not make
            for name in [one["metadata"]["name"] for one in cluster.api.objects.peek("resourceslices")]:
                await cluster.delete("resourceslices", name)
            await cluster.apply(VENDORS_SLICE)
            await cluster.apply(claim_pod("theirs"))
            await cluster.wait_pod("theirs")
            claim = cluster.get("resourceclaims", "theirs")
            assert claim is not None
            (result,) = claim["status"]["allocation"]["devices"]["results"]
            assert (result["driver"], result["device"]) == (NVIDIA, DEVICE)

            await agent.start()  # somebody installs it again
            await refuses(agent, f"NVIDIA's DRA driver {NVIDIA} (")
            assert devices_in_slices(cluster) == {DEVICE}, "their slices are not touched"
            await end_claim(cluster, "theirs")
            await agent.stop()
            assert "theirs" not in agent.text()
            assert checkpoint.exists()
            assert (checkpoint.parent / "dra.sock").is_socket()
            await agent.start()
            await refuses(agent, f"NVIDIA's DRA driver {NVIDIA} (")
        await agent.ready()
        code, _, error = await drain_command("--socket", str(agent.control), "--undo")
        assert code == 0, error
        await until(lambda: len(devices_in_slices(cluster)) == 2, 20, agent.text)
        await cluster.apply(claim_pod("again"))
        await cluster.wait_pod("again")
