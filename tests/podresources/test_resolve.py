"""``--resolve`` as a person or a script uses it: a kubelet's socket, an agent's socket, the files of a node."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from drabridge.inventory.devices import Semver
from drabridge.ledger.entries import Entry, HeldBecause, Hold, Lane, LedgerDevice, Owner, PodRef
from podresources.resolve.facts import pci_bus_id
from podresources.wire import v1_pb2 as wire
from tests.podresources.command import ROOT, Done, fetch, interrupt, run, start
from tests.podresources.metrics_page import parse
from tests.podresources.resolve_node import CLAIM_UID, GPUS, MODEL, NVIDIA, POD_UID, NodeFiles, agent
from tests.support.podresources_server import (
    Kubelet,
    claim,
    claim_device,
    container,
    device,
    get_answer,
    kubelet,
    listing,
    pod,
    says,
    socket_directory,
)
from tests.support.servers import free_port
from tests.support.status_documents import GPU, NOW, by_claim, gpu, status
from tests.support.waiting import HANG_SECONDS

GPU0, GPU1 = GPUS[0][1], GPUS[1][1]


@pytest.fixture
async def files() -> AsyncIterator[NodeFiles]:
    async with socket_directory() as directory:
        yield NodeFiles(directory)


@asynccontextmanager
async def node(*pods: wire.PodResources) -> AsyncIterator[Kubelet]:
    async with kubelet({"List": says(listing(*pods)), "Get": get_answer(*pods)}) as server:
        yield server


def nvidia_pod(name: str = "infer-0", minors: Iterable[int] = (0,), share: str | None = None) -> wire.PodResources:
    """A pod with a claim of NVIDIA's driver; kubelet 1.36 repeats the CDI names of earlier devices."""
    names: list[str] = []
    devices = []
    for minor in minors:
        names.append(f"k8s.gpu.nvidia.com/claim={CLAIM_UID}-gpu-{minor}")
        devices.append(claim_device(f"gpu-{minor}", *names, driver=NVIDIA, share=share))
    return pod(name, container("main", claims=(claim("c", *devices),)))


async def resolved(server: Kubelet, files: NodeFiles, *more: str | Path) -> tuple[list[dict[str, Any]], Done]:
    """What ``list --resolve -o json`` says of each allocation."""
    files.root.mkdir(parents=True, exist_ok=True)
    done = await run("list", "--resolve", "-o", "json", "--socket", server.path, "--host-root", files.root, *more)
    assert done.code == 0, done.err
    return [held["resolved"] for held in json.loads(done.out)["allocations"]], done


def facts(found: dict[str, Any]) -> tuple[str, str, str]:
    return found["uuid"], found["pci_bus_id"], found["source"]


async def test_without_any_source_every_field_is_empty_and_nothing_fails(files: NodeFiles) -> None:
    async with node(nvidia_pod()) as server:
        (found,), done = await resolved(server, files)
    assert not any(found.values())
    assert done.err == ""


async def test_a_claims_gpu_by_nvidias_own_cdi_file_and_proc(files: NodeFiles) -> None:
    """No agent, no API server: the claim's file has the node, and the driver's own files the rest."""
    files.nvidia_driver()
    files.nvidia_claim(CLAIM_UID, 0, 1)
    files.logs("default", "infer-0")
    async with node(nvidia_pod(minors=(0, 1), share="s-7")) as server:
        found, done = await resolved(server, files)
    assert [facts(one) for one in found] == [(GPU0, "0000:18:00.0", "cdi"), (GPU1, "0000:3b:00.0", "cdi")]
    for one in found:
        assert (one["model"], one["share"], one["pod_uid"]) == (MODEL, "s-7", POD_UID)
        assert (one["pod_uid_source"], one["conflicts"]) == ("logs", [])
    assert "not resolved" not in done.err


