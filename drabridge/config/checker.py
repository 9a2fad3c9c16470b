"""Read plain data into a model: every fault of it at once, each with its path and what was expected there."""

from __future__ import annotations

import functools
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Literal, TypeVar

from msgspec import Meta
from msgspec.structs import FieldInfo, fields

from drabridge.config.declaration import Check, Model, OneOrMany, Parse
from drabridge.config.problems import Path, Problem, Problems, did_you_mean, refuse_if_any, shorten, unmet

M = TypeVar("M", bound=Model)

WRONG: Any = object()  # in place of a value that has a problem

# Words of other tools -> the key that is meant here; of several keys, the first that the mapping has. For hints only.
_SYNONYMS = {
    "name": "sysname", "kernel": "sysname", "KERNEL": "sysname", "SUBSYSTEM": "subsystem", "DRIVER": "driver",
    "ATTR": "attr", "attrs": "attr", "attributes": "attr", "ENV": "property", "env": "property",
    "properties": "property",
    "ATTRS": "parent: {attr: ...}", "idVendor": "attr: {idVendor: ...}", "idProduct": "attr: {idProduct: ...}",
    "vendor": "attr: {vendor: ...}", "product": "attr: {idProduct: ...}", "device": ("path", "attr: {device: ...}"),
    "serial": "attr: {serial: ...}", "class": "attr: {class: ...}", "udevRule": "rule",
    "KERNELS": "parent: {sysname: ...}", "SUBSYSTEMS": "parent: {subsystem: ...}", "DRIVERS": "parent: {driver: ...}",
    "TAGS": "parent: {tag: ...}", "parents": "parent", "DEVTYPE": "devtype", "TAG": "tag", "SYMLINK": "devlink",
    "symlink": "devlink", "DEVPATH": "rule: ...", "devpath": "rule: ...",
    "path": "devnode", "devname": "devnode", "DEVNAME": "devnode", "file": "devnode", "dev": "devnode",
    "hostPath": ("path", "devnode"), "mountPath": "as", "containerPath": "as", "count": "replicas: {count: ...}",
    "share": "sharing", "expose": "lanes", "timeout": "timeoutSeconds", "devices": "resources", "domain": "driver",
}  # fmt: skip


def check(model: type[M], data: object) -> M:
    """Return the model of plain data: mappings, lists, text, numbers, booleans, None. Raises Problems, with paths."""
    checker = _Checker()
    found = checker.value(model, data, ())
    refuse_if_any([*checker.problems, *model.whole_file_problems(data)])
    return typing.cast("M", found)


