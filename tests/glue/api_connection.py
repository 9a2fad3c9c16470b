"""A program's connection to the simulated API server, by messages that may be late, lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, TypeVar

from drabridge.errors import DrabridgeError
from drabridge.kube.api import (
    ExpiredError,
    Kind,
    Listing,
    NotFoundError,
    UnreachableError,
    WatchEvent,
    error_of,
)
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView, identity_of
from drabridge.sim.apiserver.kinds import BY_PLURAL
from drabridge.sim.apiserver.objects import Objects, Writer
from drabridge.sim.apiserver.selectors import predicate
from drabridge.sim.apiserver.status import ApiError
from drabridge.sim.apiserver.watch import WatchOptions, watch
from drabridge.system.untrusted import reading
from tests.glue.processes import PROCESS

T = TypeVar("T")
WHOLE: ObjectView[Json] = ObjectView(lambda obj: obj)
WATCH_SECONDS = 300.0


class Trouble:
    """What befalls messages now. ``calm`` when nothing does."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.late_seconds = 0.0  # the longest that a message may take besides
        self.lost = 0.0  # chance that a request or its answer does not arrive
        self.doubled = 0.0  # chance that a watch event, or a request, comes twice
        self.away = asyncio.Event()  # nobody reaches the server, and watches are cut
        self.deaf_to: set[str] = set()  # kinds that cannot be listed or watched
        self.asked: Counter[str] = Counter()  # objects that were read, as ``plural/name``
        self.before_apply: Callable[[Json], None] = lambda body: None  # what happens while a write is under way

    def calm(self) -> None:
        self.late_seconds = self.lost = self.doubled = 0.0
        self.away.clear()

    def seconds(self) -> float:
        """How long a message takes."""
        most = self.late_seconds if self._dice.random() < 0.3 else 0.0
        return self._dice.uniform(0.001, 0.004) + self._dice.random() * most

    def happens(self, chance: float) -> bool:
        return self._dice.random() < chance


