"""What grants leases, without the rest of the agent: with a ledger, a kubelet that gives devices up, and API objects.

The devices ``d0`` to ``d3`` are offered to both sides. A test is the scheduler: it allocates claims, names pods, and
reads the conditions that it would wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.glue import processes  # isort: skip  # first: it brings the clock
from drabridge.config.schema import Leases as Rules
from drabridge.dra.claim_names import ClaimNames
from drabridge.dra.claim_objects import ClaimObjects
from drabridge.dra.deallocation import Deallocations
from drabridge.dra.leases import Leases
from drabridge.dra.observer import LeaseEnded
from drabridge.ledger.effects import Effect
from drabridge.ledger.entries import ClaimPhase, ClaimRef, Entry, Lane, Ledger, LedgerDevice, WaitsFor
from drabridge.ledger.events import AgentStarted, Allocate, SetLane, WithdrawnFromKubelet
from drabridge.ledger.service import LedgerService
from drabridge.ledger.store import Store
from drabridge.offers.slices import lease_condition, lease_denied_condition
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.apiserver.store import Change
from tests.glue.api_connection import Connection, Trouble
from tests.glue.worlds import DEVICE, DRIVER, NAMESPACE, NODE
from tests.support.waiting import short_directory

Json = dict[str, Any]
LEASE, DENIED = lease_condition(DRIVER), lease_denied_condition(DRIVER)
SLICES_SECONDS = 0.05  # until the slices follow from a ledger


class Lessor:
    """Grants leases of four devices. ``told``: claims and conditions, in the order in which they were set."""

    def __init__(self, root: Path, dice: random.Random, entries: Iterable[Entry]) -> None:
        self.objects, self.trouble = SimApiServer().objects, Trouble(dice)
        self.failing_writes = 0  # so many of the next ones to the ledger
        store = Store(root, node=NODE, fsync=self._fsync)
        store.rewrite(Ledger.of(entries))
        self.service = LedgerService(store)
        self.rules = Rules()
        self.supported: bool | None = True
        self.kubelet_seconds: float = 0.1  # until kubelet gives a device up
        self.slices_follow = True
        self.facts: list[LeaseEnded] = []
        self.told: list[tuple[str, str]] = []
        self.when_told: Callable[[str, str], None] = lambda claim, condition: None
        self.answer_seconds = 0.0  # that the answers to writes take besides
        self.watches_of_pods = 0
        self._synced = 0
        self._left: set[asyncio.Future[Any]] = set()
        self.objects.store.subscribe(self._written)
        cluster: Any = _Own(self)
        self.aside = Trouble(dice)  # of those who ask whether claims were taken back
        aside: Any = Connection(self.objects, self.aside)
        self.names = ClaimNames(
            cluster, NODE, self._wake, driver=DRIVER, pool=NODE, coordinator=lambda: self.rules.coordinator
        )
        self.leases = Leases(
            self.service,
            ClaimObjects(cluster),
            self.names,
            driver=DRIVER,
            pool=NODE,
            rules=lambda: self.rules,
            supported=lambda: self.supported,
            release_in_the_way=lambda claim, refused: self.deallocations.release_in_the_way(claim, refused),
            synced_seq=lambda: self._synced,
            observer=self.facts.append,  # type: ignore[arg-type]
        )
        self.deallocations = Deallocations(
            self.service,
            ClaimObjects(aside),
            _Ports(),  # type: ignore[arg-type]
            driver=DRIVER,
            pool=NODE,
            awaited=self.leases.awaited,
            denials=self.leases.denials,
        )
        self.service.subscribe(self._ledger_changed)

    def _fsync(self, file: int) -> None:
        if self.failing_writes:
            self.failing_writes -= 1
            raise OSError(errno.ENOSPC, "no space left")

    def _wake(self) -> None:
        self.leases.wake()
        self.deallocations.wake()

    def _ledger_changed(self, ledger: Ledger, effects: tuple[Effect, ...]) -> None:
        self.deallocations.wake()
        loop = asyncio.get_running_loop()
        loop.call_later(SLICES_SECONDS, self._sync, ledger.seq)
        for name, entry in ledger.entries.items():
            if entry.waits_for is WaitsFor.KUBELET:
                loop.call_later(self.kubelet_seconds, self._give_up, name)

    def _give_up(self, name: str) -> None:
        if self.service.ledger.entries[name].waits_for is WaitsFor.KUBELET:
            self.service.submit(WithdrawnFromKubelet(name, self.service.ledger.seq, time.time()))

    def _sync(self, seq: int) -> None:
        if self.slices_follow:
            self._synced = max(seq, self._synced)
            self.leases.wake()

    def follow_slices(self) -> None:
        """Let the slices be as the ledger is now, after a time when they were not."""
        self.slices_follow = True
        self._sync(self.service.ledger.seq)

    def _written(self, change: Change) -> None:
        if change.resource.plural == "resourceclaims" and change.type == "MODIFIED":
            name = change.object["metadata"]["name"]
            before, now = (set(told(one)) for one in (change.previous or {}, change.object))
            for condition in sorted({one[1] for one in now - before}):
                self.told.append((name, condition))
                self.when_told(name, condition)

    # --- the scheduler

    def create(self, name: str) -> None:
        self.objects.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]}},
            }
        )

    def allocate(self, name: str, *results: Mapping[str, Any]) -> None:
        """Take a claim's allocation back, with what it was told, and allocate it anew if there are results."""
        allocation = {"devices": {"results": [dict(one) for one in results]}}
        for status in ({}, {"allocation": allocation})[: 1 + bool(results)]:
            self.objects.modify(
                "resourceclaims",
                name,
                lambda one, status=status: one.update(status=status),  # type: ignore[misc]
                namespace=NAMESPACE,
                subresource="status",
            )

    def nominate(self, name: str, *claims: str, scheduler: str = "default-scheduler", node: str = NODE) -> None:
        """Create a pod with claims, which waits to be bound to this node."""
        body: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "schedulerName": scheduler,
                "resourceClaims": [{"name": one, "resourceClaimName": one} for one in claims],
                "containers": [{"name": "main", "image": "x"}],
            },
        }
        self.objects.create(body)
        self.objects.modify(
            "pods",
            name,
            lambda one: one["status"].update(nominatedNodeName=node),
            namespace=NAMESPACE,
            subresource="status",
        )

    def touch(self, pod: str) -> None:
        """Change a pod in something that is of no account here."""
        labels = {"turn": str(time.time())}
        self.objects.modify("pods", pod, lambda one: one["metadata"].update(labels=labels), namespace=NAMESPACE)

    def waits(self, name: str, *devices: str) -> None:
        """Let a pod wait for its claim, which was allocated these devices."""
        self.create(name)
        self.allocate(name, *(result(one) for one in devices))
        self.nominate(name, name)

    def end(self, name: str) -> None:
        """Delete a pod and its claim, which have one name."""
        self.objects.delete("pods", name, NAMESPACE, grace_seconds=0)
        self.objects.delete("resourceclaims", name, NAMESPACE)

    # --- the node

    async def give_to_pod(self, *devices: str) -> None:
        decision = await self.service.apply(Allocate({one: (one,) for one in devices}, time.time()))
        assert decision.accepted, decision

    async def set_lane(self, device: str, lane: Lane) -> None:
        assert (await self.service.apply(SetLane(device, lane, time.time()))).accepted

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something as soon as others have a turn."""
        task = asyncio.ensure_future(work)
        self._left.add(task)
        task.add_done_callback(self._left.discard)

    def label(self, name: str, turn: str) -> None:
        """Change a claim in something that is of no account here."""
        labels = {"turn": turn}
        self.objects.modify(
            "resourceclaims", name, lambda one: one["metadata"].update(labels=labels), namespace=NAMESPACE
        )

    def set_status(self, name: str, **status: Any) -> None:
        self.objects.modify(
            "resourceclaims", name, lambda one: one["status"].update(status), namespace=NAMESPACE, subresource="status"
        )

    # --- what peers see

    def claim(self, name: str) -> Json:
        found: Json = self.objects.get("resourceclaims", name, NAMESPACE)
        return found

    def conditions(self, name: str) -> set[tuple[str, str]]:
        """The devices that a claim's status names, each with a true condition."""
        return set(told(self.claim(name)))

    def reads(self, name: str) -> int:
        return self.trouble.asked[f"resourceclaims/{name}"]

    def phases(self, device: str) -> dict[str, ClaimPhase]:
        return {one.claim.name: one.phase for one in self.service.ledger.entries[device].claims}

    def denials(self, *names: str) -> list[int]:
        uids = [self.claim(name)["metadata"]["uid"] for name in names]
        return [self.leases.denials(ClaimRef(uid)) for uid in uids]

    def outcomes(self) -> list[tuple[str, str]]:
        return [(one.claim.name, str(one.outcome)) for one in self.facts]


