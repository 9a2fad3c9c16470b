"""Parse the lanes that the Node's annotation or a command asks for, once for each configuration of a resource."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from drabridge.config.lanes import Lanes
from drabridge.config.loader import read
from drabridge.config.problems import ConfigErrors
from drabridge.config.schema import Config, Resource
from drabridge.errors import ConfigError
from drabridge.system.untrusted import parse_mapping

EXAMPLE = 'For example {"nvidia.com/gpu": {"legacy": 6, "dra": 2}}'


class LaneOverride:
    """What one source asks for one resource: ``asked`` is ``{"legacy": 6, "dra": "*"}``, or a part of it.

    An empty ``asked`` stands for an override that was lost with its file.
    """

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.asked = dict(asked)
        self._parsed: tuple[Resource, Lanes | ConfigError] | None = None  # a configuration and its result

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LaneOverride) and self.asked == other.asked

    __hash__ = None  # type: ignore[assignment]

    def lanes(self, resource: Resource) -> Lanes:
        """Return the lanes asked for, with the configuration's floors. Raises ConfigError if they make no sense."""
        if self._parsed is None or self._parsed[0] is not resource:
            try:
                self._parsed = resource, _with_floors(resource, self.asked)
            except ConfigError as error:
                self._parsed = resource, error
        found = self._parsed[1]
        if isinstance(found, ConfigError):
            raise found.with_traceback(None)  # every plan raises the same error, whose traceback would otherwise grow
        return found


Overrides = dict[str, LaneOverride]  # resource -> override


def parse(text: str) -> Overrides:
    """Parse ``{"<resource>": {"legacy": 6, "dra": "*"}}``. Raises ConfigError for another form."""
    found: dict[str, dict[str, Any]] = parse_mapping(text, dict, "objects", EXAMPLE)
    return {name: LaneOverride(asked) for name, asked in found.items()}


def encode(overrides: Overrides) -> bytes:
    """Return the text that :func:`parse` reads."""
    return json.dumps({name: override.asked for name, override in overrides.items()}, indent=1).encode()


def parse_request(body: bytes, config: Config) -> tuple[Resource, LaneOverride | None]:
    """Parse ``{"resource": ..., "legacy": ..., "dra": ...}``; ``"reset": true`` instead gives None.

    Raises ConfigError for another form, or a resource that the configuration does not have.
    """
    try:
        asked = json.loads(body)
        resource = config.resource(asked.pop("resource"))
        reset = asked.pop("reset", False)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        known = ", ".join(resource.name for resource in config.resources)
        raise ConfigError("a resource of the configuration was expected", hint=f"It has {known}") from None
    return resource, None if reset else LaneOverride(asked)


def _with_floors(resource: Resource, asked: Mapping[str, Any]) -> Lanes:
    if asked.keys() - {"legacy", "dra", "shared"} or not asked or None in asked.values():
        raise ConfigError(
            f"{resource.name}: legacy, dra and shared were expected, found {', '.join(map(str, asked)) or 'nothing'}"
        )
    floors = {"minLegacy": resource.lanes.min_legacy, "minDra": resource.lanes.min_dra}
    try:
        lanes = read(Lanes, json.dumps({**floors, **asked}), name=f"lanes of {resource.name}")
    except ConfigErrors as errors:  # drop their lines and columns, because there is no file
        raise ConfigErrors(tuple(replace(fault, line=0) for fault in errors.faults)) from None
    if lanes.uses_dra and not resource.claimable:
        raise ConfigError(
            f"{resource.name} has replicas, and a claim would take the whole device",
            hint="Set sharing.allowMultipleAllocations: true in the configuration, or dra=0",
        )
    return lanes
