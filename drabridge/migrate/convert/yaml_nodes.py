"""Parse YAML and JSON into nodes, return their values, and find values by path. Knows nothing of Kubernetes.

Aliases and merge keys are expanded; what no cluster would accept is refused. JSON has a parser of its own: PyYAML
refuses tabs, surrogate pairs, and several objects one after the other, which kubectl accepts; and changed JSON must
still be JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import yaml

from drabridge import yaml_reader
from drabridge.yaml_reader import (
    MERGE,
    DocumentTooLargeError,
    Fault,
    Found,
    MappingNode,
    Node,
    Path,
    Scalar,
    SequenceNode,
    key_text,
    merged,
    target,
)

DEPTH_MAX = 100
NODES_MAX = 200_000  # with aliases expanded: aliases of aliases of aliases are an attack

EACH = "*"  # in a path: every key of the mapping, every item of the list


class Leaf(NamedTuple):
    """One value as written. ``plain``: without quotes, so a reader may see a number or a boolean in it."""

    text: str
    plain: bool


# The value of a document, with aliases and merge keys expanded.
Value = Leaf | str | dict[str, "Value"] | list["Value"]


class NotYamlError(Exception):
    """The text is no YAML that a cluster would accept. ``line`` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


def parse(text: str) -> list[Node]:
    """Return the root of each document, empty documents left out.

    Raises NotYamlError with line and reason: wrong syntax, the same key twice in a mapping, an unknown tag, an alias of
    nothing, too deep or too large.
    """
    try:
        roots = yaml_reader.read(text, DEPTH_MAX, NODES_MAX, lambda found: _refuse(found))
    except DocumentTooLargeError as error:
        said = f"nested deeper than {DEPTH_MAX} levels" if error.deep else f"more than {NODES_MAX} values"
        raise NotYamlError(error.place[0], said if error.deep else f"{said}, aliases written out") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ": ".join(part for part in (error.context, error.problem) if part)
        raise NotYamlError(mark.line + 1 if mark else 1, said) from error
    except yaml.YAMLError as error:  # a ReaderError: characters that YAML does not allow
        raise NotYamlError(_line(text, getattr(error, "position", 0)), str(error).splitlines()[0]) from error
    return [root for root in roots if not (isinstance(root, Scalar) and not root.text and not root.style)]


def _refuse(found: Found) -> None:
    """Raise NotYamlError for what Kubernetes does not accept."""
    said = {
        Fault.TAG: f"the tag {found.word}, which Kubernetes does not know",
        Fault.KEY: "a key that is no plain word",
        Fault.AGAIN: f"the key {found.word} a second time; the first is in line {found.first[0]}",
        Fault.ALIAS: f"the alias *{found.word} stands for nothing above it",
        Fault.OWN_ALIAS: f"the alias *{found.word} stands for nothing above it",
    }
    if found.fault is not Fault.DOCUMENT and (found.fault, found.word) != (Fault.TAG, "!"):
        raise NotYamlError(found.place[0], said[found.fault])


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def value(node: Node) -> Value:
    """Return a node's value, with aliases and merge keys expanded. Parts that are used twice are one object."""
    return _value(node, {})


def _value(node: Node, seen: dict[int, Value]) -> Value:
    node = target(node)
    if isinstance(node, Scalar):
        return Leaf(node.text, node.plain)
    if id(node) not in seen:
        if isinstance(node, SequenceNode):
            seen[id(node)] = [_value(item, seen) for item in node.items]
        else:
            assert isinstance(node, MappingNode)
            sources = reversed(list(merged(node)))
            entries = ((key_text(key), child) for source in sources for key, child in source.entries)
            seen[id(node)] = {key: _value(child, seen) for key, child in entries if key != MERGE}
    return seen[id(node)]


def plain(said: Value) -> Any:
    """Return a value as Python objects, by the rules of YAML 1.1 or of JSON, as kubectl does; dates stay text."""
    if isinstance(said, dict):
        return {key: plain(one) for key, one in said.items()}
    if isinstance(said, list):
        return [plain(one) for one in said]
    return _plain_leaf(said.text) if isinstance(said, Leaf) and said.plain else leaf_text(said)


def _plain_leaf(text: str) -> object:
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], [])
    is_json = _OTHER.fullmatch(text) is not None
    if not is_json and not any(pattern.match(text) for _, pattern in resolvers):
        return text
    try:
        found = json.loads(text) if is_json else yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # "=", the 31st of February, or a number with thousands of digits
        return text
    return found if found is None or isinstance(found, bool | int | float) else text


def same(one: Value, other: Value) -> bool:
    """Return whether two values are equal. A plain ``str`` equals any leaf with that text."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Leaf) and isinstance(other, Leaf):
        return one == other
    if isinstance(one, str | Leaf) and isinstance(other, str | Leaf):
        return leaf_text(one) == leaf_text(other)
    return False


def leaf_text(leaf: str | Leaf) -> str:
    """Return the text of a value."""
    return leaf.text if isinstance(leaf, Leaf) else leaf


def at(document: Value | None, path: Path) -> Value | None:
    """Return the value at a path; None if there is none."""
    for part in path:
        if isinstance(document, dict) and part in document:
            document = document[str(part)]
        elif isinstance(document, list) and isinstance(part, int) and part < len(document):
            document = document[part]
        else:
            return None
    return document


def text_at(document: Value | None, key: str) -> str:
    """Return the text of a mapping's key; "" if there is none."""
    found = document.get(key) if isinstance(document, dict) else None
    return found.text if isinstance(found, Leaf) else ""


