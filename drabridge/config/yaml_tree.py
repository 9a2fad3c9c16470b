"""Read the nodes of YAML for a configuration. The meaning of a scalar is never guessed."""

from __future__ import annotations

import re

import yaml
from msgspec import Struct

from drabridge import yaml_reader
from drabridge.config.problems import Path, Problem, Problems, unmet
from drabridge.yaml_reader import MERGE, Fault, Found, MappingNode, Node, Place, Scalar, SequenceNode, key_text, target

DOCUMENT_MAX = 1024 * 1024  # bytes: the most that a ConfigMap can hold
DEPTH_MAX = 50  # our own schema needs 12
NODES_MAX = 100_000  # with aliases written out: aliases of aliases of aliases are an attack, not a configuration

QUOTE_IT = "quote it: "

_INT = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)
_FLOAT = re.compile(r"-?(0|[1-9]\d*)\.\d+", re.ASCII)
_YAML_1_2_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?[eE][-+]?\d+|0o[0-7]+|0x[0-9a-fA-F]+)", re.ASCII)
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "false": False}


def reading(node: Scalar) -> str | None:
    """Return what common YAML readers make of this plain scalar if not text: ``the number 259``; else None."""
    if not node.plain:
        return None
    try:
        return _reading(node.text)
    except (yaml.YAMLError, ValueError):  # "=", the 31st of February, or more digits than Python writes
        return "something else than text"


def _reading(text: str) -> str | None:
    if _YAML_1_2_NUMBER.fullmatch(text):
        return f"the number {_number(text)}"
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], [])
    if not any(pattern.match(text) for _, pattern in resolvers):
        return None
    value = yaml.safe_load(text)
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    return "nothing" if value is None else f"the date {value}"


def value_of(node: Scalar) -> str | int | float | bool | None:
    """Return the scalar's value. Raises Problems where readers of YAML disagree about it."""
    text = node.text
    if not node.plain:
        return text
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INT.fullmatch(text) and len(text) <= 20:
        return int(text)
    if _FLOAT.fullmatch(text) and len(text) <= 20:
        return float(text)
    if (said := reading(node)) is not None:
        raise unmet("text in quotes", f"{QUOTE_IT}YAML reads {text} as {said}", found=text)
    return text


class PlacedProblem(Struct, frozen=True):
    """A problem with its place and its path in the file."""

    place: Place
    path: Path
    problem: Problem


def _number(text: str) -> str:
    if text[:2].lower() == "0o":
        return str(int(text[2:], 8))
    return str(int(text, 16)) if "x" in text.lower() else f"{float(text):g}"


class Abort(Exception):
    """The document is not read any further."""

    def __init__(self, problem: PlacedProblem) -> None:
        super().__init__(problem)
        self.problem = problem


def compose(text: str) -> tuple[Node | None, list[PlacedProblem]]:
    """Parse one document into its root and its problems. A syntax error or a limit gives one problem and no root."""
    problems: list[PlacedProblem] = []

    def tell(found: Found) -> None:
        problem = PlacedProblem(found.place, found.path, _problem(found))
        if found.fault is Fault.DOCUMENT:
            raise Abort(problem)
        problems.append(problem)

    try:
        roots = yaml_reader.read(text, DEPTH_MAX, NODES_MAX, tell)
    except Abort as abort:
        return None, [abort.problem]
    except yaml_reader.DocumentTooLargeError as error:
        return None, [_too_deep(error.of, error.path[:8]) if error.deep else _too_many(error.of)]
    except yaml.MarkedYAMLError as error:
        return None, [_syntax(text, error)]
    except yaml.YAMLError as error:  # a ReaderError: characters that YAML does not allow
        problem = Problem("text without control characters", "", (), str(error).splitlines()[0])
        return None, [PlacedProblem(_place_of(text, getattr(error, "position", 0)), (), problem)]
    return target(roots[0]) if roots else None, problems


