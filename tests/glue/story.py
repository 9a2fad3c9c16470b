"""Tell a random story of one node, and judge it.

No device ever has two holders. After the story every message arrives: then nobody waits for ever, and in the end every
device is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from drabridge.errors import DrabridgeError
from drabridge.ledger.entries import Owner
from drabridge.sim.apiserver.status import ApiError
from drabridge.sim.cluster import LINGER_SECONDS_ANNOTATION, RUN_SECONDS_ANNOTATION
from drabridge.sim.kubelet.faults import ListFault
from drabridge.sim.scheduler import claim_controller
from tests.glue import processes
from tests.glue.node import Node
from tests.glue.processes import DISK
from tests.glue.worlds import DRIVER, NAMESPACE, NODE, World

Json = dict[str, Any]
CALM_SECONDS = 300.0  # in which somebody who waits is served; kubelet tries a claim again after 60 to 90
STOPPED_SECONDS = 300.0  # for so long kubelet calls a plugin that is gone
FREE_SECONDS = 300.0  # from the last pod's end until every device is free
PAUSES = (0.0, 0.0, 0.02, 0.3, 2.0, 8.0, 20.0)
CLASS = f"""\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: any}}
spec: {{selectors: [{{cel: {{expression: "device.driver == '{DRIVER}'"}}}}]}}
"""
GONE = {"deletionTimestamp": ""}
ADMIN = {"name": "m", "exactly": {"deviceClassName": "any", "allocationMode": "All", "adminAccess": True}}


class Story:
    """One story. ``told`` is what happened, with the seconds since its beginning; ``faults`` what must not be."""

    def __init__(self, world: World, seed: int, steps: int) -> None:
        self.world, self.seed, self.steps = world, seed, steps
        self.told: list[str] = []
        self.faults: list[str] = []
        self.starts = 0  # of containers with devices
        self.node: Node
        self._number = 0
        self._passing: set[asyncio.Task[None]] = set()  # troubles that end by themselves

    def run(self) -> Story:
        """Tell it to its end."""
        memory = Path("/dev/shm")  # nothing here is worth a disk's time
        with tempfile.TemporaryDirectory(prefix="g", dir=memory if memory.is_dir() else None) as root:
            processes.run(self.seed, lambda dice: self._tell(Path(root), dice))
        return self

    async def _tell(self, root: Path, dice: random.Random) -> None:
        self.dice, self._began = dice, asyncio.get_running_loop().time()
        self.node = node = Node(root, self.world, dice)
        try:
            await node.open()
            await node.cluster.apply(CLASS)
            self._allow_admin_access()
            if self.world.elsewhere:
                self._make_other_node()
            if self.world.coordinator:
                node.start_coordinator()
            node.start_agent()
            await asyncio.sleep(dice.uniform(0.0, 10.0))
            happenings = self._happenings()
            for _ in range(self.steps):
                [happen] = dice.choices([one for one, _ in happenings], [weight for _, weight in happenings])
                await happen()
                await asyncio.sleep(dice.choice(PAUSES) * dice.random())
            await self._calm()
            await self._serve_all()
            if self.world.rough:
                await self._run_with_limits()
            await self._free_all()
        except (TimeoutError, DrabridgeError) as error:
            self.faults.append(f"the story broke off: {type(error).__name__}: {error}")
        finally:
            self.faults += [*node.runtime.conflicts, *node.promises.broken, *node.faults()]
            self.starts = node.runtime.starts
            for task in self._passing:
                task.cancel()
            await node.close()

    def say(self, words: str) -> None:
        self.told.append(f"{asyncio.get_running_loop().time() - self._began:8.2f}  {words}")

    # --- what may happen

    def _happenings(self) -> Sequence[tuple[Callable[[], Awaitable[None]], float]]:
        """What happens in this story, and how often: each story does without some of it, and has more of other."""
        found: dict[Callable[[], Awaitable[None]], float] = {
            self._limits_pod: 5,
            self._claim_pod: 6,
            self._delete_pod: 4,
            self._force_delete: 1,
            self._set_lanes: 2,
            self._kill_agent: 1,
            self._hand_over: 1,
            self._restart_kubelet: 1,
            self._trouble: 1,
            self._server_away: 1,
            self._kubelet_silent: 1,
            self._kubelet_reads_slowly: 1,
            self._drain: 1,
            **({self._kill_coordinator: 1} if self.world.coordinator else {}),
            **({self._reserve_for_a_group: 2} if self.world.groups else {}),
            **({self._slow_disk: 1, self._another_plugin: 1} if self.world.rough else {}),
        }
        seldom = (0, 1, 1, 3)
        return [(one, weight * (1 if weight > 2 else self.dice.choice(seldom))) for one, weight in found.items()]

    def _name(self) -> str:
        self._number += 1
        return f"p{self._number}"

    async def _apply(self, *objects: Json) -> None:
        for one in objects:
            with contextlib.suppress(ApiError):
                await self.node.cluster.apply(one)

    def _pod(self, name: str, limits: Json, claims: Sequence[str]) -> Json:
        grace = self.dice.choice(self.world.graces) if len(self.world.graces) > 1 else self.world.graces[0]
        notes = {LINGER_SECONDS_ANNOTATION: f"{self.dice.uniform(0, grace):.2f}"}
        if self.dice.random() < 0.3:
            notes[RUN_SECONDS_ANNOTATION] = f"{self.dice.uniform(0.1, 30):.2f}"
        resources = {"limits": limits, "claims": [{"name": one} for one in claims]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": notes},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": grace,
                "resourceClaims": [{"name": one, "resourceClaimName": one} for one in claims],
                "containers": [{"name": "main", "image": "x", "resources": resources}],
            },
        }

    def _claim(self, name: str, count: int) -> Json:
        requests: list[Json] = [{"name": "r", "exactly": {"deviceClassName": "any", "count": count}}] if count else []
        if self.world.admin and (not count or self.dice.random() < 0.2):
            requests.append(ADMIN)
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"devices": {"requests": requests}},
        }

    async def _limits_pod(self) -> None:
        name, count, resource = (
            self._name(),
            self.dice.randint(1, self.world.most),
            self.dice.choice(self.world.resources),
        )
        self.say(f"pod {name} with {count} {resource} by limits")
        await self._apply(self._pod(name, {resource: count}, ()))

    async def _claim_pod(self) -> None:
        name, shape = self._name(), self.dice.random()
        if shape < 0.2 and self.world.most > 1:
            self.say(f"pod {name} with two claims")
            claims = [f"{name}-a", f"{name}-b"]
            await self._apply(*(self._claim(one, 1) for one in claims), self._pod(name, {}, claims))
        elif shape < 0.35:
            self.say(f"pods {name} and {name}-too with one claim")
            await self._apply(self._claim(name, 1), self._pod(name, {}, [name]), self._pod(f"{name}-too", {}, [name]))
        elif shape < 0.5 and (
            known := [one["metadata"]["name"] for one in self.node.cluster.api.objects.peek("resourceclaims")]
        ):
            claim = self.dice.choice(known)
            self.say(f"pod {name} with the claim {claim}")
            await self._apply(self._pod(name, {}, [claim]))
        elif shape < 0.6 and self.world.admin:
            self.say(f"pod {name} with admin access to all")
            await self._apply(self._claim(name, 0), self._pod(name, {}, [name]))
        else:
            count = self.dice.randint(1, self.world.most)
            self.say(f"pod {name} with a claim for {count}")
            await self._apply(self._claim(name, count), self._pod(name, {}, [name]))

    def _pods(self, *phases: str) -> list[Json]:
        pods = self.node.cluster.api.objects.peek("pods")
        return [pod for pod in pods if not phases or pod["status"].get("phase") in phases]

    def _delete(self, pod: Json, *, force: bool = False) -> None:
        """Delete a pod, and the claims that no other pod names."""
        objects, name = self.node.cluster.api.objects, pod["metadata"]["name"]
        elsewhere = pod["spec"].get("nodeName") not in (None, NODE)  # no kubelet runs there
        with contextlib.suppress(ApiError):
            objects.delete("pods", name, NAMESPACE, grace_seconds=0 if force or elsewhere else None)
        others = [one for one in self._pods() if one["metadata"]["name"] != name]
        kept = self.dice.random() < 0.3
        for claim in () if kept else sorted({*_claims(pod)}.difference(*map(_claims, others))):
            with contextlib.suppress(ApiError):
                objects.delete("resourceclaims", claim, NAMESPACE)

    async def _delete_pod(self) -> None:
        if pods := self._pods():
            pod = self.dice.choice(pods)
            self.say(f"delete {pod['metadata']['name']}")
            self._delete(pod)

    async def _force_delete(self) -> None:
        if pods := self._pods("Running", "Pending"):
            pod = self.dice.choice(pods)
            self.say(f"force-delete {pod['metadata']['name']}")
            self._delete(pod, force=True)

    async def _set_lanes(self) -> None:
        lanes = self.dice.choice(self.world.lanes)
        self.say(f"lanes {lanes}")
        with contextlib.suppress(DrabridgeError):
            await self.node.ask("lanes", resource=self.world.resources[0], **lanes)

    async def _drain(self) -> None:
        begin = self.dice.random() < 0.5
        self.say("drain" if begin else "undo the drain")
        with contextlib.suppress(DrabridgeError):
            await self.node.ask("drain", drain=begin)

    async def _kill_agent(self) -> None:
        self.say("the agent is killed, and started again")
        await self.node.kill_agent()
        await asyncio.sleep(self.dice.random() * 3)
        self.node.start_agent()

    async def _hand_over(self) -> None:
        gently = self.dice.random() < 0.7
        self.say(f"a standby begins, and the agent {'ends' if gently else 'is killed'}")
        self.node.start_agent()
        await asyncio.sleep(self.dice.random() * 10)
        await (self.node.stop_agent if gently else self.node.kill_agent)()

    async def _kill_coordinator(self) -> None:
        self.say("the coordinator is killed")
        await self.node.kill_coordinator()
        self._for_a_while(lambda: None, self.node.start_coordinator)

    async def _reserve_for_a_group(self) -> None:
        """As the scheduler does for the claims of a PodGroup (KEP-5729): the entry names no pod."""
        objects = self.node.cluster.api.objects
        used = [one for one in objects.peek("resourceclaims") if one["status"].get("reservedFor")]
        if not used:
            return
        meta, uid = self.dice.choice(used)["metadata"], f"group-{self._name()}"
        self.say(f"claim {meta['name']} is reserved for a group, too")
        group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": uid, "uid": uid}

        def join() -> None:
            with contextlib.suppress(ApiError):  # it is deallocated, or gone
                objects.modify(
                    "resourceclaims",
                    meta["name"],
                    lambda one: one["status"]["reservedFor"].append(group),
                    namespace=NAMESPACE,
                    subresource="status",
                )

        def leave() -> None:
            if (claim := objects.find("resourceclaims", meta["name"], NAMESPACE)) is not None:
                claim_controller.unreserve(objects, claim, uid)
                if claim["status"].get("reservedFor") == [group]:
                    claim_controller.deallocate(objects, claim)

        self._for_a_while(join, leave)

    async def _restart_kubelet(self) -> None:
        self.say("kubelet restarts")
        await self.node.kubelet.restart(downtime_seconds=self.dice.random() * 5)

    async def _trouble(self) -> None:
        trouble = self.node.trouble
        trouble.late_seconds = self.dice.choice((0.1, 1.0, 5.0))
        trouble.lost = self.dice.choice((0.0, 0.05, 0.3))
        trouble.doubled = self.dice.choice((0.0, 0.2))
        self.say(f"messages late {trouble.late_seconds} s, lost {trouble.lost}, doubled {trouble.doubled}")

    def _for_a_while(self, begin: Callable[[], None], end: Callable[[], None], longest: float = 0.0) -> None:
        async def whole(seconds: float) -> None:
            begin()
            try:
                await asyncio.sleep(seconds)
            finally:
                end()

        longest = longest or self.dice.choice((1.0, 5.0, 40.0))
        task = asyncio.ensure_future(whole(longest * self.dice.random()))
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)

    async def _server_away(self) -> None:
        self.say("the API server cannot be reached")
        away = self.node.trouble.away
        self._for_a_while(away.set, away.clear)

    async def _kubelet_silent(self) -> None:
        def fault(kind: ListFault) -> None:
            self.node.kubelet.faults.podresources = kind

        self.say("kubelet answers no question about pods")
        self._for_a_while(lambda: fault(ListFault.ERROR), lambda: fault(ListFault.NONE))

    async def _kubelet_reads_slowly(self) -> None:
        def delay(seconds: float) -> None:
            self.node.kubelet.faults.list_delay_seconds = seconds

        self.say("kubelet reads lists slowly")
        self._for_a_while(lambda: delay(10.0), lambda: delay(0.0))

    async def _slow_disk(self) -> None:
        def slow(seconds: float) -> None:
            DISK.slow_seconds = seconds

        most = self.dice.choice((0.05, 0.5, 3.0))
        self.say(f"a call to the disk takes up to {most} s")
        self._for_a_while(lambda: slow(most), lambda: slow(0.0))

    async def _another_plugin(self) -> None:
        """The vendor's, left running or brought back: with the same ids, or with others of which nobody knows."""
        resource = self.dice.choice(self.world.resources)
        same = [one.id for one in self.world.devices if one.resource == resource]
        ids = self.dice.choice((same, [f"vendor-{number}" for number in range(2)]))
        self.say(f"another plugin registers {resource} with {', '.join(ids)}")
        await self.node.start_plugin(resource, ids)
        stop, longest = self.node.stop_plugin, self.dice.choice((5.0, 60.0, 200.0))
        self._for_a_while(lambda: None, lambda: self._passing.add(asyncio.ensure_future(stop())), longest)

    def _allow_admin_access(self) -> None:
        labels = {"resource.kubernetes.io/admin-access": "true"}
        objects = self.node.cluster.api.objects
        objects.modify("namespaces", NAMESPACE, lambda one: one["metadata"].update(labels=labels))

    def _make_other_node(self) -> None:
        """A node with devices of the driver, where pods are bound and nothing runs."""
        name, objects = self.dice.choice(("node-0", "node-b")), self.node.cluster.api.objects
        objects.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        objects.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": name},
                "spec": {
                    "driver": DRIVER,
                    "nodeName": name,
                    "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                    "devices": [{"name": "d0"}, {"name": "d1"}],
                },
            }
        )

    # --- the end

    async def _calm(self) -> None:
        """Let every message arrive from now on."""
        self.say("calm")
        for task in tuple(self._passing):
            task.cancel()
        await asyncio.sleep(0)
        self.node.trouble.calm()
        await self.node.stop_plugin()
        await asyncio.sleep(60.0)
        if not self.node.serves:
            raise TimeoutError("no agent has the ledger a minute after everything works again")
        await self.node.ask("drain", drain=False)
        await self.node.ask("lanes", resource=self.world.resources[0], **self.world.lanes[0])

    async def _serve_all(self) -> None:
        """Let each pod that runs end soon: then everybody who waits must get a turn."""
        loop = asyncio.get_running_loop()
        since, before = loop.time(), -1
        while pods := self._pods():
            over = [
                pod for pod in pods if pod["status"].get("phase") != "Pending" or "deletionTimestamp" in pod["metadata"]
            ]
            bound_elsewhere = [pod for pod in pods if pod["spec"].get("nodeName") not in (None, NODE)]
            claims = {
                one["metadata"]["name"]: one["metadata"] for one in self.node.cluster.api.objects.peek("resourceclaims")
            }
            hopeless = [
                pod for pod in pods if any("deletionTimestamp" in claims.get(one, GONE) for one in _claims(pod))
            ]
            for pod in (*over, *bound_elsewhere, *hopeless):
                self._delete(pod)
            if len(pods) != before:
                since, before = loop.time(), len(pods)
            if loop.time() - since > CALM_SECONDS:
                waiting = ", ".join(pod["metadata"]["name"] for pod in pods)
                raise TimeoutError(f"{waiting} wait though every device could be free: {self._seen()}")
            await asyncio.sleep(self.dice.uniform(1.0, 10.0))

    async def _run_with_limits(self) -> None:
        """Start pods with limits until one runs: kubelet may still call a plugin that is gone."""
        loop, objects = asyncio.get_running_loop(), self.node.cluster.api.objects
        until, name = loop.time() + CALM_SECONDS + STOPPED_SECONDS, ""
        while True:
            pod = objects.find("pods", name, NAMESPACE) if name else None
            phase = pod["status"].get("phase") if pod is not None else "Failed"
            if phase == "Failed":
                name = self._name()
                await self._apply(self._pod(name, {self.world.resources[0]: 1}, ()))
            elif phase != "Pending":
                break
            if loop.time() > until:
                raise TimeoutError(f"no pod with limits starts any more: {self._seen()}")
            await asyncio.sleep(5.0)
        for pod in self._pods():
            self._delete(pod)

    async def _free_all(self) -> None:
        objects, loop = self.node.cluster.api.objects, asyncio.get_running_loop()
        for one in objects.peek("resourceclaims"):
            with contextlib.suppress(ApiError):
                objects.delete("resourceclaims", one["metadata"]["name"], NAMESPACE)
        self.say("every pod is gone")
        until = loop.time() + FREE_SECONDS
        while self._held():
            if loop.time() > until:
                raise TimeoutError(f"not free: {', '.join(self._held())}: {self._seen()}")
            await asyncio.sleep(5.0)
        self.say("every device is free")

    def _held(self) -> list[str]:
        entries = self.node.ledger.entries.values()
        return [one.name for one in entries if one.owner is not Owner.NONE or one.move or one.denied]

    def _seen(self) -> str:
        """Everything that a person would look at."""
        objects = self.node.cluster.api.objects
        rows = [
            f"{one.name}: {one.owner} in {one.lane}, {one.hold} {one.claims}"
            for one in self.node.ledger.entries.values()
        ]
        for claim in objects.peek("resourceclaims"):
            status = claim["status"]
            devices = [one["device"] for one in status.get("allocation", {}).get("devices", {}).get("results", ())]
            told = [two["type"].rpartition("/")[2] for one in status.get("devices", ()) for two in one["conditions"]]
            users = [one["name"] for one in status.get("reservedFor", ())]
            rows.append(f"claim {claim['metadata']['name']}: {devices} {told} for {users}")
        for one in objects.peek("resourceslices"):
            shown = [f"{d['name']}{' tainted' * bool(d.get('taints'))}" for d in one["spec"].get("devices") or ()]
            rows.append(f"slice {one['metadata']['name']}: {shown}")
        rows.append(f"kubelet: {self.node.kubelet.resources}")
        return "\n    ".join(["", *rows, self.node.cluster.describe()])


def _claims(pod: Json) -> list[str]:
    return [one["resourceClaimName"] for one in pod["spec"].get("resourceClaims") or ()]
