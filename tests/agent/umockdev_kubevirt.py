"""Find the functions of the virtual machines of ``deploy/examples/kubevirt`` as KubeVirt does.

``umockdev-wrapper python -m tests.agent.umockdev_kubevirt``, started by test_examples.py. The agent is a process inside
the test bed's /dev, /sys and /proc; the cluster is this process. Two GPUs are bound to vfio-pci already: a test bed has
no kernel that binds them.

KubeVirt's own code (1.9.0, its virt-launcher) found the same: pkg/dra/utils.go and hostdevice/addresspool.go, in
pkg/virt-launcher/virtwrap/device.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import yaml

from drabridge.sim.kubelet.pods import Container, PodSpec
from drabridge.sim.kubelet.runtime import LockingRuntime, RunOptions
from tests.agent.umockdev_examples import EXAMPLES, node_device
from tests.support.agent_on_cluster import not_started
from tests.support.agent_process import AgentProcess, cdi_devices
from tests.support.machines import device, tree
from tests.support.umockdev import Testbed
from tests.support.waiting import short_directory

FUNCTIONS = {"0000:3b:00.0": "41", "0000:3c:00.0": "42"}  # address -> IOMMU group
METADATA = "/var/run/kubernetes.io/dra-device-attributes"
READS = "metadata.resource.k8s.io/v1alpha1"  # the one version that KubeVirt reads
ADDRESS = re.compile(r"[\da-fA-F]{4}:[\da-fA-F]{2}:[\da-fA-F]{2}\.[0-7]")

Json = dict[str, Any]


class Containers(LockingRuntime):
    """Keeps what each container was started with, by its pod."""

    def __init__(self, locks: Path) -> None:
        super().__init__(locks)
        self.options: dict[str, RunOptions] = {}

    async def start_container(self, pod: PodSpec, container: Container, options: RunOptions) -> None:
        self.options[pod.name] = options
        await super().start_container(pod, container, options)


def functions() -> Testbed:
    place = "/devices/pci0000:3a"
    parts = [node_device("/devices/virtual/misc/vfio", "misc", "vfio/vfio", 10, 196)]
    for number, (address, group) in enumerate(FUNCTIONS.items()):
        ids = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"}
        links = {"driver": "../../../bus/pci/drivers/vfio-pci", "iommu_group": f"../../../kernel/iommu_groups/{group}"}
        driver = {"DRIVER": "vfio-pci"}
        parts.append(device(f"{place}/{address}", "pci", attributes=ids, properties=driver, links=links))
        parts.append(node_device(f"/devices/virtual/vfio/{group}", "vfio", f"vfio/{group}", 237, number))
    bed = Testbed(tree(parts))
    sys = bed.root / "sys"
    (sys / "bus/pci/drivers/vfio-pci").mkdir(parents=True)
    (sys / "bus/pci/drivers_probe").touch()
    for address, group in FUNCTIONS.items():
        members = sys / f"kernel/iommu_groups/{group}/devices"
        members.mkdir(parents=True)
        (members / address).symlink_to(f"../../../..{place}/{address}")
    (bed.root / "proc/2").mkdir(parents=True)
    (bed.root / "proc/2/comm").write_text("kthreadd\n")  # the host's processes can be seen
    return bed


# --- what KubeVirt makes of a virtual machine, and of its pod -------------------------------------------------------


def machine(name: str) -> tuple[list[Json], Json]:
    """What an example has beside the machine, and the machine's own specification."""
    *others, made = yaml.safe_load_all((EXAMPLES / f"kubevirt/{name}.yaml").read_text())
    return others, made["spec"]["template"]["spec"]


def launcher(name: str, spec: Json) -> Json:
    """The pod of a machine, as virt-controller writes it, as far as devices go."""
    gpus = spec["domain"]["devices"]["gpus"]
    limits: dict[str, int] = {}
    for one in gpus:
        if "deviceName" in one:
            limits[one["deviceName"]] = limits.get(one["deviceName"], 0) + 1
    claims = [{"name": one["claimName"], "request": one["requestName"]} for one in gpus if "claimName" in one]
    resources = {"limits": {key: str(value) for key, value in limits.items()}, "claims": claims}
    container = {"name": "compute", "image": "x", "resources": resources}
    pod = {"containers": [container], "resourceClaims": spec.get("resourceClaims", [])}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**pod, "terminationGracePeriodSeconds": 1}}


