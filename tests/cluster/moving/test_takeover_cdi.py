"""The agent replaces a stand-in for NVIDIA's plugin, gives the CDI devices of nvidia.yaml, and is replaced again."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from tests.cluster import bed as b
from tests.cluster import workloads as w
from tests.cluster.bed import CLAIMS, NAMESPACE, PODS, Bed, Json, at_the_beginning, wait_for
from tests.cluster.other_plugins import allocatable, on_node, plugin, plugins
from tests.cluster.steps import deleted, running
from tests.support.cdi_files import KIND, device, write_spec

pytestmark = pytest.mark.asyncio(loop_scope="module")

GPU = "nvidia.com/gpu"
GPU_CLASS = "drabridge-cluster-test-gpu"
PLUGIN_KIND = "k8s.device-plugin.nvidia.com/gpu"  # NVIDIA/k8s-device-plugin, internal/cdi: the plugin's own file
MINORS = {"null": 3, "zero": 5, "full": 7, "random": 8}  # Documentation/admin-guide/devices.txt
IDS = {f"GPU-4a1f6e0c-1111-2222-3333-00000000000{minor}": name for name, minor in MINORS.items()}
CONFIG: Json = {
    **b.CONFIG,
    "resources": [
        {
            "name": GPU,
            "match": [{"subsystem": "mem", "sysname": list(MINORS)}],
            "id": ["GPU-4a1f6e0c-1111-2222-3333-00000000000{minor}"],
            "nodes": [],
            "env": {"OURS": "{sysname}"},
            "cdiDevices": [f"{KIND}={{id}}"],
            "cdiFallback": {"nodes": [{"from": "devnode", "as": "/dev/test-{sysname}"}], "env": {"VENDOR": "fallback"}},
            "lanes": {"legacy": 2, "dra": 2},
            "deviceClass": {"name": GPU_CLASS},
        }
    ],
}
LOOK = 'echo "saw VENDOR=$VENDOR OURS=$OURS DRIVER=$(cat /vendor/driver 2>&1)"'


class Vendor:
    """What NVIDIA's tools put on a node: the file of nvidia-ctk, and that of the plugin."""

    def __init__(self, directory: Path, ending: str, driver: Path) -> None:
        """``driver``: a file of the node."""
        self.path = directory / f"nvidia{ending}"
        self.plugin_path = directory / "k8s.device-plugin.nvidia.com-gpu.json"
        self._driver = driver
        directory.mkdir(exist_ok=True)

    def write(self, *, without: str = "") -> None:
        write_spec(self.path, *(self._device(id_) for id_ in IDS if id_ != without))
        if self.path.suffix == ".yaml":
            self.path.write_text(yaml.safe_dump(yaml.safe_load(self.path.read_text()), explicit_start=True))

    def write_plugin_s(self) -> None:
        write_spec(self.plugin_path, *map(self._device, IDS), kind=PLUGIN_KIND)

    def _device(self, id_: str) -> Json:
        name = IDS[id_]
        mount = {"hostPath": str(self._driver), "containerPath": "/vendor/driver", "options": ["ro", "bind"]}
        nodes = [{"path": f"/dev/test-{name}", "hostPath": f"/dev/{name}", "permissions": "rw"}]
        return device(id_, deviceNodes=nodes, env=[f"VENDOR={name}"], mounts=[mount])

    def remove(self) -> None:
        for path in (self.path, self.plugin_path):
            path.unlink(missing_ok=True)


@pytest_asyncio.fixture(loop_scope="module")
async def vendor(bed: Bed) -> AsyncIterator[Vendor]:
    """The simulated runtime reads the agent's directory and JSON; a real one reads YAML in /etc/cdi as well."""
    directory = plugins(bed)
    if bed.runs_programs:
        directory = on_node(bed, "/etc/cdi")
        files = Vendor(directory, ".yaml", Path("/etc/cdi/driver"))
    else:
        directory = directory.parent / "cdi"
        files = Vendor(directory, ".json", directory / "driver")
    (directory / "driver").write_text("550.54.14\n")
    try:
        yield files
    finally:
        files.remove()