class _Own(Connection):
    """Counts the watches of pods that are open, and lets the answers to writes be late."""

    def __init__(self, lessor: Lessor) -> None:
        super().__init__(lessor.objects, lessor.trouble)
        self._lessor = lessor

    async def apply(self, *given: Any, **more: Any) -> Json:
        answer: Json = await super().apply(*given, **more)
        await asyncio.sleep(self._lessor.answer_seconds)
        return answer

    async def watch(self, kind: Any, **more: Any) -> Any:
        of_pods = kind.plural == "pods"
        self._lessor.watches_of_pods += of_pods
        try:
            async with contextlib.aclosing(super().watch(kind, **more)) as events:
                async for event in events:
                    yield event
        finally:
            self._lessor.watches_of_pods -= of_pods


class _Ports:
    """Nobody follows pods' ends."""

    clock = staticmethod(time.time)

    def pods(self) -> None:
        return None


def result(device: str, **more: Any) -> Json:
    """One device of an allocation, which the scheduler waits for."""
    return {
        "request": "r",
        "driver": DRIVER,
        "pool": NODE,
        "device": device,
        "bindingConditions": [LEASE],
        "bindingFailureConditions": [DENIED],
        **more,
    }


def told(claim: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (entry["device"], one["type"])
        for entry in claim.get("status", {}).get("devices", ())
        for one in entry.get("conditions", ())
        if one["status"] == "True"
    ]


def shared(*names: str, lane: Lane = Lane.SHARED) -> Sequence[Entry]:
    return [Entry(LedgerDevice(name, DEVICE, (name,)), lane=lane) for name in names]


FOUR = tuple(shared("d0", "d1", "d2", "d3"))


def play(script: Callable[[Lessor], Awaitable[None]], entries: Iterable[Entry] = FOUR) -> None:
    """Run a script beside a lessor; what the lessor runs must not fail, and nothing of it goes on afterwards."""

    async def whole(dice: random.Random) -> None:
        one = Lessor(root, dice, entries)
        assert (await one.service.apply(AgentStarted(time.time()))).accepted
        work = [asyncio.ensure_future(one.leases.run()), asyncio.ensure_future(one.deallocations.run())]
        await asyncio.sleep(1.0)
        await script(one)
        assert not [task.exception() for task in work if task.done()]
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert {task.get_name() for task in left} == set(), "they go on after the end"
        assert one.service._callbacks == [one._ledger_changed], "the ledger wakes what has ended"
        await one.service.close()

    with short_directory() as root, contextlib.suppress(asyncio.CancelledError):
        processes.run(1, whole)
