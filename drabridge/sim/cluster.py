"""Run a Kubernetes cluster in one process.

API server, scheduler and controllers are simulated, and a kubelet for each node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from drabridge.errors import ClusterError
from drabridge.sim.apiserver.auth import ADMIN
from drabridge.sim.apiserver.faults import Faults
from drabridge.sim.apiserver.kinds import BY_KIND, BY_PLURAL
from drabridge.sim.apiserver.objects import Objects, Writer, timestamp
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.apiserver.status import JSON, ApiError
from drabridge.sim.kubelet.admission import status_message
from drabridge.sim.kubelet.kubelet import KubeletDownError, SimKubelet
from drabridge.sim.kubelet.pod_json import pod_from_manifest
from drabridge.sim.kubelet.pods import PodStatus
from drabridge.sim.kubelet.runtime import Runtime
from drabridge.sim.kubelet.timings import Timings
from drabridge.sim.releases import DEFAULT
from drabridge.sim.scheduler.claim_controller import ended
from drabridge.sim.scheduler.events import post
from drabridge.sim.scheduler.scheduler import Scheduler, SchedulerTimings

RUN_SECONDS_ANNOTATION = "sim.drabridge/run-seconds"
"""On a pod: seconds after which its containers end by themselves. No programs run, so the pod must say when."""
LINGER_SECONDS_ANNOTATION = "sim.drabridge/linger-seconds"
"""On a pod: seconds for which its containers run on after its object is gone, as after a force delete."""

JOB_POD_SECONDS = 0.2
"""How long the containers of a Job's pods run without the annotation."""


class StoreApi:
    """The kubelet's two requests (:class:`ClusterApi`), answered from the store."""

    def __init__(self, objects: Objects, faults: Faults) -> None:
        self._objects = objects
        self._faults = faults

    def _reachable(self) -> None:
        if self._faults.partitioned:
            raise ClusterError("the API server cannot be reached: connection refused")

    async def get_claim(self, namespace: str, name: str) -> JSON | None:
        self._reachable()
        return self._objects.find("resourceclaims", name, namespace)

    async def delete_slices(self, node_name: str, driver: str | None) -> None:
        self._reachable()
        fields = f"spec.nodeName={node_name}" + (f",spec.driver={driver}" if driver is not None else "")
        for one in self._objects.peek("resourceslices", fields=fields):
            self._objects.delete("resourceslices", one["metadata"]["name"])


