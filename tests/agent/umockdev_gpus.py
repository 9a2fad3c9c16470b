"""Run the agent on recorded AMD and Intel GPUs: ``umockdev-wrapper python -m tests.agent.umockdev_gpus CASE``.

Run by test_gpus.py. The agent is a process inside the test bed; the cluster is this process. Where a tree's facts come
from is in its header, in tests/support/trees.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from drabridge.config import quantity
from drabridge.sim.cluster import SimCluster
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.timings import Timings
from tests.agent.umockdev_examples import EXAMPLES
from tests.support.agent_on_cluster import bridge, claim_and_pod
from tests.support.agent_process import AgentProcess, pod
from tests.support.kubelet_peers import plugin
from tests.support.umockdev import Testbed, tree
from tests.support.waiting import short_directory, until

CASES: dict[str, Callable[[], Awaitable[None]]] = {}
QUICK = (
    "safety: {minHoldSeconds: 0.4, unconfirmedSeconds: 2, absentSeconds: 0.4, settleSeconds: 1, quiesceSeconds: 0.5}\n"
    "resyncSeconds: 5\nresources:\n"
)

MI308X = "/devices/pci0000:07/0000:07:01.1/0000:0a:00.0"
KFD = "/devices/virtual/kfd/kfd"
B60 = "/devices/pci0000:00/0000:00:06.0/0000:04:00.0"
PARTITIONS = {"0000:0a:00.0", "amdgpu_xcp_0", "amdgpu_xcp_1", "amdgpu_xcp_2"}  # of the first GPU
OTHERS = {"0001:0b:00.0", "amdgpu_xcp_28", "amdgpu_xcp_29", "amdgpu_xcp_30"}


def case(function: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    CASES[function.__name__] = function
    return function


def bed_of(*trees: str) -> Testbed:
    bed = Testbed(*map(tree, trees))
    os.environ["UMOCKDEV_DIR"] = str(bed.root)  # libumockdev tells the C library only; the agent is a child of Python
    return bed


def example(name: str, lanes: str = "") -> str:
    """The example with times that a test can wait for; ``lanes`` instead of its own."""
    text = (EXAMPLES / f"{name}.yaml").read_text().replace("resources:\n", QUICK, 1)
    return text.replace('{legacy: "*", dra: 0}', lanes) if lanes else text


def ids(cluster: SimCluster, resource: str) -> set[str]:
    """Ids that kubelet counts and could give to a pod."""
    view = cluster.kubelets["node-a"].resources.get(resource)
    return set(view.healthy) if view else set()


def published(cluster: SimCluster) -> dict[str, Any]:
    """Devices of all slices by name."""
    slices = cluster.api.objects.peek("resourceslices")
    return {device["name"]: device for one in slices for device in one["spec"].get("devices") or ()}


def said(device: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a device in a slice that are its driver's own, each with its type."""
    return {name: value for name, value in device["attributes"].items() if "/" not in name and name != "resource"}


def limits_pod(name: str, resource: str, count: int = 1) -> str:
    return f"""\
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: default}}
spec:
  containers: [{{name: main, image: x, resources: {{limits: {{"{resource}": {count}}}}}}}]
  terminationGracePeriodSeconds: 1
"""


def claim_pod(name: str, driver: str, *selectors: str, same: str = "") -> str:
    """A pod with a claim for one device for each selector, in the vendor's DeviceClass and words."""
    requests = [
        {"name": f"r{index}", "exactly": {"deviceClassName": driver, "selectors": [{"cel": {"expression": cel}}]}}
        for index, cel in enumerate(selectors)
    ]
    devices = {"requests": requests} | ({"constraints": [{"matchAttribute": same}]} if same else {})
    return f"""\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: {driver}}}
spec: {{selectors: [{{cel: {{expression: "device.driver == '{driver}'"}}}}]}}
---
{claim_and_pod(name, devices)}"""


def allocated(cluster: SimCluster, claim: str) -> list[str]:
    found: Any = cluster.get("resourceclaims", claim)
    return sorted(result["device"] for result in found["status"]["allocation"]["devices"]["results"])


def in_container(cdi: Path) -> set[str]:
    """Nodes in all CDI files."""
    devices = [one for path in cdi.glob("*.json") for one in json.loads(path.read_text())["devices"]]
    return {node["path"] for one in devices for node in one["containerEdits"].get("deviceNodes", ())}


def amounts(device: dict[str, Any]) -> dict[str, int]:
    """The capacity of a device in a slice, as numbers."""
    return {name: int(quantity.parse(one["value"])) for name, one in device["capacity"].items()}