class _Checker:
    """Reads one document. Types are strict: a number is not text, 1 is not true, and null is for optional keys.

    ``hints``: whether to look for what to write instead.
    """

    def __init__(self, hints: bool = True) -> None:
        self.problems: list[Problem] = []
        self._hints = hints
        self._fields: dict[type[Model], tuple[FieldInfo, ...]] = {}  # a cache: msgspec parses annotations each time

    def value(self, annotation: Any, value: object, path: Path) -> Any:
        """Return the value that an annotation makes of plain data; WRONG if there is a problem, which is noted."""
        kind, marks = unwrapped(annotation)
        before = len(self.problems)
        if OneOrMany() in marks and not isinstance(value, list | tuple | None):
            value = [value]
        parsers = [mark.make for mark in marks if isinstance(mark, Parse)]
        found = self._call(parsers[-1], value, path) if parsers else self._of_kind(kind, value, path)
        for mark in marks:
            # Wrong items count towards the length, too: each has a problem of its own.
            limited = value if _is_collection(kind, value) else found
            if isinstance(mark, Meta) and limited is not WRONG:
                self._call(functools.partial(_constrain, mark), limited, path)
            if len(self.problems) > before:
                return WRONG
            if isinstance(mark, Check):
                found = self._call(mark.check, found, path)
        return found

    def _call(self, function: Callable[[Any], Any], value: object, path: Path) -> Any:
        try:
            return function(value)
        except Problems as error:
            return self._refuse(error, path)

    def _refuse(self, error: Problems, path: Path) -> Any:
        self.problems += [problem.under(*path) for problem in error.items]
        return WRONG

    def _of_kind(self, kind: Any, value: object, path: Path) -> Any:
        origin = typing.get_origin(kind)
        if origin in (typing.Union, types.UnionType):
            return self._union(typing.get_args(kind), value, path)
        if origin is Literal:
            return self._call(lambda given: _literal(typing.get_args(kind), given), value, path)
        if origin is tuple:
            return self._items(typing.get_args(kind)[0], value, path)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self._mapping(typing.get_args(kind), value, path)
        if isinstance(kind, type) and issubclass(kind, Model):
            return self._model(kind, value, path)
        return self._call(lambda given: _scalar(kind, given), value, path)

    def _items(self, kind: Any, value: object, path: Path) -> Any:
        if not isinstance(value, list | tuple):
            hint = f"write [{_scalar_text(value)}]" if isinstance(value, str) and value else ""
            return self._refuse(unmet("a list", hint), path)
        found = [self.value(kind, item, (*path, index)) for index, item in enumerate(value)]
        return WRONG if any(item is WRONG for item in found) else tuple(found)

    def _mapping(self, kinds: Sequence[Any], value: object, path: Path) -> Any:
        key_kind, kind = kinds
        if not isinstance(value, Mapping):
            hint = "write NAME: VALUE, one on a line, without a dash" if isinstance(value, list) and value else ""
            return self._refuse(unmet("a mapping", hint), path)
        found: dict[Any, Any] = {}
        for key, item in value.items():
            before = len(self.problems)
            name = self.value(key_kind, key, (*path, key))
            for index, problem in enumerate(self.problems[before:], start=before):
                found_key = problem.found or shorten(str(key))
                self.problems[index] = Problem(problem.expected, problem.hint, problem.path, found_key)
            found[name] = self.value(kind, item, (*path, key))
        return WRONG if WRONG in found or any(item is WRONG for item in found.values()) else found

    def _model(self, model: type[Model], value: object, path: Path) -> Any:
        if isinstance(value, model):
            return value
        if not isinstance(value, Mapping):
            return self._refuse(unmet("a mapping", _mapping_hint(model, value) if self._hints else ""), path)
        if (declared := self._fields.get(model)) is None:
            declared = self._fields[model] = fields(model)
        given: dict[str, Any] = {}
        before = len(self.problems)
        for one in declared:
            if one.encode_name in value:
                given[one.name] = self.value(one.type, value[one.encode_name], (*path, one.encode_name))
            elif one.required:
                self.problems.append(Problem("a value: it is required", "", (*path, one.encode_name), "nothing"))
        known = [one.encode_name for one in declared]
        for key in value:
            if key not in known:
                hint = _key_hint(str(key), value[key], known)
                self.problems.append(Problem("a known key", hint, (*path, key), f"the key {shorten(str(key))}"))
        if len(self.problems) > before:
            return WRONG
        return self._call(lambda arguments: model(**arguments), given, path)

    def _union(self, members: Sequence[Any], value: object, path: Path) -> Any:
        """Return the value as the first member that accepts it makes it. A mapping is offered to mappings only."""
        if value is None and types.NoneType in members:
            return None
        members = [member for member in members if member is not types.NoneType]
        if isinstance(value, Mapping):
            members = [member for member in members if _is_mapping(member)] or members
        before, refused = len(self.problems), list[Problem]()
        for member in members:
            found = self.value(member, value, path)
            if len(self.problems) == before:
                return found
            refused += self.problems[before:]
            del self.problems[before:]
        self.problems += merged(refused)
        return WRONG


def merged(problems: Iterable[Problem]) -> list[Problem]:
    """Merge the problems of each place into one: ``true or a mapping``."""
    found: dict[tuple[Path, str | None], Problem] = {}
    for problem in problems:
        key = (problem.path, problem.found)
        if (earlier := found.get(key)) is None:
            found[key] = problem
        else:
            wanted = dict.fromkeys(filter(None, (earlier.expected, problem.expected)))
            found[key] = Problem(" or ".join(wanted), earlier.hint or problem.hint, problem.path, problem.found)
    return list(found.values())


