"""Tell a random story of one node, and judge it.

After the story every message arrives. Then nobody may wait for ever, and in the end every device is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from drabridge.errors import DrabridgeError
from drabridge.inventory.model import Device
from drabridge.ledger.model import Owner
from drabridge.sim.apiserver.status import ApiError
from drabridge.sim.cluster import LINGER_SECONDS_ANNOTATION, RUN_SECONDS_ANNOTATION
from drabridge.sim.kubelet.faults import ListFault
from tests.glue import processes
from tests.glue.node import Node

DRIVER, RESOURCE, PARTS = "glue.example.com", "example.com/dev", "example.com/part"
CALM_SECONDS = 300.0  # in which everybody who can be served is served; kubelet tries a claim again after 60 to 90
FREE_SECONDS = 300.0  # from the last pod's end until every device is free
GRACE_SECONDS = 5

HEAD = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
"""
CLASSES = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {{name: {name}}}
spec: {{selectors: [{{cel: {{expression: "device.driver == '{driver}'{more}"}}}}]}}
---
"""


class World(Struct, frozen=True):
    """What a node has. ``lanes``: what an operator may set; ``most``: devices that one pod may ask for."""

    name: str
    config: str
    devices: tuple[Device, ...]
    lanes: tuple[dict[str, Any], ...]
    most: int = 1
    shareable: bool = False
    coordinator: bool = False


def _plain(count: int) -> tuple[Device, ...]:
    return tuple(Device(f"d{n}", f"d{n}", RESOURCE, syspath=f"/sys/devices/d{n}") for n in range(count))


def _resource(name: str, more: str) -> str:
    return f"- name: {name}\n  match: [{{subsystem: mem}}]\n  id: ['{{sysname}}']\n  nodes: []\n{more}"


SHARED = World(
    "shared",
    HEAD + "resources:\n" + _resource(RESOURCE, '  lanes: {shared: "*"}\n'),
    _plain(3),
    ({"shared": "*"}, {"shared": 2, "dra": 1}, {"legacy": "*"}, {"shared": 1, "legacy": "*"}),
    most=2,
)
LANES = World(
    "lanes",
    HEAD + "resources:\n" + _resource(RESOURCE, "  lanes: {legacy: 2, dra: 2}\n"),
    _plain(4),
    ({"legacy": 2, "dra": 2}, {"legacy": 1, "dra": "*"}, {"legacy": "*", "dra": 1}),
)
WORLDS = (SHARED, LANES)


class Story:
    """One story. ``told`` is what happened, with the seconds since its beginning."""

    def __init__(self, world: World, seed: int, steps: int) -> None:
        self.world, self.seed, self.steps = world, seed, steps
        self.told: list[str] = []
        self.faults: list[str] = []
        self.node: Node
        self._number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self) -> Story:
        """Tell it to its end."""
        with tempfile.TemporaryDirectory(prefix="glue", dir="/dev/shm") as root:
            processes.run(self.seed, lambda dice: self._tell(Path(root), dice))
        return self

    async def _tell(self, root: Path, dice: random.Random) -> None:
        self.dice, self._began = dice, asyncio.get_running_loop().time()
        self.node = node = Node(root, self.world.config, self.world.devices, dice)
        node.runtime.shareable = self.world.shareable
        try:
            await node.open()
            node.start_agent()
            await node.cluster.apply(CLASSES.format(name="any", driver=DRIVER, more=""))
            await asyncio.sleep(dice.uniform(0.0, 10.0))
            for _ in range(self.steps):
                await self._step()
            await self._calm()
            await self._serve_all()
            await self._free_all()
        except Exception as error:
            self.faults.append(f"the story broke off: {type(error).__name__}: {error}")
            if not isinstance(error, TimeoutError):
                raise
        finally:
            self.faults += [*node.runtime.conflicts, *node.faults()]
            for task in self._tasks:
                task.cancel()
            await node.close()

    def say(self, words: str) -> None:
        self.told.append(f"{asyncio.get_running_loop().time() - self._began:8.2f}  {words}")

    # --- what may happen

    async def _step(self) -> None:
        happenings: Sequence[tuple[int, Callable[[], Awaitable[None]]]] = (
            (5, self._limits_pod),
            (7, self._claim_pod),
            (4, self._delete_pod),
            (1, self._force_delete),
            (2, self._set_lanes),
            (1, self._kill_agent),
            (1, self._hand_over),
            (1, self._restart_kubelet),
            (1, self._trouble),
            (1, self._server_away),
            (1, self._kubelet_silent),
            (1, self._kubelet_reads_slowly),
            (1, self._drain),
        )
        weights = [weight for weight, _ in happenings]
        [(_, happen)] = self.dice.choices(happenings, weights)
        await happen()
        await asyncio.sleep(self.dice.choice((0.0, 0.0, 0.02, 0.3, 2.0, 8.0, 20.0)) * self.dice.random())

    def _name(self) -> str:
        self._number += 1
        return f"p{self._number}"

    async def _apply(self, *objects: dict[str, Any]) -> None:
        for one in objects:
            with contextlib.suppress(ApiError):
                await self.node.cluster.apply(one)

    def _pod(self, name: str, limits: dict[str, int], claims: Sequence[str]) -> dict[str, Any]:
        notes = {LINGER_SECONDS_ANNOTATION: f"{self.dice.uniform(0, GRACE_SECONDS):.2f}"}
        if self.dice.random() < 0.3:
            notes[RUN_SECONDS_ANNOTATION] = f"{self.dice.uniform(0.1, 30):.2f}"
        resources = {"limits": limits, "claims": [{"name": one} for one in claims]}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": notes},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": GRACE_SECONDS,
                "resourceClaims": [{"name": one, "resourceClaimName": one} for one in claims],
                "containers": [{"name": "main", "image": "x", "resources": resources}],
            },
        }

    @staticmethod
    def _claim(name: str, count: int) -> dict[str, Any]:
        request = {"name": "r", "exactly": {"deviceClassName": "any", "count": count}}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
        }

    async def _limits_pod(self) -> None:
        name, count = self._name(), self.dice.randint(1, self.world.most)
        self.say(f"pod {name} with {count} by limits")
        await self._apply(self._pod(name, {RESOURCE: count}, ()))

    async def _claim_pod(self) -> None:
        name, shape = self._name(), self.dice.random()
        if shape < 0.2 and self.world.most > 1:
            self.say(f"pod {name} with two claims")
            claims = [f"{name}-a", f"{name}-b"]
            await self._apply(*(self._claim(one, 1) for one in claims), self._pod(name, {}, claims))
        elif shape < 0.35:
            self.say(f"pods {name} and {name}-too with one claim")
            await self._apply(
                self._claim(name, 1), self._pod(name, {}, [name]), self._pod(f"{name}-too", {}, [name])
            )
        else:
            count = self.dice.randint(1, self.world.most)
            self.say(f"pod {name} with a claim for {count}")
            await self._apply(self._claim(name, count), self._pod(name, {}, [name]))

    def _pods(self, *phases: str) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.node.cluster.api.objects.peek("pods")
            if not phases or pod["status"].get("phase") in phases
        ]

    def _delete(self, pod: dict[str, Any], *, force: bool = False) -> None:
        objects, meta = self.node.cluster.api.objects, pod["metadata"]
        with contextlib.suppress(ApiError):
            objects.delete("pods", meta["name"], "default", grace_seconds=0 if force else None)
        used = {one["resourceClaimName"] for other in self._pods() for one in _claims(other) if other is not pod}
        for one in _claims(pod):
            if one["resourceClaimName"] not in used:
                with contextlib.suppress(ApiError):
                    objects.delete("resourceclaims", one["resourceClaimName"], "default")

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
        if self.node.requests is None:
            return
        self.say(f"lanes {lanes}")
        with contextlib.suppress(DrabridgeError):
            await self.node.ask("lanes", resource=RESOURCE, **lanes)

    async def _drain(self) -> None:
        if self.node.requests is None:
            return
        begin = self.dice.random() < 0.5
        self.say(f"drain {begin}")
        with contextlib.suppress(DrabridgeError):
            await self.node.ask("drain", drain=begin)

    async def _kill_agent(self) -> None:
        self.say("agent killed, and started again")
        await self.node.kill_agent()
        await asyncio.sleep(self.dice.random() * 3)
        self.node.start_agent()

    async def _hand_over(self) -> None:
        self.say("a standby begins, and takes over")
        self.node.start_agent()
        await asyncio.sleep(self.dice.random() * 10)
        await (self.node.stop_agent if self.dice.random() < 0.7 else self.node.kill_agent)()

    async def _restart_kubelet(self) -> None:
        self.say("kubelet restarts")
        await self.node.kubelet.restart(downtime_seconds=self.dice.random() * 5)

    async def _trouble(self) -> None:
        trouble = self.node.trouble
        trouble.late_seconds = self.dice.choice((0.1, 1.0, 5.0))
        trouble.lost = self.dice.choice((0.0, 0.05, 0.3))
        trouble.doubled = self.dice.choice((0.0, 0.2))
        self.say(f"late {trouble.late_seconds}, lost {trouble.lost}, doubled {trouble.doubled}")

    def _for_a_while(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        async def whole(seconds: float) -> None:
            begin()
            try:
                await asyncio.sleep(seconds)
            finally:
                end()

        task = asyncio.ensure_future(whole(self.dice.choice((1.0, 5.0, 40.0)) * self.dice.random()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _server_away(self) -> None:
        self.say("the agent cannot reach the API server")
        away = self.node.trouble.away
        self._for_a_while(away.set, away.clear)

    async def _kubelet_silent(self) -> None:
        self.say("kubelet answers no question about pods")
        self._for_a_while(lambda: self._podresources(ListFault.ERROR), lambda: self._podresources(ListFault.NONE))

    def _podresources(self, fault: ListFault) -> None:
        self.node.kubelet.faults.podresources = fault

    async def _kubelet_reads_slowly(self) -> None:
        self.say("kubelet reads lists slowly")
        self._for_a_while(lambda: self._read_seconds(10.0), lambda: self._read_seconds(0.0))

    def _read_seconds(self, seconds: float) -> None:
        self.node.kubelet.faults.list_delay_seconds = seconds

    # --- the end

    async def _calm(self) -> None:
        self.say("calm")
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.sleep(0)
        self.node.trouble.calm()
        await asyncio.sleep(60.0)
        if self.node.requests is None:
            raise TimeoutError("no agent has the ledger a minute after everything works again")
        with contextlib.suppress(DrabridgeError):
            await self.node.ask("drain", drain=False)
        await self.node.ask("lanes", resource=RESOURCE, **self.world.lanes[0])

    async def _serve_all(self) -> None:
        """Let each pod that runs end soon: then everybody who waits must get a turn."""
        loop = asyncio.get_running_loop()
        since, before = loop.time(), -1
        while pods := self._pods():
            for pod in self._pods("Succeeded", "Failed"):
                self._delete(pod)
            if running := self._pods("Running"):
                self._delete(self.dice.choice(running))
            if len(pods) != before:
                since, before = loop.time(), len(pods)
            if loop.time() - since > CALM_SECONDS:
                waiting = [pod["metadata"]["name"] for pod in self._pods()]
                self.faults.append(f"{', '.join(waiting)} wait though every device could be free: {self._seen()}")
                return
            await asyncio.sleep(5.0)

    async def _free_all(self) -> None:
        objects = self.node.cluster.api.objects
        for one in objects.peek("resourceclaims"):
            with contextlib.suppress(ApiError):
                objects.delete("resourceclaims", one["metadata"]["name"], "default")
        self.say("every pod is gone")
        loop = asyncio.get_running_loop()
        until = loop.time() + FREE_SECONDS
        while missing := self._not_free():
            if loop.time() > until:
                self.faults.append(f"not free: {missing}: {self._seen()}")
                return
            await asyncio.sleep(5.0)
        self.say("every device is free")

    def _not_free(self) -> list[str]:
        entries = self.node.ledger.entries
        found = [f"{entry.name} {entry.owner} in {entry.lane}" for entry in entries.values() if entry.owner is not Owner.NONE or entry.move or entry.denied]
        return found or ([] if entries else ["no agent has the ledger"])

    def _seen(self) -> str:
        objects = self.node.cluster.api.objects
        rows = [
            f"{one['name']} {one['owner']} {one['lane']} {one.get('reason', '')} "
            f"{[(held.get('claim') or held.get('pod'), held.get('phase')) for held in one['holders']]}"
            for one in self.node.status().get("devices", ())
        ]
        rows += [
            f"{claim['metadata']['name']} {[one['device'] for one in claim['status'].get('allocation', {}).get('devices', {}).get('results', ())]} "
            f"{[(two['type'].rpartition('/')[2]) for one in claim['status'].get('devices', ()) for two in one['conditions']]} "
            f"{[one['name'] for one in claim['status'].get('reservedFor', ())]}"
            for claim in objects.peek("resourceclaims")
        ]
        return "\n  " + "\n  ".join([*rows, self.node.cluster.describe()])


def _claims(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return pod["spec"].get("resourceClaims") or []