async def reason(agent: AgentProcess, name: str) -> str:
    return str((await agent.device(name)).get("reason", ""))


async def taken_over(name: str, driver: str, resource: str, listed: set[str], count: int) -> None:
    """A stand-in for the vendor's plugin, then the agent, then the stand-in: a pod keeps what it has all the while."""
    with short_directory() as root:
        async with SimKubelet(root, timings=Timings.fast()) as kubelet:
            async with plugin(kubelet, resource, sorted(listed)):
                assert (await kubelet.run_pod(pod("a", count, resource))).phase is Phase.RUNNING
                held = set(kubelet.resources[resource].allocated)
            agent = AgentProcess(root, example(name), driver)
            await agent.start()
            try:
                await agent.up()
                await kubelet.wait_for_resource(resource, healthy=len(listed))
                assert kubelet.resources[resource].healthy == listed
                assert {row["id"] for row in (await agent.status())["devices"] if row["owner"] == "legacy"} == held
                assert (await kubelet.run_pod(pod("b", len(listed) - count, resource))).phase is Phase.RUNNING
                assert (await kubelet.run_pod(pod("c", 1, resource))).phase is Phase.FAILED
            finally:
                await agent.stop()
            async with plugin(kubelet, resource, sorted(listed)):
                assert kubelet.resources[resource].allocated == listed
                await kubelet.delete_pod("uid-a")
                assert (await kubelet.run_pod(pod("d", count, resource))).phase is Phase.RUNNING


# --- AMD ------------------------------------------------------------------------------------------------------------


@case
async def amd_ids_and_nodes_are_those_of_its_plugin() -> None:
    """What its plugin lists on this machine: each function, and each platform device that KFD knows a node of."""
    bed_of("amd-mi308x-cpx")
    async with bridge(example("amd-gpu"), driver="gpu.amd.com") as (agent, cluster, _):
        await until(lambda: ids(cluster, "amd.com/gpu") == PARTITIONS | OTHERS, 15, agent.text)
        await cluster.apply(limits_pod("a", "amd.com/gpu", 8))
        await cluster.wait_pod("a")
        cards = {*range(1, 5), *range(33, 37)}
        renders = {*range(128, 132), *range(160, 164)}
        drm = {f"/dev/dri/card{n}" for n in cards} | {f"/dev/dri/renderD{n}" for n in renders}
        assert in_container(agent.cdi) == drm | {"/dev/kfd"}
        assert "no identity" not in json.dumps(await agent.status()), (
            "render nodes that no partition uses are no devices"
        )


@case
async def amd_partitions_have_the_names_of_the_mixed_strategy() -> None:
    bed_of("amd-mi308x-cpx")
    async with bridge(example("amd-gpu-partitions"), driver="gpu.amd.com") as (agent, cluster, _):
        await until(lambda: ids(cluster, "amd.com/cpx_nps1") == PARTITIONS | OTHERS, 15, agent.text)
        assert ids(cluster, "amd.com/spx_nps1") == set()


@case
async def amd_gpus_that_cannot_be_partitioned_keep_their_name_beside_partitions() -> None:
    bed_of("amd-mi210")
    async with bridge(example("amd-gpu-partitions"), driver="gpu.amd.com") as (agent, cluster, _):
        await until(lambda: len(ids(cluster, "amd.com/gpu")) == 2, 15, agent.text)
        assert all(not ids(cluster, f"amd.com/{profile}") for profile in ("spx_nps1", "cpx_nps1"))


@case
async def amd_attributes_are_those_of_its_driver() -> None:
    """Names, types and values of deviceinfo.go, without family of GPUs that AMD's driver does not know either."""
    bed = bed_of("amd-mi210")
    module = bed.root / "sys/module/amdgpu"
    module.mkdir(parents=True)
    (module / "version").write_text("6.12.12\n")
    (module / "srcversion").write_text("A1B2C3D4E5F60718293A4B5\n")
    text = example("amd-gpu", '{legacy: 0, dra: "*"}')
    async with bridge(text, driver="gpu.amd.com") as (agent, cluster, _):
        await until(lambda: len(published(cluster)) == 2, 15, agent.text)
        device = published(cluster)["pci-0000-63-00-0"]
        assert said(device) == {
            "type": {"string": "amdgpu"},
            "pciAddr": {"string": "0000:63:00.0"},
            "cardIndex": {"int": 1},
            "renderIndex": {"int": 128},
            "deviceID": {"string": "1801979520617338022"},
            "family": {"string": "AI"},
            "productName": {"string": "AMD_Instinct_MI210"},
            "driverVersion": {"version": "6.12.12"},
            "driverSrcVersion": {"string": "A1B2C3D4E5F60718293A4B5"},
        }
        assert device["attributes"]["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:60"}
        assert amounts(device) == {"computeUnits": 104, "simdUnits": 416}
        selector = "device.attributes['gpu.amd.com'].productName == 'AMD_Instinct_MI210'"
        await cluster.apply(claim_pod("c", "gpu.amd.com", selector))
        await cluster.wait_pod("c")
        assert "/dev/kfd" in in_container(agent.cdi)