async def test_a_mig_instances_gpu_is_what_exporters_know(files: NodeFiles) -> None:
    files.nvidia_driver()
    files.nvidia_claim(CLAIM_UID, 1, mig=True)
    async with node(nvidia_pod(minors=(1,))) as server:
        (found,), _ = await resolved(server, files)
        assert (found["uuid"], found["gpu_uuid"], found["pci_bus_id"]) == ("", GPU1, "0000:3b:00.0")
        assert found["gpu_instance"] == "", "the driver does not say it"
        files.mig_instance(5, 30)
        files.mig_instance(6, 39)
        (found,), _ = await resolved(server, files)
        text = (await run("list", "--resolve", "-o", "prom", "--socket", server.path, "--host-root", files.root)).out
    assert (found["uuid"], found["gpu_uuid"], found["gpu_instance"]) == ("", GPU1, "5")
    (labels,) = (dict(labels) for name, labels in parse(text) if name == "podresources_device_resolved_info")
    assert (labels["UUID"], labels["GPU_I_ID"]) == (GPU1, "5")


async def test_a_claims_device_by_a_node_that_sysfs_knows(files: NodeFiles) -> None:
    """Any driver's file: the node's number leads to its PCI device. A USB device's controller is not the device."""
    files.pci_device("0000:c1:00.0", serial_number="692409005408", product_name="AMD Instinct MI300X OAM")
    files.link_of_node("sys/dev/char/226:128", "0000:c1:00.0")
    controller = files.root / "sys/devices/pci0000:00/0000:00:14.0"
    (controller / "usb1/1-1/1-1:1.0/ttyUSB0").mkdir(parents=True)
    (files.root / "sys/dev/char/188:0").mkdir(parents=True)
    (files.root / "sys/dev/char/188:0/device").symlink_to(controller / "usb1/1-1/1-1:1.0/ttyUSB0")
    edits = {"deviceNodes": [{"path": "/dev/accel7", "type": "c", "major": 226, "minor": 128}]}
    serial = {"deviceNodes": [{"path": "/dev/ttyUSB0", "type": "c", "major": 188, "minor": 0}]}
    files.cdi(
        "a.example.com-device-claim-1.json",
        "a.example.com/device",
        {"name": "claim-1-r-a", "containerEdits": edits},
        {"name": "claim-1-r-b", "containerEdits": serial},
    )
    devices = (
        claim_device("a", "a.example.com/device=claim-1-r-a", driver="a.example.com"),
        claim_device(
            "b", "a.example.com/device=claim-1-r-a", "a.example.com/device=claim-1-r-b", driver="a.example.com"
        ),
    )
    async with node(pod("p", container("c", claims=(claim("c", *devices),)))) as server:
        (first, second), _ = await resolved(server, files)
    assert facts(first) == ("", "0000:c1:00.0", "cdi,host")
    assert (first["serial_number"], first["model"]) == ("692409005408", "AMD Instinct MI300X OAM")
    assert facts(second) == ("", "", "")


@pytest.mark.parametrize(
    "nodes",
    [
        [{"path": "/dev/kfd"}, {"path": "/dev/dri/card1"}, {"path": "/dev/dri/renderD129"}],
        [{"path": "/dev/dri/renderD129", "hostPath": "/dev/dri/by-path/x", "type": "c", "major": 226, "minor": 129}],
    ],
    ids=["AMD's and Intel's", "by number"],
)
async def test_a_claims_gpu_by_its_drm_nodes(files: NodeFiles, nodes: list[dict[str, Any]]) -> None:
    """All of its nodes are of one PCI device; one that leads nowhere, as the common /dev/kfd, does not matter."""
    files.pci_device("0000:c1:00.0")
    for link in ("sys/class/drm/card1", "sys/class/drm/renderD129", "sys/dev/char/226:129"):
        files.link_of_node(link, "0000:c1:00.0")
    name = f"{CLAIM_UID}-gpu-1-129"
    files.cdi(
        "k8s.gpu.amd.com-gpu_c.json", "k8s.gpu.amd.com/gpu", {"name": name, "containerEdits": {"deviceNodes": nodes}}
    )
    common = "k8s.gpu.amd.com/gpu=common"
    mine = claim_device("gpu-1-129", common, f"k8s.gpu.amd.com/gpu={name}", driver="gpu.amd.com")
    async with node(pod("p", container("c", claims=(claim("c", mine),)))) as server:
        (found,), _ = await resolved(server, files)
    assert facts(found) == ("", "0000:c1:00.0", "cdi")


