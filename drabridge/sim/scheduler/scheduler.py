"""The scheduler: binds pending pods to the first node that fits, after it has allocated their claims.

Together with the controllers around claims, Jobs and device taints it is the control plane of the simulated cluster.
Not imitated: scoring (the first node by name wins), preemption, affinity, CPU and memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drabridge.sim.apiserver.objects import Objects, timestamp
from drabridge.sim.apiserver.status import JSON, ApiError
from drabridge.sim.apiserver.store import Change
from drabridge.sim.scheduler import claim_controller, extended
from drabridge.sim.scheduler.allocator import InUse, Pick, UnsatisfiableError, allocate, allocation, check_classes
from drabridge.sim.scheduler.cel import SelectorError, Selectors
from drabridge.sim.scheduler.claim_controller import Readiness, readiness
from drabridge.sim.scheduler.events import post
from drabridge.sim.scheduler.jobs import sync_jobs
from drabridge.sim.scheduler.pools import gather, selects
from drabridge.sim.scheduler.taints import evict, slices_with_rules

_IGNORED = frozenset({"events", "leases", "configmaps"})


@dataclass(frozen=True, slots=True)
class SchedulerTimings:
    """Delays in seconds; defaults are the real scheduler's where it has them."""

    settle_seconds: float = 0.005
    """Changes that arrive together are handled in one step."""
    binding_poll_seconds: float = 5.0
    """Hard-coded in 1.36.2's PreBind of the dynamicresources plugin; the first look is immediate."""
    binding_timeout_seconds: float = 600.0
    """``DynamicResourcesArgs.bindingTimeout``."""
    binding_retry_seconds: float = 1.3
    """From a failed binding until the allocation is taken back and chosen again: 1.2 to 1.4 s were seen."""
    node_cache_lag_seconds: float = 0.0
    """The delay until the scheduler sees a node's allocatable, after kubelet has reported it."""

    @classmethod
    def fast(cls, **changes: float) -> SchedulerTimings:
        """Return the timings for tests: binding conditions are polled 100 times as often."""
        return replace(cls(binding_poll_seconds=0.05, binding_retry_seconds=0.013), **changes)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a pod goes, and what has to be written before it is bound."""

    node: str
    claims: Sequence[JSON]
    """All claims of the pod, allocated or not; the special claim of extended resources comes last."""
    picks: Mapping[int, Sequence[Pick]]
    """Position in ``claims`` -> picks. A claim that is allocated already has none."""
    mappings: Sequence[JSON] = ()
    """``requestMappings`` of the special claim."""


class Scheduler:
    """Reacts to changes in the store until cancelled; :meth:`step` alone is one deterministic pass."""

    def __init__(self, objects: Objects, gates: Mapping[str, bool], timings: SchedulerTimings | None = None) -> None:
        self.objects = objects
        self.timings = timings or SchedulerTimings()
        self._gates = gates
        self._selectors = Selectors()
        self._allocatable: dict[str, Mapping[str, str]] = {}  # of each node, as it was a while ago
        self._wake = asyncio.Event()
        self._binding: dict[str, asyncio.Task[None]] = {}
        self._queue: list[str] = []
        self._resting: dict[str, asyncio.TimerHandle] = {}  # UIDs of pods whose binding failed just now
        self._failed: set[str] = set()  # UIDs of claims whose allocation is to be taken back

    async def run(self) -> None:
        unsubscribe = self.objects.store.subscribe(self._noticed)
        for node in self.objects.peek("nodes"):
            self.see_node(node)
        self._wake.set()
        try:
            while True:
                await self._wake.wait()
                await asyncio.sleep(self.timings.settle_seconds)
                self._wake.clear()
                self.step()
        finally:
            unsubscribe()
            for resting in self._resting.values():
                resting.cancel()
            for task in self._binding.values():
                task.cancel()
            await asyncio.gather(*self._binding.values(), return_exceptions=True)

    def step(self) -> None:
        """One pass over everything."""
        sync_jobs(self.objects)
        claim_controller.release(self.objects)
        claim_controller.sync_templates(self.objects)
        for pod in self._pending():
            self._attempt(pod)
        evict(self.objects)

    def _noticed(self, change: Change) -> None:
        if change.resource.plural in _IGNORED:
            return
        if change.resource.plural == "nodes":
            lag = self.timings.node_cache_lag_seconds
            asyncio.get_running_loop().call_later(lag, self.see_node, change.object)
        else:
            self._wake.set()

    def see_node(self, node: JSON) -> None:
        """Note what a node has. This is correct, but late."""
        self._allocatable[node["metadata"]["name"]] = node.get("status", {}).get("allocatable", {})
        self._wake.set()

    def _pending(self) -> list[JSON]:
        """Unbound pods in the order in which they were first seen (times have a precision of one second only)."""
        waiting = [
            pod
            for pod in self.objects.peek("pods")
            if not pod["spec"].get("nodeName")
            and not pod["metadata"].get("deletionTimestamp")
            and not claim_controller.ended(pod)
            and pod["metadata"]["uid"] not in self._binding
            and pod["metadata"]["uid"] not in self._resting
            and pod["spec"].get("schedulerName") == "default-scheduler"
        ]
        waiting.sort(key=lambda pod: int(pod["metadata"]["resourceVersion"]))
        fresh = [pod["metadata"]["uid"] for pod in waiting if pod["metadata"]["uid"] not in self._queue]
        self._queue = [*self._queue, *fresh]
        here = {pod["metadata"]["uid"]: pod for pod in waiting}
        self._queue = [uid for uid in self._queue if uid in here or uid in self._binding]
        return [here[uid] for uid in self._queue if uid in here]

    # -- one pod

    def _attempt(self, pod: JSON) -> None:
        try:
            claims = [self._usable(claim) for claim in claim_controller.of_pod(self.objects, pod)]
            plan = self._plan(pod, claims)
            self._commit(pod, plan)
        except claim_controller.NotReadyError:
            return  # PreEnqueue: it is not queued, and nothing is said
        except (UnsatisfiableError, SelectorError) as error:
            self._unschedulable(pod, str(error))
        except ApiError as error:
            post(self.objects, "Pod", pod, "FailedScheduling", str(error))

    def _usable(self, claim: JSON) -> JSON:
        """Return the claim, without an allocation whose binding failed."""
        meta, status = claim["metadata"], claim["status"]
        if meta["uid"] not in self._failed and not claim_controller.binding_failure(claim):
            return claim
        self._failed.discard(meta["uid"])
        if "allocation" not in status or status.get("reservedFor"):
            return claim
        claim_controller.deallocate(self.objects, claim, for_another_try=True)
        return self.objects.find("resourceclaims", meta["name"], meta["namespace"]) or claim

    def _rest(self, uid: str) -> None:
        """Try the pod again after a while."""

        def over() -> None:
            self._resting.pop(uid, None)
            self._wake.set()

        delay = self.timings.binding_retry_seconds
        self._resting[uid] = asyncio.get_running_loop().call_later(delay, over)

    def _plan(self, pod: JSON, claims: Sequence[JSON]) -> Plan:
        """Return the first node that fits. Raises UnsatisfiableError with the reasons of all."""
        nodes = self.objects.peek("nodes")
        classes = {one["metadata"]["name"]: one for one in self.objects.peek("deviceclasses")}
        try:
            check_classes([claim for claim in claims if "allocation" not in claim["status"]], classes)
        except UnsatisfiableError as error:
            raise UnsatisfiableError(f"0/{len(nodes)} nodes are available: {error}.") from error
        reasons: Counter[str] = Counter()
        for node in nodes:
            try:
                return self._on_node(pod, node, claims, classes)
            except UnsatisfiableError as error:
                reasons[str(error)] += 1
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        raise UnsatisfiableError(f"0/{len(nodes)} nodes are available: {listed or 'no nodes'}.")

    def _on_node(self, pod: JSON, node: JSON, claims: Sequence[JSON], classes: Mapping[str, JSON]) -> Plan:
        name = node["metadata"]["name"]
        labels = node["metadata"].get("labels", {})
        if node.get("spec", {}).get("unschedulable"):
            raise UnsatisfiableError("node(s) were unschedulable")
        if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
            raise UnsatisfiableError("node(s) didn't match Pod's node affinity/selector")
        for claim in claims:
            selector = claim["status"].get("allocation", {}).get("nodeSelector")
            if selector is not None and not selects(selector, node):
                raise UnsatisfiableError("resourceclaim not available on the node")
        served = self._extended(pod, name, classes)
        mappings: Sequence[JSON] = ()
        wanted = list(claims)
        if served:
            special, mappings = extended.special_claim(pod, served, self.objects.release)
            wanted.append({**special, "status": {}})
        todo = {index: claim for index, claim in enumerate(wanted) if "allocation" not in claim["status"]}
        picks: dict[int, Sequence[Pick]] = {}
        if todo:
            pools = gather(slices_with_rules(self.objects), node)
            in_use = InUse.of(self.objects.peek("resourceclaims"))
            found = allocate(list(todo.values()), pools, classes, in_use, self._selectors)
            picks = dict(zip(todo, found, strict=True))
        return Plan(name, wanted, picks, mappings)

    def _extended(self, pod: JSON, node: str, classes: Mapping[str, JSON]) -> Mapping[str, str]:
        """Resources of the pod that DRA serves on this node, with their classes."""
        if not extended.asks(pod):
            return {}
        allocatable = self._allocatable.get(node, {})
        pods = [one for one in self.objects.peek("pods") if one["metadata"]["uid"] != pod["metadata"]["uid"]]
        return extended.split(pod, node, allocatable, classes, pods, dra=self._gates["DRAExtendedResource"])

    # -- writing it down

    def _commit(self, pod: JSON, plan: Plan) -> None:
        held = []
        if plan.claims and self._gates["NominatedNodeNameForExpectation"]:  # before PreBind, which may take long
            self._pod_status(pod, lambda obj: obj["status"].update(nominatedNodeName=plan.node))
        for index, claim in enumerate(plan.claims):
            stored = claim
            if "uid" not in claim["metadata"]:
                stored = self.objects.create({key: value for key, value in claim.items() if key != "status"})
                self._note_extended(pod, stored["metadata"]["name"], plan.mappings)
            found = plan.picks.get(index)
            dated = self._gates["DRADeviceBindingConditions"]
            release = self.objects.release
            made = allocation(stored, found, plan.node, release, dated=dated) if found is not None else None
            claim_controller.reserve(self.objects, stored, pod, made)
            held.append(stored["metadata"]["name"])
        uid = pod["metadata"]["uid"]
        if self._readiness(pod, held) is Readiness.READY:
            self._bind(pod, plan.node)
            return
        task = asyncio.get_running_loop().create_task(self._await_binding(pod, plan.node, held), name=f"bind {uid}")
        self._binding[uid] = task

    def _note_extended(self, pod: JSON, claim: str, mappings: Sequence[JSON]) -> None:
        status = {"resourceClaimName": claim, "requestMappings": list(mappings)}
        self._pod_status(pod, lambda obj: obj["status"].update(extendedResourceClaimStatus=status))

    def _bind(self, pod: JSON, node: str) -> None:
        meta = pod["metadata"]
        where = {"namespace": meta["namespace"]}
        self.objects.modify("pods", meta["name"], lambda obj: obj["spec"].update(nodeName=node), **where)
        self._condition(pod, {"type": "PodScheduled", "status": "True"})
        post(
            self.objects,
            "Pod",
            pod,
            "Scheduled",
            f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}",
            "Normal",
        )

    def _unschedulable(self, pod: JSON, message: str) -> None:
        known = [one for one in pod["status"].get("conditions", []) if one["type"] == "PodScheduled"]
        if known and known[0].get("message") == message:
            return
        self._condition(pod, {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message})
        post(self.objects, "Pod", pod, "FailedScheduling", message)

    def _condition(self, pod: JSON, condition: JSON) -> None:
        def write(obj: JSON) -> None:
            others = [one for one in obj["status"].get("conditions", []) if one["type"] != condition["type"]]
            obj["status"]["conditions"] = [*others, {**condition, "lastTransitionTime": timestamp()}]
            obj["status"].pop("nominatedNodeName", None)  # the pod is bound, or tried again

        self._pod_status(pod, write)

    def _pod_status(self, pod: JSON, change: Any) -> None:
        meta = pod["metadata"]
        self.objects.modify("pods", meta["name"], change, namespace=meta["namespace"], subresource="status")

    # -- binding conditions

    def _claims(self, pod: JSON, names: Iterable[str]) -> list[JSON]:
        found = (self.objects.find("resourceclaims", name, pod["metadata"]["namespace"]) for name in names)
        return [claim for claim in found if claim is not None]

    def _readiness(self, pod: JSON, names: Sequence[str]) -> Readiness:
        answers = [readiness(claim) for claim in self._claims(pod, names)]
        for worst in (Readiness.FAILED, Readiness.PENDING):
            if worst in answers:
                return worst
        return Readiness.READY

    async def _await_binding(self, pod: JSON, node: str, names: Sequence[str]) -> None:
        """Wait for binding conditions (PreBind): look at once, then every poll.

        Bind, or give the claims back so that the next pass starts again.
        """
        meta, loop = pod["metadata"], asyncio.get_running_loop()
        deadline = loop.time() + self.timings.binding_timeout_seconds
        post(self.objects, "Pod", pod, "BindingConditionsPending", "waiting for binding conditions", "Normal")
        try:
            while True:
                await asyncio.sleep(self.timings.binding_poll_seconds)
                current = self.objects.find("pods", meta["name"], meta["namespace"])
                if current is None or current["metadata"]["uid"] != meta["uid"]:
                    return
                state = self._readiness(pod, names)
                if state is Readiness.READY:
                    self._bind(pod, node)
                    return
                if state is Readiness.FAILED or loop.time() >= deadline:
                    claims = self._claims(pod, names)
                    why = next(filter(None, map(claim_controller.binding_failure, claims)), "claim binding timed out")
                    message = f'running PreBind plugin "DynamicResources": {why}'
                    self._rest(meta["uid"])
                    for claim in claims:
                        claim_controller.unreserve(self.objects, claim, meta["uid"])
                        late = state is not Readiness.FAILED and readiness(claim) is not Readiness.READY
                        if late or readiness(claim) is Readiness.FAILED:  # PostFilter takes back no other
                            self._failed.add(claim["metadata"]["uid"])
                        if claim["metadata"].get("annotations", {}).get(claim_controller.EXTENDED_ANNOTATION):
                            self.objects.delete("resourceclaims", claim["metadata"]["name"], meta["namespace"])
                    refused = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError"}
                    self._condition(pod, {**refused, "message": message})
                    post(self.objects, "Pod", pod, "FailedScheduling", message)
                    return
        except ApiError as error:
            with contextlib.suppress(ApiError):
                post(self.objects, "Pod", pod, "FailedScheduling", str(error))
        finally:
            self._binding.pop(meta["uid"], None)
            self._wake.set()
