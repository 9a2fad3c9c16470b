"""A Kubernetes cluster in one process: simulated API server, scheduler, controllers, and a kubelet per node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from drabridge.sim.apiserver import SimApiServer, Writer
from drabridge.sim.apiserver.auth import ADMIN
from drabridge.sim.apiserver.kinds import BY_KIND, DRA_VERSIONS
from drabridge.sim.clusternode import ClusterNode, NodeTimings, StoreApi
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.runtime import Runtime
from drabridge.sim.kubelet.timings import Timings
from drabridge.sim.scheduler import Scheduler, SchedulerTimings

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterTimings:
    """Delays of every part; the defaults are the real ones."""

    kubelet: Timings = field(default_factory=Timings)
    scheduler: SchedulerTimings = field(default_factory=SchedulerTimings)
    node: NodeTimings = field(default_factory=NodeTimings)

    @classmethod
    def fast(cls) -> ClusterTimings:
        """What tests use: waits that nobody measures are 20 to 300 times shorter."""
        return cls(Timings.fast(), SchedulerTimings.fast(), NodeTimings(sync_seconds=0.01, job_pod_seconds=0.2))


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
        gates: Mapping[str, bool] | None = None,
        timings: ClusterTimings | None = None,
        versions: tuple[str, ...] = DRA_VERSIONS,
        tls: bool = False,
        kubelet_version: str = "1.36",
        runtime: Callable[[str], Runtime] | None = None,
        seed: int = 0,
    ) -> None:
        self.root = Path(root)
        self.timings = timings or ClusterTimings()
        self.api = SimApiServer(gates=gates, versions=versions, tls=tls)
        self.scheduler = Scheduler(self.api.objects, self.api.gates, self.timings.scheduler)
        self.kubelets: dict[str, SimKubelet] = {
            name: SimKubelet(
                self.root / name,
                node_name=name,
                version=kubelet_version,
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
            node = ClusterNode(self.api.objects, self.api.faults, kubelet, self.timings.node)
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
        """``kubectl apply``: an object, a List, or YAML with several documents. Returns what the server stored.

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
        """A copy of an object, or None; the namespace does not matter for cluster-scoped kinds."""
        scoped = next(one for one in BY_KIND.values() if one.plural == plural).namespaced
        return self.api.objects.find(plural, name, namespace if scoped else "")

    async def delete(
        self, plural: str, name: str, namespace: str = "default", *, force: bool = False, timeout: float = 60.0
    ) -> None:
        """``kubectl delete``: returns when the object is gone. ``force`` is grace period 0 for pods."""
        scoped = next(one for one in BY_KIND.values() if one.plural == plural).namespaced
        where = namespace if scoped else ""
        uid = self.api.objects.delete(plural, name, where, grace_seconds=0 if force else None)["metadata"]["uid"]
        await self.wait(lambda: not self.api.objects.store.has_uid(uid), timeout, f"{plural}/{name} to be gone")

    # -- waiting

    async def wait(self, condition: Callable[[], object], timeout: float = 60.0, what: str = "") -> None:
        """Poll every 5 ms. Raises TimeoutError that names ``what`` and shows the pods, or the error of a dead part."""
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
        """The pod once it is in ``phase``."""

        def there() -> bool:
            pod = self.get("pods", name, namespace)
            return pod is not None and pod["status"].get("phase") == phase

        await self.wait(there, timeout, f"pod {namespace}/{name} to be {phase}")
        return self.api.objects.get("pods", name, namespace)

    def events(self, name: str = "", reason: str = "") -> list[JSON]:
        """Events about objects called ``name``, with ``reason``."""
        fields = ",".join(
            term
            for term in (f"involvedObject.name={name}" if name else "", f"reason={reason}" if reason else "")
            if term
        )
        return list(self.api.objects.list("events", fields=fields))

    def describe(self) -> str:
        """Every pod with its phase and the last thing that was said about it."""
        lines = []
        for pod in self.api.objects.peek("pods"):
            said = [event["message"] for event in self.events(pod["metadata"]["name"])]
            status = pod["status"]
            lines.append(
                f"{pod['metadata']['name']}: {status['phase']} {status.get('message', '')} {said[-1:]}".strip()
            )
        return "pods: " + ("; ".join(lines) or "none")