async def test_a_name_that_stands_for_several_gpus_resolves_to_none_of_them(files: NodeFiles) -> None:
    files.nvidia_driver()
    nodes = [{"path": "/dev/nvidia0"}, {"path": "/dev/nvidia1"}]
    files.cdi("nvidia.json", "nvidia.com/gpu", {"name": "all", "containerEdits": {"deviceNodes": nodes}})
    mine = claim_device("gpus", "nvidia.com/gpu=all", driver=NVIDIA)
    async with node(pod("p", container("c", claims=(claim("c", mine),)))) as server:
        (found,), _ = await resolved(server, files)
    assert facts(found) == ("", "", "")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("3b:00.0", "0000:3b:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("0000:3b:00.8", ""),
        ("0000:3b:00.0 ", ""),
        ("x0000:3b:00.0", ""),
        ("", ""),
    ],
)
def test_pci_addresses_in_every_form(written: str, read: str) -> None:
    """NVML writes a domain of eight digits, lspci none, and a volume management device has five."""
    assert pci_bus_id(written) == read


async def test_a_claims_device_by_its_metadata_file(files: NodeFiles) -> None:
    files.metadata(
        "c",
        "gpu-0",
        {
            "uuid": {"string": GPU0},
            "resource.kubernetes.io/pciBusID": {"string": "0000:18:00.0"},
            "productName": {"string": MODEL},
            "driverVersion": {"version": "580.1.0"},
        },
    )
    async with node(nvidia_pod()) as server:
        (found,), _ = await resolved(server, files)
    assert facts(found) == (GPU0, "0000:18:00.0", "metadata")
    assert found["model"] == MODEL


async def test_a_claim_whose_folder_would_have_too_long_a_name(files: NodeFiles) -> None:
    """``drabridge`` names the folder by a digest; another driver cannot serve such a claim."""
    longest = "a" * 253
    digest = hashlib.sha256(f"default_{longest}".encode()).hexdigest()
    files.metadata(longest, "gpu-0", {"uuid": {"string": GPU0}}, folder=f"sha256-{digest}")
    held = claim(longest, claim_device("gpu-0", driver=NVIDIA))
    async with node(pod("p", container("c", claims=(held,)))) as server:
        (found,), _ = await resolved(server, files)
    assert facts(found) == (GPU0, "", "metadata")


async def test_a_claims_device_by_the_agents_status(files: NodeFiles) -> None:
    """The document is the agent's own; what it publishes as attributes comes with it."""
    mine = replace(gpu(5), attributes={"productName": MODEL, "version": Semver("1.2.3"), "memory": 80})
    document = status([mine], [by_claim(mine, "default/c", 60)])
    async with agent(files.plugins / "gpu.example.com/control.sock", document):
        async with node(pod("p", container("c", claims=(claim("c", claim_device(mine.name)),)))) as server:
            (found,), _ = await resolved(server, files)
    assert facts(found) == (mine.id, mine.pci_bus_id, "agent")
    assert found["model"] == MODEL


async def test_a_limits_device_by_the_agent_with_its_pods_uid_and_replica(files: NodeFiles) -> None:
    mine = replace(gpu(2), replicas=4)
    hold = Hold(
        (f"{mine.id}::3",), NOW, True, NOW, pods=(PodRef("ml", "t", "main", POD_UID),), because=HeldBecause.RUNNING
    )
    document = status([mine], [Entry(LedgerDevice.of(mine), Owner.LEGACY, Lane.LEGACY, hold=hold, since=NOW)])
    files.logs("ml", "t", "11111111-2222-4333-8444-555555555555")
    async with agent(files.root / "elsewhere.sock", document):
        async with node(pod("t", container("main", device(GPU, f"{mine.id}::3")), namespace="ml")) as server:
            (found,), _ = await resolved(server, files, "--agent-socket", files.root / "elsewhere.sock")
    assert facts(found) == (mine.id, mine.pci_bus_id, "agent")
    assert (found["share"], found["pod_uid"], found["pod_uid_source"]) == ("3", POD_UID, "agent")


