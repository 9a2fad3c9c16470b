"""Roll Deployments and StatefulSets of the simulated API server out, with the rules of Kubernetes' controllers."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import math
from typing import Any

from drabridge.sim.apiserver.objects import Objects
from drabridge.sim.apiserver.status import ApiError

Json = dict[str, Any]
HASH = "pod-template-hash"
REVISION = "controller-revision-hash"
SYNC_SECONDS = 0.05
SHARE = 0.25  # maxSurge and maxUnavailable of a Deployment, where it says nothing


class Controllers:
    """Looks at every object again and again."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def run(self) -> None:
        while True:
            for plural, kind, sync in (
                ("deployments", "Deployment", self._deployment),
                ("statefulsets", "StatefulSet", self._stateful_set),
            ):
                for one in list(self._objects.peek(plural)):
                    try:
                        sync({**copy.deepcopy(one), "kind": kind})  # the store keeps it nowhere
                    except ApiError:
                        continue  # it changed meanwhile: the next round looks again
            await asyncio.sleep(SYNC_SECONDS)

    def _deployment(self, one: Json) -> None:
        spec, revision = one["spec"], _digest(one["spec"]["template"])
        wanted = spec.get("replicas", 1)
        recreate = (spec.get("strategy") or {}).get("type") == "Recreate"
        surge = 0 if recreate else math.ceil(SHARE * wanted)
        lacking = wanted if recreate else math.floor(SHARE * wanted)
        owner = self._replica_set(one, revision)
        for each in self._objects.peek("replicasets", one["metadata"]["namespace"]):
            if one["metadata"]["uid"] in _owners(each):
                self._scale(each, wanted if each["metadata"]["uid"] == owner["metadata"]["uid"] else 0)
        running = [pod for pod in self._pods(one) if not failed(pod)]  # a new one is made for each that failed
        pods = [pod for pod in running if not pod["metadata"].get("deletionTimestamp")]
        new = [pod for pod in pods if pod["metadata"]["labels"].get(HASH) == revision]
        old = [pod for pod in pods if pod not in new]
        waits = recreate and len(running) > len(new)  # until the last old pod is gone
        for _ in range(0 if waits else min(wanted - len(new), wanted + surge - len(pods))):
            self._make(one, owner, {HASH: revision}, generate=f"{owner['metadata']['name']}-")
        too_many = sum(map(_ready, pods)) - (wanted - lacking)
        for pod in sorted(old, key=_ready):
            if not _ready(pod) or too_many > 0:
                too_many -= _ready(pod)
                self._delete(pod)
        self._say(one, pods, new, wanted)

    def _replica_set(self, one: Json, revision: str) -> Json:
        name, namespace = f"{one['metadata']['name']}-{revision}", one["metadata"]["namespace"]
        found = self._objects.find("replicasets", name, namespace)
        spec = {"replicas": one["spec"].get("replicas", 1), "template": one["spec"]["template"]}
        meta = {"name": name, "namespace": namespace, "ownerReferences": [_reference(one)]}
        body = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": meta, "spec": spec}
        return {**(found or self._objects.create(body)), "kind": "ReplicaSet"}

    def _scale(self, one: Json, replicas: int) -> None:
        if one["spec"]["replicas"] != replicas:
            name, namespace = one["metadata"]["name"], one["metadata"]["namespace"]
            self._objects.modify(
                "replicasets", name, lambda obj: obj["spec"].update(replicas=replicas), namespace=namespace
            )

    def _stateful_set(self, one: Json) -> None:
        revision, wanted = _digest(one["spec"]["template"]), one["spec"].get("replicas", 1)
        pods = {pod["metadata"]["name"]: pod for pod in self._pods(one)}
        for pod in filter(failed, pods.values()):
            self._delete(pod)
        new = [pod for pod in pods.values() if pod["metadata"]["labels"].get(REVISION) == revision]
        for number in range(wanted):
            name = f"{one['metadata']['name']}-{number}"
            if name not in pods:
                self._make(one, one, {REVISION: revision}, name=name)
                break
            if not _ready(pods[name]):
                break
        else:
            for name in sorted(pods, reverse=True):
                if pods[name] not in new:
                    self._delete(pods[name])
                    break
        self._say(one, list(pods.values()), new, wanted, revision)

    def _pods(self, one: Json) -> list[Json]:
        """The pods of a workload, those of its ReplicaSets, too."""
        meta = one["metadata"]
        uids = {meta["uid"]} | {
            each["metadata"]["uid"]
            for each in self._objects.peek("replicasets", meta["namespace"])
            if meta["uid"] in _owners(each)
        }
        return [pod for pod in self._objects.peek("pods", meta["namespace"]) if uids & _owners(pod)]

    def _make(self, one: Json, owner: Json, labels: Json, *, name: str = "", generate: str = "") -> None:
        template = copy.deepcopy(one["spec"]["template"])
        meta = template.get("metadata") or {}
        naming = {"name": name} if name else {"generateName": generate}
        meta |= {**naming, "namespace": one["metadata"]["namespace"], "ownerReferences": [_reference(owner)]}
        meta["labels"] = {**(meta.get("labels") or {}), **labels}
        self._objects.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]})

    def _delete(self, pod: Json) -> None:
        if not pod["metadata"].get("deletionTimestamp"):
            self._objects.delete("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])

    def _say(self, one: Json, pods: list[Json], new: list[Json], wanted: int, revision: str = "") -> None:
        status: Json = {
            "observedGeneration": one["metadata"]["generation"],
            "replicas": len(pods),
            "updatedReplicas": len(new),
            "readyReplicas": sum(map(_ready, pods)),
            "availableReplicas": sum(map(_ready, pods)),
        }
        if revision:
            whole = len(new) == len(pods) == wanted
            current = revision if whole else (one.get("status") or {}).get("currentRevision") or revision
            status |= {"currentRevision": current, "updateRevision": revision}
        if status != one.get("status"):
            self._objects.modify(
                "deployments" if one["kind"] == "Deployment" else "statefulsets",
                one["metadata"]["name"],
                lambda obj: obj.update(status=status),
                namespace=one["metadata"]["namespace"],
                subresource="status",
            )


def failed(pod: Json) -> bool:
    """Whether a pod has ended for good, for example because kubelet did not admit it."""
    return bool(pod["status"].get("phase") == "Failed")


def _ready(pod: Json) -> bool:
    return pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")


def _owners(obj: Json) -> set[str]:
    return {one["uid"] for one in obj["metadata"].get("ownerReferences") or ()}


def _reference(owner: Json) -> Json:
    named = {"apiVersion": "apps/v1", "kind": owner["kind"], "name": owner["metadata"]["name"]}
    return {**named, "uid": owner["metadata"]["uid"], "controller": True}


def _digest(template: Json) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
