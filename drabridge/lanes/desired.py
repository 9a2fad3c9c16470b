"""How many devices each lane is to have, from three places: the configuration, ``drabridge lanes set``, the Node.

``drabridge drain`` outranks them all, floors included: everything is for the legacy lane until it is undone.

The Node's annotation ``<driver>/lanes`` wins, because it is what a cluster's administrator sees; then what was set on
the node itself, which survives restarts in ``lanes.json``; then the configuration. The floors are always its.
Both overrides have one form: ``{"<resource>": {"legacy": 6, "dra": "*"}}``. The annotation as it was seen last is kept
in ``lanes.node.json``: an agent that starts while the API server is away must not move devices there and back.
An override that gives devices to claims is followed only where claims can be served: elsewhere nobody could have them.
Where ``lanes.json`` cannot be read, every resource may have had a wish in it: ``{}`` stands for that one from then on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from drabridge.config.lanes import REST, Lanes, Selection
from drabridge.config.loader import read
from drabridge.config.problems import ConfigErrors
from drabridge.config.schema import Config, Resource
from drabridge.errors import ConfigError, HostError
from drabridge.kube.connection import ClaimsOff
from drabridge.system.files import write_atomically
from drabridge.system.io_thread import IoThread

log = logging.getLogger(__name__)

FILE_NAME = "lanes.json"
SEEN_FILE_NAME = "lanes.node.json"
DRAIN_FILE_NAME = "drained.json"
ANNOTATION, COMMAND, CONFIGURATION = "annotation", "lanes set", "configuration"  # the status document's words
DRAIN = "drain"  # likewise
DRAINED = Lanes.model_validate({"legacy": "*", "dra": 0})
Overrides = dict[str, dict[str, Any]]


class DesiredLanes:
    """The three places. ``changed`` is called when a wish changed.

    ``follows_node``: there is an API server to ask. Without one nobody could take back an annotation of earlier days.
    ``off`` says why claims cannot be served, if so. ``files``: whose thread waits for the disk.
    """

    def __init__(
        self,
        state: Path,
        config: Callable[[], Config],
        changed: Callable[[], None],
        *,
        follows_node: bool = False,
        off: Callable[[], ClaimsOff | None] = lambda: None,
        files: IoThread | None = None,
    ) -> None:
        self._path = state / FILE_NAME
        self._seen_path = state / SEEN_FILE_NAME
        self._config = config
        self._changed = changed
        self._off = off
        self._files = files or IoThread("lanes")
        self._setting = asyncio.Lock()  # one after the other: each begins with what the one before left
        self._drain_path = state / DRAIN_FILE_NAME
        self.drained, self.clean_at_end = _drained(self._drain_path)
        self._lost: dict[Path, str] = {}  # file that cannot be read -> why; what it said may be anything
        self._local = self._load(self._path)
        if self._path in self._lost:
            self._local = {resource.name: {} for resource in config().resources}
        self._annotation = self._load(self._seen_path) if follows_node else {}
        self._saved = self._annotation if follows_node else None  # what the file says; None: nobody knows
        self._text: tuple[str | None, ...] = ()  # the annotation as it is on the Node; (): nobody told
        self.annotation_error = ""  # why the annotation is not followed, for people
        self.unmet: dict[str, list[str]] = {}  # resource -> what is wanted and not to be had, as the planner found
        self._unfollowed: dict[str, dict[str, str]] = {}  # resource -> place that asked for something else -> why not

    def lanes(self, resource: Resource) -> Lanes:
        """What is wanted of one resource."""
        return self._decided(resource)[1]

    def source(self, resource: Resource) -> str:
        """Which place decides about a resource."""
        return self._decided(resource)[0]

    def lost(self, resource: Resource) -> bool:
        """Whether another wish than the one that is known may be the one to follow: then no device is to move."""
        return not self.drained and self._may_be_another(resource)

    def _may_be_another(self, resource: Resource) -> bool:
        return self._seen_path in self._lost or self._unsaid(resource)

    def _unsaid(self, resource: Resource) -> bool:
        """Whether what was set of it is lost, and nobody has said it again."""
        return self._local.get(resource.name) == {} and self.source(resource) == CONFIGURATION

    def notes(self) -> list[str]:
        """What somebody asked for and does not get, and why, for people."""
        if self.drained:  # what the others ask for is of no consequence
            return ["drained: no device is for claims until `drabridge drain --undo`"]
        notes = []
        if self.annotation_error:
            notes.append(f"the Node's annotation for lanes is not followed: {self.annotation_error}")
        if names := [resource.name for resource in self._config().resources if self._unsaid(resource)]:
            notes.append(
                f"lanes that were set of {', '.join(names)} are lost, devices stay where they are until their lanes "
                f"are set or reset: {self._path.name}: {self._lost.get(self._path, 'it was damaged')}"
            )
        if why := self._lost.get(self._seen_path):
            notes.append(
                f"the Node's annotation as it was is lost, devices stay where they are until the Node is seen: {why}"
            )
        for resource in self._config().resources:
            source = self.source(resource)
            for place, reason in self._unfollowed.get(resource.name, {}).items():
                if reason != self.annotation_error:
                    what = "the Node's annotation" if place == ANNOTATION else f"what '{place}' gave"
                    notes.append(f"{what} for {resource.name} is not followed, {source} decides: {reason}")
            notes += [f"lanes of {resource.name}: {reason}" for reason in self.unmet.get(resource.name, ())]
        return notes

    def _decided(self, resource: Resource) -> tuple[str, Lanes]:
        """The first place whose wish fits with the floors as they are now: one may be older than they are."""
        if self.drained:
            return DRAIN, DRAINED
        unfollowed: dict[str, str] = {}
        before = self._unfollowed.get(resource.name, {})
        decided = (CONFIGURATION, resource.lanes)
        for place, overrides in ((ANNOTATION, self._annotation), (COMMAND, self._local)):
            if (wish := overrides.get(resource.name)) is None or (place == COMMAND and not wish):
                continue
            try:
                decided = (place, self._merge(resource, wish))
                break
            except ConfigError as error:
                unfollowed[place] = reason = str(error)
                if before.get(place) != reason:  # every plan asks
                    said = {"resource": resource.name, "asked_by": place, "reason": reason}
                    log.error("lanes cannot be followed", extra=said)
        self._unfollowed[resource.name] = unfollowed
        return decided

    async def set(self, body: bytes) -> dict[str, Any]:
        """The operator's command: ``{"resource": ..., "legacy": ..., "dra": ...}``, or with ``"reset": true`` instead.

        Raises ConfigError for what cannot be meant, HostError where it cannot be kept: nothing is changed then.
        Returns what is wanted now.
        """
        async with self._setting:
            return await self._set(body)

    async def _set(self, body: bytes) -> dict[str, Any]:
        try:
            wish = json.loads(body)
            name = wish.pop("resource")
            resource = self._config().resource(name)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            known = ", ".join(resource.name for resource in self._config().resources)
            raise ConfigError("a resource of the configuration was expected", hint=f"It has {known}") from None
        if self.drained:
            raise ConfigError("this node is drained: no device is for claims", hint="drabridge drain --undo ends it")
        if self.source(resource) == ANNOTATION:
            raise ConfigError(
                f"the Node's annotation {self._config().driver}/lanes decides about {name}",
                hint="Change it there, or remove it: kubectl annotate node NODE "
                f"{self._config().driver}/lanes- and set the lanes again",
            )
        local = {other: set_before for other, set_before in self._local.items() if other != name}
        if not wish.pop("reset", False):
            self._merge(resource, wish)
            local[name] = wish
        try:
            await self._files.promptly(lambda: self._save(self._path, local))
        except OSError as error:
            raise HostError(
                f"lanes cannot be kept in {self._path}: {error.strerror or error}; nothing is changed",
                hint="Make room or mend the disk, and set them again",
            ) from error
        self._local = local
        self._changed()
        return {"resource": name, **self.describe(resource)}

    async def drain(self, *, clean: bool = False) -> None:
        """Everything is for the legacy lane from now on, over restarts too. ``clean``: see ``clean_at_end``.

        Raises HostError where that cannot be kept: nothing is changed then.
        """
        try:
            text = json.dumps({"clean": clean}).encode()
            await self._files.promptly(lambda: write_atomically(self._drain_path, text))
        except OSError as error:
            raise HostError(
                f"that this node is drained cannot be kept in {self._drain_path}: {error.strerror or error}",
                hint="Make room or mend the disk, and try again",
            ) from error
        self.drained, self.clean_at_end = True, clean
        self._changed()

    async def undo_drain(self) -> None:
        """The three places decide again. Raises HostError."""
        try:
            await self._files.promptly(lambda: self._drain_path.unlink(missing_ok=True))
        except OSError as error:
            raise HostError(f"{self._drain_path} cannot be removed: {error.strerror or error}") from error
        self.drained = self.clean_at_end = False
        self._changed()

    def describe(self, resource: Resource) -> dict[str, str]:
        """``{legacy, dra, source}`` of one resource, for people."""
        source, lanes = self._decided(resource)
        chosen = any(isinstance(share, Selection) for share in lanes.resolved)  # then a number says nothing
        legacy, dra = (
            "selected" if isinstance(share, Selection) else REST if chosen else share for share in lanes.resolved
        )
        return {"legacy": str(legacy), "dra": str(dra), "source": source}

    def annotate(self, text: str | None) -> None:
        """The annotation's value as it is now; None when there is none. A bad one is reported, and not followed."""
        self._text = (text,)
        if self._lost.pop(self._seen_path, None) is not None:
            self._saved = None
            self._changed()
        before = self.annotation_error
        try:
            overrides = _parse(text) if text else {}
            for name, wish in overrides.items():
                self._merge(self._config().resource(name), wish)
        except KeyError as error:
            self.annotation_error = f"the configuration has no resource {error}"
        except ConfigError as error:
            self.annotation_error = str(error)
        else:
            self.annotation_error = ""
            if overrides != self._saved:
                self._files.submit_latest(self._seen_path.name, lambda: self._remember(overrides))
            if overrides != self._annotation:
                self._annotation = overrides
                self._changed()
            return
        if self.annotation_error != before:  # a Node changes every few seconds
            log.error("the Node's annotation is not followed", extra={"reason": self.annotation_error})

    def _remember(self, overrides: Overrides) -> None:
        """Keep the annotation. In the worker's thread; where it cannot be, again when the Node is seen again."""
        try:
            self._save(self._seen_path, overrides)
        except OSError as error:
            reason = {"file": str(self._seen_path), "reason": str(error)}
            log.error("the Node's annotation will not be known at a start without the API server", extra=reason)
            return
        self._saved = overrides

    def reconfigured(self) -> None:
        """The configuration changed, and with it what an annotation may ask for."""
        for text in self._text:
            self.annotate(text)

    def forget_annotation(self) -> None:
        """From now on nobody tells of its changes. What is on disk counts again when somebody does."""
        self._saved, self._text, self.annotation_error = None, (), ""
        self._lost.pop(self._seen_path, None)
        if self._annotation:
            self._annotation = {}
            self._changed()

    def _merge(self, resource: Resource, wish: Mapping[str, Any]) -> Lanes:
        """The wish with the configuration's floors. Raises ConfigError for what cannot be meant, or done here."""
        lanes = _with_floors(resource, wish)
        if lanes.uses_dra and (off := self._off()) is not None:
            raise ConfigError(f"{resource.name}: claims are not served on this node: {off.why}", hint=off.remedy)
        return lanes

    def _load(self, path: Path) -> Overrides:
        try:
            return _parse(path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, ConfigError) as error:
            log.error("lanes that were set are lost", extra={"file": str(path), "reason": str(error)})
            self._lost[path] = str(error)
            return {}

    def _save(self, path: Path, overrides: Overrides) -> None:
        """Raises OSError."""
        write_atomically(path, json.dumps(overrides, indent=1).encode())
        self._lost.pop(path, None)