@pytest.mark.parametrize(
    ("device_id", "expected"),
    [
        (GPU1, (GPU1, "0000:3b:00.0", "id,host")),
        (f"{GPU1}::2", (GPU1, "0000:3b:00.0", "id,host")),
        ("0000:c1:00.0", ("", "0000:c1:00.0", "id,host")),
        ("card1-0", ("", "0000:c1:00.0", "id,host")),
        ("MIG-5f9a3c1e-0000-4000-8000-0000000000ff", ("MIG-5f9a3c1e-0000-4000-8000-0000000000ff", "", "id")),
        ("fpga-3", ("", "", "")),
    ],
)
async def test_a_limits_device_by_kubelets_id(files: NodeFiles, device_id: str, expected: tuple[str, str, str]) -> None:
    """Without an agent: NVIDIA's ids are UUIDs, AMD's PCI addresses, Intel's cards."""
    files.nvidia_driver()
    files.pci_device("0000:c1:00.0", serial_number="42")
    files.link_of_node("sys/class/drm/card1", "0000:c1:00.0")
    async with node(pod("p", container("c", device("e.com/x", device_id)))) as server:
        (found,), _ = await resolved(server, files)
    assert facts(found) == expected


MIG = "MIG-5f9a3c1e-0000-4000-8000-0000000000ff"


@pytest.mark.parametrize(
    ("device_id", "uuid", "instance"),
    [
        (MIG, MIG, "6"),
        (f"{MIG}::1", MIG, "6"),
        (f"MIG-{GPU1}/6/0", f"MIG-{GPU1}/6/0", "6"),
        ("nvidia1/gi6", "", "6"),
        ("nvidia1/gi6/vgpu0", "", "6"),
        ("nvidia1/vgpu3", GPU1, ""),
        ("nvidia1", GPU1, ""),
    ],
)
async def test_a_mig_instance_by_limits_is_known_by_its_gpu(
    files: NodeFiles, device_id: str, uuid: str, instance: str
) -> None:
    """Exporters know an instance by its GPU and its number there; its own id says neither, NVIDIA's CDI file does."""
    files.nvidia_driver()
    files.mig_instance(5, 30)
    files.mig_instance(6, 39)
    edits = {
        "deviceNodes": [{"path": "/dev/nvidia1"}, *({"path": f"/dev/nvidia-caps/nvidia-cap{n}"} for n in (39, 40))]
    }
    files.cdi(
        "nvidia.yaml",
        "nvidia.com/gpu",
        {"name": "1:0", "containerEdits": edits},
        {"name": MIG, "containerEdits": edits},
    )
    async with node(pod("p", container("c", device("nvidia.com/gpu", device_id)))) as server:
        (found,), _ = await resolved(server, files)
        prom = (await run("list", "--resolve", "-o", "prom", "--socket", server.path, "--host-root", files.root)).out
    assert (found["uuid"], found["gpu_uuid"], found["gpu_instance"]) == (uuid, GPU1, instance)
    mig = uuid if instance else ""
    assert f'GPU_I_ID="{instance}",UUID="{GPU1}"' in prom
    assert f'mig_uuid="{mig}"' in prom


async def test_an_instance_of_which_no_file_tells_is_not_said_to_be_a_gpu(files: NodeFiles) -> None:
    files.nvidia_driver()
    async with node(pod("p", container("c", device("nvidia.com/gpu", MIG)))) as server:
        (found,), _ = await resolved(server, files)
        prom = (await run("list", "--resolve", "-o", "prom", "--socket", server.path, "--host-root", files.root)).out
    assert (found["uuid"], found["gpu_uuid"]) == (MIG, "")
    assert 'UUID="",api="deviceplugin"' in prom
    assert f'mig_uuid="{MIG}"' in prom