@case
async def amd_partitions_are_claimed_by_the_examples_of_its_driver() -> None:
    """Two partitions of one GPU: example/example-partitions-same-parent.yaml of ROCm/k8s-gpu-dra-driver."""
    bed_of("amd-mi308x-cpx")
    text = example("amd-gpu-partitions").replace("  deviceClass:", '  lanes: {legacy: 0, dra: "*"}\n  deviceClass:')
    async with bridge(text, driver="gpu.amd.com") as (agent, cluster, _):
        await until(lambda: len(published(cluster)) == 8, 15, agent.text)
        found = {device["attributes"]["renderIndex"]["int"]: device for device in published(cluster).values()}
        assert said(found[131]) == {
            "type": {"string": "amdgpu-partition"},
            "pciAddr": {"string": "0000:0a:00.0"},
            "parentPciAddr": {"string": "0000:0a:00.0"},
            "cardIndex": {"int": 4},
            "renderIndex": {"int": 131},
            "deviceID": {"string": "598046273873802902"},
            "parentDeviceID": {"string": "598046273873802902"},
            "family": {"string": "AI"},
            "productName": {"string": "AMD_Instinct_MI308X"},
            "partitionProfile": {"string": "cpx_nps1"},
        }
        assert found[131]["attributes"]["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:07"}
        assert amounts(found[131]) == {"memory": 51522830336, "computeUnits": 20, "simdUnits": 80}
        partition = "device.attributes['gpu.amd.com'].type == 'amdgpu-partition'"
        for name in "abcd":  # four pairs of two GPUs with four each
            await cluster.apply(claim_pod(name, "gpu.amd.com", partition, partition, same="gpu.amd.com/deviceID"))
            await cluster.wait_pod(name)
            parents = {said(published(cluster)[device])["deviceID"]["string"] for device in allocated(cluster, name)}
            assert len(parents) == 1
        assert len({device for name in "abcd" for device in allocated(cluster, name)}) == 8


@case
async def amd_gpus_are_given_to_nobody_new_while_their_manager_partitions_them() -> None:
    bed_of("amd-mi308x-cpx")
    async with bridge(example("amd-gpu"), driver="gpu.amd.com") as (agent, cluster, _):
        await until(lambda: ids(cluster, "amd.com/gpu") == PARTITIONS | OTHERS, 15, agent.text)
        taint = {"key": "amd-dcm", "value": "up", "effect": "NoExecute"}
        cluster.api.objects.modify("nodes", "node-a", lambda one: one["spec"].update(taints=[taint]))
        await until(lambda: ids(cluster, "amd.com/gpu") == set(), 15, agent.text)
        cluster.api.objects.modify("nodes", "node-a", lambda one: one["spec"].pop("taints"))
        await until(lambda: ids(cluster, "amd.com/gpu") == PARTITIONS | OTHERS, 15, agent.text)


@case
async def amd_errors_that_were_not_corrected_make_it_unhealthy_until_they_are_gone() -> None:
    bed = bed_of("amd-mi308x-cpx")
    async with bridge(example("amd-gpu"), driver="gpu.amd.com") as (agent, cluster, _):
        await until(lambda: ids(cluster, "amd.com/gpu") == PARTITIONS | OTHERS, 15, agent.text)
        bed.attribute(MI308X, "ras/umc_err_count", "ue: 2\nce: 0\nde: 0\n")
        await until(lambda: ids(cluster, "amd.com/gpu") == OTHERS, 15, agent.text)  # all partitions of that GPU
        assert 'umc_err_count says "ue: 2"' in await reason(agent, "pci-0000-0a-00-0")
        bed.attribute(MI308X, "ras/umc_err_count", "Query currently inaccessible\n")  # the GPU is being reset
        await until(lambda: ids(cluster, "amd.com/gpu") == PARTITIONS | OTHERS, 15, agent.text)


