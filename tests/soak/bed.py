"""What a soak run stands on: real devices, a simulated cluster, a real agent process, the judge.

Every wait of cluster and agent that the safety of the design rests on is a twentieth of the real one, all by the same
factor, so that their ratios, and with them every race, are those of production: node status and scheduler lag behind
as far as they do there, measured in holds and quiet times.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drabridge.sim.cluster import ClusterTimings, SimCluster
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.timings import Timings
from drabridge.sim.scheduler.scheduler import SchedulerTimings
from tests.soak.judge import Judge
from tests.support.agent_process import AgentProcess, lists_read
from tests.support.hardware import Loops
from tests.support.waiting import short_directory

SCALE = 20
RECORD_SECONDS = 0.005  # between the answer to Allocate and kubelet's record of it
DRIVER = "soak.example.com"
NODE = "node-a"
MEM, LOOP = "soak.example.com/mem", "soak.example.com/loop"
MEMORY_DEVICES = ("full", "null", "random", "zero")
LOOP_DEVICES = 8
CONFIG = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
safety:  # the defaults divided by {SCALE}; a tombstone lasts 5 s at least
  minHoldSeconds: {30 / SCALE}
  unconfirmedSeconds: {120 / SCALE}
  absentSeconds: {10 / SCALE}
  settleSeconds: {60 / SCALE}
  quiesceSeconds: {30 / SCALE}
  tombstoneSeconds: 5
resources:
- name: {MEM}
  match: [{{subsystem: mem, sysname: [zero, "null", full, random]}}]
  id: ["{{sysname}}"]
  lanes: {{legacy: 2, dra: 2}}
"""
LOOP_CONFIG = f"""\
- name: {LOOP}
  match: [{{subsystem: block, sysname: "%s"}}]
  id: ["{{sysname}}"]
  lanes: {{legacy: 50%%, dra: "*"}}
  probeOpen: true
"""
CLASSES = [
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": resource.rpartition("/")[2]},
        "spec": {
            "selectors": [
                {
                    "cel": {
                        "expression": f"device.driver == '{DRIVER}' && "
                        f"device.attributes['{DRIVER}'].resource == '{resource}'"
                    }
                }
            ]
        },
    }
    for resource in (MEM, LOOP)
]


def timings() -> ClusterTimings:
    """The fast simulation with a twentieth of the real delays."""
    real = Timings()
    kubelet = Timings.fast(
        node_status_seconds=real.node_status_seconds / SCALE,
        pod_source_seconds=0.1,
        pod_spacing_seconds=0.02,
        plugin_manager_start_seconds=real.plugin_manager_start_seconds / SCALE,
        dra_reconcile_seconds=real.dra_reconcile_seconds / SCALE,
        slice_wipe_seconds=real.slice_wipe_seconds / SCALE,
        dra_retry_seconds=(60 / SCALE, 90 / SCALE),
        restart_backoff_seconds=real.restart_backoff_seconds / SCALE,
    )
    return ClusterTimings(kubelet, SchedulerTimings.fast(node_cache_lag_seconds=0.1), sync_seconds=0.02)


