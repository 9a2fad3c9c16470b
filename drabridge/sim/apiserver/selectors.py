"""Label and field selectors of list, watch and deletecollection: ``a=b,c!=d``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from drabridge.sim.apiserver.kinds import Resource
from drabridge.sim.apiserver.status import JSON, bad_request

Predicate = Callable[[JSON], bool]


def predicate(resource: Resource, namespace: str | None, fields: str, labels: str) -> Predicate:
    """Return what selects objects; ``namespace`` None means all of them.

    Raises ApiError 400 for a selector that cannot be read, or a field that the kind does not index.
    """
    paths = [(path.split("."), value, equal) for path, value, equal in _terms(fields)]
    for path, _, _ in _terms(fields):
        if path not in (*resource.selectable, "metadata.name", "metadata.namespace"):
            where = f" for {resource.group_version()}, Kind={resource.kind}" if resource.group else ""
            unknown = f'"{path}" is not a known field selector: only "metadata.name", "metadata.namespace"'
            raise bad_request(f"field label not supported{where}: {path}" if resource.selectable else unknown)
    if namespace is not None:
        paths.append((["metadata", "namespace"], namespace, True))
    wanted = _terms(labels)

    def selected(obj: JSON) -> bool:
        own = obj["metadata"].get("labels", {})
        return all((_field(obj, path) == value) is equal for path, value, equal in paths) and all(
            (own.get(name) == value) is equal for name, value, equal in wanted
        )

    return selected


def _terms(selector: str) -> list[tuple[str, str, bool]]:
    """Yield (name, value, whether they must be equal) of each term."""
    terms = []
    for term in selector.split(",") if selector else ():
        match = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", term)
        if match is None:
            raise bad_request(f"invalid selector: '{selector}'; can't understand '{term}'")
        terms.append((match[1], match[3], match[2] != "!="))
    return terms


def _field(obj: JSON, path: list[str]) -> str:
    value: Any = obj
    for name in path:
        value = value.get(name, "") if isinstance(value, dict) else ""
    return str(value).lower() if isinstance(value, bool) else str(value)
