"""Run one admitted pod: claims, init containers, containers, the end (``pkg/kubelet/pod_workers.go``)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from deviceplugin.wire import v1beta1_pb2 as pb
from drabridge.sim.kubelet import dra_claims
from drabridge.sim.kubelet.device_manager import AllocationError, DeviceManager
from drabridge.sim.kubelet.dra_manager import DraManager, PrepareError
from drabridge.sim.kubelet.node import Node
from drabridge.sim.kubelet.pods import Container, Phase, PodRecord
from drabridge.sim.kubelet.runtime import ContainerStartError, RunOptions


class PodWorker:
    """Run one pod in one kubelet process.

    ``settled`` is set at the first outcome: running, ended, or waiting.
    """

    def __init__(self, record: PodRecord, node: Node, manager: DeviceManager, claims: DraManager) -> None:
        self.record = record
        self.settled = asyncio.Event()
        self.ended = asyncio.Event()
        self._node = node
        self._manager = manager
        self._claims = claims
        self._end = asyncio.Event()
        self._linger_seconds = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()

    def finish(self, linger_seconds: float = 0.0) -> None:
        """Ask for the end: containers stop after ``linger_seconds``, then claims are unprepared."""
        self.record.ending, self._linger_seconds = True, linger_seconds
        self._end.set()

    async def run(self) -> None:
        """Run until the pod has ended. A cancelled worker (the kubelet's end) leaves the containers running."""
        life = self._spawn(self._live())
        end = self._spawn(self._end.wait())
        try:
            await asyncio.wait((life, end), return_when=asyncio.FIRST_COMPLETED)
            self._end.set()
            if life.done():
                life.result()
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._stop()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        """Start work that ends with the pod, or with the kubelet."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def restart_container(self, name: str) -> None:
        """Start a container that crashed again, from the cached answers.

        Nothing happens to a pod that is ending.
        """
        if not self._end.is_set():
            await asyncio.wait({self._spawn(self._restart(name))})

    async def _restart(self, name: str) -> None:
        await self._container_stopped(name)
        self.record.restarts[name] = self.record.restarts.get(name, 0) + 1
        await self._start(self.record.spec.container(name))

    async def _live(self) -> None:
        pod = self.record.spec
        if not self.record.running:  # only a pod without a sandbox has its claims prepared (kuberuntime_manager.go)
            await self._prepare()
        for container in pod.init_containers:
            if container.name in self.record.completed:
                continue
            await self._start(container)
            if not container.is_sidecar:
                await asyncio.sleep(container.run_seconds or 0.0)
                await self._container_stopped(container.name, completed=True)
        for container in pod.containers:
            if container.name not in self.record.completed:
                await self._start(container)
        self.record.phase = Phase.RUNNING
        self.settled.set()
        timed = [c for c in pod.containers if c.run_seconds is not None and c.name in self.record.running]
        await asyncio.gather(*(self._run_out(c, c.run_seconds or 0.0) for c in timed))
        if not self.record.completed.issuperset(c.name for c in pod.containers):
            await asyncio.Event().wait()

    async def _run_out(self, container: Container, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._container_stopped(container.name, completed=True)

    async def _prepare(self) -> None:
        """Prepare the pod's claims; retry at the pod's resync, 60 to 90 s later (observed: 78 s)."""
        while True:
            try:
                await self._claims.prepare(self.record.spec)
            except PrepareError as error:
                self._node.event(
                    self.record, "FailedPrepareDynamicResources", f"Failed to prepare dynamic resources: {error}"
                )
                self.settled.set()
                await asyncio.sleep(self._node.rng.uniform(*self._node.timings.dra_retry_seconds))
            else:
                return

    async def _start(self, container: Container) -> None:
        """Start one container, and try until that succeeds. A running one is left alone."""
        timings = self._node.timings
        backoff = timings.restart_backoff_seconds
        while container.name not in self.record.running:
            try:
                async with self._starting:
                    if container.name in self.record.running:
                        return
                    options = await self._run_options(container)
                    self.record.running.add(container.name)  # also if we are cancelled while it starts
                    await self._node.runtime.start_container(self.record.spec, container, options)
            except (AllocationError, ContainerStartError) as error:
                self.record.running.discard(container.name)
                config = isinstance(error, AllocationError)
                reason = "CreateContainerConfigError" if config else "CreateContainerError"
                self.record.waiting[container.name] = f"{reason}: {error}"
                self._node.event(self.record, "Failed", f"Error: {error}")
                self.settled.set()
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, timings.restart_backoff_max_seconds)
            else:
                self.record.waiting.pop(container.name, None)

    async def _run_options(self, container: Container) -> RunOptions:
        pod = self.record.spec
        cdi, dra = dra_claims.container_devices(self._claims.cache, pod, container)
        answers = await self._manager.run_options(pod, container)
        return merge_options(answers, cdi, dra)

    async def _container_stopped(self, name: str, *, completed: bool = False) -> None:
        await self._node.runtime.stop_container(self.record.spec.uid, name)
        self.record.running.discard(name)
        if completed:
            self.record.completed.add(name)

    async def _stop(self) -> None:
        """End the containers first, then the claims, until the driver agrees.

        Only then is the end final (kubelet.go, SyncTerminatedPod).
        """
        await asyncio.sleep(self._linger_seconds)
        for name in [c.name for c in self.record.spec.all_containers if c.name in self.record.running]:
            await self._container_stopped(name)
        while not await self._claims.unprepare(self.record.spec):
            await asyncio.sleep(self._node.rng.uniform(*self._node.timings.dra_unprepare_retry_seconds))
        if self.record.phase is not Phase.FAILED:
            self.record.phase = Phase.SUCCEEDED
        self.record.waiting.clear()
        self.settled.set()
        self.ended.set()


def merge_options(
    answers: list[tuple[str, frozenset[str], pb.ContainerAllocateResponse]],
    cdi: list[str],
    dra: list[tuple[str, str, str]],
) -> RunOptions:
    """Merge a container's answers of all resources; the first value of a key wins.

    deviceRunContainerOptions (pod_devices.go).
    CDI names of claims come first; those of the device plugin are a set among themselves.
    """
    envs: dict[str, str] = {}
    mounts: dict[str, tuple[str, str, bool]] = {}
    devices: dict[str, tuple[str, str, str]] = {}
    annotations: dict[str, str] = {}
    names: dict[str, None] = {}
    for _, _, answer in answers:
        for key, value in answer.envs.items():
            envs.setdefault(key, value)
        for key, value in answer.annotations.items():
            annotations.setdefault(key, value)
        for mount in answer.mounts:
            mounts.setdefault(mount.container_path, (mount.host_path, mount.container_path, mount.read_only))
        for device in answer.devices:
            entry = (device.host_path, device.container_path, device.permissions)
            devices.setdefault(device.container_path, entry)
        names |= dict.fromkeys(device.name for device in answer.cdi_devices)
    return RunOptions(
        cdi_devices=(*cdi, *names),
        envs=envs,
        mounts=tuple(mounts.values()),
        devices=tuple(devices.values()),
        annotations=annotations,
        device_ids=tuple((resource, id_) for resource, ids, _ in answers for id_ in sorted(ids)),
        dra_devices=tuple(dra),
    )
