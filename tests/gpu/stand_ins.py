"""Stand-ins: a GPU under umockdev with NVML's library, on the simulated node; and for CUDA's, on any node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from drabridge.sim.kubelet.pods import Container, PodSpec
from drabridge.sim.kubelet.runtime import RunOptions
from tests.cluster.bed import NAMESPACE, PODS, Json
from tests.cluster.other_plugins import plugin, plugins
from tests.cluster.sim_bed import Locks, SimBed, simulated
from tests.gpu.steps import GPU, HELD_MIB, Ground, config, served
from tests.support import machines
from tests.support.agent_process import cdi_devices
from tests.support.cdi_files import KIND, device, write_spec
from tests.support.nvml import COMPILER, StandIn
from tests.support.umockdev import Testbed, tree

UUID = "GPU-00000000-1111-2222-3333-444444444444"
PLUGIN_KIND = "k8s.device-plugin.nvidia.com/gpu"
VARIABLE = "STANDIN_GPU"  # libcuda.c's
INFORMATION = f"""\
Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 41
GPU UUID: \t {UUID}
Video BIOS: \t 96.00.da.00.0c
Bus Type: \t PCIe
Bus Location: \t 0000:00:06.0
Device Minor: \t 0
GPU Firmware: \t 580.159.04
GPU Excluded:\t No
"""
VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version:\n"
IDLE_BYTES = 503316480


def compiled(folder: Path) -> Path:
    """CUDA's library, of ``libcuda.c``."""
    library = folder / "libcuda.so.1"
    options = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libcuda.so.1")
    source = Path(__file__).with_name("libcuda.c")
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run([COMPILER or "gcc", *options, "-o", library, source], check=True, env=environment)
    return library


class StandInTools(Ground):
    """NVIDIA's programs as files and a plugin of ours. ``library``: that of :func:`compiled`; ``node``: the GPU's."""

    library: Path
    node: Json
    run_cdi: Path
    """Where the plugin writes its file."""

    @contextlib.asynccontextmanager
    async def other_plugin(self) -> AsyncIterator[str]:
        self._write(self.run_cdi / "k8s.device-plugin.nvidia.com-gpu.json", PLUGIN_KIND)
        words = [sys.executable, "-m", "tests.cluster.peer", f"--cdi={PLUGIN_KIND}", str(plugins(self.bed)), GPU, UUID]
        async with served(self, plugin(words), "a stand-in for NVIDIA's plugin") as name:
            yield name

    async def generate(self) -> str:
        self._write(self.cdi_file, KIND)
        return "a stand-in for nvidia-ctk"

    def _write(self, path: Path, kind: str) -> None:
        mounts = [{"hostPath": str(self.library), "containerPath": "/usr/lib/libcuda.so.1", "options": ["ro", "bind"]}]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_spec(path, device(UUID, deviceNodes=[self.node], env=[f"{VARIABLE}={UUID}"], mounts=mounts), kind=kind)


class Containers(Locks):
    """Runs ``kernel.py`` when a container starts, with what CDI files bring into it: the library and the variable."""

    def __init__(self, locks: Path, cdi: Path, nvml: StandIn) -> None:
        super().__init__(locks, cdi)
        self.said: dict[str, str] = {}
        """By a pod's UID."""
        self._nvml = nvml

    async def start_container(self, pod: PodSpec, container: Container, options: RunOptions) -> None:
        await super().start_container(pod, container, options)
        words = ("fault",) if pod.name == "fault" else ("run", "0")
        edits = [
            one["containerEdits"]
            for one in cdi_devices(self._cdi)
            if f"{one['kind']}={one['name']}" in options.cdi_devices
        ]
        environment = dict(text.split("=", 1) for one in edits for text in one.get("env", ()))
        mounted = [Path(mount["hostPath"]) for one in edits for mount in one.get("mounts", ())]
        environment["LD_LIBRARY_PATH"] = ":".join(str(one.parent) for one in mounted if one.name == "libcuda.so.1")
        kernel = await asyncio.create_subprocess_exec(
            *(sys.executable, str(Ground.kernel), *words), env=environment, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await kernel.communicate()
        self.said[pod.uid] = out.decode()
        self._nvml.set(0, used=IDLE_BYTES + (HELD_MIB << 20))
        if words == ("fault",):
            self._nvml.event(0, 31)

    async def stop_container(self, pod_uid: str, container: str) -> None:
        self._nvml.set(0, used=IDLE_BYTES)
        await super().stop_container(pod_uid, container)


class Simulated(StandInTools):
    """On the simulated node."""

    def __init__(self, bed: SimBed, library: Path, standin: StandIn) -> None:
        self.bed, self.agent, self.library = bed, bed.agent, library
        self.runtime = bed.runtime
        self.node = {"path": "/dev/nvidia0"}
        self.run_cdi = bed.agent.cdi
        self.cdi_file = self.run_cdi / "nvidia.json"  # the simulated runtime reads JSON
        self.volumes = {}
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(standin.library.parent)}

    def pid(self) -> int:
        assert self.agent.process
        return self.agent.process.pid

    async def said(self, pod: str) -> str:
        found = await self.bed.api.get(PODS, pod, namespace=NAMESPACE)
        assert isinstance(self.runtime, Containers)
        return self.runtime.said.get(found["metadata"]["uid"], "")


@contextlib.asynccontextmanager
async def simulated_ground() -> AsyncIterator[Ground]:
    """The H100 that was recorded, on the simulated node. For a process under umockdev-wrapper."""
    fakes = [machines.gpu_node(name, minor) for name, minor in (("nvidia0", 0), ("nvidiactl", 255), ("nvidia-uvm", 9))]
    bed = Testbed(machines.tree([tree("nvidia-h100"), *fakes]))
    os.environ["UMOCKDEV_DIR"] = str(bed.root)  # libumockdev tells the C library only; the agent is a child of Python
    proc = bed.root / "proc/driver/nvidia"
    (proc / "gpus/0000:00:06.0").mkdir(parents=True)
    (proc / "gpus/0000:00:06.0/information").write_text(INFORMATION)
    (proc / "version").write_text(VERSION)
    with tempfile.TemporaryDirectory(prefix="gpu") as folder:
        standin, library = StandIn(Path(folder)), compiled(Path(folder))
        standin.set("-", driver="580.159.04")
        standin.set(0, uuid=UUID, pci="00000000:00:06.0", minor=0, used=IDLE_BYTES)
        settings = config()
        settings["nvidia"] = {"library": str(standin.library)}
        fallback = settings["resources"][0]["cdiFallback"]
        fallback.pop("driverFiles", None)  # the stand-in's own library
        fallback["mounts"] = [{"hostPath": str(library)}]
        fallback["env"] = {VARIABLE: "{nvidia.uuid}"}
        containers = lambda locks, cdi: Containers(locks, cdi, standin)  # noqa: E731
        async with simulated(settings, containers=containers) as cluster:
            ground = Simulated(cluster, library, standin)
            await ground.generate()
            yield ground
