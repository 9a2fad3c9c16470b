"""A node of NVIDIA's plugin with time-slicing: ``umockdev-wrapper python -m tests.agent.umockdev_time_slicing``.

Started by test_examples.py. The agent is a process inside the test bed's /dev, /sys and /proc; the cluster is this
process.
"""

from __future__ import annotations

import asyncio
import os

from drabridge.config.import_nvidia_device_plugin import convert
from drabridge.sim.cluster import SimCluster
from tests.agent.umockdev_examples import driver_files, inside, nvidia
from tests.support import machines
from tests.support.agent_on_cluster import limits_pod, not_started
from tests.support.agent_process import RESOURCE, AgentProcess
from tests.support.umockdev import Testbed
from tests.support.waiting import until

THEIRS = """\
version: v1
flags: {migStrategy: none, plugin: {deviceListStrategy: envvar}}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources: [{name: nvidia.com/gpu, replicas: 4}]
"""
SHARED = "nvidia.com/gpu.shared"
LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",  # not -SHARED: the resource was renamed
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
    "nvidia.com/gpu.mode": "compute",
    "nvidia.com/cuda.driver-version.full": "580.95.05",
    "nvidia.com/cuda.driver-version.revision": "05",
}


async def check() -> None:
    bed = Testbed(nvidia())
    os.environ["UMOCKDEV_DIR"] = str(bed.root)  # libumockdev tells the C library only; the agent is a child of Python
    machines.nvidia_proc(bed.root / "proc")
    ours = convert(THEIRS).replace("resources:\n", "nodeLabels: {gfd: true}\nresources:\n", 1)
    driver = next(line for line in ours.splitlines() if line.startswith("driver: ")).partition(" ")[2]
    ours += driver_files(bed)
    async with not_started(ours, driver) as (agent, cluster):
        await agent.start()
        await served(agent, cluster)


async def served(agent: AgentProcess, cluster: SimCluster) -> None:
    kubelet = cluster.kubelets["node-a"]
    await until(lambda: kubelet.node_status()["allocatable"].get(SHARED) == 32, 30, agent.text)
    ids = {machines.GPU_UUID.format(index) for index in range(8)}
    assert kubelet.resources[SHARED].devices == {f"{one}::{number}" for one in ids for number in range(4)}
    await until(lambda: labels(cluster).items() >= LABELS.items(), 10, lambda: f"{labels(cluster)} {agent.text()}")
    await cluster.apply(limits_pod("one").replace(RESOURCE, SHARED))
    await cluster.wait_pod("one")
    assert "/dev/nvidiactl" in inside(agent)
    await cluster.apply(limits_pod("two", 2).replace(RESOURCE, SHARED))
    await cluster.wait_pod("two", "Failed")
    said = cluster.get("pods", "two")["status"]["message"]  # type: ignore[index]
    assert "2 shares of nvidia.com/gpu.shared were asked for, a container may have 1 at most" in said, said


def labels(cluster: SimCluster) -> dict[str, str]:
    found = cluster.get("nodes", "node-a")
    return {} if found is None else dict(found["metadata"].get("labels") or {})


def main() -> None:
    if "umockdev" not in os.environ.get("LD_PRELOAD", ""):
        raise SystemExit("run this under umockdev-wrapper")
    asyncio.run(check())


if __name__ == "__main__":
    main()