@case
async def amd_gpus_that_kfd_loses_are_unhealthy_in_slices_too() -> None:
    bed = bed_of("amd-mi210")
    text = example("amd-gpu", '{legacy: 0, dra: "*"}')
    async with bridge(text, driver="gpu.amd.com") as (agent, cluster, _):

        def tainted() -> set[str]:
            return {name for name, device in published(cluster).items() if device.get("taints")}

        await until(lambda: len(published(cluster)) == 2, 15, agent.text)
        assert tainted() == set()
        node = bed.root / f"sys{KFD}/topology/nodes/2"
        away = node.rename(node.parent.with_name("away"))
        await until(lambda: tainted() == {"pci-0000-63-00-0"}, 15, agent.text)
        away.rename(node)
        await until(lambda: tainted() == set(), 15, agent.text)


@case
async def amd_gpu_that_is_partitioned_anew_is_one_device_or_several() -> None:
    """The mode changes while a pod has a partition: the pod's stays known, others come and go, none is held twice."""
    bed = bed_of("amd-mi308x-cpx")
    nodes = bed.root / f"sys{KFD}/topology/nodes"
    whole = (nodes / "2/properties").read_text().replace("simd_count 80", "simd_count 320")
    async with bridge(example("amd-gpu-partitions"), driver="gpu.amd.com") as (agent, cluster, _):
        await until(lambda: ids(cluster, "amd.com/cpx_nps1") == PARTITIONS | OTHERS, 15, agent.text)
        await cluster.apply(limits_pod("a", "amd.com/cpx_nps1", 8))
        await cluster.wait_pod("a")
        bed.attribute(MI308X, "current_compute_partition", "SPX\n")
        for number in (3, 4, 5):  # as KFD shows a GPU in SPX mode: one node, with all compute units
            (nodes / str(number)).rename(nodes.parent / f"away-{number}")
        (nodes / "2/properties").write_text(whole)
        await until(lambda: ids(cluster, "amd.com/cpx_nps1") == OTHERS, 15, agent.text)
        # The whole has the id of the first partition, which the pod still holds: nobody else gets it.
        await until(lambda: "amd.com/spx_nps1" in cluster.kubelets["node-a"].resources, 15, agent.text)
        assert ids(cluster, "amd.com/spx_nps1") == set(), await agent.status()
        await cluster.delete("pods", "a")
        await until(lambda: ids(cluster, "amd.com/spx_nps1") == {"0000:0a:00.0"}, 30, agent.text)
        await cluster.apply(limits_pod("b", "amd.com/spx_nps1"))
        await cluster.wait_pod("b")
        bed.attribute(MI308X, "current_compute_partition", "CPX\n")
        for number in (3, 4, 5):
            (nodes.parent / f"away-{number}").rename(nodes / str(number))
        await until(
            lambda: ids(cluster, "amd.com/cpx_nps1") == (PARTITIONS | OTHERS) - {"0000:0a:00.0"}, 30, agent.text
        )


@case
async def amd_node_is_taken_over_from_its_plugin_and_back() -> None:
    bed_of("amd-mi308x-cpx")
    await taken_over("amd-gpu", "gpu.amd.com", "amd.com/gpu", PARTITIONS | OTHERS, 3)


# --- Intel ----------------------------------------------------------------------------------------------------------


@case
async def intel_ids_and_nodes_are_those_of_its_plugin() -> None:
    bed_of("intel-flex170-b60")
    async with bridge(example("intel-gpu"), driver="gpu.intel.com") as (agent, cluster, _):
        await until(lambda: ids(cluster, "gpu.intel.com/xe") == {"card1-0"}, 15, agent.text)
        assert ids(cluster, "gpu.intel.com/i915") == {"card0-0"}
        await cluster.apply(limits_pod("a", "gpu.intel.com/xe"))
        await cluster.wait_pod("a")
        assert in_container(agent.cdi) == {"/dev/dri/card1", "/dev/dri/renderD129"}
        (device,) = [one for path in agent.cdi.glob("*.json") for one in json.loads(path.read_text())["devices"]]
        mounts = {mount["hostPath"] for mount in device["containerEdits"]["mounts"]}
        assert mounts == {f"/dev/dri/by-path/pci-0000:04:00.0-{kind}" for kind in ("card", "render")}


