"""Read a configuration: text to the model, or all its faults at once with line and column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath
from typing import TypeVar

from drabridge.config.checker import check, merged
from drabridge.config.declaration import Model
from drabridge.config.problems import ConfigErrors, Fault, Problem, Problems, path_text, shorten
from drabridge.config.schema import Config
from drabridge.config.yaml_tree import (
    DOCUMENT_MAX,
    QUOTE_IT,
    PlacedProblem,
    compose,
    plain,
    reading,
)
from drabridge.yaml_reader import Alias, MappingNode, Node, Scalar, SequenceNode, node_at, owner_of, target
from podresources.resolve.files import UnreadableFileError, read_named
from podresources.table import printable

M = TypeVar("M", bound=Model)


def load(source: FilePath | str | bytes, *, name: str = "configuration") -> Config:
    """Read a configuration from a file (a Path) or from text. Raises only ConfigErrors, with all faults.

    ``name`` stands in messages where there is no file name.
    """
    return read(Config, source, name=name, hint="begin with apiVersion: drabridge/v1alpha1")


def read(
    model: type[M],
    source: FilePath | str | bytes,
    *,
    name: str = "configuration",
    hint: str = "",
    largest_bytes: int = DOCUMENT_MAX,
) -> M:
    """Read a document that ``model`` describes."""
    text, name = text_in(source, name=name, largest_bytes=largest_bytes)
    root, problems = compose(text)
    if root is None and not problems:
        raise _single_fault(name, "an empty file", "a configuration", hint)
    if isinstance(root, Scalar | SequenceNode):
        problems.append(PlacedProblem(root.place, (), Problem("a mapping", hint, (), _kind(root))))
    result: M | None = None
    if isinstance(root, MappingNode):
        data = plain(root, problems, raw_keys=model.raw_keys)
        try:
            result = check(model, data)
        except Problems as error:
            problems = _join(problems, list(_placed(root, error.items)))
    if problems or result is None:
        raise ConfigErrors(tuple(sorted(_fault(name, root, placed) for placed in problems)))
    return result


def text_in(
    source: FilePath | str | bytes, *, name: str = "configuration", largest_bytes: int = DOCUMENT_MAX
) -> tuple[str, str]:
    """Return the text of a document, and its name in messages. Raises ConfigErrors."""
    if isinstance(source, FilePath):
        name, source = printable(str(source)), _bytes_of(source, largest_bytes)
    return _decode(source, name, largest_bytes), name


def _single_fault(name: str, found: str, expected: str, hint: str = "") -> ConfigErrors:
    return ConfigErrors((Fault(name, 0, 0, "", found, expected, hint),))


def _bytes_of(path: FilePath, largest: int) -> bytes:
    try:
        found = read_named(path, largest)
    except UnreadableFileError as error:
        expected = "a configuration that fits into a ConfigMap (1 MiB)" if largest == DOCUMENT_MAX else "a smaller file"
        expected = expected if "larger" in error.reason else "a configuration file"
        fault = _single_fault(shorten(str(path)), f"no file that can be read ({error.reason})", expected)
        raise fault from error.__cause__  # where the node failed, the follower tries again
    if found is None:
        raise _single_fault(shorten(str(path)), "no file", "a configuration file")
    return found


def _decode(source: str | bytes, name: str, largest: int) -> str:
    if len(source) > largest:
        expected = "a configuration that fits into a ConfigMap (1 MiB)" if largest == DOCUMENT_MAX else "a smaller file"
        raise _single_fault(name, f"more than {largest} bytes", expected)
    try:
        if isinstance(source, bytes):
            return source.decode("utf-8-sig")
        source.encode()
        return source.removeprefix("\ufeff")
    except UnicodeError as error:
        where = f"byte {error.start}" if isinstance(error, UnicodeDecodeError) else "a lone surrogate"
        raise _single_fault(name, f"text that is not UTF-8 ({where})", "UTF-8", "save the file as UTF-8") from error


# --- from problems to faults ---------------------------------------------------------------------------------------


def _placed(root: MappingNode, problems: Iterable[Problem]) -> Iterator[PlacedProblem]:
    """Yield each problem with its place. If the value is missing, that is the place of the nearest parent."""
    for problem in merged(dict.fromkeys(problems)):
        node: Node = root
        place, known = root.place, list[str | int]()
        for index, part in enumerate(problem.path):
            owned = owner_of(node, (part,))
            if owned is not None and isinstance(owned[0], MappingNode):
                key, child = owned[0].entries[owned[1]]
                place, node = key.place, target(child)
            elif owned is not None:
                node = target(owned[0].items[owned[1]])
                place = node.place
            elif isinstance(part, int) or not (index == len(problem.path) - 1 and isinstance(node, MappingNode)):
                continue  # [0] of a list that was written as its only item
            known.append(part)
        value_place = node.place if isinstance(node, Scalar) and problem.path[-1:] == tuple(known[-1:]) else place
        yield PlacedProblem(value_place, tuple(known), problem)


def _join(from_yaml: list[PlacedProblem], refusals: list[PlacedProblem]) -> list[PlacedProblem]:
    """Return all problems. The hint to quote a scalar is dropped where the model wants no text: it would not help."""
    readings = {placed.path: placed.problem for placed in from_yaml if placed.problem.hint.startswith(QUOTE_IT)}
    refused = {refusal.path for refusal in refusals}
    joined = [placed for placed in from_yaml if placed.path not in readings or placed.path not in refused]
    for refusal in refusals:
        problem = refusal.problem
        if (reading := readings.get(refusal.path)) is not None:
            problem = Problem(problem.expected, reading.hint.removeprefix(QUOTE_IT), (), reading.found)
        joined.append(PlacedProblem(refusal.place, refusal.path, problem))
    return joined


def _fault(name: str, root: Node | None, placed: PlacedProblem) -> Fault:
    problem = placed.problem
    node = None if root is None else node_at(root, placed.path)
    hint = problem.hint
    text_wanted = problem.expected.startswith(("text", "a pattern", "a field"))
    if not hint and text_wanted and isinstance(node, Scalar) and (said := reading(node)) is not None:
        hint = f"{QUOTE_IT}YAML reads {shorten(node.text)} as {said}"
    found = _kind(node) if problem.found is None else shorten(problem.found)
    return Fault(name, *placed.place, path_text(placed.path), found, printable(problem.expected), printable(hint))


def _kind(node: Node | None) -> str:
    match node:
        case None:
            return "nothing"
        case Alias():
            return _kind(node.target)
        case MappingNode():
            return "a mapping" if node.entries else "an empty mapping"
        case SequenceNode():
            return "a list" if node.items else "an empty list"
        case Scalar(text="", plain=True):
            return "nothing"
        case Scalar(text=text, plain=True):
            return shorten(text)
        case Scalar(text=text):
            return f'"{shorten(text)}"'
