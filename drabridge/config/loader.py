"""Reading a configuration: text to the model, or every fault of it at once with line and column."""

from __future__ import annotations

import stat
import typing
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ValidationError

from drabridge.config.messages import ConfigErrors, Fault, path_text, shorten
from drabridge.config.problem import Problem, Problems, did_you_mean
from drabridge.config.schema import Config, duplicate_names
from drabridge.config.yamltree import (
    DOCUMENT_MAX,
    Complaint,
    Mapping,
    Node,
    Path,
    Place,
    Scalar,
    Sequence,
    compose,
    plain,
)

# Words from elsewhere, and what they are called here. Only used in hints.
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

# pydantic's error type -> what was expected, filled with the error's context.
_EXPECTED = {
    "missing": "a value: it is required",
    "string_type": "text",
    "int_type": "a whole number",
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


def load(source: FilePath | str | bytes, *, name: str = "configuration") -> Config:
    """Read a configuration from a file (a Path) or from text; raises ConfigErrors with all faults, nothing else.

    ``name`` stands in messages where there is no file name.
    """
    if isinstance(source, FilePath):
        return load(_read(source), name=str(source))
    text = _decode(source, name)
    root, complaints = compose(text)
    if root is None and not complaints:
        raise _alone(name, "an empty file", "a configuration", "begin with apiVersion: drabridge/v1alpha1")
    if isinstance(root, Scalar | Sequence):
        complaints.append(
            Complaint(root.place, (), Problem("a mapping that begins with apiVersion:", "", (), _kind(root)))
        )
    config: Config | None = None
    if isinstance(root, Mapping):
        data = plain(root, complaints)
        try:
            config = Config.model_validate(data, by_alias=True, by_name=False)
        except ValidationError as error:
            complaints = _join(complaints, _merge(_complaints(root, error, data)))
    if complaints:
        raise ConfigErrors(tuple(sorted(_fault(name, root, complaint) for complaint in complaints)))
    assert config is not None  # a mapping either validates or complains
    return config


def _alone(name: str, found: str, expected: str, hint: str = "") -> ConfigErrors:
    return ConfigErrors((Fault(name, 0, 0, "", found, expected, hint),))


def _read(path: FilePath) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _alone(str(path), "something else than a regular file", "a configuration file")
        with path.open("rb") as file:
            return file.read(DOCUMENT_MAX + 1)
    except OSError as error:
        raise _alone(str(path), f"no readable file ({error.strerror})", "a configuration file") from error
    except ValueError as error:  # a NUL in the name
        raise _alone(shorten(str(path)), "a name that no file can have", "a configuration file") from error


def _decode(source: str | bytes, name: str) -> str:
    if len(source) > DOCUMENT_MAX:
        raise _alone(name, f"more than {DOCUMENT_MAX} bytes", "a configuration that fits into a ConfigMap (1 MiB)")
    try:
        if isinstance(source, bytes):
            return source.decode("utf-8-sig")
        source.encode()
        return source.removeprefix("\ufeff")
    except UnicodeError as error:
        where = f"byte {error.start}" if isinstance(error, UnicodeDecodeError) else "a lone surrogate"
        raise _alone(name, f"text that is not UTF-8 ({where})", "UTF-8", "save the file as UTF-8") from error


# --- from pydantic's errors to complaints ----------------------------------------------------------------------------


def _complaints(root: Mapping, error: ValidationError, data: object) -> Iterator[Complaint]:
    """pydantic's errors, placed. Checks of the whole file run even when parts of it are wrong."""
    whole_file_checked = False
    for path, problem in _problems(root, error, ()):
        whole_file_checked |= problem.expected == "a name of its own"
        place, known = _locate(root, path)
        yield Complaint(place, known, problem)
    resources = data.get("resources") if isinstance(data, dict) else None
    if isinstance(resources, list) and not whole_file_checked:
        for problem in duplicate_names([item.get("name") if isinstance(item, dict) else None for item in resources]):
            yield Complaint(_locate(root, problem.path)[0], problem.path, problem)


def _problems(root: Mapping, error: ValidationError, prefix: Path) -> Iterator[tuple[Path, Problem]]:
    for item in error.errors(include_url=False, include_input=False):
        path = (*prefix, *item["loc"])
        context: dict[str, Any] = item.get("ctx", {})
        cause = context.get("error")
        if isinstance(cause, ValidationError):
            yield from _problems(root, cause, path)
        elif isinstance(cause, Problems):
            key = shorten(str(path[-2])) if path[-1:] == ("[key]",) else None
            for problem in cause.items:
                yield (*path, *problem.path), Problem(problem.expected, problem.hint, (), problem.found or key)
        elif item["type"] == "extra_forbidden":
            yield path, Problem("a known key", _key_hint(path), (), f"the key {shorten(str(path[-1]))}")
        elif item["type"] == "too_short" and _length(_node_at(root, path)) >= context["min_length"]:
            continue  # pydantic counts only the items that are right; the wrong ones have their own errors
        elif item["type"] == "missing":
            yield path, Problem(_EXPECTED["missing"], "", (), "nothing")
        else:
            yield path, Problem(_EXPECTED.get(item["type"], item["msg"]).format_map(context))


def _length(node: Node | None) -> int:
    return len(node.items) if isinstance(node, Sequence) else isinstance(node, Mapping)


def _locate(root: Node, path: Path) -> tuple[Place, Path]:
    """Where a path of pydantic's is in the file. Words that pydantic adds for unions and keys are left out."""
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


def _merge(complaints: Iterator[Complaint]) -> list[Complaint]:
    """One complaint per path: each member of a union has said what it wanted."""
    merged: dict[tuple[Path, str | None], Complaint] = {}
    for complaint in complaints:
        key = (complaint.path, complaint.problem.found)
        if (earlier := merged.get(key)) is None:
            merged[key] = complaint
            continue
        wanted = dict.fromkeys(filter(None, (earlier.problem.expected, complaint.problem.expected)))
        hint = earlier.problem.hint or complaint.problem.hint
        merged[key] = Complaint(
            earlier.place, earlier.path, Problem(" or ".join(wanted), hint, (), earlier.problem.found)
        )
    return list(merged.values())


def _join(readings: list[Complaint], refusals: list[Complaint]) -> list[Complaint]:
    """A scalar with two readings where the model wants no text at all: quoting it would not help."""
    by_path = {complaint.path: complaint.problem for complaint in readings}
    refused = {complaint.path for complaint in refusals}
    joined = [complaint for complaint in readings if complaint.path not in refused]
    for refusal in refusals:
        problem = refusal.problem
        if (reading := by_path.get(refusal.path)) is not None:
            problem = Problem(problem.expected, reading.hint.removeprefix("quote it: "), (), reading.found)
        joined.append(Complaint(refusal.place, refusal.path, problem))
    return joined


def _key_hint(path: Path) -> str:
    model = _model_at(Config, path[:-1])
    if model is None:
        return ""
    known = [field.alias or name for name, field in model.model_fields.items()]
    word = str(path[-1])
    synonym = _SYNONYMS.get(word)
    if synonym is not None and synonym.partition(":")[0] in known:
        return f"did you mean {synonym}?"
    return did_you_mean(word, known) or f"known here: {', '.join(sorted(known))}"


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The model that describes the mapping at a path."""
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


# --- from complaints to faults ---------------------------------------------------------------------------------------


def _fault(name: str, root: Node | None, complaint: Complaint) -> Fault:
    problem = complaint.problem
    node = _node_at(root, complaint.path)
    hint = problem.hint
    text_wanted = problem.expected.startswith(("text", "a pattern", "a field"))
    if not hint and text_wanted and isinstance(node, Scalar) and (reading := node.reading) is not None:
        hint = f"quote it: YAML reads {shorten(node.text)} as {reading}"
    found = _kind(node) if problem.found is None else shorten(problem.found)
    return Fault(name, *complaint.place, path_text(complaint.path), found, problem.expected, hint)


def _node_at(root: Node | None, path: Path) -> Node | None:
    node = root
    for part in path:
        if isinstance(node, Mapping) and part in node.entries:
            node = node.entries[str(part)]
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
        else:
            return None
    return node


def _kind(node: Node | None) -> str:
    match node:
        case None:
            return "nothing"
        case Mapping():
            return "a mapping" if node.entries else "an empty mapping"
        case Sequence():
            return "a list" if node.items else "an empty list"
        case Scalar(text="", plain=True):
            return "nothing"
        case Scalar(text=text, plain=True):
            return shorten(text)
        case Scalar(text=text):
            return f'"{shorten(text)}"'