@case
async def intel_attributes_are_those_of_its_driver() -> None:
    """Names, types and values of node_state.go and of doc/gpu/USAGE.md, but for health and the deprecated pciRoot."""
    bed_of("intel-flex170-b60")
    text = example("intel-gpu", '{legacy: 0, dra: "*"}')
    async with bridge(text, driver="gpu.intel.com") as (agent, cluster, _):
        await until(lambda: len(published(cluster)) == 2, 15, agent.text)
        flex, b60 = published(cluster)["card0-0"], published(cluster)["card1-0"]
        assert said(b60) == {
            "type": {"string": "gpu"},
            "driver": {"string": "xe"},
            "family": {"string": "Arc Pro B-Series"},
            "model": {"string": "B60"},
            "pciAddress": {"string": "0000:04:00.0"},
            "pciId": {"string": "0xe211"},
            "sriov": {"bool": True},
        }
        assert b60["attributes"]["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:00"}
        assert b60["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": "0000:04:00.0"}
        assert amounts(b60) == {"millicores": 1000}
        assert said(flex)["model"] == {"string": "Flex 170"}
        assert amounts(flex) == {"memory": 16 << 30, "millicores": 1000}
        big = "device.capacity['gpu.intel.com'].memory.compareTo(quantity('16Gi')) >= 0"
        await cluster.apply(
            claim_pod("c", "gpu.intel.com", f"device.attributes['gpu.intel.com'].driver == 'i915' && {big}")
        )
        await cluster.wait_pod("c")
        assert allocated(cluster, "c") == ["card0-0"]


@case
async def intel_functions_are_offered_instead_of_their_card_once_that_is_free() -> None:
    bed = bed_of("intel-flex170-b60")
    async with bridge(example("intel-gpu"), driver="gpu.intel.com") as (agent, cluster, _):
        await until(lambda: ids(cluster, "gpu.intel.com/xe") == {"card1-0"}, 15, agent.text)
        await cluster.apply(limits_pod("a", "gpu.intel.com/xe"))
        await cluster.wait_pod("a")
        bed.attribute(B60, "sriov_numvfs", "2\n")
        bed.add(tree("intel-b60-vfs"))
        await until(lambda: agent.device("card3-0"), 15, agent.text)
        assert ids(cluster, "gpu.intel.com/xe") <= {"card1-0"}, "the pod has the card"
        await cluster.delete("pods", "a")
        await until(lambda: ids(cluster, "gpu.intel.com/xe") == {"card2-0", "card3-0"}, 30, agent.text)
        await cluster.apply(limits_pod("b", "gpu.intel.com/xe", 2))
        await cluster.wait_pod("b")
        assert in_container(agent.cdi) >= {"/dev/dri/card2", "/dev/dri/card3"}
        for number in (1, 2):
            for name in (f"drm/card{number + 1}", f"drm/renderD{number + 129}", ""):
                bed.remove(f"{B60[:-1]}{number}/{name}".rstrip("/"))
        bed.attribute(B60, "sriov_numvfs", "0\n")
        await until(lambda: agent.device("card1-0"), 15, agent.text)
        seen = []

        def nothing_is_healthy() -> bool:
            seen.append(ids(cluster, "gpu.intel.com/xe"))
            return not seen[-1]

        await until(nothing_is_healthy, 15, agent.text)
        assert "card1-0" not in set().union(*seen), "the pod has its functions"
        await cluster.delete("pods", "b")
        await until(lambda: ids(cluster, "gpu.intel.com/xe") == {"card1-0"}, 30, agent.text)


@case
async def intel_firmware_that_must_be_flashed_makes_it_unhealthy_until_it_is() -> None:
    bed = bed_of("intel-flex170-b60")
    async with bridge(example("intel-gpu"), driver="gpu.intel.com") as (agent, cluster, _):
        await until(lambda: ids(cluster, "gpu.intel.com/xe") == {"card1-0"}, 15, agent.text)
        mode = bed.root / f"sys{B60}/survivability_mode"
        mode.write_text("Survivability mode type: Runtime\n")
        await until(lambda: ids(cluster, "gpu.intel.com/xe") == set(), 15, agent.text)
        assert "Survivability mode type: Runtime" in await reason(agent, "card1-0")
        assert ids(cluster, "gpu.intel.com/i915") == {"card0-0"}, "the other is as it was"
        mode.unlink()
        await until(lambda: ids(cluster, "gpu.intel.com/xe") == {"card1-0"}, 15, agent.text)


@case
async def intel_node_is_taken_over_from_its_plugin_and_back() -> None:
    bed = bed_of("intel-flex170-b60")
    bed.attribute(B60, "sriov_numvfs", "2\n")
    bed.add(tree("intel-b60-vfs"))
    await taken_over("intel-gpu", "gpu.intel.com", "gpu.intel.com/xe", {"card2-0", "card3-0"}, 1)


def main() -> None:
    if "umockdev" not in os.environ.get("LD_PRELOAD", ""):
        raise SystemExit("run this under umockdev-wrapper")
    asyncio.run(CASES[sys.argv[1]]())  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
