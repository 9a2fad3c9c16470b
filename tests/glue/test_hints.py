"""What a coordinator's writer of hints does to the ConfigMaps, in hours that pass in moments."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from tests.glue import processes  # isort: skip  # first: it brings the clock
from drabridge.coordinator.hint_writer import LOOK_SECONDS, MANAGER, HintWriter
from drabridge.coordinator.pending_claims import PendingClaims, waiting_claim
from drabridge.errors import ClusterError
from drabridge.kube.api import UnreachableError
from drabridge.kube.claim_hints import hints_name, hints_object
from drabridge.sim.apiserver.objects import Writer
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.apiserver.store import Change
from tests.glue.api_connection import Connection, Trouble
from tests.glue.worlds import CONTROL, DRIVER, NODE

Json = dict[str, Any]


class _Watched(Connection):
    """Notes the requests for ConfigMaps, and lets some go wrong."""

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__(coordinator.objects, coordinator.trouble)
        self._notes = coordinator

    async def list(self, *given: Any, **more: Any) -> Any:
        self._notes.looks += 1
        return await super().list(*given, **more)

    async def apply(self, kind: Any, body: Mapping[str, Any], **more: Any) -> Json:
        done: Json = await self._alone(
            body["metadata"]["name"], lambda: super(_Watched, self).apply(kind, body, **more)
        )
        return done

    async def delete(self, kind: Any, name: str, **more: Any) -> None:
        await self._alone(name, lambda: super(_Watched, self).delete(kind, name, **more))

    async def _alone(self, name: str, write: Callable[[], Awaitable[Any]]) -> Any:
        notes = self._notes
        notes.under_way[name] += 1
        notes.twice += [name] if notes.under_way[name] > 1 else []
        try:
            if notes.refusals:
                raise notes.refusals.pop(0)
            answer = await write()
            if notes.lost_answers:
                notes.lost_answers -= 1
                raise UnreachableError("no answer")
            return answer
        finally:
            notes.under_way[name] -= 1


class Coordinator:
    """A writer of hints, the claims that wait, and what the API server has."""

    def __init__(self, dice: random.Random) -> None:
        self.objects, self.trouble = SimApiServer().objects, Trouble(dice)
        self.under_way: Counter[str] = Counter()
        self.twice: list[str] = []  # objects of which two writes were under way
        self.refusals: list[Exception] = []  # of the next writes
        self.lost_answers = 0  # of the next writes that are done
        self.looks = 0
        self.outcomes: Counter[str] = Counter()
        self.changes: list[Change] = []
        self.objects.store.subscribe(self.changes.append)
        self.pending = PendingClaims(DRIVER, lambda pool: self.writer.changed(pool))
        connections: Any = (_Watched(self), _Watched(self))
        self.writer = HintWriter(connections, DRIVER, CONTROL, self.pending, lambda how: self.outcomes.update([how]))
        self.pending.listed(())

    def waits(self, name: str, pool: str = NODE) -> None:
        self.pending.changed("ADDED", waiting_claim(_claim(name, pool), DRIVER))

    def waits_no_more(self, name: str) -> None:
        self.pending.changed("DELETED", waiting_claim(_claim(name, NODE), DRIVER))

    def hints(self, pool: str = NODE) -> list[str] | None:
        """The names that an agent reads; None: there is no ConfigMap."""
        found = self.objects.find("configmaps", hints_name(DRIVER, pool), CONTROL)
        return None if found is None else [one["name"] for one in json.loads(found["data"]["claims"])]

    def written(self, by: str, pool: str = NODE, claims: str = "[]", **data: str) -> None:
        """Write a ConfigMap of hints as somebody else."""
        body = hints_object(by, pool, claims)
        body["data"].update(data)
        self.objects.apply("configmaps", body["metadata"]["name"], body, namespace=CONTROL, by=Writer(manager=MANAGER))


def _claim(name: str, pool: str) -> Json:
    result = {"driver": DRIVER, "pool": pool, "device": "d0", "bindingConditions": [f"{DRIVER}/lease"]}
    return {
        "metadata": {"namespace": "default", "name": name, "uid": name, "resourceVersion": "5"},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def play(script: Callable[[Coordinator], Awaitable[None]]) -> None:
    """Run a script beside a coordinator that writes; nothing of it may fail."""

    async def whole(dice: random.Random) -> None:
        one = Coordinator(dice)
        work = asyncio.ensure_future(one.writer.run())
        await asyncio.sleep(1.0)
        await script(one)
        assert one.twice == [], "the older of two writes could arrive last"
        assert not work.done(), work.exception()
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work

    processes.run(1, whole)


def test_claims_that_come_together_are_a_few_writes_and_the_same_ones_are_none() -> None:
    """A job of a thousand pods must not be a thousand writes of the same object."""

    async def script(one: Coordinator) -> None:
        for number in range(500):
            one.waits(f"c{number:03}")
            await asyncio.sleep(0.002)
        await asyncio.sleep(1.0)
        assert len(one.hints() or ()) == 500
        assert 5 <= len(one.changes) <= 25
        writes = len(one.changes)
        for number in range(500):
            one.waits(f"c{number:03}")
        await asyncio.sleep(20 * LOOK_SECONDS)
        assert len(one.changes) == writes
        assert one.outcomes == {"OK": writes}
        assert 15 <= one.looks <= 25

    play(script)


def test_changes_that_come_while_a_write_is_under_way_are_written_after_it() -> None:
    async def script(one: Coordinator) -> None:
        one.trouble.late_seconds = 2.0
        for number in range(50):
            one.waits(f"c{number:02}")
            one.waits(f"d{number:02}", "node-b")
            await asyncio.sleep(0.3)
        one.trouble.calm()
        await asyncio.sleep(5.0)
        assert [len(one.hints(pool) or ()) for pool in (NODE, "node-b")] == [50, 50]

    play(script)


def test_writes_that_fail_are_repeated_ever_less_often_until_one_goes_well() -> None:
    async def script(one: Coordinator) -> None:
        assert one.writer.failing_seconds == 0.0
        one.refusals = [ClusterError("refused") for _ in range(8)] + [RuntimeError("a fault of the program")]
        one.waits("c")
        await asyncio.sleep(20.0)
        assert 15.0 < one.writer.failing_seconds < 20.0
        assert 4 <= one.outcomes["failed"] <= 7
        await asyncio.sleep(200.0)
        assert one.refusals == []
        assert one.writer.failing_seconds == 0.0
        assert one.outcomes == {"failed": 9, "OK": 1}
        one.refusals = [ClusterError("refused")]
        one.waits("d")
        await asyncio.sleep(2.0)
        assert one.outcomes == {"failed": 10, "OK": 2}, "soon, as after the first failure"

    play(script)


def test_claims_that_come_and_go_between_two_looks_leave_no_hint() -> None:
    async def script(one: Coordinator) -> None:
        one.waits("c")
        await asyncio.sleep(1.5 * LOOK_SECONDS)
        one.waits("d")
        await asyncio.sleep(2.0)
        assert one.hints() == ["c", "d"]
        one.waits_no_more("d")
        await asyncio.sleep(2.0)
        assert one.hints() == ["c"]

    play(script)


def test_a_write_whose_answer_was_lost_may_have_been_done() -> None:
    async def script(one: Coordinator) -> None:
        one.waits("c")
        await asyncio.sleep(1.0)
        one.waits("d")
        one.lost_answers = 1
        await asyncio.sleep(0.1)
        assert one.hints() == ["c", "d"]
        one.waits_no_more("d")
        await asyncio.sleep(3.0)
        assert one.hints() == ["c"]

    play(script)


def test_what_somebody_deletes_or_spoils_is_there_again_within_a_minute() -> None:
    async def script(one: Coordinator) -> None:
        name, objects = hints_name(DRIVER, NODE), one.objects
        one.waits("c")
        await asyncio.sleep(5.0)
        objects.delete("configmaps", name, CONTROL)
        await asyncio.sleep(LOOK_SECONDS + 1.0)
        assert one.hints() == ["c"]
        for data in ({"pool": NODE}, {"claims": "[]"}, {"pool": "another", "claims": "[]"}, {}):
            objects.modify("configmaps", name, lambda it, data=data: it.update(data=data), namespace=CONTROL)  # type: ignore[misc]
            await asyncio.sleep(LOOK_SECONDS + 1.0)
            assert one.hints() == ["c"], data

    play(script)


def test_hints_of_nodes_that_are_gone_are_emptied_and_deleted_and_written_again_when_a_claim_waits() -> None:
    async def script(one: Coordinator) -> None:
        one.waits("old")
        await asyncio.sleep(5.0)
        one.waits_no_more("old")
        await asyncio.sleep(5.0)
        assert one.hints() == []
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert one.hints() is None
        changes = len(one.changes)
        await asyncio.sleep(5 * LOOK_SECONDS)
        assert len(one.changes) == changes, "it stays away"
        one.waits("new")
        await asyncio.sleep(1.0)
        assert one.hints() == ["new"]
        await asyncio.sleep(5 * LOOK_SECONDS)
        assert one.hints() == ["new"]

    play(script)


def test_a_claim_that_waits_when_its_node_s_empty_hints_are_deleted_is_named() -> None:
    async def script(one: Coordinator) -> None:
        pools = [f"node-{number:02}" for number in range(60)]
        for pool in pools:
            one.waits(f"before-{pool}", pool)
        await asyncio.sleep(1.0)
        for pool in pools:
            one.waits_no_more(f"before-{pool}")
        await asyncio.sleep(5.0)
        assert [one.hints(pool) for pool in pools] == [[]] * len(pools)
        looks = one.looks
        while one.looks < looks + 2:  # the second one deletes them
            await asyncio.sleep(0.01)
        one.trouble.late_seconds = 0.3
        for pool in pools:
            one.waits(f"c-{pool}", pool)
            await asyncio.sleep(0.03)
        one.trouble.calm()
        await asyncio.sleep(5.0)
        assert [one.hints(pool) for pool in pools] == [[f"c-{pool}"] for pool in pools]

    play(script)


def test_what_an_ended_leader_left_is_emptied_and_another_driver_s_is_left_alone() -> None:
    async def script(one: Coordinator) -> None:
        gone = '[{"name":"gone"}]'
        one.written(DRIVER, "node-b", gone)
        one.written(f"{DRIVER}.gpu", "node-c", gone)
        elsewhere = hints_object(DRIVER, "node-d", gone)
        one.objects.create(elsewhere, namespace="default")
        unrelated = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "another"}}
        one.objects.create(unrelated, namespace=CONTROL)
        await asyncio.sleep(LOOK_SECONDS + 1.0)
        assert one.hints("node-b") == []
        names = {it["metadata"]["name"]: it for it in one.objects.peek("configmaps", CONTROL)}
        theirs = hints_name(f"{DRIVER}.gpu", "node-c")
        assert names.keys() == {"another", theirs, hints_name(DRIVER, "node-b")}
        assert names[theirs]["data"]["claims"] == gone
        assert one.objects.get("configmaps", hints_name(DRIVER, "node-d"), "default")["data"] == elsewhere["data"]

    play(script)


def test_what_a_coordinator_of_0_2_0_left_is_deleted_and_hints_stay() -> None:
    """Its names were ``drabridge-claims.DRIVER.POOL``."""

    async def script(one: Coordinator) -> None:
        one.waits("c")
        await asyncio.sleep(5.0)
        for driver in (DRIVER, f"{DRIVER}.gpu"):
            left = hints_object(driver, NODE, '[{"name":"c"}]')
            left["metadata"]["name"] = f"drabridge-claims.{driver}.{NODE}"
            one.objects.create(left, namespace=CONTROL)
        await asyncio.sleep(2 * LOOK_SECONDS)
        assert one.hints() == ["c"]
        names = {it["metadata"]["name"] for it in one.objects.peek("configmaps", CONTROL)}
        assert names == {hints_name(DRIVER, NODE), f"drabridge-claims.{DRIVER}.gpu.{NODE}"}

    play(script)


def test_a_server_that_cannot_be_reached_is_asked_ever_less_often() -> None:
    async def script(one: Coordinator) -> None:
        one.trouble.away.set()
        await asyncio.sleep(300.0)
        assert 10 <= one.looks <= 25
        one.waits("c")
        one.trouble.away.clear()
        await asyncio.sleep(40.0)
        assert one.hints() == ["c"]

    play(script)
