"""A coordinator's work and what it says of itself, while its leadership, the API server and its loop come and go."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.glue import processes  # isort: skip  # first: it brings the clock
from drabridge.config.loader import load
from drabridge.coordinator.main import Coordinator
from drabridge.errors import ClusterError
from drabridge.kube.claim_hints import hints_name, hints_object
from drabridge.kube.leader_election import Election, LostLeadershipError
from drabridge.offers.slices import lease_condition
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.system.http import Request
from drabridge.system.port import Port
from tests.glue.api_connection import Connection, Trouble
from tests.glue.worlds import CONTROL, DRIVER, NODE

Json = dict[str, Any]


class _Pages(Port):
    """Keeps the pages in place of serving them."""

    def __init__(self) -> None:
        super().__init__("")
        self.routes: dict[tuple[str, str], Any] = {}
        self.has_bound = self.closed = False

    async def bind(self) -> None:
        self.has_bound = True

    def serve(self, routes: dict[tuple[str, str], Any]) -> None:
        self.routes = routes

    async def close(self) -> None:
        self.closed = True


class _Connection(Connection):
    """Where writes may be refused, and the server may have no DRA yet."""

    refuses = False
    has_dra = True
    reads = 0

    def __init__(self, objects: Any, trouble: Trouble) -> None:
        super().__init__(objects, trouble)
        self.lists: Counter[str] = Counter()
        self.replaced = 0  # objects
        self.questions = 0  # writes that are not stored
        self.before_delete: Callable[[], None] = lambda: None
        self.admit: Callable[[Json], None] = lambda body: None  # what a webhook changes in what is written

    async def list(self, kind: Any, **more: Any) -> Any:
        self.lists[kind.plural] += 1
        return await super().list(kind, **more)

    async def create(self, kind: Any, body: Any, *, namespace: str = "", dry_run: bool = False) -> Json:
        self.questions += dry_run
        body = copy.deepcopy(body)
        self.admit(body)
        return await super().create(kind, body, namespace=namespace, dry_run=dry_run)

    async def replace(self, kind: Any, body: Any, *, namespace: str = "", dry_run: bool = False) -> Json:
        body = copy.deepcopy(body)
        self.admit(body)
        self.replaced += 1
        return await super().replace(kind, body, namespace=namespace, dry_run=dry_run)

    async def delete(self, *given: Any, **more: Any) -> None:
        self.before_delete()
        await super().delete(*given, **more)

    async def read(self, path: str) -> Json:
        self.reads += 1
        return await super().read(path) if self.has_dra else {"versions": [{"version": "v1alpha1"}]}

    async def apply(self, *given: Any, **more: Any) -> Json:
        if self.refuses:
            raise ClusterError("refused")
        return await super().apply(*given, **more)


class Life:
    """A coordinator, its election and its API server."""

    def __init__(self, dice: random.Random, file: Path | None = None) -> None:
        """``file``: a configuration with fabric devices."""
        self.api, self.trouble, self.pages = SimApiServer(), Trouble(dice), _Pages()
        self.objects = self.api.objects
        self.connection = _Connection(self.objects, self.trouble)
        self.started: Callable[[], None]
        self.healthy: Callable[[], bool]
        self.heard: Callable[[], None]
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stop: Callable[[], None]
        self.begun: list[asyncio.Task[Any]] = []
        connections: Any = (self.connection,)
        config = None if file is None else (file, load(file))
        election = Election("lock", CONTROL, "one")
        self.coordinator = Coordinator(connections, DRIVER, election, lambda: self, self.pages, config)

    async def lead(self, election: Election, load: Any, started: Any, healthy: Any, heard: Any) -> None:
        """In place of the client library's election, in a thread of its own."""
        assert (election.identity, load()) == ("one", self)
        self.started, self.healthy, self.heard = started, healthy, heard
        await self.lost

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = {}
        with (
            patch("drabridge.coordinator.main.lead", self.lead),
            patch.object(type(loop), "add_signal_handler", lambda _, number, call: handlers.update({number: call})),
        ):
            task = asyncio.ensure_future(self.coordinator.run())
            await asyncio.sleep(0.1)
        self.task = task
        self.stops = list(handlers.values())

    def begins(self) -> None:
        self.heard()
        self.started()

    def ready(self) -> list[str]:
        """Why it is not ready."""
        answer = self.pages.routes["GET", "/readyz"](Request("GET", "/readyz", {}, {}))
        text = _text(answer.body)
        return [] if answer.status == 200 else text.replace("not ready: ", "").splitlines()

    def metric(self, name: str) -> float:
        answer = self.pages.routes["GET", "/metrics"](Request("GET", "/metrics", {}, {}))
        assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
        lines = _text(answer.body).splitlines()
        return float(next(line for line in lines if line.startswith(f"drabridge_coordinator_{name} ")).split()[1])

    def writes(self) -> list[float]:
        """How many writes of hints went well, and how many did not."""
        return [self.metric(f'hint_writes_total{{result="{result}"}}') for result in ("OK", "failed")]

    def waits(self, name: str) -> None:
        """A claim is allocated and waits for its lease."""
        result: Json = {"request": "r", "driver": DRIVER, "pool": NODE, "device": "d0"}
        result |= {"bindingConditions": [lease_condition(DRIVER)], "bindingFailureConditions": ["x/y"]}
        self.objects.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]}},
            }
        )
        self.objects.modify(
            "resourceclaims",
            name,
            lambda one: one.setdefault("status", {}).update(allocation={"devices": {"results": [result]}}),
            namespace="default",
            subresource="status",
        )

    def hints(self) -> list[str] | None:
        found = self.objects.find("configmaps", hints_name(DRIVER, NODE), CONTROL)
        return None if found is None else [one["name"] for one in json.loads(found["data"]["claims"])]


