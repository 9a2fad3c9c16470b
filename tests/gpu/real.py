"""A real node of this machine with its GPU: the agent is a process of the node, its containers run ``kernel.py``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import sysconfig
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from drabridge.kube.client import KubernetesCluster
from tests.cluster.__main__ import cluster as started
from tests.cluster.bed import CLASSES, MANAGER, Json, wait_for
from tests.cluster.other_plugins import plugin
from tests.cluster.real_bed import RealBed
from tests.cluster.sim_bed import device_classes
from tests.gpu.stand_ins import UUID, VARIABLE, StandInTools, compiled
from tests.gpu.steps import DRA_DRIVER, Ground, SkipStep, config, devices, served
from tests.node import images
from tests.node.cluster import OF_MACHINES, Cluster
from tests.node.errors import NodeError
from tests.node.machine import Machine
from tests.support.agent_process import AgentProcess, python_path
from tests.support.cdi_files import KIND

ROOT = Path(__file__).resolve().parents[2]
KUBELET = "/var/lib/kubelet"
CDI_FILE = "/etc/cdi/nvidia.yaml"
DRIVER_ROOT = "/tmp/nvidia-driver"
USUAL = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/lib/x86_64-linux-gnu")
"""Where NVIDIA's DRA driver looks for the driver's libraries (root.go)."""
PATIENCE_SECONDS = 45.0  # ten minutes are all that there may be
DRIVER_FILE = Path("/proc/driver/nvidia/version")


class NodeAgent(AgentProcess):
    """An agent among the programs of a machine of ``tests.node``."""

    def __init__(self, folder: Path, machine: Machine, settings: Json, kubeconfig: Path) -> None:
        super().__init__(folder, yaml.safe_dump(settings), settings["driver"], ("--kubeconfig", str(kubeconfig)))
        self.machine = machine
        self.log = machine.log("agent")
        self.log.touch()

    @property
    def control(self) -> Path:
        return self.machine.path(f"{KUBELET}/plugins/{self.driver}/control.sock")

    async def start(self) -> None:
        words = ("run", "--config", str(self.config), "--node-name", self.machine.name, "--listen", "127.0.0.1:0")
        boot = ("--boot-id-file", "/run/boot_id")  # tests/node/boot.sh
        command = ["env", f"PYTHONPATH={python_path()}", sys.executable, "-m", "drabridge", *words, *boot]
        await asyncio.to_thread(self.machine.start, "agent", [*command, *self.arguments])

    async def stop(self, number: int = signal.SIGTERM) -> int:
        await asyncio.to_thread(self.machine.stop, "agent", by=signal.Signals(number))
        return 0


class GpuBed(RealBed):
    """The real bed; the agent is a process, as the chart's pod sees NVIDIA's devices by NVIDIA's own runtime only."""

    def __init__(self, api: KubernetesCluster, node: str, settings: Json, agent: NodeAgent) -> None:
        super().__init__(api, node, node, settings)
        self.agent = agent
        self.patience = PATIENCE_SECONDS
        self.image = images.PYTHON

    async def classes(self) -> None:
        for one in device_classes(self.config):
            await self.api.apply(CLASSES, one, manager=MANAGER)

    async def install(self) -> None:
        await self.classes()
        await self.agent.start()

    async def ready(self) -> bool:
        with contextlib.suppress(OSError, TimeoutError, IndexError):
            return (await self.agent.ask("/readyz"))[0] == 200
        return False

    async def agent_story(self, last: int = 0) -> str:
        return self.agent.text()[-last:]