def _drained(path: Path) -> tuple[bool, bool]:
    """Whether the node is drained, and whether its state is to go at the end. A file that says neither says drained."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return False, False
    except (OSError, ValueError, RecursionError):
        return True, False
    return True, isinstance(found, dict) and found.get("clean") is True


def _parse(text: str) -> Overrides:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"not JSON: {error}", hint='For example {"nvidia.com/gpu": {"legacy": 6, "dra": 2}}'
        ) from None
    if not isinstance(found, dict) or not all(isinstance(wish, dict) for wish in found.values()):
        raise ConfigError("not an object of objects", hint='For example {"nvidia.com/gpu": {"legacy": 6, "dra": 2}}')
    return found


def _with_floors(resource: Resource, wish: Mapping[str, Any]) -> Lanes:
    """The wish with the configuration's floors. Raises ConfigError."""
    if wish.keys() - {"legacy", "dra"} or not wish or None in wish.values():
        raise ConfigError(
            f"{resource.name}: legacy and dra were expected, found {', '.join(map(str, wish)) or 'nothing'}"
        )
    floors = {"minLegacy": resource.lanes.min_legacy, "minDra": resource.lanes.min_dra}
    try:
        lanes = read(Lanes, json.dumps({**floors, **wish}), name=f"lanes of {resource.name}")
    except ConfigErrors as errors:  # there is no file whose lines and columns would mean anything
        raise ConfigErrors(tuple(replace(fault, line=0) for fault in errors.faults)) from None
    if lanes.uses_dra and not resource.claimable:
        raise ConfigError(
            f"{resource.name} has replicas, and a claim would take the whole device",
            hint="Set sharing.allowMultipleAllocations: true in the configuration, or dra=0",
        )
    return lanes
