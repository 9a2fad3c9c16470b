"""What docs/podresources.md tells people to copy works as it stands there."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest
import yaml

from podresources.cli.parser import parse as parse_command
from podresources.socket_path import DEFAULT_SOCKET
from tests.podresources.command import fetch, interrupt, run, start
from tests.support.podresources_server import (
    Answer,
    claim,
    claim_device,
    container,
    device,
    kubelet,
    listing,
    pod,
    says,
)
from tests.support.servers import free_port
from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]

SHARED = claim("both", claim_device("gpu-0"), claim_device("gpu-1"))
GPUS = (device("nvidia.com/gpu", "GPU-1", numa=(0,)), device("nvidia.com/gpu", "GPU-2", numa=(1,)))
NODE: dict[str, Answer] = {
    "List": says(
        listing(
            pod("infer-0", container("a", claims=(SHARED,)), container("b", claims=(SHARED,))),
            pod("train-0", container("main", *GPUS), namespace="training"),
        )
    )
}


def snippets(language: str, page: str = "docs/podresources.md") -> list[str]:
    """The code blocks of that language, in order."""
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks, f"no block of {language} in {page}"
    return blocks


def snippet(language: str) -> str:
    """The first block that a test runs: what is installed goes before the commands, five lines before ten."""
    return snippets(language)[0 if language == "promql" else 1]


async def test_the_console_shows_what_the_command_prints() -> None:
    command, _, output = snippet("console").partition("\n")
    async with kubelet(NODE) as server:
        done = await run(*command.removeprefix("$ podresources ").split(), "--socket", server.path)
    assert done.out == output


async def test_the_program_has_ten_lines_and_prints_who_holds_what() -> None:
    program = snippet("python")
    assert len(program.splitlines()) <= 10
    async with kubelet(NODE) as server:
        mine = program.replace("SyncClient()", f"SyncClient({str(server.path)!r})")
        assert mine != program
        done = await python(mine)
    assert done == (
        0,
        "default/infer-0/a gpu.example.com/node1/gpu-0\n"
        "default/infer-0/a gpu.example.com/node1/gpu-1\n"
        "default/infer-0/b gpu.example.com/node1/gpu-0\n"
        "default/infer-0/b gpu.example.com/node1/gpu-1\n"
        "training/train-0/main nvidia.com/gpu/GPU-1 0\n"
        "training/train-0/main nvidia.com/gpu/GPU-2 1\n",
        "",
    )


@pytest.mark.parametrize("page", ["docs/podresources.md", "podresources/README.md"])
async def test_five_lines_say_who_holds_what(page: str) -> None:
    program = snippets("python", page)[0]
    assert len([line for line in program.splitlines() if line]) <= 5
    async with kubelet(NODE) as server:
        done = await python(program.replace("SyncClient()", f"SyncClient({str(server.path)!r})"))
    assert done[0] == 0, done[2]
    assert "training/train-0/main nvidia.com/gpu/GPU-2\n" in done[1]


async def test_the_program_says_whose_fault_it_is_without_a_kubelet(tmp_path: Path) -> None:
    program = snippet("python").replace("SyncClient()", f"SyncClient({str(tmp_path / 'kubelet.sock')!r})")
    code, out, err = await python(program)
    assert (code, out) == (1, "")
    assert err.startswith("node: There is no kubelet.sock")


async def python(program: str) -> tuple[int | None, str, str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-c", program, stdout=PIPE, stderr=PIPE, env=environment
    )
    out, err = await asyncio.wait_for(process.communicate(), HANG_SECONDS)
    return process.returncode, out.decode(), err.decode()


async def test_the_daemonset_mounts_the_directory_and_its_command_serves_metrics() -> None:
    manifest: dict[str, Any] = next(yaml.safe_load_all((ROOT / "deploy/podresources/exporter.yaml").read_text()))
    assert (manifest["apiVersion"], manifest["kind"]) == ("apps/v1", "DaemonSet")
    template = manifest["spec"]["template"]
    assert manifest["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (box,) = template["spec"]["containers"]
    (volume,) = template["spec"]["volumes"]
    (mount,) = box["volumeMounts"]
    assert mount == {"name": volume["name"], "mountPath": str(DEFAULT_SOCKET.parent), "readOnly": True}
    assert volume["hostPath"] == {"path": str(DEFAULT_SOCKET.parent), "type": "Directory"}
    assert template["spec"]["securityContext"]["runAsUser"] == 0

    program, *arguments = box["command"]
    assert program == "podresources"
    options = parse_command(arguments)
    assert options.listen[1] == box["ports"][0]["containerPort"]
    assert options.socket == DEFAULT_SOCKET
    async with kubelet(NODE) as server:
        port = free_port()
        mine = [argument.replace("*:9401", f"127.0.0.1:{port}") for argument in arguments]
        process = await start(*mine, "--socket", server.path)
        assert process.stderr is not None
        assert b"serving" in await asyncio.wait_for(process.stderr.readline(), HANG_SECONDS)
        assert "\npodresources_device_allocation_info{" in await asyncio.to_thread(fetch, port)
        assert (await interrupt(process)).code == 0


def test_the_promql_joins_containers_with_dcgm() -> None:
    from tests.podresources.sample_vectors import DCGM, GPU0, GPU1, held, joined

    samples = held("solo", GPU1) | held("half-a", f"{GPU0}::0") | held("half-b", f"{GPU0}::1") | DCGM
    assert joined(snippet("promql"), samples) == {
        ("solo", GPU1, "1"): 15,
        ("half-a", f"{GPU0}::0", "0"): 80,
        ("half-b", f"{GPU0}::1", "0"): 80,
    }


def joins() -> list[str]:
    """The expressions under ``## Joins with other exporters``."""
    text = (ROOT / "docs/podresources.md").read_text()
    _, heading, rest = text.partition("\n## Joins with other exporters\n")
    assert heading
    return re.findall(r"^```promql\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)


def test_the_joins_with_other_exporters_find_what_they_say() -> None:
    from tests.podresources.sample_vectors import AMD, DCGM, DCGM_MIG, GPU0, GPU1, INTEL, KUBE_POD_INFO, resolved
    from tests.support.promql import evaluate, parse

    samples = resolved("gpu", UUID=GPU0, uid="u-0") | resolved("amd", serial_number="692409005408")
    samples |= resolved("intel", pci_bus_id="0000:83:00.0", node="n1") | resolved("web-0", uid="u-2")
    samples |= resolved(
        "mig", UUID=GPU1, GPU_I_ID="5", device="gpu-1-mig-1g18gb-5-0", pool="node1", driver="gpu.nvidia.com"
    )
    samples |= DCGM | DCGM_MIG | AMD | INTEL | KUBE_POD_INFO
    found = [
        {dict(labels)["pod"]: value for labels, value in evaluate(parse(expression), samples).items()}
        for expression in joins()
    ]
    assert found == [{"gpu": 80, "mig": 15}, {"gpu": 0.8, "mig": 0.25}, {"amd": 61}, {"intel": 0.52}, {"web-0": 1}]


def test_what_resolving_adds_to_the_metrics_is_documented_label_by_label() -> None:
    from podresources.families import RESOLVED

    text = (ROOT / "docs/podresources.md").read_text()
    (row,) = re.findall(r"^\| `podresources_device_resolved_info` \| (.*?) \|", text, re.MULTILINE)
    assert row == ", ".join(f"`{label}`" for label in RESOLVED)
    for metric in ("podresources_resolve_conflicts", "podresources_resolve_problems"):
        assert f"| `{metric}` |" in text


def test_the_mounts_and_the_role_for_resolving_are_what_it_reads() -> None:
    from podresources.resolve.cdi import FOLDERS
    from podresources.resolve.checkpoints import DEVICES
    from podresources.resolve.pod_uids import LOGS
    from podresources.resolve.resolver import KUBELET, NodePaths

    text = (ROOT / "docs/podresources.md").read_text()
    section = text.partition("\n## The hardware behind a device\n")[2].partition("\n## ")[0]
    mounts, role = (yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", section, re.M | re.S))
    paths = {mount["name"]: mount["mountPath"] for mount in mounts["volumeMounts"]}
    assert paths == {volume["name"]: volume["hostPath"]["path"] for volume in mounts["volumes"]}
    assert all(mount["readOnly"] for mount in mounts["volumeMounts"])
    node = NodePaths()
    checkpoint = (node.of_kubelet / DEVICES).parent
    assert set(paths.values()) == {str(node.plugins), str(checkpoint), str(FOLDERS[0]), f"/{LOGS}"}
    assert str(node.plugins) == f"/{KUBELET}/plugins"
    assert role["rules"] == [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list"]}]
