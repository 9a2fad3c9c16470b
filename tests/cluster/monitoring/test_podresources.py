"""The ``podresources`` command against the node's kubelet, compared with its checkpoint and with the API."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from tests.cluster import bed as b
from tests.cluster.bed import CLAIMS, DRIVER, NAMESPACE, RESOURCE, Bed, Json, wait_for
from tests.cluster.other_plugins import on_node
from tests.cluster.sim_bed import SimBed
from tests.cluster.steps import claim_pod, deleted, legacy_pod, running
from tests.support.waiting import HANG_SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="module")


MINOR = {"null": "3", "zero": "5", "full": "7", "random": "8"}  # of /dev, mem(4); here they stand for UUIDs
CONFIG: Json = {
    **b.CONFIG,
    "resources": [{**b.CONFIG["resources"][0], "attributes": {"uuid": {"from": "property:MINOR"}}}],
}


def socket(bed: Bed) -> str:
    if bed.kubelet_directory is None:
        pytest.skip("the node's files are out of reach")
    return str(bed.kubelet_directory / "pod-resources/kubelet.sock")


async def start(bed: Bed, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "podresources", *words, "--socket", socket(bed)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ask(bed: Bed, *words: str) -> str:
    process = await start(bed, *words)
    out, err = await asyncio.wait_for(process.communicate(), HANG_SECONDS)
    assert process.returncode == 0, (words, err.decode())
    return out.decode()


async def ask_json(bed: Bed, *words: str) -> Json:
    found: Json = json.loads(await ask(bed, *words, "-o", "json"))
    return found


async def holders(bed: Bed) -> dict[tuple[str, str], set[str]]:
    """Devices by pod and API, of these tests' pods."""
    found: dict[tuple[str, str], set[str]] = {}
    for one in (await ask_json(bed, "list", "-n", NAMESPACE))["allocations"]:
        if one.get("resource") == RESOURCE or one.get("driver") == DRIVER:
            found.setdefault((one["pod"], one["api"]), set()).update(devices_of(one))
    return found


def devices_of(allocation: Json) -> list[str]:
    """Of one line of the list: ids of a device plugin, or the name of a claim's device."""
    return [allocation["device"]] if "device" in allocation else list(allocation["device_ids"])


def checkpoint(directory: Path) -> dict[str, set[str]]:
    """Ids by pod UID, as kubelet's device manager has them on disk."""
    data = json.loads((directory / "device-plugins/kubelet_internal_checkpoint").read_text())["Data"]
    found: dict[str, set[str]] = {}
    for entry in data["PodDeviceEntries"] or ():
        if entry["ResourceName"] == RESOURCE:
            ids = {id_ for some in entry["DeviceIDs"].values() for id_ in some}
            found.setdefault(entry["PodUID"], set()).update(ids)
    return found


async def test_list_and_get_agree_with_kubelet_and_with_the_api(bed: Bed) -> None:
    directory = bed.kubelet_directory
    socket(bed)
    assert directory is not None
    await legacy_pod(bed, "l1")
    await claim_pod(bed, "c1")
    await running(bed, "l1", "c1")
    found = await holders(bed)
    assert set(found) == {("l1", "deviceplugin"), ("c1", "dra")}
    uid = {one["metadata"]["name"]: one["metadata"]["uid"] for one in await bed.workload_pods()}
    assert found["l1", "deviceplugin"] == checkpoint(directory)[uid["l1"]] == set(await bed.devices("l1"))
    claim = await bed.api.get(CLAIMS, "c1", namespace=NAMESPACE)
    results = {one["device"] for one in claim["status"]["allocation"]["devices"]["results"]}
    assert found["c1", "dra"] == results == set(await bed.devices("c1"))
    (one,) = (await ask_json(bed, "get", "-n", NAMESPACE, "l1"))["allocations"]
    assert set(devices_of(one)) == found["l1", "deviceplugin"]
    allocatable = (await ask_json(bed, "allocatable", "--resource", RESOURCE))["devices"]
    assert len({one["device_id"] for one in allocatable}) == 2
    assert "l1" in await ask(bed, "top", "-n", NAMESPACE)
    await deleted(bed, "l1", "c1")
    assert await holders(bed) == {}


