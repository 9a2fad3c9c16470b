"""Read YAML into nodes with their positions in the text, for configurations and for manifests.

An alias stays a node of its own, because its place differs from the place of the node that it refers to. PyYAML's
``compose`` would return the anchor's node, so this module builds its tree from the events, which have the same marks.
The caller is told of odd things that can be read, and decides: a tag, a key that is a list, a repeated key, an alias
of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple

import yaml
from msgspec import Struct, field

STRING_TAG = "tag:yaml.org,2002:str"

Key = str | int
Path = tuple[Key, ...]  # ("spec", "containers", 0): mapping keys and list positions
Place = tuple[int, int]  # line and column, from 1
MERGE = "<<"


class Scalar(Struct):
    """One value; ``start`` and ``end`` are positions in the text, as in all nodes, ``place`` is where it begins."""

    start: int
    end: int
    text: str
    style: str = ""  # "", ', ", | or >
    string: bool = False  # tagged !!str
    place: Place = (1, 1)

    @property
    def plain(self) -> bool:
        """Whether the scalar has no quotes, so that a reader may take it for a number or a boolean."""
        return not self.style and not self.string


class Alias(Struct):
    """A place where an anchor's node is used again."""

    start: int
    end: int
    target: Node
    place: Place = (1, 1)


class MappingNode(Struct):
    """Keys and values. ``end`` is exact in flow style only; a block ends where its last value does."""

    start: int
    end: int
    flow: bool
    place: Place = (1, 1)
    entries: list[tuple[Node, Node]] = field(default_factory=list)
    key: Node | None = None  # waits for its value


class SequenceNode(Struct):
    """A list. ``end`` as in MappingNode."""

    start: int
    end: int
    flow: bool
    place: Place = (1, 1)
    items: list[Node] = field(default_factory=list)


Node = Scalar | Alias | MappingNode | SequenceNode


class Fault(Enum):
    """What is odd at one place of the text."""

    TAG = "a tag"
    KEY = "a key that is a list or a mapping"
    AGAIN = "a key a second time"
    ALIAS = "an alias of nothing"
    OWN_ALIAS = "an alias within what it stands for"
    DOCUMENT = "a second document"


class Found(NamedTuple):
    """A fault with its place. ``word``: the tag, key or anchor; ``first``: the earlier place of the same key."""

    fault: Fault
    place: Place
    path: Path
    word: str = ""
    first: Place = (1, 1)


class DocumentTooLargeError(Exception):
    """The text is nested too deep or has too many values: ``deep`` says which. ``of``: where an alias points."""

    def __init__(self, place: Place, path: Path, of: Place, *, deep: bool) -> None:
        super().__init__("too deep" if deep else "too many values")
        self.place = place
        self.path = path
        self.of = of
        self.deep = deep


def read(text: str, depth_max: int, values_max: int, tell: Callable[[Found], None]) -> list[Node]:
    """Return the root of each document, empty ones as empty scalars.

    ``tell`` is called with each fault, in the order of the text, and may raise. With aliases written out there may be
    ``values_max`` values, and ``depth_max`` levels: aliases of aliases of aliases are an attack. Raises
    DocumentTooLargeError and yaml.YAMLError.
    """
    builder = _Builder(depth_max, values_max, tell)
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        builder.feed(event)
    return builder.roots


