"""The simulated cluster, with the agent as a process of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import yaml

from deploy import helm
from drabridge.kube.api import Kind
from drabridge.kube.client import KubernetesCluster
from drabridge.sim.cluster import ClusterTimings, SimCluster
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Container, PodSpec
from drabridge.sim.kubelet.runtime import ContainerStartError, MemoryRuntime, RunOptions, names_of_devices
from drabridge.sim.kubelet.timings import Timings
from drabridge.sim.releases import DEFAULT
from tests.cluster.bed import (
    CLASSES,
    CONFIG,
    DEVICES,
    DRIVER,
    JOBS,
    MANAGER,
    NAMESPACE,
    NAMESPACES,
    PODS,
    RESOURCE,
    SLICES,
    Bed,
    Json,
    Settings,
    wait_for,
)
from tests.cluster.real_bed import LABELS, page_of
from tests.cluster.workloads import LOOKING, SHARED
from tests.support import forks
from tests.support.agent_process import AgentProcess, cdi_devices
from tests.support.waiting import PATIENCE, short_directory

NODE = "node-a"


class Locks(MemoryRuntime):
    """Runs no program, but takes the lock that the workload's program would take, for as long as it would.

    Like a container runtime, and unlike its base, it reads the files of ``cdi`` when it starts a container.
    """

    def __init__(self, directory: Path, cdi: Path) -> None:
        super().__init__()
        self.conflicts: list[str] = []
        self.devices: list[tuple[str, str]] = []  # of each start: the pod's UID, a device in the container
        self._directory = directory
        self._cdi = cdi
        self._held: dict[tuple[str, str], list[int]] = {}

    async def start_container(self, pod: PodSpec, container: Container, options: RunOptions) -> None:
        claims = tuple(claim.claim_name for claim in pod.resource_claims)
        shared = any(name.startswith(SHARED) for name in claims)
        looking = any(name.startswith(LOOKING) for name in claims)
        nodes = self._nodes(options)
        held = self._held.setdefault((pod.uid, container.name), [])
        for device in () if looking else map(str.lower, names_of_devices(options)):
            descriptor = os.open(self._directory / device, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            held.append(descriptor)
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                self.conflicts.append(f"{pod.name}: device {device} is taken")
                self._close(pod.uid, container.name)
                raise ContainerStartError(self.conflicts[-1]) from None
        self.devices += [(pod.uid, name) for name in nodes]
        await super().start_container(pod, container, options)

    def _nodes(self, options: RunOptions) -> list[str]:
        """Devices by the nodes that CDI files make in the container. Raises ContainerStartError as containerd would."""
        devices = cdi_devices(self._cdi)
        edits = {f"{device['kind']}={device['name']}": device["containerEdits"] for device in devices}
        found = []
        for name in options.cdi_devices:
            if name not in edits:
                raise ContainerStartError(f"CDI device injection failed: unresolvable CDI devices {name}")
            found += [node["path"] for node in edits[name].get("deviceNodes", ())]
        return sorted(path.removeprefix("/dev/test-") for path in found if path.startswith("/dev/test-"))

    async def stop_container(self, pod_uid: str, container: str) -> None:
        self._close(pod_uid, container)
        await super().stop_container(pod_uid, container)

    def _close(self, pod_uid: str, container: str) -> None:
        for descriptor in self._held.pop((pod_uid, container), []):
            os.close(descriptor)


class SimBed(Bed):
    def __init__(self, root: Path, cluster: SimCluster, runtime: Locks, config: Json = CONFIG) -> None:
        self.cluster = cluster
        self.runtime = runtime
        self.config = config
        self.node = self.node_object = NODE
        self.workload_kinds: tuple[Kind, ...] = (JOBS,)
        self.image = "busybox"
        self.patience = self.reboot_patience = 30.0 * PATIENCE
        self.decides_order = True
        self.runs_programs = False
        self._root = root
        self.kubeconfig = cluster.api.kubeconfig(root / "kubeconfig")
        self.api = KubernetesCluster.from_kubeconfig(self.kubeconfig)
        driver = config["driver"]
        token = cluster.api.token(NODE, drivers=frozenset({driver}))
        self._boot_id = root / "boot_id"
        self._boot_id.write_text(str(uuid.uuid4()))
        kubeconfig = cluster.api.kubeconfig(root / "agent-kubeconfig", token=token)
        arguments = ("--kubeconfig", str(kubeconfig), "--boot-id-file", str(self._boot_id))
        self.agent = AgentProcess(root / NODE, yaml.safe_dump(config), driver, arguments)

    @property
    def kubelet_directory(self) -> Path | None:
        return self._root / NODE

    async def install(self) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": LABELS}}
        for kind, obj in [(NAMESPACES, namespace), *((CLASSES, one) for one in device_classes(self.config))]:
            await self.api.apply(kind, obj, manager=MANAGER)
        self._node_timings.slice_wipe_seconds = Timings().slice_wipe_seconds * PATIENCE  # an upgrade has to fit in
        await self.agent.start()

    @property
    def _node_timings(self) -> Timings:
        return self.cluster.kubelets[NODE].node.timings

    async def ready(self) -> bool:
        with contextlib.suppress(OSError, TimeoutError, IndexError):
            return (await self.agent.ask("/readyz"))[0] == 200
        return False

    async def not_ready(self) -> str:
        with contextlib.suppress(OSError, TimeoutError, IndexError):
            code, body = await self.agent.ask("/readyz")
            return "" if code == 200 else body.decode()
        return ""

    async def kill_agent(self) -> None:
        await self.agent.stop(signal.SIGKILL)
        await self.agent.start()

    async def upgrade(self) -> None:
        assert await self.agent.stop() == 0
        await self.agent.start()
        await self.agent.ready()

    async def restart_kubelet(self) -> None:
        """As it was observed: an agent that is there when kubelet starts is back before the pods arrive."""
        kubelet = self.cluster.kubelets[NODE]
        async with _pods_come_after_the_list(kubelet):
            await kubelet.restart()

    async def configure(self, settings: Settings) -> Settings:
        pytest.skip("a simulated cluster has other settings from its beginning only")

    async def fault(self, verb: str, part: str) -> None:
        kubelet, faults = self.cluster.kubelets[NODE], self.cluster.api.faults
        match verb, part:
            case "stop" | "kill", "kubelet":
                await kubelet.stop()
            case "start", "kubelet":
                async with _pods_come_after_the_list(kubelet):
                    await kubelet.start()
            case "restart", "kubelet":
                await self.restart_kubelet()
            case "stop" | "kill", "apiserver":
                faults.partition()
            case "start", "apiserver":
                faults.heal()
            case _:
                pytest.skip(f"the simulated cluster has no {part} that one can {verb}")

    async def reboot(self, *, agent_first: bool) -> None:
        """Every process is gone and so is /run; the disk and the API server's objects are as they were."""
        kubelet = self.cluster.kubelets[NODE]
        await self.agent.stop(signal.SIGKILL)
        await kubelet.stop()
        for uid, container in list(self.runtime.running):
            await self.runtime.stop_container(uid, container)
        shutil.rmtree(self.agent.cdi, ignore_errors=True)
        self._boot_id.write_text(str(uuid.uuid4()))
        if agent_first:
            await self.agent.start()
            await wait_for(self, "the agent to know its devices", self._knows_devices)
            async with _pods_come_after_the_list(kubelet):
                await kubelet.reboot()
        else:
            await kubelet.reboot()
            await kubelet.process.sources_ready.wait()  # every pod was admitted again, or was not
            await self.agent.start()

    async def _knows_devices(self) -> bool:
        with contextlib.suppress(OSError, TimeoutError, IndexError):
            return len((await self.agent.status())["devices"]) == DEVICES
        return False

    async def devices(self, pod: str) -> list[str]:
        wanted = (await self.api.get(PODS, pod, namespace=NAMESPACE))["metadata"]["uid"]
        return [device for uid, device in self.runtime.devices if uid == wanted]

    async def force_delete(self, pod: str) -> None:
        await self.cluster.delete("pods", pod, NAMESPACE, force=True)

    async def workload_pods(self) -> list[Json]:
        return list((await self.api.list(PODS, namespace=NAMESPACE)).items)

    async def said(self, pod: str, container: str = "") -> None:
        return None

    async def restarted(self, pod: str) -> bool:
        return len(await self.devices(pod)) > 1

    async def uninstall(self) -> None:
        self._node_timings.slice_wipe_seconds = 1.0  # nobody wants to wait half a minute
        assert await self.agent.stop() == 0, self.agent.text()
        for obj in device_classes(self.config):
            await self.api.delete(CLASSES, obj["metadata"]["name"])

    async def left_behind(self) -> list[str]:
        slices = await self.api.list(SLICES, field_selector=f"spec.driver={DRIVER}")
        found = [f"ResourceSlice {item['metadata']['name']}" for item in slices.items]
        published = self.cluster.kubelets[NODE].published_node_status["allocatable"]
        names = [one["name"] for one in self.config["resources"]]
        found += [f"allocatable {published[name]}" for name in names if published.get(name)]
        root = self.agent.root
        ours = [*(root / "plugins_registry").glob("[!.]*"), *(root / "plugins" / DRIVER).glob("*.sock")]
        ours += [path for path in (root / "device-plugins").glob("*.sock") if path.name != "kubelet.sock"]
        return found + [str(path.relative_to(root)) for path in ours]

    async def files_left(self) -> list[str]:
        root = self.agent.root
        found = [*(root / "plugins" / DRIVER).rglob("*"), *self.agent.cdi.glob("*")]
        found += (root / "plugins_registry").iterdir()
        return [str(path.relative_to(root)) for path in found if not path.is_dir()]

    async def page(self, path: str = "/", host: str = "localhost") -> tuple[int, str]:
        found = re.findall(r"address=127\.0\.0\.1:(\d+)", self.agent.text())
        reader, writer = await asyncio.open_connection("127.0.0.1", int(found[-1]))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        try:
            return page_of(await asyncio.wait_for(reader.read(), self.patience))
        finally:
            writer.close()

    async def drabridge(self, *words: str) -> tuple[int, str]:
        return await self._command(*words, "--socket", str(self.agent.control))

    async def uninstall_check(self) -> tuple[bool, str]:
        spec = helm.one(helm.hooks({"config": self.config}), "Job")["spec"]["template"]["spec"]
        token = self.cluster.api.token(NODE, account=spec["serviceAccountName"])
        kubeconfig = self.cluster.api.kubeconfig(self.agent.root / "check.kubeconfig", token=token)
        code, said = await self._command(*spec["containers"][0]["args"], "--kubeconfig", str(kubeconfig))
        return code == 0, said

    @staticmethod
    async def _command(*words: str) -> tuple[int, str]:
        code, out, _ = await forks.said("-m", "drabridge", *words)
        return code, out

    async def conflicts(self) -> list[str]:
        return self.runtime.conflicts

    async def agent_story(self, last: int = 0) -> str:
        try:
            known = json.dumps(await self.agent.status(), indent=1)
        except (OSError, TimeoutError, IndexError) as error:
            known = f"the agent does not answer: {error}"
        return f"{known}\n{self.agent.text()[-last:]}"