def _text(body: bytes | str) -> str:
    return body if isinstance(body, str) else body.decode()


def play(script: Callable[[Life], Awaitable[None]], file: Path | None = None) -> None:
    """Run a script beside a coordinator; at the end it leaves nothing behind."""

    async def whole(dice: random.Random) -> None:
        one = Life(dice, file)
        before = asyncio.all_tasks()
        await one.run()
        await script(one)
        if not one.task.done():
            one.stops[0]()
        with contextlib.suppress(LostLeadershipError):
            await asyncio.wait_for(one.task, 10.0)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before
        assert one.pages.has_bound
        assert one.pages.closed

    processes.run(1, whole)


LEASE_UNSEEN = "the API server does not show the Lease of the election"


def test_one_that_does_not_lead_writes_nothing_and_is_well() -> None:
    async def script(one: Life) -> None:
        assert one.ready() == [LEASE_UNSEEN]
        one.heard()
        one.waits("c")
        await asyncio.sleep(100.0)
        assert one.hints() is None
        assert one.ready() == [LEASE_UNSEEN]
        assert one.healthy()
        one.heard()
        assert one.ready() == []
        assert [one.metric(name) for name in ("leading", "following", "pending_claims")] == [0, 0, 0]
        assert one.writes() == [0, 0]

    play(script)


def test_the_leader_names_claims_and_says_that_it_follows_them() -> None:
    async def script(one: Life) -> None:
        one.begins()
        one.waits("c")
        await asyncio.sleep(2.0)
        assert one.hints() == ["c"]
        assert [one.metric(name) for name in ("leading", "following", "pending_claims")] == [1, 1, 1]
        assert one.writes() == [1, 0]
        assert (one.ready(), one.healthy()) == ([], True)
        for _ in range(10):
            await asyncio.sleep(10.0)
            one.heard()
        assert (one.ready(), one.healthy()) == ([], True)

    play(script)