class _Builder:
    """Build the tree without recursion: the depth has the caller's limit, not the stack's."""

    def __init__(self, depth_max: int, values_max: int, tell: Callable[[Found], None]) -> None:
        self.roots: list[Node] = []
        self._depth_max = depth_max
        self._values_max = values_max
        self._tell = tell
        self._stack: list[tuple[MappingNode | SequenceNode, str, int]] = []  # node, its anchor, the count before it
        self._heights: list[int] = []  # the levels of nesting inside each collection of the stack, aliases written out
        self._anchors: dict[str, tuple[Node, int, int]] = {}  # with count and height
        self._keys: list[dict[str, Place]] = []  # key -> its place, of each collection of the stack
        self._count = 0
        self._documents = 0

    def feed(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._tag(event)
            node = Scalar(*_span(event), event.value, event.style or "", event.tag == STRING_TAG, _place(event))
            self._add(node, event.anchor)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._tag(event)
            self._refuse_deeper(_place(event), 1)
            kind = MappingNode if isinstance(event, yaml.MappingStartEvent) else SequenceNode
            opened: MappingNode | SequenceNode = kind(*_span(event), bool(event.flow_style), _place(event))
            before = self._count
            self._add(opened, None)
            self._stack.append((opened, event.anchor or "", before))
            self._keys.append({})
            self._heights.append(0)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            closed, anchor, before = self._stack.pop()
            self._keys.pop()
            height = 1 + self._heights.pop()
            self._raise_height(height)
            closed.end = _span(event)[1]
            if anchor:
                self._anchors[anchor] = (closed, self._count - before, height)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._anchors = {}
            self._documents += 1
            if self._documents == 2:
                self._tell(Found(Fault.DOCUMENT, _place(event), ()))

    def _alias(self, event: yaml.AliasEvent) -> None:
        start, end = _span(event)
        name = str(event.anchor)
        if name not in self._anchors:
            inside = any(anchor == name for _, anchor, _ in self._stack)
            self._tell(Found(Fault.OWN_ALIAS if inside else Fault.ALIAS, _place(event), self._path(), name))
            self._add(Scalar(start, end, "", place=_place(event)), None)
            return
        target, size, height = self._anchors[name]
        self._refuse_deeper(_place(event), height)
        self._raise_height(height)
        self._add(Alias(start, end, target, _place(event)), None, size)

    def _refuse_deeper(self, place: Place, height: int) -> None:
        """Raise DocumentTooLargeError if a collection of this height does not fit where the text is."""
        if len(self._stack) + height > self._depth_max:
            raise DocumentTooLargeError(place, self._path(), place, deep=True)

    def _raise_height(self, height: int) -> None:
        if self._heights:
            self._heights[-1] = max(self._heights[-1], height)

    def _tag(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent) -> None:
        if event.tag not in (None, STRING_TAG):
            self._tell(Found(Fault.TAG, _place(event), self._path(), str(event.tag)))

    def _add(self, node: Node, anchor: str | None, size: int = 1) -> None:
        self._count += size
        if self._count > self._values_max:
            of = node.target if isinstance(node, Alias) else node
            raise DocumentTooLargeError(node.place, (), of.place, deep=False)
        if anchor:
            self._anchors[anchor] = (node, size, 0)
        if not self._stack:
            self.roots.append(node)
            return
        parent, _, _ = self._stack[-1]
        if isinstance(parent, SequenceNode):
            parent.items.append(node)
        elif parent.key is None:
            self._key(parent, node)
        else:
            parent.entries.append((parent.key, node))
            parent.key = None

    def _key(self, parent: MappingNode, node: Node) -> None:
        if not isinstance(node, Scalar):
            self._tell(Found(Fault.KEY, node.place, self._path()))
            parent.key = node
            return
        parent.key = node
        first = self._keys[-1].setdefault(node.text, node.place)
        if first != node.place:
            self._tell(Found(Fault.AGAIN, node.place, self._path(), node.text, first))

    def _path(self) -> Path:
        """Return the path of the node that comes next."""
        found: list[Key] = []
        last = len(self._stack) - 1
        for place, (node, _, _) in enumerate(self._stack):
            if isinstance(node, SequenceNode):
                found.append(len(node.items) - (place != last))
            elif node.key is not None:
                found.append(key_text(node.key))
            elif place != last and node.entries:
                found.append(key_text(node.entries[-1][0]))
        return tuple(found)


def _span(event: yaml.Event) -> tuple[int, int]:
    """Return where an event begins and ends in the text. Events that are parsed from text have both marks."""
    assert event.start_mark is not None
    assert event.end_mark is not None
    return event.start_mark.index, event.end_mark.index


def _place(event: yaml.Event) -> Place:
    assert event.start_mark is not None
    return event.start_mark.line + 1, event.start_mark.column + 1


# --- finding nodes --------------------------------------------------------------------------------------------------


def key_text(key: Node) -> str:
    """Return the text of a mapping's key; ``?`` for one that is a list or a mapping."""
    return key.text if isinstance(key, Scalar) else "?"


def target(node: Node) -> Node:
    """Return the node itself; for an alias, the node that it refers to."""
    return node.target if isinstance(node, Alias) else node


def merged(mapping: MappingNode) -> Iterator[MappingNode]:
    """Yield a mapping, then those that its merge keys add. The first of them with a key decides its value."""
    yield mapping
    for key, child in mapping.entries:
        if key_text(key) == MERGE:
            brought = target(child)
            for source in brought.items if isinstance(brought, SequenceNode) else [brought]:
                found = target(source)
                if isinstance(found, MappingNode):
                    yield from merged(found)


def node_at(root: Node, path: Path) -> Node | None:
    """Return the node at a path, through aliases and merge keys; None when there is none."""
    node: Node | None = root
    for part in path:
        node = target(node) if node is not None else None
        if isinstance(node, MappingNode):
            node = next((found for _, _, found in _entries(node, part)), None)
        elif isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
        else:
            return None
    return None if node is None else target(node)


def owner_of(root: Node, path: Path) -> tuple[MappingNode, int] | tuple[SequenceNode, int] | None:
    """Return the collection with the node at a path, and the node's number in it; None if there is no such node."""
    parent = node_at(root, path[:-1])
    parent = target(parent) if parent is not None else None
    if isinstance(parent, MappingNode):
        return next(((owner, number) for owner, number, _ in _entries(parent, path[-1])), None)
    if isinstance(parent, SequenceNode) and isinstance(path[-1], int) and path[-1] < len(parent.items):
        return parent, path[-1]
    return None


def _entries(mapping: MappingNode, key: Key) -> Iterator[tuple[MappingNode, int, Node]]:
    for source in merged(mapping):
        for number, (name, child) in enumerate(source.entries):
            if key_text(name) == key:
                yield source, number, child