def matching(body: Value, pattern: tuple[str, ...]) -> Iterator[Path]:
    """Yield the paths that match a pattern; ``*`` is any key or item."""
    if not pattern:
        yield ()
        return
    children: Iterable[tuple[str | int, Value]] = ()
    if isinstance(body, dict):
        children = body.items() if pattern[0] == EACH else [(key, body[key]) for key in (pattern[0],) if key in body]
    elif isinstance(body, list) and pattern[0] == EACH:
        children = enumerate(body)
    for key, child in children:
        yield from ((key, *rest) for rest in matching(child, pattern[1:]))


def parts(node: Node) -> Iterator[Node]:
    """Yield a node's own keys, values and items."""
    if isinstance(node, MappingNode):
        for entry in node.entries:
            yield from entry
    elif isinstance(node, SequenceNode):
        yield from node.items


def starts(node: Node) -> frozenset[int]:
    """Return the start positions of a node's keys and values, including those behind its aliases."""
    seen: dict[int, int] = {}
    pending = [node]
    while pending:
        node = target(pending.pop())
        if id(node) not in seen:
            seen[id(node)] = node.start
            pending += parts(node)
    return frozenset(seen.values())


def content_end(node: Node) -> int:
    """Return where a node's own text ends: without the comments and empty lines before its end mark."""
    if isinstance(node, MappingNode) and not node.flow and node.entries:
        return content_end(node.entries[-1][1])
    if isinstance(node, SequenceNode) and not node.flow and node.items:
        return content_end(node.items[-1])
    return node.end


# --- JSON -----------------------------------------------------------------------------------------------------------

_SPACE = re.compile(r"[ \t\r\n]*+")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\.)*+"')
_OTHER = re.compile(r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null)(?![A-Za-z0-9_.+-])")


def parse_json(text: str) -> list[Node]:
    """Return the objects of a text, which may be several, one after the other.

    Raises NotYamlError with line and reason: no JSON objects, the same key twice, too deep.
    """
    reader = _Reader(text)
    roots: list[Node] = []
    position = reader.skip(0)
    while position < len(text):
        if text[position] != "{":
            raise reader.error(position, "expected an object")
        roots.append(reader.node(position, DEPTH_MAX))
        position = reader.skip(roots[-1].end)
    return roots


def documents(text: str) -> Iterator[object]:
    """Yield the value of each document of a text, as Python objects: JSON, else YAML. Raises NotYamlError."""
    text = text.removeprefix("\ufeff")
    try:
        roots = parse_json(text)
    except NotYamlError:
        roots = parse(text)
    yield from (plain(value(root)) for root in roots)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text

    def skip(self, position: int) -> int:
        """Return the position of the next character that is no space."""
        found = _SPACE.match(self._text, position)
        return found.end() if found else position

    def error(self, position: int, message: str) -> NotYamlError:
        """Return the error for a place in the text."""
        return NotYamlError(_line(self._text, position), message)

    def node(self, position: int, depth: int) -> Node:
        """Return the value that begins at a place."""
        if not depth:
            raise self.error(position, f"nested deeper than {DEPTH_MAX} levels")
        start = self._text[position : position + 1]
        if start == "{":
            return self._mapping(position, depth)
        if start == "[":
            return self._sequence(position, depth)
        if start == '"':
            return self._string(position)
        found = _OTHER.match(self._text, position)
        if not found:
            raise self.error(position, "expected a value")
        return Scalar(position, found.end(), found[0])

    def _string(self, position: int) -> Scalar:
        found = _STRING.match(self._text, position)
        if not found:
            raise self.error(position, "expected a string in double quotes, closed in its line")
        try:
            text = str(json.loads(found[0]))
            text.encode()  # half a surrogate pair is not valid text
        except ValueError as error:
            raise self.error(position, f"a string that says no text: {error}") from error
        return Scalar(position, found.end(), text, '"')

    def _mapping(self, position: int, depth: int) -> MappingNode:
        found = MappingNode(position, position, flow=True)
        first: dict[str, int] = {}
        place = self.skip(position + 1)
        while not self._ends(place, "}", bool(found.entries)):
            key = self._string(self.skip(place + 1) if found.entries else place)
            if key.text in first:
                line = _line(self._text, first[key.text])
                raise self.error(key.start, f"the key {key_text(key)} a second time; the first is in line {line}")
            first[key.text] = key.start
            colon = self.skip(key.end)
            if self._text[colon : colon + 1] != ":":
                raise self.error(colon, "expected a colon")
            found.entries.append((key, self.node(self.skip(colon + 1), depth - 1)))
            place = self.skip(found.entries[-1][1].end)
        found.end = place + 1
        return found

    def _sequence(self, position: int, depth: int) -> SequenceNode:
        found = SequenceNode(position, position, flow=True)
        place = self.skip(position + 1)
        while not self._ends(place, "]", bool(found.items)):
            found.items.append(self.node(self.skip(place + 1) if found.items else place, depth - 1))
            place = self.skip(found.items[-1].end)
        found.end = place + 1
        return found

    def _ends(self, position: int, bracket: str, comma: bool) -> bool:
        """Return whether a collection ends here. Raises NotYamlError where it neither ends nor goes on."""
        if self._text[position : position + 1] == bracket:
            return True
        if comma and self._text[position : position + 1] != ",":
            raise self.error(position, f"expected a comma or {bracket}")
        return False
