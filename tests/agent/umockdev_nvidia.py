"""NVIDIA GPUs as people have them: ``umockdev-wrapper python -m tests.agent.umockdev_nvidia CASE``.

Run by test_nvidia.py. The shipped profile for MIG, NVIDIA's CDI file, and the stand-in for NVIDIA's library; the agent
is a process inside the test bed, the cluster is this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from drabridge.config.loader import load
from drabridge.sim.cluster import SimCluster
from drabridge.sim.kubelet.runtime import LockingRuntime
from tests.agent.umockdev_examples import EXAMPLES
from tests.agent.umockdev_gpus import ids, limits_pod, published
from tests.agent.umockdev_nvml import worker as nvml_worker
from tests.support import forks, machines
from tests.support.agent_on_cluster import bridge, claim_and_pod
from tests.support.agent_process import AgentProcess, metric
from tests.support.cdi_files import KIND, write_spec
from tests.support.mig import cap, capabilities
from tests.support.nvidia_h100 import libraries
from tests.support.nvml import StandIn, mig_uuid
from tests.support.umockdev import Testbed
from tests.support.waiting import until

CASES: dict[str, Callable[[], Awaitable[None]]] = {}
DRIVER = "gpu.nvidia.com"
GPU, SMALL, LARGE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
GPUS = [machines.GPU_UUID.format(index) for index in range(4)]  # the first two are divided
DIVIDED = ((9, "1g.10gb", 0), (10, "1g.10gb", 1))
FOR_CLAIMS, FOR_PODS = ({mig_uuid(gpu, gi) for gi, _, _ in DIVIDED} for gpu in (0, 1))
ALL = (*GPUS[2:], *sorted(FOR_CLAIMS | FOR_PODS))
SAFETY = "safety: {minHoldSeconds: 0.4, unconfirmedSeconds: 2, absentSeconds: 0.4, settleSeconds: 1}\n"


def case(function: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    CASES[function.__name__] = function
    return function


class Node:
    """The GPUs' node, and what is asked of it."""

    def __init__(self, bed: Testbed, standin: StandIn, agent: AgentProcess, cluster: SimCluster) -> None:
        self.bed, self.standin, self.agent, self.cluster = bed, standin, agent, cluster
        self.runtime: LockingRuntime

    def divide(self, gpu: int, *instances: tuple[int, str, int]) -> None:
        """What nvidia-smi mig does: instances by number, profile and first memory slice."""
        minor = self.bed.root / f"proc/driver/nvidia/capabilities/gpu{gpu}"
        shutil.rmtree(minor, ignore_errors=True)
        capabilities(self.bed.root / "proc", [(gpu, gi, 0) for gi, _, _ in instances])
        self.standin.mig(gpu, *instances)

    async def generated(self, uuids: Iterable[str]) -> None:
        """What nvidia-ctk cdi generate does, each device by a number and by its UUID; the agent has seen it."""
        uuids = list(uuids)
        self.agent.cdi.mkdir(exist_ok=True)
        write_spec(self.agent.cdi / "nvidia.yaml", *(one for pair in enumerate(uuids) for one in map(str, pair)), "all")

        async def seen() -> bool:
            return {f"{KIND}={uuid}" for uuid in uuids} >= await self.names() > set() and not await self.lacking()

        await until(seen, 10, self.agent.text)

    def ids(self, resource: str) -> set[str]:
        """Ids of a resource that a pod can have."""
        return ids(self.cluster, resource)

    async def pod(self, manifest: str, name: str) -> str:
        """Create a pod and return its UID when it runs."""
        await self.cluster.apply(manifest)
        await self.cluster.wait_pod(name)
        return str(self.cluster.get("pods", name)["metadata"]["uid"])  # type: ignore[index]

    def given(self, uid: str) -> tuple[str, ...]:
        """The CDI names of others with which a pod's container was started."""
        names = self.runtime.running[uid, "main"].cdi_devices
        return tuple(name for name in names if not name.startswith((DRIVER, f"k8s.{DRIVER}")))

    def health(self, uid: str) -> dict[str, Any]:
        """What the pod's status says of its one device."""
        (entry,) = self.cluster.kubelets["node-a"].allocated_resources_status(uid)["main"]
        (found,) = entry["resources"]
        return dict(found)

    def device(self, uid: str) -> str:
        """The id of the device that a pod with limits has."""
        ((_, id_),) = self.runtime.running[uid, "main"].device_ids
        return id_

    async def names(self, resource: str = "") -> set[str]:
        """CDI names of a resource's devices, or of all, as status has them."""
        rows = (await self.agent.status())["devices"]
        return {name for row in rows if resource in ("", row["resource"]) for name in row.get("cdiDevices", ())}

    async def lacking(self) -> bool:
        """Whether the fallback is given for any device."""
        return any("cdiFallback" in note for note in (await self.agent.status())["notes"])