def _problem(found: Found) -> Problem:
    match found.fault:
        case Fault.DOCUMENT:
            return Problem("one document", "remove what follows ---", (), "a second")
        case Fault.TAG:
            return Problem("no tags", "quote what is meant as text", (), f"a {found.word} tag")
        case Fault.KEY:
            return Problem("a plain word as key", "", (), "a list or mapping")
        case Fault.AGAIN:
            return Problem("each key once", f"it is already in line {found.first[0]}", (), "the same key again")
        case _:
            inside = found.fault is Fault.OWN_ALIAS
            hint = "an anchor cannot contain itself" if inside else f"define &{found.word} above it"
            return Problem("an alias of something complete", hint, (), f"*{found.word}")


def _too_many(place: Place) -> PlacedProblem:
    expected = f"at most {NODES_MAX} values, aliases written out"
    return PlacedProblem(place, (), Problem(expected, "", (), "more of them"))


def _too_deep(place: Place, path: Path) -> PlacedProblem:
    return PlacedProblem(place, path, Problem(f"at most {DEPTH_MAX} levels of nesting", "", (), "a deeper one"))


def _syntax(text: str, error: yaml.MarkedYAMLError) -> PlacedProblem:
    mark = error.problem_mark or error.context_mark
    place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    if error.problem == "exceeded maximum nesting depth":  # the parser reads ahead, and has a limit of its own
        return _too_deep(place, ())
    lines = text.splitlines()
    line = lines[place[0] - 1] if place[0] <= len(lines) else ""
    found = ": ".join(part for part in (error.context, error.problem) if part)
    hint = "check the indentation, and quote values that contain : { } [ ] , & * # or begin with a sign"
    if "\t" in line[: len(line) - len(line.lstrip())]:
        hint = "indent with spaces: YAML does not allow tabs"
    return PlacedProblem(place, (), Problem("valid YAML", hint, (), found))


def _place_of(text: str, position: int) -> Place:
    before = text[:position]
    return before.count("\n") + 1, position - before.rfind("\n")


class Bare(str):
    """Raw text that had no quotes: another reader of YAML may have read a number."""

    __slots__ = ()


def plain(
    node: Node,
    problems: list[PlacedProblem],
    path: Path = (),
    *,
    raw_keys: frozenset[str],
    raw: bool = False,
) -> object:
    """Return the tree as dicts, lists and scalars. Below a key of ``raw_keys`` every scalar stays text."""
    node = target(node)
    if isinstance(node, MappingNode):
        found: dict[str, object] = {}
        for key_node, child in node.entries:
            key = key_text(key_node)
            if key == MERGE and isinstance(key_node, Scalar) and key_node.plain:
                problem = Problem("every key written out", "merge keys are not part of YAML 1.2", (), key)
                problems.append(PlacedProblem(key_node.place, path, problem))
            _refuse_nul(key_node, path, problems)
            if key not in found:
                found[key] = plain(child, problems, (*path, key), raw_keys=raw_keys, raw=raw or key in raw_keys)
        return found
    if isinstance(node, SequenceNode):
        return [
            plain(child, problems, (*path, index), raw_keys=raw_keys, raw=raw) for index, child in enumerate(node.items)
        ]
    assert isinstance(node, Scalar)
    _refuse_nul(node, path, problems)
    if raw:
        return (Bare(node.text) if node.text else None) if node.plain else node.text
    try:
        return value_of(node)
    except Problems as error:
        problems += [PlacedProblem(node.place, path, problem) for problem in error.items]
        return node.text


def _refuse_nul(node: Node, path: Path, problems: list[PlacedProblem]) -> None:
    """Add a problem for a text that no path, no variable and no argument of a program can have."""
    if isinstance(node, Scalar) and "\0" in node.text:
        problems.append(PlacedProblem(node.place, path, Problem("text without NUL characters", "", (), node.text)))