def found(spec: Json, options: RunOptions, agent: AgentProcess) -> list[str]:
    """The addresses of its GPUs, by what is in the container."""
    edits = [
        one["containerEdits"] for one in cdi_devices(agent.cdi) if f"{one['kind']}={one['name']}" in options.cdi_devices
    ]
    env = {**options.envs, **dict(text.split("=", 1) for one in edits for text in one.get("env", ()))}
    mounts = {one["containerPath"]: Path(one["hostPath"]) for edit in edits for one in edit.get("mounts", ())}
    addresses = []
    for gpu in spec["domain"]["devices"]["gpus"]:
        if "deviceName" in gpu:
            variable = "PCI_RESOURCE_" + gpu["deviceName"].upper().replace("/", "_").replace(".", "_")
            left = [one for one in env[variable].removesuffix(",").split(",") if one not in addresses]
            addresses.append(left[0])
        else:
            addresses.append(_of_claim(spec["resourceClaims"], gpu, mounts))
    return addresses


def _of_claim(claims: list[Json], gpu: Json, mounts: dict[str, Path]) -> str:
    (claim,) = (one for one in claims if one["name"] == gpu["claimName"])
    named = claim.get("resourceClaimName")
    folder = f"{METADATA}/resourceclaims/{named}" if named else f"{METADATA}/resourceclaimtemplates/{claim['name']}"
    request = gpu["requestName"]
    pattern = re.compile(rf"{re.escape(folder)}/{request}/[^/]*-metadata\.json")
    (file,) = (host for inside, host in mounts.items() if pattern.fullmatch(inside))
    documents = (json.loads(line) for line in file.read_text().splitlines())
    document = next(one for one in documents if one["apiVersion"] == READS)
    (devices,) = (one["devices"] for one in document["requests"] if one["name"] == request)
    (only,) = devices
    assert "mdevUUID" not in only["attributes"]  # would be taken for a mediated device
    return str(only["attributes"]["resource.kubernetes.io/pciBusID"]["string"])


# --- the agent -------------------------------------------------------------------------------------------------------


async def check() -> None:
    os.environ["UMOCKDEV_DIR"] = str(functions().root)  # libumockdev tells the C library only
    config = (EXAMPLES / "kubevirt/config.yaml").read_text()
    _, by_limits = machine("limits")
    others, by_claim = machine("claim")
    gpus = by_limits["domain"]["devices"]["gpus"]
    two = {"domain": {"devices": {"gpus": [*gpus, {**gpus[0], "name": "gpu1"}]}}}
    await given(config.replace('{legacy: 0, dra: "*"}', '{legacy: "*", dra: 0}'), [], {"one": by_limits, "two": two})
    requests = [{"name": one, "exactly": {"deviceClassName": "vfio.gpu.nvidia.com"}} for one in ("first", "second")]
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "both"}}
    wanted = [{"name": one["name"], "claimName": "c", "requestName": one["name"]} for one in requests]
    named = {
        "resourceClaims": [{"name": "c", "resourceClaimName": "both"}],
        "domain": {"devices": {"gpus": wanted}},
    }
    others.append({**claim, "spec": {"devices": {"requests": requests}}})
    await given(config, others, {"claim": by_claim, "named": named})


async def given(config: str, others: list[Json], machines: dict[str, Json]) -> None:
    """Each machine finds as many functions as it has GPUs, one after the other."""
    with short_directory() as locks:
        runtime = Containers(locks)
        async with not_started(config, "gpu.nvidia.com", runtime=lambda _: runtime) as (agent, cluster):
            await agent.start()
            await agent.ready()
            selector = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'vfio'"
            kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
            spec = {"selectors": [{"cel": {"expression": selector}}]}
            await cluster.apply({**kind, "metadata": {"name": "vfio.gpu.nvidia.com"}, "spec": spec})
            for one in others:
                one["metadata"]["namespace"] = "default"
                await cluster.apply(one)
            for name, made in machines.items():
                await cluster.apply(launcher(name, made))
                await cluster.wait_pod(name)
                addresses = found(made, runtime.options[name], agent)
                assert len({*addresses}) == len(made["domain"]["devices"]["gpus"]), addresses
                assert {*addresses} <= FUNCTIONS.keys()
                assert all(map(ADDRESS.fullmatch, addresses))
                await cluster.delete("pods", name)


if __name__ == "__main__":
    asyncio.run(check())