async def test_the_first_source_that_knows_wins_and_disagreement_is_shown(files: NodeFiles) -> None:
    files.nvidia_driver()
    files.nvidia_claim(CLAIM_UID, 0)
    files.metadata("c", "gpu-0", {"uuid": {"string": GPU1}, "productName": {"string": "of the metadata"}})
    async with node(nvidia_pod()) as server:
        (found,), _ = await resolved(server, files)
        table = (await run("list", "--resolve", "--socket", server.path, "--host-root", files.root)).out
        text = (await run("list", "--resolve", "-o", "prom", "--socket", server.path, "--host-root", files.root)).out
    assert found["uuid"] == GPU0
    assert found["conflicts"] == [f"uuid: cdi says {GPU0}, metadata says {GPU1}"]
    assert "cdi (conflict)" in table
    assert "\npodresources_resolve_conflicts 1.0\n" in text


async def test_the_pod_that_runs_has_the_name_when_an_earlier_one_left_its_logs(files: NodeFiles) -> None:
    earlier = "11111111-2222-4333-8444-555555555555"
    files.logs("default", "infer-0", earlier)
    files.logs("default", "infer-0")
    async with node(nvidia_pod()) as server:
        (found,), _ = await resolved(server, files)
        assert found["pod_uid"] == "", "nobody knows which"
        files.runs("0d0d0d0d-2222-4333-8444-555555555555")
        (found,), _ = await resolved(server, files)
        assert found["pod_uid"] == "", "neither runs"
        files.runs(POD_UID)
        (found,), _ = await resolved(server, files)
        assert found["pod_uid"] == POD_UID
        files.runs(earlier)
        (found,), _ = await resolved(server, files)
    assert found["pod_uid"] == "", "two of that name seem to run"


async def test_kubelets_checkpoints_name_the_pod_before_anything_else_does(files: NodeFiles) -> None:
    """Only the folder of an earlier pod's logs is there yet: kubelet makes the next one's with its first container."""
    files.logs("default", "infer-0", "11111111-2222-4333-8444-555555555555")
    files.runs("11111111-2222-4333-8444-555555555555")
    files.kubelet_checkpoints(("nvidia.com/gpu", f"{GPU1}::2", "main", POD_UID), ("default", "c", POD_UID))
    train = pod("infer-0", container("main", device("nvidia.com/gpu", f"{GPU1}::2")))
    for held in (nvidia_pod(), train):
        async with node(held) as server:
            (found,), done = await resolved(server, files)
        assert (found["pod_uid"], found["pod_uid_source"]) == (POD_UID, "checkpoint")
        assert done.err.count("not resolved") == 0


async def test_a_claim_of_several_pods_has_each_pods_uid_from_its_logs(files: NodeFiles) -> None:
    other = "11111111-2222-4333-8444-555555555555"
    files.kubelet_checkpoints(("x", "y", "z", other), ("default", "c", POD_UID), ("default", "c", other))
    files.logs("default", "a")
    files.logs("default", "b", other)
    async with node(nvidia_pod("a"), nvidia_pod("b")) as server:
        found, _ = await resolved(server, files)
    assert [(one["pod_uid"], one["pod_uid_source"]) for one in found] == [(POD_UID, "logs"), (other, "logs")]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"Data": 3}', '{"Data": {"PodDeviceEntries": [7]}}'])
async def test_a_checkpoint_in_another_form_is_named_and_the_logs_are_used(files: NodeFiles, content: str) -> None:
    files.write("var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", content)
    files.write("var/lib/kubelet/dra_manager_state", content)
    files.logs("default", "infer-0")
    async with node(nvidia_pod()) as server:
        (found,), done = await resolved(server, files)
    assert (found["pod_uid"], found["pod_uid_source"]) == (POD_UID, "logs")
    assert done.err.count("its form is not known") == 2


CDI = "var/run/cdi"
METADATA = f"var/lib/kubelet/plugins/{NVIDIA}/dra-device-metadata/default_c/gpu/metadata.json"
INCOMPLETE = "it is not complete, or no device metadata"
BOMB = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))])


