"""Run the kubelet's process, from its start to its end. Only files survive it."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any

import grpc.aio

from deviceplugin.wire import v1beta1_pb2_grpc as rpc
from drabridge.sim.kubelet import admission
from drabridge.sim.kubelet.device_accounting import KubeletPanicError
from drabridge.sim.kubelet.device_manager import AllocationError, DeviceManager
from drabridge.sim.kubelet.dra_manager import DraManager
from drabridge.sim.kubelet.node import Node, NodeStatus, nothing
from drabridge.sim.kubelet.plugin_watcher import PluginWatcher
from drabridge.sim.kubelet.pod_worker import PodWorker
from drabridge.sim.kubelet.podresources import PodResources
from drabridge.sim.kubelet.pods import Phase, PodRecord
from drabridge.sim.kubelet.registration import Registration


class LeakySockets:
    """Binds through a private symlink to the directory and removes the link before the server stops.

    grpc unlinks the path it bound when a server stops; a kubelet that ends unlinks nothing. With the link gone, grpc's
    unlink finds no file. Watchers of the directory see one plain creation and nothing at the end.
    """

    def __init__(self, root: Path) -> None:
        """Links live in ``<root>/.s``: a name short enough not to lengthen the path of any socket."""
        self._links = root / ".s"
        self._numbers = count()
        self.forget()  # what a killed process left
        self._links.mkdir(parents=True)

    def bind(self, server: grpc.aio.Server, path: Path) -> None:
        """Plain bind: one IN_CREATE of the name. Raises OSError or RuntimeError."""
        link = self._links / str(next(self._numbers))
        link.symlink_to(path.parent.resolve(), target_is_directory=True)
        if server.add_insecure_port(f"unix:{link / path.name}") == 0:
            raise OSError(f"cannot bind {path}")

    def bind_by_rename(self, server: grpc.aio.Server, path: Path) -> Path:
        """Bind to a temporary name in the directory and return it; the caller renames it when the server has started.

        ``pkg/kubelet/util/util_unix.go``, CreateListener: watchers see IN_MOVED_TO of the name, never IN_CREATE.
        """
        temporary = path.with_name(str(secrets.randbelow(10**10)))
        self.bind(server, temporary)
        return temporary

    def forget(self) -> None:
        """Cut the links; call before the servers stop."""
        shutil.rmtree(self._links, ignore_errors=True)


def remove_sockets(directory: Path) -> list[str]:
    """Delete every socket directly in ``directory`` whose name has no leading dot; returns their names.

    ``pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go``, cleanup; observed: regular files, dot-files and
    directories stay.
    """
    removed = []
    for entry in sorted(os.scandir(directory), key=lambda e: e.name):
        if not entry.name.startswith(".") and stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
            os.unlink(entry.path)
            removed.append(entry.name)
    return removed


class KubeletProcess:
    """Servers, managers and workers of one run.

    ``on_panic`` is called once with the reason when the real process would have died.
    """

    def __init__(self, node: Node, dra: DraManager, on_panic: Callable[[str], None]) -> None:
        self.manager = DeviceManager(node, lambda: [uid for uid, record in self.known.items() if record.active])
        self.known: dict[str, PodRecord] = {}  # pods that arrived from the API server
        self.workers: dict[str, PodWorker] = {}
        self.registration = Registration(node, self.manager)
        self.sources_ready = asyncio.Event()
        self.dra = dra
        self._node = node
        self._on_panic = on_panic
        self._sync_loop = asyncio.Lock()  # one pod is admitted at a time (kubelet.go, syncLoopIteration)
        self._sockets = LeakySockets(node.root)
        self._servers: list[grpc.aio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    # -- start and end

    async def start(self) -> None:
        """Start in the real order: checkpoint, wipe, kubelet.sock, then everything else.

        Source: cm/devicemanager/manager.go, Start.
        """
        node = self._node
        self.manager.running_at_start = frozenset(node.running_containers())
        node.device_plugin_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        if not any(not entry.name.startswith(".") for entry in node.device_plugin_dir.iterdir()):
            node.live = nothing(node.live["capacity"])  # the node counts as new (kubelet_node_status.go)
        self.manager.restore(time.monotonic())
        remove_sockets(node.device_plugin_dir)
        registrar = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self.registration, registrar)
        self._sockets.bind(registrar, node.kubelet_socket)
        await registrar.start()
        self._servers.append(registrar)
        await self._serve_podresources()
        self.spawn(self._publish_status(), "node status")
        self.spawn(self._pods_arrive(), "pod source")
        self.dra.restore()
        self.spawn(self.dra.plugins.wipe_all(), "slice wipe")
        self.spawn(self.dra.reconcile(), "claims")
        self.spawn(PluginWatcher(node, self.dra.plugins).run(), "plugin watcher")

    async def _serve_podresources(self) -> None:
        node = self._node
        node.podresources_socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        answers = PodResources(node, self.manager, self.dra, lambda: list(self.known.values()))
        server = grpc.aio.server(options=(("grpc.max_send_message_length", -1),))
        server.add_generic_rpc_handlers(answers.handlers())
        temporary = self._sockets.bind_by_rename(server, node.podresources_socket)
        await server.start()
        temporary.rename(node.podresources_socket)
        self._servers.append(server)

    async def stop(self) -> None:
        """End the process: sockets stay as stale files, containers go on, and no peer is told."""
        self._sockets.forget()
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.registration.close()
        await self.dra.plugins.close()
        for server in self._servers:
            await server.stop(None)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[None]:
        """Run something until it is done or the process ends."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_panic(f"{task.get_name()}: {error!r}")

    # -- pods

    async def _pods_arrive(self) -> None:
        """Admit again what the API server says runs here, one by one.

        Only then are the sources ready (kubelet.go).
        """
        await asyncio.sleep(self._node.timings.pod_source_seconds)
        await self._node.faults.pods_arrive.wait()
        for record in list(self._node.pods.values()):
            await self._node.faults.running.wait()
            if record.spec.uid in self._node.pods:
                if record.ending and record.active:
                    self._work(record).finish()
                elif record.active:
                    await self.admit(record)
                else:
                    self.known[record.spec.uid] = record
                await asyncio.sleep(self._node.timings.pod_spacing_seconds)
        await self._kill_orphans()
        self.manager.sources_ready = True
        self.dra.sources_ready(self.known)
        self.sources_ready.set()

    async def _kill_orphans(self) -> None:
        """HandlePodCleanups (kubelet_pods.go): stop containers of an earlier kubelet whose pods are unknown."""
        for record in [record for record in self._node.orphans if record.spec.uid not in self.workers]:
            for name in sorted(record.running):
                await self._node.runtime.stop_container(record.spec.uid, name)
            record.running.clear()
        self._node.orphans[:] = [record for record in self._node.orphans if record.running]

    async def admit(self, record: PodRecord) -> PodWorker | None:
        """Admit a pod and return the worker that runs it; None if it was rejected or deleted, or the kubelet died."""
        pod = record.spec
        async with self._sync_loop:
            if pod.uid not in self._node.pods:
                return None  # deleted while others were admitted
            self.known[pod.uid] = record
            try:
                for container in pod.all_containers:
                    await self.manager.admit_container(pod, container)
                self._check_node_fits(record)
            except KubeletPanicError as panic:
                self._on_panic(str(panic))
                return None
            except AllocationError as error:
                await self._reject(record, admission.allocate_failed(error))
                return None
            except admission.RejectedError as error:
                await self._reject(record, error)
                return None
            finally:
                self.manager.admission_over()
        return self._work(record) if pod.uid in self._node.pods else None

    def _work(self, record: PodRecord) -> PodWorker:
        worker = PodWorker(record, self._node, self.manager, self.dra)
        self.known[record.spec.uid] = record
        self.workers[record.spec.uid] = worker
        self.spawn(self._run_to_end(worker), f"pod {record.spec.namespace}/{record.spec.name}")
        return worker

    async def _run_to_end(self, worker: PodWorker) -> None:
        """Run a pod to its end; a deleted one leaves the API server only then."""
        await worker.run()
        if worker.record.terminating:
            self.forget(worker.record.spec.uid)
            self.workers.pop(worker.record.spec.uid, None)

    def forget(self, uid: str) -> None:
        """Remove the pod from the API server, even if containers still run."""
        self.known.pop(uid, None)
        record = self._node.pods.pop(uid, None)
        if record is not None and record.running:
            self._node.orphans.append(record)

    async def run_pod(self, record: PodRecord) -> None:
        """Admit and wait for the first outcome; returns early, with the pod pending, when this process ends."""
        await self.outlive(self._run_pod(record), f"admit {record.spec.name}")

    async def _run_pod(self, record: PodRecord) -> None:
        """Admit a pod unless it was admitted already, and wait for its outcome.

        A pod that is bound before the sources are ready may have arrived with these.
        """
        uid = record.spec.uid
        self._node.pods[uid] = record
        await self.sources_ready.wait()
        worker = self.workers.get(uid) if uid in self.known else await self.admit(record)
        if worker is not None:
            await worker.settled.wait()

    async def outlive(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Wait for work that belongs to this process. The process's end cancels it, not the end of its caller."""
        await asyncio.wait({self.spawn(work, name)})

    def _check_node_fits(self, record: PodRecord) -> None:
        others = [r.spec for r in self.known.values() if r is not record and r.active]
        held = {resource: len(ids) for resource, ids in self.manager.state.allocated.items()}
        admission.check_node_fits(record.spec, others, self._node.published["allocatable"], held)

    async def _reject(self, record: PodRecord, error: admission.RejectedError) -> None:
        """rejectPod: final, whatever the restart policy; containers of a pod that ran are killed."""
        record.phase = Phase.FAILED
        record.reason = error.reason
        record.message = admission.status_message(str(error))
        self._node.event(record, error.reason, str(error))
        for name in sorted(record.running):
            await self._node.runtime.stop_container(record.spec.uid, name)
        record.running.clear()
        if record.spec.claim_names():
            self.spawn(self._unprepare_rejected(record), f"unprepare {record.spec.name}")

    async def _unprepare_rejected(self, record: PodRecord) -> None:
        while not await self.dra.unprepare(record.spec):
            await asyncio.sleep(self._node.rng.uniform(*self._node.timings.dra_unprepare_retry_seconds))

    # -- node status

    def refresh_status(self) -> None:
        """Note what the next update of the Node would say; allocatable starts as a copy of capacity."""
        capacity, allocatable, removed = self.manager.capacity()
        total = self._node.live["capacity"] | capacity | dict.fromkeys(removed, 0)
        self._node.live = NodeStatus(capacity=total, allocatable=total | allocatable)

    async def _publish_status(self) -> None:
        while True:
            await self._node.faults.running.wait()
            self.refresh_status()
            self._node.published = self._node.live
            await asyncio.sleep(self._node.timings.node_status_seconds)