def unwrapped(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return an annotation's type and its marks."""
    if typing.get_origin(annotation) is typing.Annotated:
        return annotation.__origin__, annotation.__metadata__
    return annotation, ()


def _is_mapping(annotation: Any) -> bool:
    kind = unwrapped(annotation)[0]
    found = typing.get_origin(kind) or kind
    return isinstance(found, type) and issubclass(found, Model | Mapping)


def _is_collection(kind: Any, value: object) -> bool:
    """Whether a collection is expected, and one is given."""
    origin = typing.get_origin(kind)
    if origin is tuple:
        return isinstance(value, list | tuple)
    return isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping)


_WORDS: Mapping[Any, tuple[str, type | tuple[type, ...]]] = {
    str: ("text", str),
    bool: ("true or false", bool),
    int: ("a whole number", int),
    float: ("a number", (int, float)),
}


def _scalar(kind: Any, value: Any) -> Any:
    if kind is Any:
        return value
    if issubclass(kind, Enum):
        return kind(_literal([member.value for member in kind], value))
    words, accepted = _WORDS[kind]
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise unmet(words)
    return kind(value)


def _literal(members: Sequence[Any], value: Any) -> Any:
    for member in members:
        if value == member and isinstance(value, type(member)) and isinstance(value, bool) == isinstance(member, bool):
            return member
    shown = ["true" if member is True else repr(member) for member in members]
    raise unmet(" or ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))))


def _constrain(meta: Meta, value: Any) -> None:
    """Raise Problems for a value outside its limits."""
    if meta.ge is not None and value < meta.ge:
        raise unmet(f"at least {meta.ge}")
    if meta.le is not None and value > meta.le:
        raise unmet(f"at most {meta.le}")
    what = "character(s)" if isinstance(value, str) else "of them"
    if meta.min_length is not None and len(value) < meta.min_length:
        raise unmet(f"at least {meta.min_length} {what}")
    if meta.max_length is not None and len(value) > meta.max_length:
        raise unmet(f"at most {meta.max_length} {what}")
    if meta.pattern is not None and re.fullmatch(meta.pattern, value) is None:
        raise unmet(f"text that matches {meta.pattern}")


def _mapping_hint(model: type[Model], value: object) -> str:
    """Return how to write a plain value as a mapping: with the first key that accepts it; "" if none does."""
    if not isinstance(value, str | int | float) or not str(value):
        return ""
    keys = [one.encode_name for one in fields(model)]
    keys.sort(key=lambda name: name != _node_key(value))
    if re.split(r"\W", str(value))[0] in keys:  # it is, or begins with, a key: then more than a brace is missing
        return ""
    for key in keys:
        trial = _Checker(hints=False)
        trial.value(model, {key: value}, ())
        if not trial.problems:
            return f"write {{{key}: {_scalar_text(value)}}}"
    return ""


def _scalar_text(value: object) -> str:
    """Return a plain value as YAML writes it between braces."""
    text = shorten(str(value).lower() if isinstance(value, bool) else str(value))
    return text if re.fullmatch(r"[\w./:=-]+", text) else f'"{text}"'


def _node_key(value: object) -> str:
    """Return the key of a match rule for a path below /dev; "" for anything else. udev makes by-id and by-path."""
    if not isinstance(value, str) or not value.startswith("/dev/"):
        return ""
    return "devlink" if "/by-" in value else "devnode"


def _key_hint(word: str, value: object, known: Sequence[str]) -> str:
    synonyms = _SYNONYMS.get(word, ())
    meant = [synonyms] if isinstance(synonyms, str) else list(synonyms)
    for synonym in (_node_key(value), *meant):  # the value is a better hint than the word
        if synonym.partition(":")[0] in known:
            return f"did you mean {synonym}?"
    return did_you_mean(word, known) or f"known here: {', '.join(sorted(known))}"