@dataclass(slots=True)
class Bed:
    """The parts, and what may be done to all of them at once."""

    cluster: SimCluster
    agent: AgentProcess
    judge: Judge
    boot_id: Path
    loops: Loops | None
    capacity: dict[str, int] = field(default_factory=dict)  # resource -> devices

    @property
    def kubelet(self) -> SimKubelet:
        return self.cluster.kubelets[NODE]

    async def start_agent(self) -> None:
        if self.agent.process is None or self.agent.process.returncode is not None:
            await self.agent.start()

    async def reboot(self) -> None:
        """Reboot the machine: agent and containers end, /run is empty, the disk is unchanged."""
        await self.agent.stop(signal.SIGKILL)
        shutil.rmtree(self.agent.cdi, ignore_errors=True)
        self.boot_id.write_text(str(uuid.uuid4()))
        await self.kubelet.reboot(downtime_seconds=0.1)
        await self.start_agent()

    def unprepared(self, pod: str) -> bool:
        """Whether kubelet has told the agent that no container uses the claim of this pod (``namespace/name``)."""
        prefix = pod.partition("/")[2] + "-c"  # both its own claim and one from a template begin like that
        calls = self.kubelet.calls.of("NodeUnprepareResources")
        requests: list[Any] = [call.request for call in calls]
        return any(claim.name.startswith(prefix) for request in requests for claim in request.claims)

    def raced(self, device: str) -> bool:
        """Whether kubelet was asked for a List while one of its Allocates with this device was open."""
        lists = [call.at for call in self.kubelet.calls.of("List")]
        for call in self.kubelet.calls.of("Allocate"):
            request: Any = call.request
            if any(device in one.devices_ids for one in request.container_requests):
                end = call.at + (call.seconds or 0.0)
                if any(call.at <= at <= end + RECORD_SECONDS for at in lists):
                    return True
        return False

    def healthy(self) -> set[str]:
        """Devices that kubelet would give to pods, or has."""
        return set().union(*(view.healthy for view in self.kubelet.resources.values()))

    def schedulable(self) -> set[str]:
        """Devices that the scheduler could give to claims."""
        return {
            device["name"]
            for one in self.cluster.api.objects.peek("resourceslices")
            for device in one["spec"].get("devices") or ()
            if not device.get("taints")
        }

    def files(self) -> list[str]:
        """What is left on the node for holders: CDI files, and records of claims."""
        state = self.agent.control.parent
        return sorted(str(path) for path in [*self.agent.cdi.glob("*.json"), *(state / "claims").glob("*.json")])


def _has_loops() -> bool:
    return os.geteuid() == 0 and os.access("/dev/loop-control", os.W_OK)


@contextlib.contextmanager
def _loops(count: int) -> Iterator[Loops | None]:
    if not count or not _has_loops():
        yield None
        return
    made = Loops()
    try:
        for index in range(count):
            made.add(index)
        yield made
    finally:
        made.close()


@contextlib.asynccontextmanager
async def bed(
    seed: int, command: tuple[str, ...] = ("-m", "drabridge"), loop_devices: int = LOOP_DEVICES
) -> AsyncIterator[Bed]:
    """Start all parts. ``command`` starts the agent; a test of the judge passes one that starts a broken agent."""
    with short_directory() as root, _loops(loop_devices) as loops:
        (root / "locks").mkdir()
        judge = Judge(root / "locks")
        boot_id = root / "boot_id"
        boot_id.write_text(str(uuid.uuid4()))
        config = CONFIG + (LOOP_CONFIG % loops.pattern if loops else "")
        async with SimCluster(root, timings=timings(), runtime=lambda _: judge, seed=seed) as cluster:
            kubeconfig = root / "kubeconfig"
            cluster.api.kubeconfig(kubeconfig)
            arguments = ("--kubeconfig", str(kubeconfig), "--boot-id-file", str(boot_id))
            agent = AgentProcess(root / NODE, config, DRIVER, arguments, command)
            await agent.start()
            try:
                await agent.ready()
                await lists_read(cluster.kubelets[NODE])
                for one in CLASSES:
                    await cluster.apply(one)
                capacity = {MEM: len(MEMORY_DEVICES)} | ({LOOP: loop_devices} if loops else {})
                stage = Bed(cluster, agent, judge, boot_id, loops, capacity)
                judge.unprepared, judge.raced = stage.unprepared, stage.raced
                yield stage
            finally:
                with contextlib.suppress(ProcessLookupError, asyncio.TimeoutError):
                    await agent.stop(signal.SIGKILL)
                for record in [*cluster.kubelets[NODE].node.pods.values(), *cluster.kubelets[NODE].node.orphans]:
                    for container in list(record.running):
                        await judge.stop_container(record.spec.uid, container)
