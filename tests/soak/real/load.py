"""The load on one real node: pods with limits, claims, templates and shared claims, more than there are devices."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from drabridge.errors import DrabridgeError
from drabridge.kube.api import Kind, Listing
from drabridge.kube.watch import follow
from tests.cluster.bed import CLAIMS, NAMESPACE, NODES, PODS, SLICES, TEMPLATES
from tests.soak.real import container, judge
from tests.soak.real.bed import CLASS, DRIVER, EVENTS, NAMES, RESOURCE, RealNode, create
from tests.soak.real.container import STUBBORN_GRACE_SECONDS, Json
from tests.soak.real.judge import LEASED_SECONDS, Sample, Waiting, Waits
from tests.soak.real.starts import Starts
from tests.soak.run import kind_of

LEGACY, CLAIM = "legacy", "dra"
TICK_SECONDS = 0.7
DEMAND = 1.0
"""Devices asked for by each API, per device of the node: half of them are in a lane, so two for each of those."""
LIVES_SECONDS = (2.0, 15.0)
FOREVER_SECONDS = 600.0  # of a container that waits for being deleted
BY_FAULT = ("agent away", "starting", "API away")
"""Kinds of refusals (tests.soak.run.KINDS) that this run's own faults bring about."""
UNPREPARED = "unprepared by kubelet for another pod's end"
LEFT = "left alone by kubelet after a reboot"
LEFT_RESERVED = "left reserved by a scheduler that was killed"
FAILED_PREPARE = "FailedPrepareDynamicResources"


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of pod."""

    name: str
    lane: str
    weight: int
    count: int = 1
    init: bool = False  # an init container has the device first, and the app container takes it over
    pods: int = 1  # that share one claim


SHAPES = (
    Shape("limits-one", LEGACY, 8),
    Shape("limits-two", LEGACY, 2, count=2),
    Shape("limits-init", LEGACY, 2, init=True),
    Shape("claim-one", CLAIM, 5),
    Shape("claim-two", CLAIM, 2, count=2),
    Shape("template", CLAIM, 4),
    Shape("shared", CLAIM, 3, pods=3),
)


@dataclass(slots=True)
class Pod:
    """One pod of the load, and its fate."""

    name: str
    shape: Shape
    claim: str
    """Of its own or shared, deleted after its last pod; empty: none, or one from a template."""
    death: str  # "ends" by itself, "deleted", "forced"
    dies_at: float
    seen: bool = False
    deleted: bool = False
    uid: str = ""
    end: str = ""


@dataclass(slots=True)
class Load:
    """Create, watch and end pods until stopped."""

    node: RealNode
    rng: random.Random
    demand: float = DEMAND
    lanes: tuple[str, ...] = (LEGACY, CLAIM)
    running: bool = True
    starts: Starts = field(default_factory=Starts)
    waits: Waits = field(init=False)
    created: Counter[str] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)
    refused: dict[str, str] = field(default_factory=dict)  # pod UID -> kind, the first one
    failed: Counter[str] = field(default_factory=Counter)
    free: int = 0
    """Devices that nobody has, as the API shows them."""
    waiting: dict[str, str] = field(default_factory=dict)  # pod UID -> name, as last seen
    _pods: dict[str, Pod] = field(default_factory=dict)
    _wanted: list[tuple[Kind, Json]] = field(default_factory=list)  # to be created, in this order
    _claims: set[str] = field(default_factory=set)  # to be deleted
    _events: dict[str, int] = field(default_factory=dict)  # uid of an event -> how often it was seen to have happened
    _serial: int = 0

    def __post_init__(self) -> None:
        self.waits = Waits(LEASED_SECONDS) if self.node.shared else Waits()

    async def run(self) -> None:
        """Run until ``running`` is false and every pod has gone."""
        away = False
        while self.running or self._pods or self._claims:
            try:
                await self._tick()
                away = False
            except DrabridgeError as error:  # the API server is away: everything is tried again
                if not away:
                    self.node.log(f"load: {str(error)[:200]}")
                away = True
            await asyncio.sleep(TICK_SECONDS)

    async def watch_starts(self) -> None:
        """Time, until cancelled, how long each pod takes to run."""
        await follow(self.node.api, PODS, f"metadata.namespace={NAMESPACE}", self.starts)

    async def prepare(self) -> None:
        """The template that pods use."""
        body = _claim("ResourceClaimTemplate", "one", {"spec": _request(1)})
        if not await create(self.node.api, TEMPLATES, body):
            raise AssertionError("the claim template could not be created")

    def finish(self) -> None:
        """Create no more pods. Delete those that run; let those that wait run first."""
        self.running = False

    @property
    def names(self) -> list[str]:
        return sorted(self._pods)

    # --- one look ---------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        api = self.node.api
        pods = {
            one["metadata"]["name"]: one
            for one in (await api.list(PODS, namespace=NAMESPACE)).items
            if one["metadata"]["name"] in self._pods
        }
        claims = tuple(
            one
            for one in (await api.list(CLAIMS, namespace=NAMESPACE)).items
            if pools_of(one) <= {self.node.object_name}  # the agent names its pool after its node
        )
        excused = self._refusals(await api.list(EVENTS, namespace=NAMESPACE, field_selector=f"reason={FAILED_PREPARE}"))
        selector = f"spec.driver={DRIVER},spec.nodeName={self.node.object_name}"
        slices = (await api.list(SLICES, field_selector=selector)).items
        node = await api.get(NODES, self.node.object_name)
        prepared = judge.prepared(self.node.dra_manager_state())
        sample = sample_of(time.monotonic(), pods, claims, slices, node, excused, prepared)
        self.waiting = {one.uid: one.pod for one in sample.waiting}
        self.free = max(0, min(sample.free.values()) if self.node.shared else sum(sample.free.values()))
        self.waits.observe(sample)
        await self._look(pods, claims)
        if self.running:
            self._fill()
        await self._send()

    def _refusals(self, events: Listing[Json]) -> set[str]:
        """Count what kubelet said of claims; answer with the pods that this run's faults hit since the last look."""
        excused = set()
        for event in events.items:
            if not str(event["involvedObject"].get("name", "")).endswith(self.node.suffix):
                continue
            key, count = event["metadata"]["uid"], int(event.get("count") or 1)
            if self._events.get(key) == count:
                continue
            self._events[key] = count
            uid, kind = str(event["involvedObject"].get("uid", "")), kind_of(str(event.get("message", "")))
            self._refuse(uid, str(event["involvedObject"].get("name", "")), kind)
            if kind in BY_FAULT:
                excused.add(uid)
        return excused

    def _refuse(self, uid: str, pod: str, kind: str) -> None:
        if uid not in self.refused:
            self.refused[uid] = kind
            self.node.log(f"refused: {pod}: {kind}")

    async def _look(self, pods: dict[str, Json], claims: tuple[Json, ...]) -> None:
        """End what is due."""
        now = time.monotonic()
        for pod in list(self._pods.values()):
            found = pods.get(pod.name)
            if found is None:
                if pod.seen:
                    self._gone(pod)
                continue
            pod.seen, pod.uid = True, found["metadata"]["uid"]
            ended = self._ended(pod, found)
            running = found["status"].get("phase") == "Running"
            due = (pod.death != "ends" and now >= pod.dies_at) or (running and not self.running)
            if pod.shape.pods > 1 and judge.unprepared_by_kubelet(found):
                self._refuse(pod.uid, pod.name, UNPREPARED)
                due = True  # it would wait for ever
            if judge.left_at_boot(found, self.node.rebooted, time.time()):
                self._refuse(pod.uid, pod.name, LEFT)
                due = True
            if any(judge.left_reserved(found, one, time.time()) for one in _claims_of(found, claims)):
                self._refuse(pod.uid, pod.name, LEFT_RESERVED)
                due = True
            if (ended or due) and not pod.deleted:
                forced = pod.death == "forced" and not ended
                if forced:  # asked, not answered: the answer may be late or lost
                    self.node.note("forced", pod.name, pod.uid)
                if await self.node.end_pod(pod.name, forced=forced):
                    pod.deleted = True
                    pod.end = pod.end or ("force-deleted" if forced else "deleted")

    def _ended(self, pod: Pod, found: Json) -> bool:
        """Whether no container of it will run any more; how it came is kept."""
        status = found["status"]
        if status.get("phase") not in ("Failed", "Succeeded"):
            return False
        codes = [
            one["state"]["terminated"]["exitCode"]
            for one in [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
            if "terminated" in one.get("state", {})
        ]
        if not pod.end:
            reason = str(status.get("reason") or "")
            pod.end = f"{status['phase']} {reason} {codes}".replace("  ", " ")
            if reason:
                self.failed[reason] += 1
                self._refuse(pod.uid, pod.name, kind_of(str(status.get("message", ""))))
                self.node.rejected.setdefault(pod.uid, time.time())
        return True

    def _gone(self, pod: Pod) -> None:
        had = [line.device for line in judge.parse(self.node.journal()) if line.verb == "has" and line.uid == pod.uid]
        devices = " ".join(sorted(set(had))) or "nothing"
        self.node.log(f"pod end: {pod.name} ({pod.uid}): {pod.end or 'gone'}, had {devices}")
        self.deaths[pod.end.partition(" ")[0] or "gone"] += 1
        del self._pods[pod.name]
        if pod.claim and not any(other.claim == pod.claim for other in self._pods.values()):
            self._claims.add(pod.claim)

    # --- what is made -----------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        for lane in self.lanes:
            asked = sum(pod.shape.count / pod.shape.pods for pod in self._pods.values() if pod.shape.lane == lane)
            if asked < len(NAMES) * self.demand:
                self._make(lane)

    def _make(self, lane: str) -> None:
        rng = self.rng
        shapes = [one for one in SHAPES if one.lane == lane]
        (shape,) = rng.choices(shapes, [one.weight for one in shapes])
        self._serial += 1
        base = f"{shape.name}-{self._serial}{self.node.suffix}"
        claim = "" if lane == LEGACY or shape.name == "template" else base
        if claim:
            self._wanted.append((CLAIMS, _claim("ResourceClaim", claim, _request(shape.count))))
        for index in range(shape.pods):
            name = f"{shape.name}-{self._serial}-{index}{self.node.suffix}" if shape.pods > 1 else base
            death = rng.choices(("ends", "deleted", "forced"), (5, 3, 3))[0]
            lives = rng.uniform(*LIVES_SECONDS)
            stubborn = death != "ends" and rng.random() < 0.25
            body = self._body(name, shape, claim, lives if death == "ends" else FOREVER_SECONDS, stubborn)
            self._wanted.append((PODS, body))
            self._pods[name] = Pod(name, shape, claim, death, time.monotonic() + lives)
            self.created[shape.name.partition("-")[0]] += 1

    def _body(self, name: str, shape: Shape, claim: str, seconds: float, stubborn: bool) -> Json:
        shared = claim if shape.pods > 1 else ""
        script = self.node.program(seconds, shared=shared, stubborn=stubborn)
        limits: Json = {"limits": {RESOURCE: str(shape.count)}}
        more: Json = {"terminationGracePeriodSeconds": STUBBORN_GRACE_SECONDS} if stubborn else {}
        if shape.lane == CLAIM:
            source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": "one"}
            more["resourceClaims"] = [{"name": "device", **source}]
            limits = {"claims": [{"name": "device"}]}
        if shape.init:
            first = self.node.program(1.0)
            more["initContainers"] = [container.container(self.node.image, first, limits, name="init")]
        main = container.container(self.node.image, script, limits)
        return container.pod(name, NAMESPACE, self.node.node, self.node.locks_on_node, [main], **more)

    async def _send(self) -> None:
        while self._wanted:
            kind, body = self._wanted[0]
            if not await create(self.node.api, kind, body):
                break
            self._wanted.pop(0)
            if kind is PODS and (pod := self._pods.get(body["metadata"]["name"])):
                pod.seen = True
        for name in sorted(self._claims):
            await self.node.api.delete(CLAIMS, name, namespace=NAMESPACE)
            self._claims.discard(name)


def _request(count: int) -> Json:
    return {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": CLASS, "count": count}}]}}


def _claim(kind: str, name: str, spec: Json) -> Json:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def sample_of(
    at: float,
    pods: dict[str, Json],
    claims: tuple[Json, ...],
    slices: tuple[Json, ...],
    node: Json,
    excused: set[str],
    prepared: dict[str, set[str]],
) -> Sample:
    """What the API shows of who waits, and what is free; ``prepared`` is kubelet's record."""
    allocated = {one["metadata"]["name"]: _devices(one) for one in claims}
    published = {
        device["name"] for one in slices for device in one["spec"].get("devices") or () if not device.get("taints")
    }
    used = {device for devices in allocated.values() for device in devices}
    bound = sum(
        _limit(one)
        for one in pods.values()
        if one["spec"].get("nodeName") and one["status"].get("phase") not in ("Failed", "Succeeded")
    )
    offered = int(node["status"].get("allocatable", {}).get(RESOURCE, "0"))
    waiting = tuple(
        Waiting(
            name,
            one["metadata"]["uid"],
            LEGACY if _limit(one) else CLAIM,
            _needs(one, allocated, _claims_of(one, claims)),
            bool(one["spec"].get("nodeName")),
            _blocked(_claims_of(one, claims), prepared),
        )
        for name, one in pods.items()
        if one["status"].get("phase", "Pending") == "Pending" and "deletionTimestamp" not in one["metadata"]
    )
    return Sample(at, waiting, {LEGACY: offered - bound, CLAIM: len(published - used)}, frozenset(excused))


def _devices(claim: Json) -> list[str]:
    return [result["device"] for result in _results(claim)]


def pools_of(claim: Json) -> set[str]:
    """Return the pools that the claim has devices of."""
    return {result["pool"] for result in _results(claim)}


def _results(claim: Json) -> list[Json]:
    return list(claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ()))


def _limit(pod: Json) -> int:
    return max(int(one["resources"].get("limits", {}).get(RESOURCE, "0")) for one in pod["spec"]["containers"])


def _claims_of(pod: Json, claims: tuple[Json, ...]) -> list[Json]:
    names = [one.get("resourceClaimName") for one in pod["spec"].get("resourceClaims", ())]
    names += [one.get("resourceClaimName") for one in pod["status"].get("resourceClaimStatuses", ())]
    return [one for one in claims if one["metadata"]["name"] in names]


def _blocked(mine: list[Json], prepared: dict[str, set[str]]) -> bool:
    """Whether kubelet has not yet let go, for another claim, of what these claims were allocated."""
    return any(prepared.get(device, set()) - {one["metadata"]["uid"]} for one in mine for device in _devices(one))


def _needs(pod: Json, allocated: dict[str, list[str]], mine: list[Json]) -> int:
    """Devices that have to be free for it; none where it is bound or its claim has them."""
    if pod["spec"].get("nodeName"):
        return 0
    if limit := _limit(pod):
        return limit
    if any(allocated[one["metadata"]["name"]] for one in mine):
        return 0
    return sum(request["exactly"]["count"] for one in mine for request in one["spec"]["devices"]["requests"]) or 1
