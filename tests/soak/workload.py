"""The load: pods with limits and pods with claims, more of them than there are devices, each with its own end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from drabridge.sim.apiserver.status import ApiError
from drabridge.sim.cluster import LINGER_SECONDS_ANNOTATION, RUN_SECONDS_ANNOTATION
from tests.soak.bed import LOOP, SCALE, Bed
from tests.soak.judge import OPENS

JSON = dict[str, Any]
TICK_SECONDS = 0.05
DEMAND = 1.5  # devices asked for at any time, per device that there is
PATIENCE_SECONDS = 20.0  # a pod that never runs is deleted, as an impatient owner does
SHORT_LINGER_SECONDS = 2.0 / SCALE  # a force-deleted container's usual end (measured: 1.5 to 2.05 s)
LONG_LINGER_SECONDS = 120.0 / SCALE  # a container that does not want to die


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of pod: how many devices, and what else it is made of."""

    name: str
    weight: int
    count: int = 1
    init: int = 0  # devices of a plain init container; the app container takes them over
    init_only: bool = False  # the app container asks for none
    template: bool = False


SHAPES = (
    Shape("limits-one", 8),
    Shape("limits-two", 3, count=2),
    Shape("limits-init", 3, init=1),
    Shape("limits-initonly", 4, init=1, init_only=True),  # PodResources never shows these
    Shape("claim-one", 8),
    Shape("claim-two", 3, count=2),
    Shape("claim-template", 4, template=True),
)


@dataclass(slots=True)
class Pod:
    """One pod of the load, and its fate."""

    name: str
    devices: int
    resource: str
    claim: str  # a claim of its own, deleted after it
    uid: str
    dies_at: float
    death: str  # "ends" by itself, "deleted", "forced"
    gone: bool = False


@dataclass(slots=True)
class Load:
    """Create, watch and end pods until stopped."""

    bed: Bed
    rng: random.Random
    running: bool = True
    created: Counter[str] = field(default_factory=Counter)
    ran: set[str] = field(default_factory=set)  # uids
    failed: Counter[str] = field(default_factory=Counter)  # pods that ended as Failed, by reason
    _pods: dict[str, Pod] = field(default_factory=dict)
    _serial: int = 0

    async def run(self) -> None:
        """Run until ``running`` is false, then delete every pod."""
        while self.running or self._pods:
            self._look()
            if self.running:
                await self._fill()
            await asyncio.sleep(TICK_SECONDS)

    def finish(self) -> None:
        """Create no more pods and delete the present ones, as a user would."""
        self.running = False
        for pod in self._pods.values():
            pod.death, pod.dies_at = "deleted", 0.0

    @property
    def alive(self) -> int:
        return len(self._pods)

    async def _fill(self) -> None:
        for resource, capacity in self.bed.capacity.items():
            asked = sum(pod.devices for pod in self._pods.values() if pod.resource == resource)
            if asked < capacity * DEMAND:
                await self._create(resource)

    async def _create(self, resource: str) -> None:
        rng, loop = self.rng, asyncio.get_running_loop()
        (shape,) = rng.choices(SHAPES, [one.weight for one in SHAPES])
        opens = resource == LOOP and rng.random() < 0.6  # /dev/null is open everywhere: its node proves nothing
        self._serial += 1
        name = f"{shape.name}-{OPENS if opens else ''}{self._serial}"
        run_seconds = rng.uniform(2, 8) if shape.init_only else min(8.0, max(0.1, rng.expovariate(1 / 1.5)))
        death = rng.choices(("ends", "deleted", "forced"), (5, 3, 2))[0]
        # A claim's container may outlive its force-deleted pod and its allocation, until kubelet's loop looks.
        long = opens or (shape.name.startswith("claim") and rng.random() < 0.5)
        linger = rng.uniform(0, LONG_LINGER_SECONDS if long else SHORT_LINGER_SECONDS)
        annotations = {LINGER_SECONDS_ANNOTATION: f"{linger:.3f}"}
        if death == "ends":
            annotations[RUN_SECONDS_ANNOTATION] = f"{run_seconds:.3f}"
        claim = f"{name}-claim" if shape.name.startswith("claim") and not shape.template else ""
        whole = documents(shape, name, resource, annotations, run_seconds)
        for document in whole:
            uid = (await self.bed.cluster.apply(document))[0]["metadata"]["uid"]
        dies_at = loop.time() + (PATIENCE_SECONDS if death == "ends" else rng.uniform(0.2, 5.0))
        self._pods[name] = Pod(name, shape.count, resource, claim, uid, dies_at, death)
        self.created[shape.name.partition("-")[0]] += 1

    def _look(self) -> None:
        """Count what runs, and end what is due."""
        now = asyncio.get_running_loop().time()
        objects = {pod["metadata"]["name"]: pod for pod in self.bed.cluster.api.objects.peek("pods")}
        for pod in list(self._pods.values()):
            found = objects.get(pod.name)
            if found is None:
                self._delete("resourceclaims", pod.claim)
                del self._pods[pod.name]
                continue
            status = found["status"]
            if status.get("phase") == "Failed" and not pod.gone:
                self.failed[status.get("reason") or "Failed"] += 1
            if not pod.gone and (status.get("phase") in ("Failed", "Succeeded") or now >= pod.dies_at):
                pod.gone = True
                forced = pod.death == "forced" and status.get("phase") not in ("Failed", "Succeeded")
                if forced:
                    self.bed.judge.force_deleted.add(f"default/{pod.name}")
                self._delete("pods", pod.name, forced=forced)

    def _delete(self, plural: str, name: str, *, forced: bool = False) -> None:
        if not name:
            return
        try:
            self.bed.cluster.api.objects.delete(plural, name, "default", grace_seconds=0 if forced else None)
        except ApiError as error:
            if error.code != 404:
                raise


def documents(shape: Shape, name: str, resource: str, annotations: dict[str, str], run_seconds: float) -> list[JSON]:
    """The objects of one pod, in the order in which they are created."""
    metadata = {"name": name, "namespace": "default"}
    container: JSON = {"name": "main", "image": "x"}
    spec: JSON = {"restartPolicy": "Never", "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "annotations": annotations}, "spec": spec}
    if shape.name.startswith("limits"):
        if shape.init:
            limits = {"limits": {resource: shape.init}}
            init = {"name": "init", "image": "x", "resources": limits, "runSeconds": run_seconds}
            spec["initContainers"] = [init]
        if not shape.init_only:
            container["resources"] = {"limits": {resource: shape.count}}
        return [pod]
    request = {"name": "r", "exactly": {"deviceClassName": resource.rpartition("/")[2], "count": shape.count}}
    claim_spec = {"devices": {"requests": [request]}}
    container["resources"] = {"claims": [{"name": "c"}]}
    if shape.template:
        spec["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": _template(resource)}]
        return [_claim("ResourceClaimTemplate", _template(resource), {"spec": claim_spec}), pod]
    spec["resourceClaims"] = [{"name": "c", "resourceClaimName": f"{name}-claim"}]
    return [_claim("ResourceClaim", f"{name}-claim", claim_spec), pod]


def _claim(kind: str, name: str, spec: JSON) -> JSON:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def _template(resource: str) -> str:
    return f"one-{resource.rpartition('/')[2]}"