def test_hints_of_before_stay_until_the_claims_are_listed() -> None:
    """They would be emptied: the claims still wait, and their agents know of them by these hints alone."""

    async def script(one: Life) -> None:
        one.waits("c")
        one.objects.create(hints_object(DRIVER, NODE, '[{"name":"c"}]'), namespace=CONTROL)
        one.trouble.deaf_to.add("resourceclaims")
        one.begins()
        await asyncio.sleep(5.0)
        assert one.hints() == ["c"]
        one.trouble.deaf_to.clear()
        one.waits("d")
        await asyncio.sleep(40.0)
        assert one.hints() == ["c", "d"]

    play(script)


def test_a_leader_that_cannot_follow_claims_lets_another_one_try_after_a_minute() -> None:
    async def script(one: Life) -> None:
        one.begins()
        await asyncio.sleep(5.0)
        one.trouble.deaf_to.add("resourceclaims")
        one.waits("c")  # an event, at which the watch breaks
        await asyncio.sleep(30.0)
        one.heard()
        assert one.healthy()
        assert one.ready() == ["the claims have not been followed for 30 s"]
        assert one.metric("following") == 0
        await asyncio.sleep(31.0)
        assert not one.healthy()

    play(script)


def test_a_leader_that_cannot_write_lets_another_one_try_after_a_minute() -> None:
    async def script(one: Life) -> None:
        one.begins()
        await asyncio.sleep(5.0)
        one.connection.refuses = True
        one.waits("c")
        await asyncio.sleep(30.0)
        one.heard()
        assert one.healthy()
        assert one.ready() == ["some node's hints could not be written for 30 s"]
        await asyncio.sleep(31.0)
        assert not one.healthy()
        one.connection.refuses = False
        await asyncio.sleep(31.0)
        assert one.healthy()

    play(script)


def test_a_leader_whose_loop_stands_still_does_not_keep_the_leadership() -> None:
    """As when a disk or a debugger stops it: the election's thread goes on."""

    async def script(one: Life) -> None:
        loop: Any = asyncio.get_running_loop()
        one.begins()
        await asyncio.sleep(5.0)
        loop._jumping.now += 7.0
        assert one.healthy()
        loop._jumping.now += 2.0
        assert not one.healthy()
        await asyncio.sleep(1.0)
        assert one.healthy()

    play(script)


def test_one_that_waited_for_an_hour_has_a_minute_to_begin_with() -> None:
    async def script(one: Life) -> None:
        await asyncio.sleep(3600.0)
        one.trouble.deaf_to.add("resourceclaims")
        one.begins()
        await asyncio.sleep(50.0)
        assert one.healthy()
        await asyncio.sleep(11.0)
        assert not one.healthy()

    play(script)


def test_a_server_that_gets_the_resource_api_later_is_asked_ever_less_often() -> None:
    async def script(one: Life) -> None:
        one.connection.has_dra = False
        one.begins()
        one.waits("c")
        await asyncio.sleep(50.0)
        assert 5 <= one.connection.reads <= 10
        assert one.hints() is None
        one.connection.has_dra = True
        await asyncio.sleep(40.0)
        assert one.hints() == ["c"]

    play(script)


@pytest.mark.parametrize("number", [0, 1])
def test_it_ends_when_it_is_told_to(number: int) -> None:
    async def script(one: Life) -> None:
        one.begins()
        await asyncio.sleep(5.0)
        assert len(one.stops) == 2, "SIGTERM and SIGINT"
        one.stops[number]()
        await asyncio.wait_for(one.task, 1.0)

    play(script)


def test_it_ends_when_the_leadership_is_lost() -> None:
    async def script(one: Life) -> None:
        one.begins()
        await asyncio.sleep(5.0)
        one.lost.set_exception(LostLeadershipError("another one has it"))
        with pytest.raises(LostLeadershipError):
            await asyncio.wait_for(one.task, 1.0)

    play(script)
