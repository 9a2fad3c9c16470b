"""A coordinator that runs with an election, an API server and pages in memory."""

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

from tests.glue import processes  # isort: skip  # first: it brings the clock
from drabridge.config.loader import load
from drabridge.coordinator.main import Coordinator
from drabridge.errors import ClusterError
from drabridge.kube.claim_hints import hints_name
from drabridge.kube.leader_election import Election, LostLeadershipError
from drabridge.offers.slices import lease_condition
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.system.http import Request
from drabridge.system.port import Port
from tests.glue.api_connection import Connection, Trouble
from tests.glue.worlds import CONTROL, DRIVER, NODE

Json = dict[str, Any]


def _text(body: bytes | str) -> str:
    return body if isinstance(body, str) else body.decode()


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