@contextlib.asynccontextmanager
async def node() -> AsyncIterator[Node]:
    """Four GPUs, two of them divided; the first of each two is for claims, the second for pods with limits."""
    numbers = {n for gpu in (0, 1, 3) for gi in (1, 2, 9, 10) for n in (cap(gpu, gi), cap(gpu, gi, 0))}
    caps = [
        machines.device(
            f"/devices/virtual/fakenodes/cap{n}", "fakenodes", node=f"nvidia-caps/nvidia-cap{n}",
            attributes={"dev": f"237:{n}"},
        )
        for n in sorted(numbers)
    ]  # fmt: skip
    bed = Testbed(machines.tree([machines.eight_gpus(), machines.gpu_node("nvidia-uvm", 9), *caps]))
    os.environ["UMOCKDEV_DIR"] = str(bed.root)  # libumockdev tells the C library only; the agent is a child of Python
    for index in range(4, 8):
        bed.remove(machines.gpu_path(index))
    machines.nvidia_proc(bed.root / "proc", 4)
    capabilities(bed.root / "proc", [(gpu, gi, 0) for gpu in (0, 1) for gi, _, _ in DIVIDED])
    with tempfile.TemporaryDirectory(prefix="nvml") as folder:
        standin = StandIn(Path(folder), 4)
        for gpu in (0, 1):
            standin.mig(gpu, *DIVIDED)
        text = (EXAMPLES / "nvidia-mig.yaml").read_text().replace('{legacy: "*", dra: 0}', '{legacy: "*", dra: "50%"}')
        text = text.replace("resources:\n", f"{SAFETY}{_settings(folder, standin)}resources:\n", 1)
        async with bridge(text, driver=DRIVER) as (agent, cluster, runtime):
            here = Node(bed, standin, agent, cluster)
            here.runtime = runtime
            for resource in load(text).resources:
                wanted = resource.device_class
                assert wanted is not None
                await cluster.apply(_class(wanted.name, wanted.selector))
            await until(lambda: here.ids(SMALL) == FOR_PODS and here.ids(GPU) == {GPUS[3]}, 30, agent.text)
            await until(lambda: len(published(cluster)) == 3, 10, agent.text)
            yield here


def _settings(folder: str, standin: StandIn) -> str:
    """Where the driver's libraries are: its own tree, and the stand-in."""
    libraries(Path(folder), "/usr/lib64", version=machines.DRIVER_VERSION)
    return f"nvidia: {{library: {standin.library}, hostRoot: {folder}}}\n"


def _class(name: str, selector: str | None) -> str:
    spec = {"selectors": [{"cel": {"expression": selector}}]}
    return json.dumps(
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
    )


def claim_pod(name: str, device_class: str, *selectors: str) -> str:
    """A claim for one device, and a pod with it."""
    request = {"deviceClassName": device_class, "selectors": [{"cel": {"expression": one}} for one in selectors]}
    return claim_and_pod(name, {"requests": [{"name": "r", "exactly": request}]})


PROFILE = f"device.attributes['{DRIVER}'].profile == '1g.10gb'"