def _long_number(files: NodeFiles) -> None:
    """Python refuses to write out a number of so many digits."""
    path = files.root / f"{CDI}/k8s.gpu.nvidia.com-claim_{CLAIM_UID}.yaml"
    document = yaml.safe_load(path.read_text())
    document["devices"][0]["containerEdits"]["deviceNodes"].append({"path": "/dev/x", "major": "LONG", "minor": 1})
    path.write_text(yaml.safe_dump(document).replace("LONG", f"0x{'f' * 20_000}"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda files: os.mkfifo(files.root / CDI / "claim.yaml"), "it is no regular file"),
        (
            lambda files: (files.root / CDI / "x.yaml").symlink_to(files.write("y", "devices: []")),
            "it is a symbolic link",
        ),
        (lambda files: (files.root / CDI / "x.json").mkdir(), "x.json"),
        (lambda files: files.write(f"{CDI}/huge.json", f"[{' ' * (2 << 20)}]"), "it is larger than 1,048,576 bytes"),
        (lambda files: files.write(f"{CDI}/torn.json", '{"kind": "x.com/y", "devi'), "CDI file"),
        (lambda files: files.write(f"{CDI}/deep.json", "[" * 100_000), "CDI file"),
        (lambda files: files.write(f"{CDI}/bomb.yaml", f"{BOMB}\ndevices: *a29\nkind: x.com/y"), ""),
        # A loader that converts scalars raises KeyError, IndexError and AttributeError for these.
        (lambda files: files.write(f"{CDI}/bool.yaml", "kind: !!bool x\ndevices: []\n"), ""),
        (lambda files: files.write(f"{CDI}/int.yaml", "kind: !!int ''\ndevices: []\n"), ""),
        (lambda files: files.write(f"{CDI}/time.yaml", "kind: !!timestamp x\ndevices: []\n"), ""),
        (_long_number, ""),
        (lambda files: files.write(METADATA, '{"requests": [{"devices": [{"driver'), INCOMPLETE),
        (lambda files: files.write(METADATA, '{"requests": [{"devices": 3}]}'), INCOMPLETE),
    ],
)
async def test_a_strange_file_is_left_out_and_named_and_the_others_are_used(
    files: NodeFiles, spoil: Any, said: str
) -> None:
    files.nvidia_driver()
    files.nvidia_claim(CLAIM_UID, 0)
    spoil(files)
    async with node(nvidia_pod()) as server:
        (found,), done = await resolved(server, files)
    assert facts(found) == (GPU0, "0000:18:00.0", "cdi")
    assert ("not resolved by" in done.err) is bool(said)
    assert said in done.err
    assert bool(json.loads(done.out)["resolve_problems"]) is bool(said)


async def test_values_that_are_no_labels_are_left_out(files: NodeFiles) -> None:
    attributes = {"uuid": {"string": "GPU\n1"}, "productName": {"string": "x" * 200}, "pciBusID": {"string": "here"}}
    files.metadata("c", "gpu-0", attributes)
    async with node(nvidia_pod()) as server:
        (found,), _ = await resolved(server, files)
    assert not any(found.values())


async def test_wide_shows_everything_and_get_resolves_one_pod(files: NodeFiles) -> None:
    files.nvidia_driver()
    files.nvidia_claim(CLAIM_UID, 0)
    files.logs("default", "infer-0")
    async with node(nvidia_pod(), pod("other", container("c", device("e.com/x", GPU1)))) as server:
        where = ("--socket", server.path, "--host-root", files.root)
        wide = (await run("list", "--resolve", "-o", "wide", *where)).out
        one = await run("get", "infer-0", "--resolve", "-o", "json", *where)
    for word in ("POD UID", POD_UID, MODEL, GPU0, GPU1):
        assert word in wide
    assert [held["resolved"]["uuid"] for held in json.loads(one.out)["allocations"]] == [GPU0]