class ClusterNode:
    """Join a simulated kubelet to the simulated API server.

    Its pods, their status, its Node object, its events. Each pass compares what the API server has
    with what the kubelet has.
    """

    def __init__(self, objects: Objects, faults: Faults, kubelet: SimKubelet, sync_seconds: float) -> None:
        self._objects = objects
        self._faults = faults
        self._kubelet = kubelet
        self._sync_seconds = sync_seconds
        self._name = kubelet.node.name
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._linger: dict[str, float] = {}  # by uid, because the object is gone when the value is needed
        self._posted = 0
        self._ends: dict[str, str] = {}  # when each run of a container ended

    async def run(self) -> None:
        """Run until cancelled. A programming error ends it; :meth:`SimCluster.wait` raises that error."""
        try:
            while True:
                if not self._faults.partitioned:
                    self._register()
                    self._sync()
                await asyncio.sleep(self._sync_seconds)
                for task in [one for one in self._busy.values() if one.done()]:
                    task.result()
                self._busy = {uid: task for uid, task in self._busy.items() if not task.done()}
        finally:
            for task in self._busy.values():
                task.cancel()
            await asyncio.gather(*self._busy.values(), return_exceptions=True)

    # -- the Node object

    def _register(self) -> None:
        """Create the Node when there is none, and report the extended resources that kubelet has published."""
        node = self._objects.find("nodes", self._name)
        if node is None:
            labels = {"kubernetes.io/hostname": self._name, "kubernetes.io/os": "linux"}
            meta = {"name": self._name, "labels": labels}
            node = self._objects.create({"apiVersion": "v1", "kind": "Node", "metadata": meta})
        published = self._kubelet.published_node_status
        fixed = {"cpu": "8", "memory": "16Gi", "pods": "110"}
        status: JSON = {
            "capacity": fixed | {name: str(count) for name, count in published["capacity"].items()},
            "allocatable": fixed | {name: str(count) for name, count in published["allocatable"].items()},
            "nodeInfo": {"kubeletVersion": self._kubelet.node.release.version},
        }
        if any(node["status"].get(key) != value for key, value in status.items()):
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated"}
            status["conditions"] = node["status"].get("conditions") or [{**ready, "lastTransitionTime": timestamp()}]
            self._objects.modify("nodes", self._name, lambda one: one["status"].update(status), subresource="status")

    # -- pods

    def _sync(self) -> None:
        wanted = {
            pod["metadata"]["uid"]: pod for pod in self._objects.peek("pods", fields=f"spec.nodeName={self._name}")
        }
        for uid, pod in wanted.items():
            deleting = bool(pod["metadata"].get("deletionTimestamp"))
            known = uid in self._kubelet.node.pods
            if known:
                self._report(pod, self._kubelet.pod_status(uid))
            if uid in self._busy and not deleting:
                continue
            if deleting:
                self._start(f"{uid} delete", self._delete(pod, known=known))
            elif not known and not ended(pod) and self._kubelet.is_running:
                self._start(uid, self._run(pod))
        for uid in [uid for uid in self._kubelet.node.pods if uid not in wanted]:
            self._start(f"{uid} delete", self._forget(uid))
        for event in self._kubelet.events[self._posted :]:
            self._posted += 1
            self._post(event.pod, event.reason, event.message, event.type)

    def _start(self, key: str, work: Any) -> None:
        if key in self._busy:
            work.close()
            return
        self._busy[key] = asyncio.create_task(work, name=f"{self._name}: {key}")

    async def _run(self, pod: JSON) -> None:
        meta = pod["metadata"]
        if linger := meta.get("annotations", {}).get(LINGER_SECONDS_ANNOTATION):
            self._linger[meta["uid"]] = float(linger)
        try:
            await self._kubelet.run_pod(pod_from_manifest(self._with_run_seconds(pod)))
        except KubeletDownError:
            return  # the next kubelet finds the pod in the node's list, or the next pass does

    def _with_run_seconds(self, pod: JSON) -> JSON:
        """Return the manifest with the run time of its containers, if an annotation or a Job sets one."""
        given = pod["metadata"].get("annotations", {}).get(RUN_SECONDS_ANNOTATION)
        of_job = any(one["kind"] == "Job" for one in pod["metadata"].get("ownerReferences", []))
        seconds = float(given) if given else (JOB_POD_SECONDS if of_job else None)
        if seconds is None:
            return pod
        spec = pod["spec"]
        return {**pod, "spec": {**spec, "containers": [{"runSeconds": seconds, **one} for one in spec["containers"]]}}

    async def _delete(self, pod: JSON, *, known: bool) -> None:
        meta = pod["metadata"]
        record = self._kubelet.node.pods.get(meta["uid"])
        if known:
            await self._kubelet.delete_pod(meta["uid"])
        current = self._objects.find("pods", meta["name"], meta["namespace"])
        if current is not None and current["metadata"]["uid"] == meta["uid"]:
            if record is not None:  # the end is reported before the object goes (status_manager.go, syncPod)
                self._report(current, record.status())
            self._objects.delete("pods", meta["name"], meta["namespace"], grace_seconds=0)
        self._linger.pop(meta["uid"], None)

    async def _forget(self, uid: str) -> None:
        """Forget an object that is gone (force deletion, or removed while nobody looked)."""
        linger = self._linger.pop(uid, 0.0)
        if uid in self._kubelet.node.pods:
            await self._kubelet.delete_pod(uid, force=True, linger_seconds=linger)

    def _report(self, pod: JSON, status: PodStatus) -> None:
        """Write the status if it changed."""
        meta, before = pod["metadata"], pod["status"]
        after = {**before, "phase": str(status.phase), **self._containers(pod, status)}
        said = {"reason": status.reason, "message": status.message}
        after |= {name: text for name, text in said.items() if text}
        if after != before:
            self._objects.modify(
                "pods",
                meta["name"],
                lambda one: one.update(status=after),
                namespace=meta["namespace"],
                subresource="status",
            )

    def _containers(self, pod: JSON, status: PodStatus) -> JSON:
        """Return the states of the containers; a rejected pod has none (kubelet.go, rejectPod)."""
        if status.message.startswith(status_message("")):
            return {}
        kinds = {"initContainers": "initContainerStatuses", "containers": "containerStatuses"}
        return {kinds[kind]: self._states(pod, pod["spec"][kind], status) for kind in kinds if pod["spec"].get(kind)}

    def _states(self, pod: JSON, containers: Sequence[JSON], status: PodStatus) -> list[JSON]:
        uid = pod["metadata"]["uid"]
        known = self._kubelet.is_running and uid in self._kubelet.node.pods
        health = self._kubelet.allocated_resources_status(uid) if known else {}
        over = status.phase in ("Succeeded", "Failed")
        out = []
        for container in containers:
            name = container["name"]
            running = name in status.running
            if running:
                state: JSON = {"running": {}}
            elif over or name in status.completed:
                code = int(status.phase == "Failed" and name not in status.completed)
                before = self._ends.setdefault(f"{uid} {name} {status.restarts.get(name, 0)}", timestamp())
                state = {"terminated": {"exitCode": code, "reason": "Completed", "finishedAt": before}}
            else:
                why = status.waiting.get(name, "")
                state = {
                    "waiting": {"reason": "CreateContainerError", "message": why}
                    if why
                    else {"reason": "ContainerCreating"}
                }
            entry: JSON = {"name": name, "ready": running, "started": running, "state": state}
            entry["restartCount"] = status.restarts.get(name, 0)
            if health.get(name):
                entry["allocatedResourcesStatus"] = health[name]
            out.append(entry)
        return out

    def _post(self, pod_name: str, reason: str, message: str, severity: str) -> None:
        for pod in self._objects.peek("pods", fields=f"spec.nodeName={self._name},metadata.name={pod_name}"):
            try:
                post(self._objects, "Pod", pod, reason, message, severity)
            except ApiError:
                return  # its namespace is being deleted