@case
async def pods_and_claims_get_gpus_and_instances_by_their_names_in_nvidias_cdi_file() -> None:
    async with node() as here:
        agent = here.agent
        # There is no file yet: containers get the node's own paths.
        first = await here.pod(limits_pod("first", SMALL), "first")
        assert here.given(first) == ()
        nodes = {node["path"] for one in _own(agent) for node in one["containerEdits"].get("deviceNodes", ())}
        gi = next(gi for gi, _, _ in DIVIDED if mig_uuid(1, gi) == here.device(first))
        caps = {f"/dev/nvidia-caps/nvidia-cap{n}" for n in (cap(1, gi), cap(1, gi, 0))}
        assert nodes == {"/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", *caps}

        await here.generated(ALL)
        second = await here.pod(limits_pod("second", SMALL), "second")
        assert here.given(second) == (f"{KIND}={here.device(second)}",)
        whole = await here.pod(limits_pod("whole", GPU), "whole")
        assert here.given(whole) == (f"{KIND}={GPUS[3]}",)
        instance = await here.pod(claim_pod("mig", "mig.nvidia.com", PROFILE), "mig")
        (name,) = here.given(instance)
        assert name.removeprefix(f"{KIND}=") in FOR_CLAIMS
        gpu = await here.pod(claim_pod("gpu", "gpu.nvidia.com"), "gpu")
        assert here.given(gpu) == (f"{KIND}={GPUS[2]}",)


def _own(agent: AgentProcess) -> list[dict[str, Any]]:
    """The entries of the agent's own CDI files."""
    return [one for path in agent.cdi.glob(f"{DRIVER}*.json") for one in json.loads(path.read_text())["devices"]]


@case
async def an_xid_of_an_instance_costs_the_others_nothing() -> None:
    async with node() as here:
        agent, cluster = here.agent, here.cluster
        await here.generated(ALL)
        pod = await here.pod(limits_pod("a", SMALL), "a")
        claim = await here.pod(claim_pod("c", "mig.nvidia.com", PROFILE), "c")
        of_pod, name = here.device(pod), here.given(claim)[0]
        of_claim = name.partition("=")[2]
        for count, (gpu, uuid) in enumerate(((1, of_pod), (0, of_claim)), 1):
            (gi,) = (gi for gi, _, _ in DIVIDED if mig_uuid(gpu, gi) == uuid)
            here.standin.event(gpu, 31, gi, 0)  # the application's own fault
            here.standin.event(gpu, 95, gi, 0)
            await until(partial(_counted, agent, count), 10, agent.text)
        await until(lambda: here.ids(SMALL) == FOR_PODS - {of_pod}, 5, agent.text)
        assert here.health(pod) == {"resourceID": of_pod, "health": "Unhealthy"}
        await until(lambda: here.health(claim)["health"] == "Unhealthy", 5, lambda: str(here.health(claim)))
        assert here.health(claim) == {"resourceID": name, "health": "Unhealthy", "message": "XID 95"}
        await until(lambda: _tainted(cluster), 5, agent.text)
        assert _tainted(cluster) == {of_claim.lower(): [("xid-95", "NoSchedule")]}
        assert here.ids(GPU) == {GPUS[3]}
        for one in ("a", "c"):
            assert cluster.get("pods", one)["status"]["phase"] == "Running"  # type: ignore[index]


async def _counted(agent: AgentProcess, count: int) -> bool:
    return await metric(agent, "nvml_xids_total", xid="95") == count


def _tainted(cluster: SimCluster) -> dict[str, list[tuple[str, str]]]:
    return {
        name: [(taint["value"], taint["effect"]) for taint in device["taints"]]
        for name, device in published(cluster).items()
        if device.get("taints")
    }


@case
async def instances_that_others_make_and_remove_are_followed_without_a_resync() -> None:
    async with node() as here:
        agent, halves = here.agent, {mig_uuid(3, 1), mig_uuid(3, 2)}
        await here.generated(ALL)
        pod = await here.pod(limits_pod("a", SMALL), "a")
        held = here.device(pod)
        # The last GPU is divided; of the second one all that nobody holds is removed.
        here.divide(3, (1, "3g.40gb", 0), (2, "3g.40gb", 4))
        (gone,) = (gi for gi, _, _ in DIVIDED if mig_uuid(1, gi) != held)
        here.divide(1, *(one for one in DIVIDED if one[0] != gone))
        await until(lambda: here.ids(GPU) == set(), 10, agent.text)
        await until(lambda: here.ids(LARGE) == halves or set(published(here.cluster)) > halves, 10, agent.text)
        await until(lambda: here.ids(SMALL) == {held}, 10, agent.text)
        assert not await here.names(LARGE), "nobody has generated the file anew: they would get the fallback"
        await here.generated([*ALL, *halves])
        assert await here.names(LARGE) == {f"{KIND}={uuid}" for uuid in halves}
        assert here.cluster.get("pods", "a")["status"]["phase"] == "Running"  # type: ignore[index]