class Real(Ground):
    """``programs``: NVIDIA's, by name, as far as they are here."""

    bed: GpuBed

    def __init__(self, bed: GpuBed, made: Cluster, programs: dict[str, str]) -> None:
        self.bed, self.agent = bed, bed.agent
        self.machine = made.node()
        self.kubeconfig = made.kubeconfig
        self.cdi_file = self.machine.path(CDI_FILE)
        self.environment = dict(os.environ)
        self._programs = programs
        folder = made.folder / "gpu"
        folder.mkdir(exist_ok=True)
        self.kernel = Path(shutil.copy(Ground.kernel, folder))
        self.python = str(Path(sys.executable).resolve())
        self.volumes = {"kernel": str(folder), "python": sysconfig.get_path("stdlib")}

    def _program(self, name: str) -> str:
        if not self._programs.get(name):
            raise SkipStep(f"there is no {name} on this machine, and --{name} does not say where it is")
        return self._programs[name]

    def _hook(self) -> list[str]:
        path = self._programs.get("nvidia-cdi-hook")
        return [f"--nvidia-cdi-hook-path={path}"] if path else []

    @contextlib.asynccontextmanager
    async def other_driver(self) -> AsyncIterator[str]:
        program, root = self._program(DRA_DRIVER), await asyncio.to_thread(self._driver_root)
        options = [
            *self._hook(),
            f"--nvidia-driver-root={root}",
            f"--container-driver-root={root}",
            "--cdi-root=/run/cdi",
        ]
        words = [program, "--image-name=none", f"--node-name={self.machine.name}", f"--kubeconfig={self.kubeconfig}"]
        await self.bed.classes()
        await asyncio.to_thread(self.machine.start, DRA_DRIVER, [*words, *options])
        try:
            await wait_for(self.bed, f"slices of {DRA_DRIVER}: {self.machine.log(DRA_DRIVER)}", lambda: devices(self))
            yield DRA_DRIVER
        except AssertionError as error:
            log = self.machine.log(DRA_DRIVER).read_text(errors="replace")[-3000:]
            raise AssertionError(f"{error}\n{log}") from None
        finally:
            await asyncio.to_thread(self.machine.stop, DRA_DRIVER)

    def _driver_root(self) -> str:
        """Where NVIDIA's DRA driver finds the driver: "/", or a folder with what is elsewhere."""
        found = re.search(r"libnvidia-ml\.so\.1 .*=> (\S+)", self.machine.run(["ldconfig", "-p"]))
        folder = str(Path(found[1]).parent) if found else USUAL[0]
        if folder in USUAL:
            return "/"
        for here, there in ((folder, "usr/lib64"), (str(Path(shutil.which("nvidia-smi") or "/").parent), "usr/bin")):
            self.machine.run(["mkdir", "-p", f"{DRIVER_ROOT}/{there}"])
            self.machine.run(["mount", "--bind", here, f"{DRIVER_ROOT}/{there}"])
        return DRIVER_ROOT

    @contextlib.asynccontextmanager
    async def other_plugin(self) -> AsyncIterator[str]:
        strategies = ("--device-list-strategy=cdi-cri", "--device-discovery-strategy=nvml")
        options = (*strategies, "--container-driver-root=/", *self._hook())  # it finds the driver by ld.so's cache
        words = [*self.machine.beside(), self._program("nvidia-device-plugin"), *options]
        async with served(self, plugin(words), "nvidia-device-plugin") as name:
            yield name

    async def generate(self) -> str:
        options = ("cdi", "generate", f"--output={CDI_FILE}", "--device-name-strategy=uuid", *self._hook())
        words = [self._program("nvidia-ctk"), *options]
        await asyncio.to_thread(self.machine.run, words)
        return "nvidia-ctk"

    def pid(self) -> int:
        pid = self.machine.pid("agent")
        assert pid, "the agent does not run"
        return pid

    async def said(self, pod: str) -> str:
        return str(await self.bed.said(pod))


class RealWithoutGpu(StandInTools, Real):
    """A real node, and /dev/zero as its GPU."""

    def __init__(self, bed: GpuBed, made: Cluster) -> None:
        super().__init__(bed, made, {})
        self.library = compiled(Path(self.volumes["kernel"]))
        self.node = {"path": "/dev/gpu", "hostPath": "/dev/zero"}
        self.run_cdi = self.machine.path("/run/cdi")

    def nvml(self) -> Json:
        raise SkipStep("a stand-in for a GPU has no NVML here")


def check(stand_in: bool) -> None:
    """Raise NodeError where there is no driver, or where a node cannot see what it needs."""
    if not stand_in and not DRIVER_FILE.exists():
        raise NodeError(
            f"There is no NVIDIA driver here: {DRIVER_FILE} is missing. `--stand-in` tries all but CUDA and NVML, "
            "`--simulated` the steps alone."
        )
    for path in (ROOT, *map(Path, filter(None, python_path().split(os.pathsep))), Path(sys.prefix)):
        if any(path.is_relative_to(place) for place in OF_MACHINES):
            raise NodeError(f"{path}: a node has files of its own there. Move it, for example to /opt.")


def settings(stand_in: Path | None) -> Json:
    """The shipped profile; for a stand-in, with /dev/zero as the GPU and this library."""
    found = config()
    found["udevEvents"] = "kernel"
    if stand_in:
        (resource,) = found["resources"]
        values = {"productName": "stand-in", "uuid": UUID, "type": "gpu"}
        resource |= {
            "match": [{"subsystem": "mem", "sysname": "zero"}],
            "id": [UUID],
            "cdiDevices": [f"{KIND}={UUID}"],
            "cdiFallback": {
                "nodes": [{"from": "devnode", "as": "/dev/gpu"}],
                "mounts": [{"hostPath": str(stand_in), "containerPath": "/usr/lib/libcuda.so.1"}],
                "env": {VARIABLE: UUID},
            },
            "attributes": {name: {"value": value} for name, value in values.items()},
            "capacity": {},
            "health": [],
        }
    return found


@contextlib.asynccontextmanager
async def real_ground(release: str, programs: dict[str, str], *, stand_in: bool = False) -> AsyncIterator[Ground]:
    """A new node of this machine, with nothing on it. Everything ends with the block."""
    check(stand_in)
    before = dict(os.environ)
    without = {"KUBECONFIG": "", "DRABRIDGE_TEST_IMAGE": "none"}  # the agent is a process
    with started({**before, **without}, release) as variables:
        os.environ.update(variables)
        try:
            made = Cluster.open(Path(variables["DRABRIDGE_TEST_CLUSTER"]))
            made.import_image(images.write_python(made.folder / "images"))
            api = KubernetesCluster.from_kubeconfig(made.kubeconfig)
            try:
                wanted = settings(made.folder / "gpu/libcuda.so.1" if stand_in else None)
                agent = NodeAgent(made.folder, made.node(), wanted, made.kubeconfig)
                bed = GpuBed(api, made.spec.nodes[0].name, wanted, agent)
                ground = RealWithoutGpu(bed, made) if stand_in else Real(bed, made, programs)
                with contextlib.suppress(SkipStep):
                    await ground.generate()
                yield ground
            finally:
                api.close()
        finally:
            os.environ.clear()
            os.environ.update(before)