@dataclass(frozen=True, slots=True)
class ClusterTimings:
    """Delays of every part; the defaults are the real ones."""

    kubelet: Timings = field(default_factory=Timings)
    scheduler: SchedulerTimings = field(default_factory=SchedulerTimings)
    sync_seconds: float = 0.02
    """How often pods and statuses are compared; a real kubelet reacts to its watch and batches its writes."""

    @classmethod
    def fast(cls) -> ClusterTimings:
        """Return the timings for tests: waits that no test measures are 20 to 300 times shorter."""
        return cls(Timings.fast(), SchedulerTimings.fast(), sync_seconds=0.01)


class SimCluster:
    """``async with SimCluster(root) as cluster:``; ``root/<node>`` is each kubelet's root directory.

    Real sockets everywhere a driver looks: HTTP at ``api.url``, kubelet sockets below the root. What is simulated:
    containers (no program runs), the scheduler's scoring, every controller that devices do not need.
    """

    def __init__(
        self,
        root: Path,
        *,
        nodes: Sequence[str] = ("node-a",),
        release: str = DEFAULT,
        gates: Mapping[str, bool] | None = None,
        timings: ClusterTimings | None = None,
        versions: tuple[str, ...] | None = None,
        tls: bool = False,
        kubelet_version: str = "",
        runtime: Callable[[str], Runtime] | None = None,
        seed: int = 0,
    ) -> None:
        """``release`` and ``gates`` hold for the control plane, and for kubelets without a ``kubelet_version``."""
        self.root = Path(root)
        self.timings = timings or ClusterTimings()
        self.api = SimApiServer(release=release, gates=gates, versions=versions, tls=tls)
        self.scheduler = Scheduler(self.api.objects, self.api.gates, self.timings.scheduler)
        self.kubelets: dict[str, SimKubelet] = {
            name: SimKubelet(
                self.root / name,
                node_name=name,
                version=kubelet_version or release,
                gates=None if kubelet_version else gates,
                timings=self.timings.kubelet,
                api=StoreApi(self.api.objects, self.api.faults),
                runtime=runtime(name) if runtime is not None else None,
                seed=seed + number,
            )
            for number, name in enumerate(nodes)
        }
        self._tasks: list[asyncio.Task[None]] = []

    # -- life

    async def start(self) -> None:
        await self.api.start()
        for name, kubelet in self.kubelets.items():
            await kubelet.start()
            node = ClusterNode(self.api.objects, self.api.faults, kubelet, self.timings.sync_seconds)
            self._tasks.append(asyncio.create_task(node.run(), name=f"node {name}"))
        self._tasks.append(asyncio.create_task(self.scheduler.run(), name="scheduler"))
        await self.wait(
            lambda: len(self.api.objects.peek("nodes")) == len(self.kubelets), what="every Node to register"
        )

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for kubelet in self.kubelets.values():
            await kubelet.stop()
        await self.api.stop()

    async def __aenter__(self) -> SimCluster:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- what a user of kubectl does

    async def apply(self, manifest: str | Mapping[str, Any]) -> list[JSON]:
        """Do what ``kubectl apply`` does, and return what the server stored.

        Takes an object, a List, or YAML with several documents.
        Raises ApiError with the server's words for what it refuses.
        """
        documents = list(yaml.safe_load_all(manifest)) if isinstance(manifest, str) else [manifest]
        objects: list[JSON] = []
        for document in documents:
            if document is not None:
                objects += document["items"] if document.get("kind") == "List" else [dict(document)]
        return [self._apply(one) for one in objects]

    def _apply(self, obj: JSON) -> JSON:
        version = obj["apiVersion"].rpartition("/")[2]
        writer = Writer(ADMIN, "kubectl", version, strict=True, force=True)
        meta, resource = obj["metadata"], BY_KIND.get(obj["kind"])
        namespace = meta.get("namespace", "default") if resource is None or resource.namespaced else ""
        if resource is None or "name" not in meta:
            return self.api.objects.create(obj, namespace=namespace, by=writer)
        done, _ = self.api.objects.apply(resource.plural, meta["name"], obj, namespace=namespace, by=writer)
        return done

    def get(self, plural: str, name: str, namespace: str = "default") -> JSON | None:
        """Return a copy of an object, or None; the namespace does not matter for cluster-scoped kinds."""
        scoped = BY_PLURAL[plural].namespaced
        return self.api.objects.find(plural, name, namespace if scoped else "")

    async def delete(
        self, plural: str, name: str, namespace: str = "default", *, force: bool = False, timeout: float = 60.0
    ) -> None:
        """Do what ``kubectl delete`` does; return when the object is gone. ``force``: grace period 0 for pods."""
        scoped = BY_PLURAL[plural].namespaced
        where = namespace if scoped else ""
        uid = self.api.objects.delete(plural, name, where, grace_seconds=0 if force else None)["metadata"]["uid"]
        await self.wait(lambda: not self.api.objects.store.has_uid(uid), timeout, f"{plural}/{name} to be gone")

    # -- waiting

    async def wait(self, condition: Callable[[], object], timeout: float = 60.0, what: str = "") -> None:
        """Wait until the condition holds; poll every 5 ms.

        Raises TimeoutError that names ``what`` and shows the pods, or the error of a part that died.
        """
        deadline = time.monotonic() + timeout
        while not condition():
            for task in self._tasks:
                if task.done() and not task.cancelled():
                    task.result()
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {timeout} s for {what or condition}; {self.describe()}")
            await asyncio.sleep(0.005)

    async def wait_pod(
        self, name: str, phase: str = "Running", namespace: str = "default", *, timeout: float = 60.0
    ) -> JSON:
        """Return the pod once it is in ``phase``."""

        def there() -> bool:
            pod = self.get("pods", name, namespace)
            return pod is not None and pod["status"].get("phase") == phase

        await self.wait(there, timeout, f"pod {namespace}/{name} to be {phase}")
        return self.api.objects.get("pods", name, namespace)

    def events(self, name: str = "", reason: str = "") -> list[JSON]:
        """Return the Events about objects called ``name``, with ``reason``."""
        fields = ",".join(
            term
            for term in (f"involvedObject.name={name}" if name else "", f"reason={reason}" if reason else "")
            if term
        )
        return list(self.api.objects.list("events", fields=fields))

    def describe(self) -> str:
        """Return each pod with its phase and its last Event, as text."""
        lines = []
        for pod in self.api.objects.peek("pods"):
            said = [event["message"] for event in self.events(pod["metadata"]["name"])]
            status = pod["status"]
            lines.append(
                f"{pod['metadata']['name']}: {status['phase']} {status.get('message', '')} {said[-1:]}".strip()
            )
        return "pods: " + ("; ".join(lines) or "none")
