"""Label and field selectors of list, watch and deletecollection."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from drabridge.sim.apiserver.status import JSON, bad_request

Predicate = Callable[[JSON], bool]

_SET = re.compile(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)\Z")
_SPLIT = re.compile(r",(?![^(]*\))")


def everything(_: JSON) -> bool:
    return True


def field_value(obj: JSON, path: str) -> str:
    value: Any = obj
    for name in path.split("."):
        value = value.get(name, "") if isinstance(value, dict) else ""
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def field_predicate(selector: str, supported: Mapping[str, str] | tuple[str, ...], what: str) -> Predicate:
    """Parse a field selector, ``a=b,c!=d``.

    Raises ApiError 400 for a label that the kind does not index; ``what`` says of which kind in the answer's words.
    """
    if not selector:
        return everything
    terms: list[tuple[str, str, bool]] = []
    for term in selector.split(","):
        match = re.match(r"([^=!]+)(==|=|!=)(.*)\Z", term)
        if match is None:
            raise bad_request(f"invalid selector: '{selector}'; can't understand '{term}'")
        path, operator, value = match.groups()
        if path not in supported and path not in ("metadata.name", "metadata.namespace"):
            if not supported:
                known = 'only "metadata.name", "metadata.namespace"'
                raise bad_request(f'"{path}" is not a known field selector: {known}')
            raise bad_request(f"field label not supported{what}: {path}")
        terms.append((path, value, operator != "!="))
    return lambda obj: all((field_value(obj, path) == value) is equal for path, value, equal in terms)


def label_predicate(selector: str) -> Predicate:
    """Equality and set based requirements. Raises ApiError 400."""
    if not selector:
        return everything
    tests = [_requirement(term.strip()) for term in _SPLIT.split(selector)]
    return lambda obj: all(test(obj.get("metadata", {}).get("labels", {})) for test in tests)


def _requirement(term: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _SET.match(term):
        key, operator, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if "!=" in term:
        key, value = (part.strip() for part in term.split("!=", 1))
        return lambda labels: labels.get(key) != value
    if "=" in term:
        key, value = (part.strip() for part in re.split("==?", term, maxsplit=1))
        return lambda labels: labels.get(key) == value
    if term.startswith("!"):
        return lambda labels: term[1:] not in labels
    if not re.match(r"[\w./-]+\Z", term):
        raise bad_request(f"unable to parse requirement: {term!r}")
    return lambda labels: term in labels


def both(first: Predicate, second: Predicate) -> Predicate:
    if first is everything:
        return second
    if second is everything:
        return first
    return lambda obj: first(obj) and second(obj)
