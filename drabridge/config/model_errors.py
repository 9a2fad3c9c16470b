"""Turn pydantic's errors into problems with a place in the file, in an operator's words."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from drabridge.config.base import Model
from drabridge.config.problems import Path, Problem, Problems, did_you_mean, shorten
from drabridge.config.yaml_tree import QUOTE_IT, Mapping, Node, Place, PlacedProblem, Scalar, Sequence, node_at

# Words of other tools, and the key that is meant here. Only for hints.
_SYNONYMS = {
    "name": "sysname", "kernel": "sysname", "KERNEL": "sysname", "SUBSYSTEM": "subsystem", "DRIVER": "driver",
    "ATTR": "attr", "attrs": "attr", "attributes": "attr", "ENV": "property", "env": "property",
    "properties": "property",
    "ATTRS": "parent: {attr: ...}", "idVendor": "attr: {idVendor: ...}", "idProduct": "attr: {idProduct: ...}",
    "vendor": "attr: {vendor: ...}", "product": "attr: {idProduct: ...}", "device": "attr: {device: ...}",
    "serial": "attr: {serial: ...}", "class": "attr: {class: ...}", "TAG": "tag", "udevRule": "rule",
    "hostPath": "path", "mountPath": "as", "containerPath": "as", "count": "replicas: {count: ...}",
    "share": "sharing", "expose": "lanes", "timeout": "timeoutSeconds", "devices": "resources", "domain": "driver",
}  # fmt: skip

_TRUE = "true"  # the one value of a key that takes it or a mapping

# pydantic's error type -> what was expected, filled with the error's context.
_EXPECTED = {
    "missing": "a value: it is required",
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "none_required": "",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} of them",
    "too_long": "at most {max_length} of them",
    "string_too_short": "at least {min_length} character(s)",
    "string_pattern_mismatch": "text that matches {pattern}",
}


def problems_of(model: type[Model], root: Mapping, error: ValidationError, data: object) -> list[PlacedProblem]:
    """pydantic's errors with their places. Checks of the whole file run even when parts of it are wrong."""
    found = [(path, problem) for path, problem in _problems(model, root, error, ())]
    found += [(problem.path, problem) for problem in model.whole_file_problems(data)]
    unique = dict.fromkeys((*_locate(root, path), Problem(p.expected, p.hint, (), p.found)) for path, p in found)
    merged = _merge(PlacedProblem(place, path, problem) for place, path, problem in unique)
    paths = [one.path for one in merged]
    return [
        one for one in merged if not (one.problem.expected == _TRUE and any(_below(path, one.path) for path in paths))
    ]


def _below(path: Path, above: Path) -> bool:
    """Whether a place is inside another: of ``nvml: {typo: 1}``, that the mapping is not ``true`` is no news."""
    return len(path) > len(above) and path[: len(above)] == above


def _problems(
    model: type[Model], root: Mapping, error: ValidationError, prefix: Path
) -> Iterator[tuple[Path, Problem]]:
    for item in error.errors(include_url=False, include_input=False):
        path = (*prefix, *item["loc"])
        context: dict[str, Any] = item.get("ctx", {})
        cause = context.get("error")
        if isinstance(cause, ValidationError):
            yield from _problems(model, root, cause, path)
        elif isinstance(cause, Problems):
            key = shorten(str(path[-2])) if path[-1:] == ("[key]",) else None
            for problem in cause.items:
                yield (*path, *problem.path), Problem(problem.expected, problem.hint, (), problem.found or key)
        elif item["type"] == "extra_forbidden":
            yield path, Problem("a known key", _key_hint(model, path), (), f"the key {shorten(str(path[-1]))}")
        elif item["type"] == "too_short" and _length(node_at(root, path)) >= context["min_length"]:
            continue  # pydantic counts only the items that are right; the wrong ones have their own errors
        elif item["type"] == "missing":
            yield path, Problem(_EXPECTED["missing"], "", (), "nothing")
        else:
            expected = _EXPECTED.get(item["type"], item["msg"]).format_map(context)
            yield path, Problem(_TRUE if expected == "True" else expected)  # as YAML writes it


def _length(node: Node | None) -> int:
    return len(node.items) if isinstance(node, Sequence) else isinstance(node, Mapping)


def _locate(root: Node, path: Path) -> tuple[Place, Path]:
    """The place in the file of one of pydantic's paths. Words that pydantic adds for unions and keys are left out."""
    node, place, known = root, root.place, list[str | int]()
    for index, part in enumerate(path):
        if isinstance(node, Mapping) and part in node.entries:
            place = node.key_places.get(str(part), node.entries[str(part)].place)
            node = node.entries[str(part)]
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
            place = node.place
        elif index == len(path) - 1 and isinstance(node, Mapping) and str(part).isidentifier():
            pass  # a required key that is not there: the place is its mapping
        else:
            continue
        known.append(part)
    value_place = node.place if isinstance(node, Scalar) and known and known[-1] == path[-1] else place
    return value_place, tuple(known)


def _merge(problems: Iterable[PlacedProblem]) -> list[PlacedProblem]:
    """One problem per path: of a union, each member has its own."""
    merged: dict[tuple[Path, str | None], PlacedProblem] = {}
    for placed in problems:
        key = (placed.path, placed.problem.found)
        if (earlier := merged.get(key)) is None:
            merged[key] = placed
            continue
        wanted = dict.fromkeys(filter(None, (earlier.problem.expected, placed.problem.expected)))
        hint = earlier.problem.hint or placed.problem.hint
        merged[key] = PlacedProblem(
            earlier.place, earlier.path, Problem(" or ".join(wanted), hint, (), earlier.problem.found)
        )
    return list(merged.values())


def join(from_yaml: list[PlacedProblem], refusals: list[PlacedProblem]) -> list[PlacedProblem]:
    """All problems. The hint to quote a scalar goes where the model wants no text: quoting would not help."""
    readings = {placed.path: placed.problem for placed in from_yaml if placed.problem.hint.startswith(QUOTE_IT)}
    refused = {refusal.path for refusal in refusals}
    joined = [placed for placed in from_yaml if placed.path not in readings or placed.path not in refused]
    for refusal in refusals:
        problem = refusal.problem
        if (reading := readings.get(refusal.path)) is not None:
            problem = Problem(problem.expected, reading.hint.removeprefix(QUOTE_IT), (), reading.found)
        joined.append(PlacedProblem(refusal.place, refusal.path, problem))
    return joined


def _key_hint(whole: type[Model], path: Path) -> str:
    model = _model_at(whole, path[:-1])
    if model is None:
        return ""
    known = [field.alias or name for name, field in model.model_fields.items()]
    word = str(path[-1])
    synonym = _SYNONYMS.get(word)
    if synonym is not None and synonym.partition(":")[0] in known:
        return f"did you mean {synonym}?"
    return did_you_mean(word, known) or f"known here: {', '.join(sorted(known))}"


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The model that describes the mapping at a path; None when there is none."""
    for part in path:
        for name, field in model.model_fields.items():
            if part in (field.alias, name):
                found = next(_models(field.annotation), None)
                if found is None:
                    return None
                model = found
    return model


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models(argument)
