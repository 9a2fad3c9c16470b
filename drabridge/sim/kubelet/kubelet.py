"""A simulated kubelet over real sockets: the node's facade for tests, soak runs and the demo.

    async with SimKubelet(Path("/tmp/kl"), timings=Timings.fast()) as kubelet:
        await kubelet.wait_for_resource("example.com/gpu", healthy=4)
        status = await kubelet.run_pod(PodSpec("default", "p", containers=(Container("c", {"example.com/gpu": 1}),)))

``python -m drabridge.sim.kubelet.control ROOT`` runs it as a process of its own.

What it copies, and where each quirk is kept with its source:

==================  ====================================================================================================
registration        dial-back and options before the answer; texts; two streams of one resource; the orphan; no retry
device_manager      order of checks and their texts; reuse of init containers' devices; preferences; leaks; pre-start
device_accounting   full lists; capacity's life cycle; the nil dereference for an id that left the list
checkpoint          the file's format; the checksum is a stand-in
topology            single-numa-node; what ``-1`` and an empty TopologyInfo do
process             order of the start; wiped sockets; re-admission before sources are ready; one pod at a time
podresources        rate limit; one entry per device and NUMA node; who is not listed
plugin_watcher      GetInfo, Notify, back-off
dra_plugins         slices wiped at the start and after 30 s
dra_manager         prepare, unprepare
runtime             containers in memory, or with a lock per device that finds double use
==================  ====================================================================================================
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from drabridge.sim.kubelet.calls import CallLog, Observer
from drabridge.sim.kubelet.device_health import allocated_resources_status
from drabridge.sim.kubelet.dra_manager import DraManager
from drabridge.sim.kubelet.faults import Faults
from drabridge.sim.kubelet.node import ClusterApi, Node, NodeStatus
from drabridge.sim.kubelet.pods import Event, Phase, PodRecord, PodSpec, PodStatus
from drabridge.sim.kubelet.process import KubeletProcess
from drabridge.sim.kubelet.runtime import MemoryRuntime, Runtime
from drabridge.sim.kubelet.timings import Timings
from drabridge.sim.kubelet.topology import NONE, POLICIES
from drabridge.sim.releases import DEFAULT, kubelet_of


class KubeletDownError(RuntimeError):
    """The kubelet does not run: it was not started, was stopped, or has crashed (the text says why)."""


@dataclass(frozen=True, slots=True)
class ResourceView:
    """One device-plugin resource as the kubelet has it.

    ``streams``: ListAndWatch streams that are being read.
    ``registered``: a plugin's endpoint is there and has not stopped; it may still have sent no list.
    """

    devices: frozenset[str]
    healthy: frozenset[str]
    allocated: frozenset[str]
    registered: bool
    streams: int


class SimKubelet:
    """A node with one kubelet.

    The kubelet may be stopped, restarted, crashed and rebooted; the node stays.
    ``topology_policy``: ``none`` or ``single-numa-node``. ``version`` (as ``1.36``) and
    ``gates``, changes of its feature gates: see :mod:`drabridge.sim.releases`.
    ``seed`` decides everything that is random in a kubelet: the order of ids, which ids are taken, retry jitter.
    """

    def __init__(
        self,
        root: Path,
        *,
        node_name: str = "node-a",
        device_plugin_dir: Path | None = None,
        topology_policy: str = NONE,
        numa_nodes: tuple[int, ...] = (0,),
        version: str = DEFAULT,
        gates: Mapping[str, bool] | None = None,
        timings: Timings | None = None,
        observer: Observer | None = None,
        api: ClusterApi | None = None,
        runtime: Runtime | None = None,
        seed: int = 0,
    ) -> None:
        if topology_policy not in POLICIES:
            raise ValueError(f"topology policy {topology_policy!r}: expected one of {', '.join(POLICIES)}")
        release = kubelet_of(version)
        self.node = Node(
            name=node_name,
            root=Path(root),
            device_plugin_dir=Path(device_plugin_dir or Path(root) / "device-plugins"),
            timings=timings or Timings(),
            release=release,
            gates=release.gates_with(gates),
            rng=random.Random(seed),
            runtime=runtime or MemoryRuntime(),
            calls=CallLog(observer),
            topology_policy=topology_policy,
            numa_nodes=numa_nodes,
        )
        self.crashed: str | None = None
        self._api = api
        self._process: KubeletProcess | None = None
        self._dying: asyncio.Task[None] | None = None

    # -- the process

    async def start(self) -> None:
        """Start the kubelet: wipe the sockets of device-plugins/, bind, then let the node's pods arrive.

        Raises OSError or RuntimeError when a directory cannot be made or a socket cannot be bound, ValueError for a DRA
        state file that cannot be read: the real kubelet exits then.
        """
        if self._process is not None:
            raise RuntimeError("this kubelet runs already")
        if self._dying is not None:
            await self._dying
        self.crashed = None
        self.node.root.mkdir(parents=True, exist_ok=True)
        process = KubeletProcess(self.node, DraManager(self.node, self._api), self._panic)
        self._process = process
        try:
            await process.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the process: containers go on, ``kubelet.sock`` stays as a file that nobody answers."""
        process, self._process = self._process, None
        if process is not None:
            await process.stop()
        if self._dying is not None:
            await self._dying

    async def restart(self, *, downtime_seconds: float = 0.0) -> None:
        """Begin a new process: sockets wiped, checkpoint restored, every pod admitted again."""
        await self.stop()
        await asyncio.sleep(downtime_seconds)
        await self.start()

    async def reboot(self, *, downtime_seconds: float = 0.0) -> None:
        """Restart the machine: no container runs, the checkpoint is kept, every pod is admitted again.

        CDI files belong to the caller: they are the host's, not the kubelet's.
        """
        await self.stop()
        for uid, container in list(self.node.running_containers(orphans=True)):
            await self.node.runtime.stop_container(uid, container)
        self.node.orphans.clear()
        for record in self.node.pods.values():
            record.running.clear()
            record.completed.clear()
            if record.phase is Phase.RUNNING:
                record.phase = Phase.PENDING
        await asyncio.sleep(downtime_seconds)
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.thaw()
        await self.stop()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def process(self) -> KubeletProcess:
        """Return the running process. Raises KubeletDownError."""
        if self._process is None:
            raise KubeletDownError(self.crashed or "the kubelet does not run: call start()")
        return self._process

    def freeze(self) -> None:
        """Stand still as after SIGSTOP: connections are accepted, nothing is read and nothing answered."""
        self.faults.running.clear()

    def thaw(self) -> None:
        self.faults.running.set()

    def _panic(self, reason: str) -> None:
        """Stop as the real process would after a panic; containers and files stay."""
        if self._process is None:
            return
        self.crashed = reason
        process, self._process = self._process, None
        self._dying = asyncio.create_task(process.stop(), name="kubelet panic")

    # -- pods

    async def run_pod(self, pod: PodSpec) -> PodStatus:
        """Bind a pod to the node and wait for its first outcome.

        Failed: rejected at admission. Running or Succeeded. Pending: its claims cannot be prepared or a container does
        not start (``events``, ``waiting``), and the kubelet goes on trying; or the kubelet died meanwhile
        (``crashed``).
        """
        if pod.uid in self.node.pods:
            raise ValueError(f"pod uid {pod.uid} exists already")
        record = PodRecord(pod)
        await self.process.run_pod(record)
        return record.status()

    async def finish_pod(self, uid: str) -> PodStatus:
        """Let every container exit; return when the pod's claims are unprepared and the pod is terminal."""
        record, worker = self.node.pods[uid], self.process.workers[uid]
        worker.finish()
        await self.process.outlive(worker.ended.wait(), f"end of {record.spec.name}")
        return record.status()

    async def delete_pod(self, uid: str, *, force: bool = False, linger_seconds: float = 0.0) -> None:
        """Delete a pod; its containers go on for ``linger_seconds``.

        Without ``force`` the pod stays listed and holds its devices until they are gone. With it the pod is forgotten
        at once: PodResources no longer shows it and the kubelet gives its devices to others while they are in use.
        """
        if self._process is None:
            self.node.orphans.append(self.node.pods.pop(uid))  # the next kubelet kills what it does not know
            return
        process, record = self._process, self.node.pods[uid]
        record.terminating = True
        if force:
            process.forget(uid)
        worker = process.workers.get(uid)
        if worker is None or worker.ended.is_set():
            process.forget(uid)
            return
        worker.finish(linger_seconds)
        if not force:
            await process.outlive(worker.ended.wait(), f"end of {record.spec.name}")

    async def restart_container(self, uid: str, container: str) -> None:
        """Start a crashed container again from the cached answers, without Allocate."""
        await self.process.workers[uid].restart_container(container)

    def pod_status(self, uid: str) -> PodStatus:
        return self.node.pods[uid].status()

    # -- what can be seen

    @property
    def faults(self) -> Faults:
        return self.node.faults

    @property
    def events(self) -> list[Event]:
        return self.node.events

    @property
    def calls(self) -> CallLog:
        return self.node.calls

    @property
    def pods(self) -> dict[str, PodStatus]:
        """The pods by uid."""
        return {uid: record.status() for uid, record in self.node.pods.items()}

    @property
    def resources(self) -> dict[str, ResourceView]:
        """The resources by name; empty while the kubelet is down."""
        if self._process is None:
            return {}
        state, registration = self._process.manager.state, self._process.registration
        views = {}
        for name in {*state.endpoints, *state.healthy}:
            endpoint = state.endpoints.get(name)
            views[name] = ResourceView(
                devices=frozenset(state.all.get(name, ())),
                healthy=frozenset(state.healthy.get(name, ())),
                allocated=frozenset(state.allocated.get(name, ())),
                registered=endpoint is not None and endpoint.stopped_at is None,
                streams=registration.streams(name),
            )
        return views

    def allocated_resources_status(self, uid: str) -> dict[str, list[dict[str, Any]]]:
        """Container -> ``allocatedResourcesStatus`` as the pod's status would have it now."""
        process = self.process
        if not self.node.gates["ResourceHealthStatus"]:
            return {}
        return allocated_resources_status(
            self.node.pods[uid].spec,
            process.manager.state,
            process.dra.cache,
            process.dra.plugins.health,
            time.monotonic(),
            messages=self.node.gates["ResourceHealthStatusMessage"],
        )

    def node_status(self) -> NodeStatus:
        """Return what the kubelet would publish now; the last known values while it is down."""
        if self._process is not None:
            self._process.refresh_status()
        return self.node.live

    @property
    def published_node_status(self) -> NodeStatus:
        """Return the API server's status, which lags by up to ``timings.node_status_seconds``."""
        return self.node.published

    async def wait_for(self, predicate: Callable[[], object], timeout: float = 60.0, what: str = "") -> None:
        """Poll every 2 ms. Raises TimeoutError that names ``what``."""
        deadline = time.monotonic() + timeout
        while not predicate():
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {timeout} s for {what or predicate}; resources: {self.resources}")
            await asyncio.sleep(0.002)

    async def wait_for_resource(self, resource: str, healthy: int | None = None, timeout: float = 60.0) -> None:
        """Wait until the resource can be used.

        It is registered, its list is read, as many devices as asked for are healthy, and the Node says so. Before that,
        pods that ask for it are refused or started without it.
        """

        def there() -> bool:
            view = self.resources.get(resource)
            if view is None or not view.registered or view.streams == 0:
                return False
            listed = resource in self.process.manager.state.healthy
            said = self.published_node_status["allocatable"].get(resource) == len(view.healthy)
            return listed and (healthy is None or len(view.healthy) == healthy) and said

        await self.wait_for(there, timeout, f"{resource} with {healthy} healthy devices")

    # -- faults

    async def drop_stream(self, resource: str) -> None:
        """Break the connections to the plugins of this resource."""
        await self.process.registration.drop_stream(resource)

    def delete_device_plugin_dir(self) -> None:
        """Delete the directory while others use it, as kubeadm reset does."""
        shutil.rmtree(self.node.device_plugin_dir)
