"""A node of GPUs under umockdev: a real agent, a simulated kubelet, and the stand-in for NVIDIA's library."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from drabridge.sim.kubelet.kubelet import SimKubelet
from tests.support import machines
from tests.support.agent_process import AgentProcess, node
from tests.support.nvml import StandIn
from tests.support.umockdev import Testbed

RESOURCE = "nvidia.com/gpu"
DRIVER = "gpu.example.com"
CONFIG = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
udevEvents: kernel
nvidia: {{nvml: NVML, library: LIBRARY}}
resources:
- name: {RESOURCE}
  match: [{{subsystem: pci, driver: nvidia, attr: {{vendor: "0x10de", class: "0x0302*"}}}}]
  id: ["{{nvidia.uuid}}"]
  nodes: [{{path: "/dev/nvidia{{nvidia.minor}}"}}, {{path: /dev/nvidiactl}}]
  health: [{{nodeExists: true}}, {{nvml: true}}]
  attributes: {{productName: {{from: nvidia.model}}}}
"""


@contextlib.asynccontextmanager
async def gpu_node(*, nvml: bool = True, files: bool = True) -> AsyncIterator[tuple[StandIn, AgentProcess, SimKubelet]]:
    """A node of eight GPUs whose agent is ready. ``files``: the driver's, without which NVML alone knows UUIDs."""
    bed = Testbed(machines.eight_gpus())
    os.environ["UMOCKDEV_DIR"] = str(bed.root)  # libumockdev tells the C library only; the agent is a child of Python
    if files:
        machines.nvidia_proc(bed.root / "proc")
    with tempfile.TemporaryDirectory(prefix="nvml") as folder:
        standin = StandIn(Path(folder), 8)
        text = CONFIG.replace("LIBRARY", str(standin.library)).replace("NVML", str(nvml).lower())
        async with node(text, DRIVER) as (agent, kubelet):
            await kubelet.wait_for_resource(RESOURCE, healthy=8, timeout=30)
            yield standin, agent, kubelet
