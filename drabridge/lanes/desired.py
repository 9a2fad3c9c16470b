"""Decide how many devices each lane shall have: by the Node's annotation, ``drabridge lanes set`` or configuration.

The annotation ``<driver>/lanes`` wins, because a cluster's administrator sees it. Next comes the command ``lanes set``,
which ``lanes.json`` keeps over restarts; then the configuration. The floors always come from the
configuration. ``drabridge drain`` outranks all of these, even the floors: every device is for the legacy lane until the
drain is undone.

Annotation and command have one form: ``{"<resource>": {"legacy": 6, "dra": "*"}}``; ``shared`` is a third key.
``lanes.node.json`` keeps the newest valid annotation, so that an agent that starts without the API server does not move
devices away and back. An override that gives devices to claims is followed only where claims are served; elsewhere
nobody could use the devices. If ``lanes.json`` cannot be read, it may have named any resource. So each resource gets
an empty override, which stands for a lost one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drabridge.config.lanes import NOTHING, REST, Lanes, Selection
from drabridge.config.schema import Config, Resource
from drabridge.errors import ConfigError, host_errors
from drabridge.kube.connection import ApiServer
from drabridge.lanes.overrides import LaneOverride, Overrides, encode, parse, parse_request
from drabridge.system.files import write_atomically
from drabridge.system.io_thread import IoThread

log = logging.getLogger(__name__)

FILE_NAME = "lanes.json"
ANNOTATION_FILE_NAME = "lanes.node.json"
DRAIN_FILE_NAME = "drained.json"
ANNOTATION, COMMAND, CONFIGURATION = "annotation", "lanes set", "configuration"  # as the status document has them
DRAIN = "drain"  # one more source
DRAINED = Lanes(legacy=REST, dra=NOTHING)


class DesiredLanes:
    """Holds the sources of the desired lanes, and decides which one counts for each resource.

    ``drained``: the operator drained the node. ``clean_at_end``: that drain also asked to leave nothing on disk at the
    end. ``annotation_error``: why the annotation is not followed, for people. ``unmet``: resource -> which part of its
    desired lanes the planner cannot reach, in words.
    """

    def __init__(
        self,
        state: Path,
        config: Callable[[], Config],
        changed: Callable[[], None],
        api_server: ApiServer,
        files: IoThread,
    ) -> None:
        """``config`` returns the configuration in use; ``changed`` is called when the desired lanes have changed.

        ``files``: the thread that waits for the disk. Without an API server the annotation on disk is not loaded:
        nobody could take it back.
        """
        self._path = state / FILE_NAME
        self._annotation_path = state / ANNOTATION_FILE_NAME
        self._drain_path = state / DRAIN_FILE_NAME
        self._config = config
        self._changed = changed
        self._api_server = api_server
        self._files = files
        self._setting = asyncio.Lock()  # one command at a time: each starts from what the previous one left
        self.drained, self.clean_at_end = _read_drained(self._drain_path)
        self._unreadable: dict[Path, str] = {}  # file -> why it cannot be read
        self._commands = self._load(self._path)
        if self._path in self._unreadable:
            self._commands = {resource.name: LaneOverride({}) for resource in config().resources}
        follows_node = api_server.cluster is not None
        self._annotation = self._load(self._annotation_path) if follows_node else {}
        self._annotation_on_disk = self._annotation if follows_node else None  # None: not known
        self._annotation_text: tuple[str | None, ...] = ()  # its present text on the Node; (): not known
        self.annotation_error = ""
        self.unmet: dict[str, list[str]] = {}
        self._not_followed: dict[str, dict[str, str]] = {}  # resource -> source that is not followed -> why

    # --- what is desired --------------------------------------------------------------------------------------------

    def lanes(self, resource: Resource) -> Lanes:
        """Return the desired lanes of one resource."""
        return self._decide(resource)[1]

    def source(self, resource: Resource) -> str:
        """Return which source decides about a resource."""
        return self._decide(resource)[0]

    def uncertain(self, resource: Resource) -> bool:
        """Whether an override that could not be read may ask for other lanes: then no device may move."""
        return not self.drained and (self._annotation_path in self._unreadable or self._is_lost(resource))

    def describe(self, resource: Resource) -> dict[str, str]:
        """Return ``{legacy, dra, source}`` of one resource as texts, and ``shared`` if devices shall be shared."""
        source, lanes = self._decide(resource)
        selected = any(isinstance(share, Selection) for share in lanes.resolved)  # a selection has no number
        legacy, dra = (
            "selected" if isinstance(share, Selection) else REST if selected else share for share in lanes.resolved
        )
        shared = {"shared": str(lanes.shared)} if lanes.uses_leases else {}
        return {"legacy": str(legacy), "dra": str(dra), **shared, "source": source}

    def uses_leases(self) -> bool:
        """Whether a device of any resource shall be offered to both sides."""
        return any(self.lanes(resource).uses_leases for resource in self._config().resources)

    def notes(self) -> list[str]:
        """Return sentences for people: which requests are not done, and why."""
        if self.drained:  # no other source counts
            return ["drained: no device is for claims until `drabridge drain --undo`"]
        notes = []
        if self.annotation_error:
            notes.append(f"the Node's annotation for lanes is not followed: {self.annotation_error}")
        if names := [resource.name for resource in self._config().resources if self._is_lost(resource)]:
            notes.append(
                f"lanes that were set of {', '.join(names)} are lost, devices stay where they are until their lanes "
                f"are set or reset: {self._path.name}: {self._unreadable.get(self._path, 'it was damaged')}"
            )
        if why := self._unreadable.get(self._annotation_path):
            notes.append(
                f"the Node's annotation as it was is lost, devices stay where they are until the Node is seen: {why}"
            )
        for resource in self._config().resources:
            decides = self.source(resource)
            for source, reason in self._not_followed.get(resource.name, {}).items():
                if reason != self.annotation_error:
                    what = "the Node's annotation" if source == ANNOTATION else f"what '{source}' gave"
                    notes.append(f"{what} for {resource.name} is not followed, {decides} decides: {reason}")
            notes += [f"lanes of {resource.name}: {reason}" for reason in self.unmet.get(resource.name, ())]
        return notes

    def _decide(self, resource: Resource) -> tuple[str, Lanes]:
        """Return the first source whose lanes fit the present floors, and its lanes.

        An override may be older than the floors.
        """
        if self.drained:
            return DRAIN, DRAINED
        not_followed: dict[str, str] = {}
        before = self._not_followed.get(resource.name, {})
        decided = (CONFIGURATION, resource.lanes)
        for source, overrides in ((ANNOTATION, self._annotation), (COMMAND, self._commands)):
            override = overrides.get(resource.name)
            if override is None or (source == COMMAND and not override.asked):
                continue
            try:
                decided = (source, self._followed(resource, override))
                break
            except ConfigError as error:
                not_followed[source] = reason = str(error)
                if before.get(source) != reason:  # log each reason once, although every plan comes here
                    fields = {"resource": resource.name, "source": source, "reason": reason}
                    log.error("lanes cannot be followed", extra=fields)
        self._not_followed[resource.name] = not_followed
        return decided

    def _followed(self, resource: Resource, override: LaneOverride) -> Lanes:
        """Return the lanes of an override. Raises ConfigError if they make no sense, or this node cannot have them."""
        lanes = override.lanes(resource)
        if lanes.uses_dra and (off := self._api_server.claims_off) is not None:
            raise ConfigError(f"{resource.name}: claims are not served on this node: {off.why}", hint=off.remedy)
        return lanes

    def _is_lost(self, resource: Resource) -> bool:
        """Whether ``lanes set`` may have set an override that is lost, would count now, and was not set again."""
        override = self._commands.get(resource.name)
        return override is not None and not override.asked and self.source(resource) == CONFIGURATION

    # --- the operator's commands ------------------------------------------------------------------------------------

    async def set(self, body: bytes) -> dict[str, Any]:
        """Set or reset the lanes of one resource, as ``drabridge lanes set`` asks; return what is desired now.

        ``body``: ``{"resource": ..., "legacy": ..., "dra": ...}``, or with ``"reset": true`` instead of the lanes.
        Raises ConfigError if the request makes no sense or cannot be met, HostError if the disk fails; nothing is
        changed then.
        """
        async with self._setting:
            resource, override = parse_request(body, self._config())
            name, annotation = resource.name, f"{self._config().driver}/lanes"
            if self.drained:
                raise ConfigError(
                    "this node is drained: no device is for claims", hint="drabridge drain --undo ends it"
                )
            if self.source(resource) == ANNOTATION:
                raise ConfigError(
                    f"the Node's annotation {annotation} decides about {name}",
                    hint=f"Change it there, or remove it: kubectl annotate node NODE {annotation}- "
                    "and set the lanes again",
                )
            commands = {other: known for other, known in self._commands.items() if other != name}
            if override is not None:
                self._followed(resource, override)
                commands[name] = override
            hint = "Make room or mend the disk, and set them again"
            with host_errors(f"nothing is changed, lanes cannot be kept in {self._path}", hint=hint):
                await self._files.promptly(lambda: self._save(self._path, commands))
            self._commands = commands
            self._changed()
            return {"resource": name, **self.describe(resource)}

    async def drain(self, *, clean: bool = False) -> None:
        """Desire every device in the legacy lane from now on, even after a restart. ``clean``: see ``clean_at_end``.

        Raises HostError if the disk fails; nothing is changed then.
        """
        text, hint = json.dumps({"clean": clean}).encode(), "Make room or mend the disk, and try again"
        with host_errors(f"that this node is drained cannot be kept in {self._drain_path}", hint=hint):
            await self._files.promptly(lambda: write_atomically(self._drain_path, text))
        self.drained, self.clean_at_end = True, clean
        self._changed()

    async def undo_drain(self) -> None:
        """Let annotation, command and configuration decide again. Raises HostError if the disk fails."""
        with host_errors(f"{self._drain_path} cannot be removed"):
            await self._files.promptly(lambda: self._drain_path.unlink(missing_ok=True))
        self.drained = self.clean_at_end = False
        self._changed()

    # --- the Node's annotation --------------------------------------------------------------------------------------

    def annotate(self, text: str | None) -> None:
        """Take the annotation's present value; None: there is no annotation.

        A bad value is reported, and the previous one stays in force.
        """
        self._annotation_text = (text,)
        if self._unreadable.pop(self._annotation_path, None) is not None:
            self._annotation_on_disk = None
            self._changed()
        before = self.annotation_error
        try:
            overrides = parse(text) if text else {}
            for name, override in overrides.items():
                self._followed(self._config().resource(name), override)
        except KeyError as error:
            self.annotation_error = f"the configuration has no resource {error}"
        except ConfigError as error:
            self.annotation_error = str(error)
        else:
            self.annotation_error = ""
            if overrides != self._annotation_on_disk:
                self._files.submit_latest(self._annotation_path.name, lambda: self._remember(overrides))
            if overrides != self._annotation:
                self._annotation = overrides
                self._changed()
            return
        if self.annotation_error != before:  # log each error once, although the Node changes every few seconds
            log.error("the Node's annotation is not followed", extra={"reason": self.annotation_error})

    def reconfigured(self) -> None:
        """Check the annotation again, because the configuration changed."""
        for text in self._annotation_text:
            self.annotate(text)

    def forget_annotation(self) -> None:
        """Drop the annotation: the API server is no longer used, so that changes are not seen.

        The file stays for a later start with an API server.
        """
        self._annotation_on_disk, self._annotation_text, self.annotation_error = None, (), ""
        self._unreadable.pop(self._annotation_path, None)
        if self._annotation:
            self._annotation = {}
            self._changed()

    def _remember(self, overrides: Overrides) -> None:
        """Save the annotation, in the disk's thread. If that fails, try again when the Node is next seen."""
        try:
            self._save(self._annotation_path, overrides)
        except OSError as error:
            fields = {"file": str(self._annotation_path), "reason": str(error)}
            log.error("the Node's annotation will not be known at a start without the API server", extra=fields)
            return
        self._annotation_on_disk = overrides

    # --- files ------------------------------------------------------------------------------------------------------

    def _load(self, path: Path) -> Overrides:
        try:
            return parse(path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, ConfigError) as error:
            log.error("lanes that were set are lost", extra={"file": str(path), "reason": str(error)})
            self._unreadable[path] = str(error)
            return {}

    def _save(self, path: Path, overrides: Overrides) -> None:
        """Write the file. Raises OSError."""
        write_atomically(path, encode(overrides))
        self._unreadable.pop(path, None)


def _read_drained(path: Path) -> tuple[bool, bool]:
    """Read whether the node is drained, and whether to remove its files at the end. A damaged file means drained."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return False, False
    except (OSError, ValueError, RecursionError):
        return True, False
    return True, isinstance(found, dict) and found.get("clean") is True
