"""Parse YAML documents into nodes that know where in the text they stand. Knows nothing of Kubernetes.

An alias stays a node of its own, because its place is not the place of what it stands for. PyYAML's ``compose`` gives
the anchor's node there, so this builds its tree from the events, which carry the same marks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import yaml
from msgspec import Struct, field

DEPTH_MAX = 100
NODES_MAX = 200_000  # with aliases written out: aliases of aliases of aliases are an attack, not a manifest

_STRING = "tag:yaml.org,2002:str"
_MERGE = "<<"

Key = str | int
Path = tuple[Key, ...]  # ("spec", "containers", 0): mapping keys and list positions


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


class Scalar(Struct):
    """One value; ``start`` and ``end`` are positions in the text, as in all nodes."""

    start: int
    end: int
    text: str
    style: str = ""  # "", ', ", | or >
    string: bool = False  # tagged !!str


class Alias(Struct):
    """A place where an anchor's node is used again."""

    start: int
    end: int
    target: Node


class Mapping(Struct):
    """Keys and values. ``end`` is exact in flow style only; a block ends where its last value does."""

    start: int
    end: int
    flow: bool
    entries: list[tuple[Node, Node]] = field(default_factory=list)
    key: Node | None = None  # waits for its value


class Sequence(Struct):
    """A list. ``end`` as in Mapping."""

    start: int
    end: int
    flow: bool
    items: list[Node] = field(default_factory=list)


Node = Scalar | Alias | Mapping | Sequence


def parse(text: str) -> list[Node]:
    """Return the root of each document, empty documents left out.

    Raises NotYaml with line and reason: wrong syntax, the same key twice in a mapping, an unknown tag, an alias of
    nothing, too deep or too large.
    """
    try:
        return _Builder(text).documents()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        found = ": ".join(part for part in (error.context, error.problem) if part)
        raise NotYaml(mark.line + 1 if mark else 1, found) from error
    except yaml.YAMLError as error:  # a ReaderError: characters that YAML does not allow
        position = getattr(error, "position", 0)
        raise NotYaml(text.count("\n", 0, position) + 1, str(error).splitlines()[0]) from error


class _Builder:
    """Build the tree without recursion: the depth has our limit, not the stack's."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._stack: list[tuple[Mapping | Sequence, str, int]] = []  # node, its anchor, the count before it
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._roots: list[Node] = []
        self._count = 0

    def documents(self) -> list[Node]:
        for event in yaml.parse(self._text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            self._feed(event)
        return [root for root in self._roots if not (isinstance(root, Scalar) and not root.text and not root.style)]

    def _feed(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._refuse_tag(event)
            node = Scalar(*_span(event), event.value, event.style or "", event.tag == _STRING)
            self._add(event, node, event.anchor)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._refuse_tag(event)
            if len(self._stack) >= DEPTH_MAX:
                raise NotYaml(_line(event), f"nested deeper than {DEPTH_MAX} levels")
            kind = Mapping if isinstance(event, yaml.MappingStartEvent) else Sequence
            opened: Mapping | Sequence = kind(*_span(event), bool(event.flow_style))
            before = self._count
            self._add(event, opened, None)
            self._stack.append((opened, event.anchor or "", before))
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            closed, anchor, before = self._stack.pop()
            closed.end = _span(event)[1]
            if anchor:
                self._anchors[anchor] = (closed, self._count - before)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise NotYaml(_line(event), f"the alias *{event.anchor} stands for nothing above it")
            target, size = self._anchors[event.anchor]
            self._add(event, Alias(*_span(event), target), None, size)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._anchors = {}

    def _refuse_tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.tag not in (None, "!", _STRING):
            raise NotYaml(_line(event), f"the tag {event.tag}, which Kubernetes does not know")

    def _add(self, event: yaml.Event, node: Node, anchor: str | None, size: int = 1) -> None:
        self._count += size
        if self._count > NODES_MAX:
            raise NotYaml(_line(event), f"more than {NODES_MAX} values, aliases written out")
        if anchor:
            self._anchors[anchor] = (node, size)
        if not self._stack:
            self._roots.append(node)
            return
        parent, _, _ = self._stack[-1]
        if isinstance(parent, Sequence):
            parent.items.append(node)
        elif parent.key is None:
            self._refuse_key(event, parent, node)
            parent.key = node
        else:
            parent.entries.append((parent.key, node))
            parent.key = None

    def _refuse_key(self, event: yaml.Event, parent: Mapping, node: Node) -> None:
        if not isinstance(node, Scalar):
            raise NotYaml(_line(event), "a key that is no plain word")
        for key, _ in parent.entries:
            if key_text(key) == node.text:
                first = self._text.count("\n", 0, key.start) + 1
                raise NotYaml(_line(event), f"the key {node.text} a second time; the first is in line {first}")


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _span(event: yaml.Event) -> tuple[int, int]:
    """Return where an event begins and ends in the text. Events that are parsed from text have both marks."""
    assert event.start_mark is not None
    assert event.end_mark is not None
    return event.start_mark.index, event.end_mark.index


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