class Connection:
    """Implements :class:`drabridge.kube.api.Cluster`."""

    def __init__(self, objects: Objects, trouble: Trouble) -> None:
        self._objects = objects
        self._trouble = trouble

    async def _ask(self, call: Callable[[], T], *, write: bool = False) -> T:
        trouble = self._trouble
        await asyncio.sleep(trouble.seconds())
        self._reach()
        twice = write and trouble.happens(trouble.doubled)
        try:
            answer = call()
            with contextlib.suppress(ApiError):  # what came twice was refused once
                if twice:
                    call()
        except ApiError as error:
            await asyncio.sleep(trouble.seconds())
            self._reach()
            raise error_of(error.code, error.message, json.loads(json.dumps(error.body))) from error
        await asyncio.sleep(trouble.seconds())
        self._reach()
        return answer

    def _reach(self) -> None:
        if self._trouble.away.is_set() or not PROCESS.get().alive or self._trouble.happens(self._trouble.lost):
            raise UnreachableError("no answer from the API server")

    async def read(self, path: str) -> Json:
        def found() -> Json:
            if path == "/apis/resource.k8s.io":
                return {"versions": [{"version": "v1"}]}
            raise ApiError(404, "NotFound", "the server could not find the requested resource")

        return await self._ask(found)

    async def get(self, kind: Kind, name: str, *, namespace: str = "") -> Json:
        self._trouble.asked[f"{kind.plural}/{name}"] += 1
        return await self._ask(lambda: self._objects.get(kind.plural, name, namespace))

    async def list(
        self,
        kind: Kind,
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        view: ObjectView[Any] = WHOLE,
    ) -> Listing[Any]:
        if kind.plural in self._trouble.deaf_to:
            raise UnreachableError("it cannot be listed")

        def found() -> tuple[list[bytes], str]:
            listed = self._objects.peek(kind.plural, namespace or None, labels=label_selector, fields=field_selector)
            return [_bytes(kind, obj) for obj in listed], str(self._objects.store.revision)

        texts, revision = await self._ask(found)
        items, unreadable = [], []
        for text in texts:
            try:
                with reading("an object"):
                    items.append(view(text))
            except DrabridgeError:
                unreadable.append(identity_of(text))
        return Listing(tuple(items), revision, tuple(unreadable))

    async def create(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "", dry_run: bool = False) -> Json:
        by = Writer(version=kind.version, dry_run=dry_run)
        return await self._ask(lambda: self._objects.create(_body(kind, body), namespace=namespace, by=by), write=True)

    async def replace(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "", dry_run: bool = False) -> Json:
        by = Writer(version=kind.version, dry_run=dry_run)
        return await self._ask(lambda: self._objects.update(_body(kind, body), namespace=namespace, by=by), write=True)

    async def apply(
        self,
        kind: Kind,
        body: Mapping[str, Any],
        *,
        manager: str,
        namespace: str = "",
        subresource: str = "",
        force: bool = True,
    ) -> Json:
        by = Writer(manager=manager, version=kind.version, force=force)
        where: Any = {"namespace": namespace, "subresource": subresource, "by": by}
        name = str(body["metadata"]["name"])

        def apply() -> Json:
            self._trouble.before_apply(dict(body))
            return self._objects.apply(kind.plural, name, _body(kind, body), **where)[0]

        return await self._ask(apply, write=True)

    async def delete(
        self, kind: Kind, name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        when: Any = {"uid": uid, "resource_version": resource_version}
        with contextlib.suppress(NotFoundError):
            await self._ask(lambda: self._objects.delete(kind.plural, name, namespace, **when), write=True)

    async def watch(
        self,
        kind: Kind,
        *,
        namespace: str = "",
        field_selector: str = "",
        resource_version: str,
        view: ObjectView[Any] = WHOLE,
    ) -> AsyncGenerator[WatchEvent[Any], None]:
        trouble, resource = self._trouble, BY_PLURAL[kind.plural]
        await asyncio.sleep(trouble.seconds())
        self._reach()
        wanted = predicate(resource, namespace or None, field_selector, "")
        options = WatchOptions(resource, wanted, resource_version, WATCH_SECONDS, bookmarks=True)
        events = watch(self._objects.store, options, trouble.seconds)
        async with contextlib.aclosing(events):
            while (event := await self._next(events)) is not None:
                if kind.plural in trouble.deaf_to:
                    raise UnreachableError("it cannot be watched")
                word, obj = event
                if word == "ERROR":
                    raise ExpiredError(str(obj.get("message")))
                text = _bytes(kind, obj)
                for _ in range(1 + (word == "MODIFIED" and trouble.happens(trouble.doubled))):
                    yield _event(word, text, view)

    async def _next(self, events: AsyncGenerator[Any, None]) -> Any:
        """The next event, None at the end of the watch. Raises UnreachableError when it is cut."""
        reading_on = asyncio.ensure_future(anext(events, None))
        cut = asyncio.ensure_future(self._trouble.away.wait())
        try:
            await asyncio.wait({reading_on, cut}, return_when=asyncio.FIRST_COMPLETED)
            if reading_on.done():
                return reading_on.result()
            raise UnreachableError("the watch was cut")
        finally:
            for one in (reading_on, cut):
                one.cancel()
            await asyncio.gather(reading_on, cut, return_exceptions=True)


def _event(word: str, text: bytes, view: ObjectView[Any]) -> WatchEvent[Any]:
    identity: ObjectIdentity = identity_of(text)
    if word == "BOOKMARK":
        return WatchEvent(word, None, identity)
    try:
        with reading("an object"):
            return WatchEvent(word, view(text), identity)
    except DrabridgeError:
        return WatchEvent(word, None, identity)


def _bytes(kind: Kind, obj: Json) -> bytes:
    return json.dumps(obj).encode()


def _body(kind: Kind, body: Mapping[str, Any]) -> Json:
    """The object as a request has it: the URL says what it is."""
    group = f"{kind.group}/{kind.version}" if kind.group else kind.version
    found: Json = json.loads(json.dumps(dict(body)))
    return {"apiVersion": group, "kind": BY_PLURAL[kind.plural].kind, **found}