@contextlib.asynccontextmanager
async def nvidia_s_plugin(bed: Bed) -> AsyncIterator[None]:
    async with plugin([sys.executable, "-m", "tests.cluster.peer", f"--cdi={PLUGIN_KIND}", plugins(bed), GPU, *IDS]):
        await allocatable(bed, GPU, len(IDS))
        yield


async def limits_pod(bed: Bed, name: str) -> None:
    spec = w.pod_spec(bed.image, bed.node, {"limits": {GPU: "1"}}, then=LOOK)
    await bed.api.create(PODS, w.pod(name, spec), namespace=NAMESPACE)


async def claim_pod(bed: Bed, name: str) -> None:
    await bed.api.create(CLAIMS, w.claim(name, w.request(device_class=GPU_CLASS)), namespace=NAMESPACE)
    spec = w.with_claim(bed.image, bed.node, {"resourceClaimName": name}, then=LOOK)
    await bed.api.create(PODS, w.pod(name, spec), namespace=NAMESPACE)


async def only_device(bed: Bed, name: str) -> str:
    (found,) = await bed.devices(name)
    return found


async def saw(bed: Bed, name: str, vendor: str, ours: str, driver: str) -> None:
    """What the container has by CDI beside its node, where containers run programs."""
    text = await bed.said(name)
    if text is not None:
        assert f"saw VENDOR={vendor} OURS={ours} DRIVER={driver}" in text, text


async def test_from_nvidia_s_plugin_and_back_with_pods_that_run(bed: Bed, vendor: Vendor) -> None:
    await bed.uninstall()
    await allocatable(bed, GPU, 0)
    vendor.write()
    vendor.write_plugin_s()
    async with nvidia_s_plugin(bed):
        await limits_pod(bed, "before")
        await running(bed, "before")
    taken = {"before": await only_device(bed, "before")}
    await saw(bed, "before", taken["before"], "", "550.54.14")

    await bed.install()
    await at_the_beginning(bed)
    await limits_pod(bed, "l1")
    await claim_pod(bed, "c1")
    await claim_pod(bed, "c2")
    await running(bed, "before", "l1", "c1", "c2")
    for name in ("l1", "c1", "c2"):
        taken[name] = await only_device(bed, name)
        await saw(bed, name, taken[name], taken[name], "550.54.14")
    assert set(taken.values()) == set(MINORS)

    await deleted(bed, "c1", "c2")  # NVIDIA's plugin knows nothing of claims
    for name in ("c1", "c2"):
        await bed.api.delete(CLAIMS, name, namespace=NAMESPACE)
    await bed.uninstall()
    await allocatable(bed, GPU, 0)
    async with nvidia_s_plugin(bed):
        await limits_pod(bed, "after")
        await running(bed, "before", "l1", "after")
        after = await only_device(bed, "after")
        assert after in (taken["c1"], taken["c2"])
        await saw(bed, "after", after, "", "550.54.14")
        for name in ("before", "l1"):
            assert not await bed.restarted(name)
            assert await only_device(bed, name) == taken[name]
    await bed.install()
    await wait_for(bed, "the agent to be ready", bed.ready)
    await running(bed, "before", "l1", "after")
    await deleted(bed, "before", "l1", "after")
    await at_the_beginning(bed)


async def test_a_gpu_is_offered_while_nvidia_yaml_has_it_and_else_by_the_fallback(bed: Bed, vendor: Vendor) -> None:
    await claim_pod(bed, "without")
    await limits_pod(bed, "l-without")
    await running(bed, "without", "l-without")
    for name in ("without", "l-without"):
        found = await only_device(bed, name)
        await saw(bed, name, "fallback", found, "cat: can't open '/vendor/driver': No such file or directory")
    vendor.write()

    async def uses_it() -> bool:
        code, text = await bed.drabridge("status", "--output", "json")
        return code == 0 and f"{KIND}={next(iter(IDS))}" in text

    await wait_for(bed, "the agent to have read the file", uses_it)
    await claim_pod(bed, "with")
    await limits_pod(bed, "l-with")
    await running(bed, "with", "l-with", "without", "l-without")
    for name in ("with", "l-with"):
        found = await only_device(bed, name)
        await saw(bed, name, found, found, "550.54.14")
    for name in ("without", "l-without"):
        assert not await bed.restarted(name)