@case
async def while_nvidias_manager_is_at_work_nvml_is_let_go_and_nobody_new_gets_a_device() -> None:
    """Else the driver is in use when the manager unloads it, and pods begin on GPUs that are being divided."""
    async with node() as here:
        agent, cluster = here.agent, here.cluster
        await here.generated(ALL)
        held = here.device(await here.pod(limits_pod("a", SMALL), "a"))
        claim = await here.pod(claim_pod("c", "mig.nvidia.com", PROFILE), "c")
        before, pid = published(cluster), nvml_worker(agent)
        assert pid
        label(cluster, **{"nvidia.com/gpu.deploy.device-plugin": "paused-for-mig-change"})
        await until(lambda: here.ids(SMALL) == {held} and here.ids(GPU) == set(), 10, agent.text)
        await until(lambda: not nvml_worker(agent), 10, agent.text)
        await until(lambda: _tainted(cluster) == {name: [("paused", "NoSchedule")] for name in before}, 10, agent.text)
        assert here.health(claim)["health"] == "Healthy", "who has a device keeps it"
        assert any("paused-for-mig-change" in note for note in (await agent.status())["notes"])
        assert (await agent.ask("/readyz"))[0] == 200
        await cluster.apply(claim_pod("d", "gpu.nvidia.com"))
        label(cluster, **{"nvidia.com/gpu.deploy.device-plugin": "true", "nvidia.com/mig.config.state": "rebooting"})
        await asyncio.sleep(1)
        assert (here.ids(GPU), nvml_worker(agent)) == (set(), 0)
        assert cluster.get("pods", "d")["status"].get("phase") == "Pending"  # type: ignore[index]
        # What the manager made is found when it is done.
        here.divide(3, (1, "3g.40gb", 0))
        label(cluster, **{"nvidia.com/mig.config.state": "success"})
        await until(lambda: here.ids(LARGE) | set(published(cluster)) >= {mig_uuid(3, 1)}, 20, agent.text)
        await until(lambda: here.ids(SMALL) == FOR_PODS and _tainted(cluster) == {}, 10, agent.text)
        assert nvml_worker(agent) not in (0, pid)
        await cluster.wait_pod("d")


def label(cluster: SimCluster, **labels: str) -> None:
    """Set labels of the Node, as a manager does."""
    cluster.api.objects.modify("nodes", "node-a", lambda one: one["metadata"].setdefault("labels", {}).update(labels))


@case
async def commands_show_what_containers_get_and_of_which_gpu_an_instance_is() -> None:
    async with node() as here:
        config = ("-c", str(here.agent.config))
        code, text = await _command("devices", *config)
        assert code == 0, text
        rows = {line.split()[1]: line.split()[3] for line in text.splitlines() if line.startswith("nvidia.com/")}
        caps = ",".join(f"/dev/nvidia-caps/nvidia-cap{n}" for n in (cap(0, 9), cap(0, 9, 0)))
        assert rows[mig_uuid(0, 9).lower()] == f"/dev/nvidia0,/dev/nvidiactl,/dev/nvidia-uvm,{caps}"
        assert f"note: {GPU}: cdiFallback is given, because CDI device {KIND}=" in text
        code, text = await _command("match", *config)
        assert code == 0, text
        instances = [f"{machines.gpu_address(gpu)}/gi{gi}-ci0" for gpu in (0, 1) for gi in (9, 10)]
        assert [line.split()[2] for line in text.splitlines() if "nvidia-mig" in line] == instances


async def _command(*words: str) -> tuple[int, str]:
    """Exit status and all output of a command."""
    code, out, err = await forks.said("-m", "drabridge", *words)
    return code, out + err


def main() -> None:
    if "umockdev" not in os.environ.get("LD_PRELOAD", ""):
        raise SystemExit("run this under umockdev-wrapper")
    asyncio.run(CASES[sys.argv[1]]())  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
