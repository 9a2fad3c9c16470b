"""Say what YAML nodes mean: parse a text, write aliases and merge keys out, find what is at a path.

Knows nothing of Kubernetes, but refuses what no cluster would take.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import yaml

from drabridge import yaml_reader
from drabridge.yaml_reader import Alias, Fault, Found, Key, Mapping, Node, Path, Scalar, Sequence, TooLarge

DEPTH_MAX = 100
NODES_MAX = 200_000  # with aliases written out: aliases of aliases of aliases are an attack, not a manifest

_MERGE = "<<"


class Leaf(NamedTuple):
    """One value as written. ``plain``: without quotes, so a reader may see a number or a boolean in it."""

    text: str
    plain: bool


# What a document says, aliases and merge keys written out.
Value = Leaf | str | dict[str, "Value"] | list["Value"]


class NotYaml(Exception):
    """The text is no YAML that a cluster would take. ``line`` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


def parse(text: str) -> list[Node]:
    """Return the root of each document, empty documents left out.

    Raises NotYaml with line and reason: wrong syntax, the same key twice in a mapping, an unknown tag, an alias of
    nothing, too deep or too large.
    """
    try:
        roots = yaml_reader.read(text, DEPTH_MAX, NODES_MAX, lambda found: _refuse(text, found))
    except TooLarge as error:
        said = f"nested deeper than {DEPTH_MAX} levels" if error.deep else f"more than {NODES_MAX} values"
        raise NotYaml(_line(text, error.start), said if error.deep else f"{said}, aliases written out") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ": ".join(part for part in (error.context, error.problem) if part)
        raise NotYaml(mark.line + 1 if mark else 1, said) from error
    except yaml.YAMLError as error:  # a ReaderError: characters that YAML does not allow
        raise NotYaml(_line(text, getattr(error, "position", 0)), str(error).splitlines()[0]) from error
    return [root for root in roots if not (isinstance(root, Scalar) and not root.text and not root.style)]


def _refuse(text: str, found: Found) -> None:
    """Raise NotYaml for what Kubernetes does not take."""
    said = {
        Fault.TAG: f"the tag {found.word}, which Kubernetes does not know",
        Fault.KEY: "a key that is no plain word",
        Fault.AGAIN: f"the key {found.word} a second time; the first is in line {_line(text, found.first)}",
        Fault.ALIAS: f"the alias *{found.word} stands for nothing above it",
        Fault.OWN_ALIAS: f"the alias *{found.word} stands for nothing above it",
    }
    if found.fault is not Fault.DOCUMENT and (found.fault, found.word) != (Fault.TAG, "!"):
        raise NotYaml(_line(text, found.start), said[found.fault])


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def key_text(key: Node) -> str:
    """Return the text of a mapping's key; keys are scalars, the parser refuses others."""
    assert isinstance(key, Scalar)
    return key.text


def target(node: Node) -> Node:
    """Return the node itself, or what it stands for if it is an alias."""
    return node.target if isinstance(node, Alias) else node


def value(node: Node) -> Value:
    """Return what a node says, with aliases and merge keys written out. Parts that are used twice are one object."""
    return _value(node, {})


def _value(node: Node, seen: dict[int, Value]) -> Value:
    node = target(node)
    if isinstance(node, Scalar):
        return Leaf(node.text, not node.style and not node.string)
    if id(node) in seen:
        return seen[id(node)]
    found: Value
    if isinstance(node, Sequence):
        found = [_value(item, seen) for item in node.items]
    else:
        found = {}
        assert isinstance(node, Mapping)
        for source in reversed(list(merged(node))):
            for key, child in source.entries:
                found[key_text(key)] = _value(child, seen)
        found.pop(_MERGE, None)
    seen[id(node)] = found
    return found


def merged(mapping: Mapping) -> Iterator[Mapping]:
    """Yield a mapping and then those that its merge keys bring in: the first that has a key decides it."""
    yield mapping
    for key, child in mapping.entries:
        if key_text(key) == _MERGE:
            brought = target(child)
            for source in brought.items if isinstance(brought, Sequence) else [brought]:
                found = target(source)
                if isinstance(found, Mapping):
                    yield from merged(found)


def same(one: Value, other: Value) -> bool:
    """Return whether two values say the same. A bare string stands for that text, however it is written."""
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


def node_at(root: Node, path: Path) -> Node | None:
    """Return the node at a path, through aliases and merge keys; None when there is none."""
    node: Node | None = root
    for part in path:
        node = target(node) if node is not None else None
        if isinstance(node, Mapping):
            node = next((found for _, _, found in _entries(node, part)), None)
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
        else:
            return None
    return node


def owner_of(root: Node, path: Path) -> tuple[Mapping, int] | tuple[Sequence, int] | None:
    """Return the collection that holds what is at a path, and its number there; None when there is none."""
    parent = node_at(root, path[:-1])
    parent = target(parent) if parent is not None else None
    if isinstance(parent, Mapping):
        return next(((owner, number) for owner, number, _ in _entries(parent, path[-1])), None)
    if isinstance(parent, Sequence) and isinstance(path[-1], int) and path[-1] < len(parent.items):
        return parent, path[-1]
    return None


def _entries(mapping: Mapping, key: Key) -> Iterator[tuple[Mapping, int, Node]]:
    for source in merged(mapping):
        for number, (name, child) in enumerate(source.entries):
            if key_text(name) == key:
                yield source, number, child


def loaded(node: Node) -> object:
    """Return what a node says as Python has it, by the rules of YAML 1.1, as kubectl reads it; dates stay text."""
    return _loaded(node, {})


def _loaded(node: Node, seen: dict[int, object]) -> object:
    node = target(node)
    if isinstance(node, Scalar):
        return node.text if node.style or node.string else _plain_value(node.text)
    if id(node) not in seen:
        if isinstance(node, Sequence):
            seen[id(node)] = [_loaded(item, seen) for item in node.items]
        else:
            assert isinstance(node, Mapping)
            found: dict[str, object] = {}
            for source in reversed(list(merged(node))):
                found |= {
                    key_text(key): _loaded(child, seen) for key, child in source.entries if key_text(key) != _MERGE
                }
            seen[id(node)] = found
    return seen[id(node)]


def _plain_value(text: str) -> object:
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], [])
    if not any(pattern.match(text) for _, pattern in resolvers):
        return text
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # "=", or the 31st of February
        return text
    return found if found is None or isinstance(found, bool | int | float) else text


def starts(node: Node) -> frozenset[int]:
    """Return where the keys and values of a node begin, and of all that aliases in it stand for."""
    found: set[int] = set()
    seen: set[int] = set()
    pending = [node]
    while pending:
        node = target(pending.pop())
        if id(node) in seen:
            continue
        seen.add(id(node))
        found.add(node.start)
        if isinstance(node, Mapping):
            pending += [part for entry in node.entries for part in entry]
        elif isinstance(node, Sequence):
            pending += node.items
    return frozenset(found)


def content_end(node: Node) -> int:
    """Return where a node's own text ends; what a block's end mark covers beyond it are comments and empty lines."""
    if isinstance(node, Mapping) and not node.flow and node.entries:
        return content_end(node.entries[-1][1])
    if isinstance(node, Sequence) and not node.flow and node.items:
        return content_end(node.items[-1])
    return node.end