async def test_the_exporter_has_one_series_per_holder_with_what_others_join_on(files: NodeFiles) -> None:
    files.nvidia_driver()
    files.nvidia_claim(CLAIM_UID, 0)
    files.logs("default", "infer-0")
    async with node(nvidia_pod(share="s")) as server:
        port = free_port()
        process = await start(
            "export", "--listen", f":{port}", "--resolve", "--socket", server.path, "--host-root", files.root
        )
        assert process.stderr is not None
        await asyncio.wait_for(process.stderr.readline(), HANG_SECONDS)
        series = parse(await asyncio.to_thread(fetch, port))
        done = await interrupt(process)
    assert done.code == 0
    (labels,) = (dict(labels) for name, labels in series if name == "podresources_device_resolved_info")
    assert labels == {
        "namespace": "default",
        "pod": "infer-0",
        "container": "main",
        "uid": POD_UID,
        "api": "dra",
        "driver": NVIDIA,
        "pool": "node1",
        "device": "gpu-0",
        "claim": "c",
        "claim_namespace": "default",
        "share_id": "s",
        "share": "s",
        "UUID": GPU0,
        "pci_bus_id": "0000:18:00.0",
        "model": MODEL,
        "source": "cdi",
    }
    problems = {dict(labels)["source"]: value for (name, labels), value in series.items() if "resolve_problems" in name}
    assert problems == {"agent": 0, "cdi": 0, "metadata": 0, "checkpoint": 0, "host": 0}


async def test_the_exporter_without_it_has_no_such_series_and_reads_nothing(files: NodeFiles) -> None:
    async with node(nvidia_pod()) as server:
        text = (await run("list", "-o", "prom", "--socket", server.path)).out
        modules = "podresources.cli.query, podresources.cli.export, podresources.families"
        program = f"import sys, {modules}; print([name for name in sys.modules if 'resolv' in name])"
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env=environment
        )
        imported, _ = await asyncio.wait_for(process.communicate(), HANG_SECONDS)
    assert "resolve" not in text
    assert imported == b"[]\n"


async def test_a_kubelet_with_another_root_directory_is_found_by_its_socket(files: NodeFiles) -> None:
    """k0s, MicroK8s and others: plugins and pods are beside the socket, whatever the directory is called."""
    files.metadata("c", "gpu-0", {"uuid": {"string": GPU0}})
    root = files.root / "var/lib/kubelet"
    (root / "pod-resources").mkdir()
    async with node(nvidia_pod()) as server:
        (root / "pod-resources/kubelet.sock").symlink_to(server.path)
        done = await run("list", "--resolve", "-o", "json", "--socket", root / "pod-resources/kubelet.sock")
    (held,) = json.loads(done.out)["allocations"]
    assert facts(held["resolved"]) == (GPU0, "", "metadata")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "--slices"], "--slices says how to resolve devices: give --resolve too"),
        (["export", "--listen", ":1", "--host-root", "/host"], "--host-root says how to resolve devices"),
        (["list", "--resolve", "--kubeconfig", "x"], "give --slices too"),
    ],
)
async def test_options_that_would_do_nothing_are_refused(arguments: list[str], said: str) -> None:
    done = await run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


async def test_cdi_files_are_looked_for_where_the_nodes_runtime_looks(tmp_path: Path) -> None:
    """Talos has others than most: without the option its claims have no UUID."""
    files = NodeFiles(tmp_path)
    files.nvidia_driver()
    files.nvidia_claim(CLAIM_UID, 0)
    talos = tmp_path / "var/cdi/dynamic"
    talos.parent.mkdir(parents=True)
    (tmp_path / "var/run/cdi").rename(talos)
    folders = ("--cdi-dir", "/var/cdi/static", "--cdi-dir", "/var/cdi/dynamic")
    async with kubelet({"List": says(listing(nvidia_pod())), "Get": get_answer(nvidia_pod())}) as server:
        for more, known in ((folders, True), ((), False)):
            done = await run(
                *("list", "--resolve", "-o", "json", "--socket", server.path, "--host-root", tmp_path, *more)
            )
            assert bool(json.loads(done.out)["allocations"][0]["resolved"]["uuid"]) is known, done.err


async def test_a_host_root_that_is_not_there_is_said_with_what_to_do(tmp_path: Path) -> None:
    async with node() as server:
        done = await run("list", "--resolve", "--socket", server.path, "--host-root", tmp_path / "none")
    assert done.code == 1
    assert f"There is no directory {tmp_path / 'none'}" in done.err
    assert "such as /host" in done.err