async def test_export_writes_what_list_shows(bed: Bed, tmp_path: Path) -> None:
    await legacy_pod(bed, "l1")
    await claim_pod(bed, "c1")
    await running(bed, "l1", "c1")
    file = tmp_path / "devices.prom"
    await ask(bed, "export", "--textfile", str(file))
    lines = file.read_text().splitlines()
    for (pod, api), devices in (await holders(bed)).items():
        for device in devices:
            mine = [one for one in lines if f'pod="{pod}"' in one and f'api="{api}"' in one and device in one]
            assert len([one for one in mine if one.startswith("podresources_device_allocation_info")]) == 1, lines


async def test_resolve_finds_hardware_and_pods_by_each_source_alone(bed: Bed, tmp_path: Path) -> None:
    """The agent knows all; the claim's metadata file and the slices agree with it, each when it is the only source."""
    await legacy_pod(bed, "l1")
    await claim_pod(bed, "c1")
    await running(bed, "l1", "c1")
    uid = {one["metadata"]["name"]: one["metadata"]["uid"] for one in await bed.workload_pods()}
    expected = {pod: MINOR[(await bed.devices(pod))[0]] for pod in ("l1", "c1")}

    async def resolved(*words: str) -> dict[str, Json]:
        found = await ask_json(bed, "list", "-n", NAMESPACE, "--resolve", *words)
        return {one["pod"]: one["resolved"] for one in found["allocations"]}

    by_agent = await resolved()
    assert {pod: (one["uuid"], one["source"]) for pod, one in by_agent.items()} == {
        pod: (uuid, "agent") for pod, uuid in expected.items()
    }
    assert not any(one["conflicts"] for one in by_agent.values())
    for pod, one in by_agent.items():
        assert (one["pod_uid"], one["pod_uid_source"]) == (uid[pod], "checkpoint")
    without_agent = await resolved("--agent-socket", str(tmp_path / "none"))
    assert (without_agent["c1"]["uuid"], without_agent["c1"]["source"]) == (expected["c1"], "metadata")
    slices = ("--slices", "--kubeconfig", str(bed.kubeconfig), "--node", bed.node_object)
    by_slices = await resolved("--host-root", str(tmp_path), *slices)
    assert (by_slices["c1"]["uuid"], by_slices["c1"]["source"]) == (expected["c1"], "slices")


async def test_resolve_finds_pods_by_the_folders_of_their_logs(bed: Bed, tmp_path: Path) -> None:
    """Earlier pods of the same names have left theirs; while it is not clear which is meant, there is no UID."""
    directory = bed.kubelet_directory
    socket(bed)
    if isinstance(bed, SimBed) or directory is None:
        pytest.skip("simulated pods write no logs")
    for path, target in (("var/log/pods", on_node(bed, "/var/log/pods")), ("var/lib/kubelet/pods", directory / "pods")):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).symlink_to(target)
    await legacy_pod(bed, "l1")
    await claim_pod(bed, "c1")
    await running(bed, "l1", "c1")
    uid = {one["metadata"]["name"]: one["metadata"]["uid"] for one in await bed.workload_pods()}

    async def all_known() -> bool:
        found = await ask_json(bed, "list", "-n", NAMESPACE, "--resolve", "--host-root", str(tmp_path))
        resolved = {one["pod"]: one["resolved"] for one in found["allocations"]}
        for pod, one in resolved.items():
            assert (one["pod_uid"], one["pod_uid_source"]) in ((uid[pod], "logs"), ("", ""))
        return set(resolved) == {"l1", "c1"} and all(one["pod_uid"] for one in resolved.values())

    await wait_for(bed, "the UIDs of the pods", all_known)


async def test_watch_tells_of_pods_that_come_and_go(bed: Bed) -> None:
    process = await start(bed, "watch", "-n", NAMESPACE, "-o", "json")
    assert process.stdout is not None

    async def line_with(*words: str) -> None:
        assert process.stdout is not None
        while True:
            line = (await asyncio.wait_for(process.stdout.readline(), HANG_SECONDS)).decode()
            assert line, "it ended"
            if all(word in line for word in words):
                return

    try:
        await legacy_pod(bed, "l1")
        await running(bed, "l1")
        await line_with('"l1"', RESOURCE)
        await deleted(bed, "l1")
        await line_with('"l1"')
    finally:
        process.send_signal(signal.SIGINT)
        await process.wait()
