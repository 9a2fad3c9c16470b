"""Joins one simulated kubelet to the simulated API server: its pods, their status, its Node object, its events."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from drabridge.errors import ClusterError
from drabridge.sim.apiserver import ApiError, Faults, Objects
from drabridge.sim.apiserver.objects import timestamp
from drabridge.sim.kubelet.kubelet import KubeletDownError, SimKubelet
from drabridge.sim.kubelet.podjson import pod_from_manifest
from drabridge.sim.kubelet.pods import PodStatus
from drabridge.sim.scheduler.claims import ended
from drabridge.sim.scheduler.events import post

JSON = dict[str, Any]
RUN_SECONDS_ANNOTATION = "sim.drabridge/run-seconds"
"""On a pod: its containers end by themselves after so long. Programs are not run, so something must say it."""
LINGER_SECONDS_ANNOTATION = "sim.drabridge/linger-seconds"
"""On a pod: its containers go on for so long after its object is gone, as force-deleted ones do."""


@dataclass(frozen=True, slots=True)
class NodeTimings:
    """Delays in seconds."""

    sync_seconds: float = 0.02
    """How often pods and statuses are compared; a real kubelet reacts to its watch and batches its writes."""
    job_pod_seconds: float = 0.5
    """How long the containers of a Job's pods run without the annotation."""


class StoreApi:
    """The kubelet's two requests (drabridge.sim.api_client.ClusterApi), answered from the store."""

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
    """Level-triggered: each pass compares what the API server has with what the kubelet has."""

    def __init__(self, objects: Objects, faults: Faults, kubelet: SimKubelet, timings: NodeTimings) -> None:
        self._objects = objects
        self._faults = faults
        self._kubelet = kubelet
        self._timings = timings
        self._name = kubelet.node.name
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._linger: dict[str, float] = {}  # by uid: the object is gone when it is needed
        self._posted = 0

    async def run(self) -> None:
        """Until cancelled. Programming errors end it: the cluster shows them to whoever waits on it."""
        try:
            while True:
                if not self._faults.partitioned:
                    self._register()
                    self._sync()
                await asyncio.sleep(self._timings.sync_seconds)
                for task in [one for one in self._busy.values() if one.done()]:
                    task.result()
                self._busy = {uid: task for uid, task in self._busy.items() if not task.done()}
        finally:
            for task in self._busy.values():
                task.cancel()
            await asyncio.gather(*self._busy.values(), return_exceptions=True)

    # -- the Node object

    def _register(self) -> None:
        """The kubelet creates its Node when there is none, and reports the extended resources it has published."""
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
            "nodeInfo": {"kubeletVersion": f"v1.{self._kubelet.node.version.minor}.2-sim"},
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
            return  # the next kubelet finds the pod in the node's list, or the next pass brings it

    def _with_run_seconds(self, pod: JSON) -> JSON:
        """The manifest with the time its containers take, where something says it."""
        given = pod["metadata"].get("annotations", {}).get(RUN_SECONDS_ANNOTATION)
        of_job = any(one["kind"] == "Job" for one in pod["metadata"].get("ownerReferences", []))
        seconds = float(given) if given else (self._timings.job_pod_seconds if of_job else None)
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
        """The object is gone (force deletion, or removed while nobody looked)."""
        linger = self._linger.pop(uid, 0.0)
        if uid in self._kubelet.node.pods:
            await self._kubelet.delete_pod(uid, force=True, linger_seconds=linger)

    def _report(self, pod: JSON, status: PodStatus) -> None:
        """Write the status when it says something new."""
        meta, before = pod["metadata"], pod["status"]
        after = {**before, "phase": str(status.phase), "containerStatuses": self._containers(pod, status)}
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

    def _containers(self, pod: JSON, status: PodStatus) -> list[JSON]:
        uid = pod["metadata"]["uid"]
        known = self._kubelet.is_running and uid in self._kubelet.node.pods
        health = self._kubelet.allocated_resources_status(uid) if known else {}
        out = []
        for container in pod["spec"].get("containers", []):
            name = container["name"]
            running = name in status.running
            if running:
                state: JSON = {"running": {}}
            elif status.phase in ("Succeeded", "Failed"):
                state = {"terminated": {"exitCode": 0 if status.phase == "Succeeded" else 1, "reason": "Completed"}}
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
                return  # its namespace is on the way out
