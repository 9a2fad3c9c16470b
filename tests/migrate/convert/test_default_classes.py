"""Resources that nobody named get the DeviceClass of their vendor's driver, or the cluster's."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from drabridge.cli import main
from drabridge.migrate.convert.conversion import convert
from drabridge.migrate.convert.default_classes import default_device, default_devices, of_classes
from drabridge.migrate.convert.settings import Settings
from tests.migrate.cluster_objects import serving
from tests.migrate.convert.checks import check, pods_of, templates_of

METADATA = {"name": "ours", "uid": "u-1"}
PROFILE = 'has(device.attributes["gpu.nvidia.com"].profile) && device.attributes["gpu.nvidia.com"].profile'
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    image: x
    resources: {limits: {RESOURCE: 1}}
"""


@pytest.mark.parametrize(
    ("resource", "device_class", "selectors"),
    [
        ("nvidia.com/gpu", "gpu.nvidia.com", []),
        ("amd.com/gpu", "gpu.amd.com", []),
        ("gpu.intel.com/i915", "gpu.intel.com", []),
        ("gpu.intel.com/xe", "gpu.intel.com", []),
        ("nvidia.com/gpu.shared", "gpu.nvidia.com", ["device.allowMultipleAllocations"]),
        ("nvidia.com/mig-1g.5gb", "mig.nvidia.com", [PROFILE + ' == "1g.5gb"']),
        (
            "nvidia.com/mig-1g.10gb.me",
            "mig.nvidia.com",
            [PROFILE + ' == "1g.10gb+me"'],
        ),
        (
            "nvidia.com/mig-2g.10gb.shared",
            "mig.nvidia.com",
            [PROFILE + ' == "2g.10gb"', "device.allowMultipleAllocations"],
        ),
    ],
)
def test_a_resource_has_the_class_of_its_vendors_driver(resource: str, device_class: str, selectors: list[str]) -> None:
    text = POD.replace("RESOURCE", resource)
    found = check(text, Settings(default_devices([text])))
    (template,) = templates_of(found.text)
    exactly = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    assert exactly["deviceClassName"] == device_class
    assert [one["cel"]["expression"] for one in exactly.get("selectors", ())] == selectors
    (pod,) = pods_of(found.text)
    assert pod["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == template["metadata"]["name"]


@pytest.mark.parametrize(
    "resource", ["nvidia.com/gpumem", "nvidia.com/mig-x", "nvidia.com/gpu.product", "example.com/gpu"]
)
def test_other_names_have_none(resource: str) -> None:
    assert default_device(resource) is None
    text = POD.replace("RESOURCE", resource)
    assert not convert(text, Settings(default_devices([text]))).pods


def test_the_command_takes_the_defaults_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pod.yaml").write_text(POD.replace("RESOURCE", "nvidia.com/mig-1g.5gb"))
    assert main(["migrate", "convert", "--in-place", str(tmp_path)]) == 0
    said = (
        "note: nvidia.com/mig-1g.5gb: DeviceClass mig.nvidia.com, by default; --class or --from-cluster say another\n"
    )
    assert capsys.readouterr().err == said
    assert main(["migrate", "convert", "--reverse", "--in-place", str(tmp_path)]) == 0
    assert (tmp_path / "pod.yaml").read_text() == POD.replace("RESOURCE", "nvidia.com/mig-1g.5gb")


def test_a_class_that_names_its_resource_comes_first_then_the_vendors_then_the_name_turned_round() -> None:
    classes = {"ours": "nvidia.com/gpu", "gpu.nvidia.com": "", "hca.rdma": "", "gpu.intel.com": ""}
    text = "nvidia.com/gpu amd.com/gpu rdma/hca gpu.intel.com/xe rdma/other"
    found, without = of_classes(classes, [text])
    assert {name: device.device_class for name, device in found.items()} == {
        "nvidia.com/gpu": "ours",
        "rdma/hca": "hca.rdma",
        "gpu.intel.com/xe": "gpu.intel.com",
    }
    assert without == ["amd.com/gpu"]


@pytest.mark.asyncio
async def test_the_cluster_is_asked_which_class_a_resource_has(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD.replace("RESOURCE", "nvidia.com/gpu"))
    (tmp_path / "other.yaml").write_text(POD.replace("RESOURCE", "amd.com/gpu"))
    spec = {"extendedResourceName": "nvidia.com/gpu"}
    named = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": METADATA, "spec": spec}
    async with serving(named) as (_, kubeconfig):
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "drabridge",
                "migrate",
                "convert",
                "--from-cluster",
                "--kubeconfig",
                str(kubeconfig),
            ),
            *("--diff", str(tmp_path)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = (one.decode() for one in await process.communicate())
    assert re.search(r"^\+ +deviceClassName: ours$", out, re.MULTILINE), out + err
    assert "note: amd.com/gpu stays: the cluster has no DeviceClass for it" in err
    assert "other.yaml" not in out