@contextlib.asynccontextmanager
async def _pods_come_after_the_list(kubelet: SimKubelet) -> AsyncIterator[None]:
    """The agent wins: kubelet has read its list before it admits a pod again."""

    def lists() -> int:
        return len(kubelet.calls.of("ListAndWatchResponse", RESOURCE))

    before = lists()
    kubelet.faults.pods_arrive.clear()
    try:
        yield
        await kubelet.wait_for(lambda: lists() > before, what="the agent's list")
    finally:
        kubelet.faults.pods_arrive.set()


def device_classes(config: Json) -> list[Json]:
    """What the chart makes of the configuration."""
    found = []
    for resource in config["resources"]:
        expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].resource == '{resource['name']}'"
        selector = resource["deviceClass"].get("selector", expression)
        spec: Json = {"selectors": [{"cel": {"expression": selector}}]}
        if extended := resource["deviceClass"].get("extendedResourceName"):
            spec["extendedResourceName"] = extended
        metadata = {"name": resource["deviceClass"]["name"]}
        found.append({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata, "spec": spec})
    return found


@contextlib.asynccontextmanager
async def simulated(
    config: Json = CONFIG,
    gates: Mapping[str, bool] | None = None,
    release: str = DEFAULT,
    containers: Callable[[Path, Path], Locks] = Locks,
) -> AsyncIterator[SimBed]:
    """``containers``: of the folders of locks and of CDI files, what starts them."""
    with short_directory() as root:
        (root / "locks").mkdir()
        runtime = containers(root / "locks", root / NODE / "cdi")
        timings = ClusterTimings.fast()
        async with SimCluster(
            root, release=release, gates=gates, timings=timings, runtime=lambda _: runtime
        ) as cluster:
            bed = SimBed(root, cluster, runtime, config)
            try:
                yield bed
            finally:
                if bed.agent.process is not None:
                    await bed.agent.stop(signal.SIGKILL)
                bed.api.close()
