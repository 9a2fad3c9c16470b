"""Parse YAML into a tree that knows the place of every node and never guesses what a scalar means."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from msgspec import Struct, field

from drabridge.config.problems import Path, Problem, Problems, unmet

DOCUMENT_MAX = 1024 * 1024  # bytes: the most that a ConfigMap can hold
DEPTH_MAX = 50  # our own schema needs 12
NODES_MAX = 100_000  # with aliases written out: aliases of aliases of aliases are an attack, not a configuration

# Below these keys everything is udev's text: 0403, 1e10, on and 0x10de stay what the operator wrote.
RAW_KEYS = frozenset({"match", "attr", "property", "link", "driverBound", "file", "map"})

QUOTE_IT = "quote it: "

_INT = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)
_FLOAT = re.compile(r"-?(0|[1-9]\d*)\.\d+", re.ASCII)
_YAML_1_2_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?[eE][-+]?\d+|0o[0-7]+|0x[0-9a-fA-F]+)", re.ASCII)
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "false": False}
_STRING_TAG = "tag:yaml.org,2002:str"

Place = tuple[int, int]  # line and column, from 1


class Scalar(Struct):
    """One value. ``plain`` is false when it was quoted or a block, so it is certainly text."""

    place: Place
    text: str
    plain: bool

    @property
    def reading(self) -> str | None:
        """What common YAML readers make of this plain scalar if not text: ``the number 259``; else None."""
        if not self.plain:
            return None
        if _YAML_1_2_NUMBER.fullmatch(self.text):
            return f"the number {_number(self.text)}"
        resolvers = yaml.SafeLoader.yaml_implicit_resolvers.get(self.text[:1], [])
        if not any(pattern.match(self.text) for _, pattern in resolvers):
            return None
        try:
            value = yaml.safe_load(self.text)
        except (yaml.YAMLError, ValueError):  # "=", or the 31st of February
            return "something else than text"
        if isinstance(value, bool):
            return f"the boolean {str(value).lower()}"
        if isinstance(value, int | float):
            return f"the number {value}"
        return "nothing" if value is None else f"the date {value}"

    def value(self) -> str | int | float | bool | None:
        """The value. Raises Problems where readers of YAML disagree about it."""
        text = self.text
        if not self.plain:
            return text
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _INT.fullmatch(text) and len(text) <= 20:
            return int(text)
        if _FLOAT.fullmatch(text) and len(text) <= 20:
            return float(text)
        if (reading := self.reading) is not None:
            raise unmet("text in quotes", f"{QUOTE_IT}YAML reads {text} as {reading}", found=text)
        return text


class Sequence(Struct):
    """A list."""

    place: Place
    items: list[Node] = field(default_factory=list)


class Mapping(Struct):
    """A mapping, with the place of each key."""

    place: Place
    entries: dict[str, Node] = field(default_factory=dict)
    key_places: dict[str, Place] = field(default_factory=dict)


Node = Scalar | Sequence | Mapping


class PlacedProblem(Struct, frozen=True):
    """A problem with its place and its path in the file."""

    place: Place
    path: Path
    problem: Problem


def _number(text: str) -> str:
    if text[:2].lower() == "0o":
        return str(int(text[2:], 8))
    return str(int(text, 16)) if "x" in text.lower() else f"{float(text):g}"


class _Composer:
    """Build the tree from events without recursion: the depth has our limit, not the stack's."""

    def __init__(self) -> None:
        self.problems: list[PlacedProblem] = []
        self.root: Node | None = None
        self.stack: list[tuple[Sequence | Mapping, Path]] = []
        self.key: str | None = None  # of the mapping on top of the stack, waiting for its value
        self.anchors: dict[str, tuple[Node, int]] = {}
        self.open_anchors: list[tuple[str, int]] = []
        self.count = 0

    def refuse(
        self, place: Place, expected: str, hint: str, found: str | None = None, path: Path | None = None
    ) -> None:
        self.problems.append(
            PlacedProblem(place, self.path() if path is None else path, Problem(expected, hint, (), found))
        )

    def path(self) -> Path:
        """The path of the node that comes next."""
        if not self.stack:
            return ()
        parent, path = self.stack[-1]
        if isinstance(parent, Sequence):
            return (*path, len(parent.items))
        return path if self.key is None else (*path, self.key)

    def feed(self, event: yaml.Event) -> None:
        place = _place(event)
        if isinstance(event, yaml.ScalarEvent):
            self._tag(event.tag, place)
            plain = not event.style and event.tag != _STRING_TAG
            self._add(Scalar(place, event.value, plain), event.anchor)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._open(Sequence(place), event.anchor, event.tag)
        elif isinstance(event, yaml.MappingStartEvent):
            self._open(Mapping(place), event.anchor, event.tag)
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            self._close()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(str(event.anchor), place)

    def _tag(self, tag: str | None, place: Place) -> None:
        if tag not in {None, _STRING_TAG}:
            self.refuse(place, "no tags", "quote what is meant as text", f"a {tag} tag")

    def _open(self, node: Sequence | Mapping, anchor: str | None, tag: str | None) -> None:
        self._tag(tag, node.place)
        path = self.path()
        if len(self.stack) >= DEPTH_MAX:
            raise Abort(_too_deep(node.place, path[:8]))
        pending = self.key
        self._add(node, None)
        if isinstance(self.stack[-1][0] if self.stack else None, Mapping) and pending is None:
            self.key = None  # a complex key: _add has refused it, its value is dropped
        self.stack.append((node, path))
        self.open_anchors.append((anchor or "", self.count))
        self.key = None

    def _close(self) -> None:
        node, _ = self.stack.pop()
        anchor, before = self.open_anchors.pop()
        if anchor:
            self.anchors[anchor] = (node, self.count - before + 1)
        self.key = None

    def _alias(self, anchor: str, place: Place) -> None:
        if anchor not in self.anchors:
            inside = any(name == anchor for name, _ in self.open_anchors)
            hint = "an anchor cannot contain itself" if inside else "define &" + anchor + " above it"
            self.refuse(place, "an alias of something complete", hint, "*" + anchor)
            self._add(Scalar(place, "", True), None)
            return
        node, size = self.anchors[anchor]
        self._add(node, None, size)

    def _add(self, node: Node, anchor: str | None, size: int = 1) -> None:
        self.count += size
        if self.count > NODES_MAX:
            raise Abort(
                PlacedProblem(
                    node.place, (), Problem(f"at most {NODES_MAX} values, aliases written out", "", (), "more of them")
                )
            )
        if anchor:
            self.anchors[anchor] = (node, size)
        if not self.stack:
            self.root = node
            return
        parent, _ = self.stack[-1]
        if isinstance(parent, Sequence):
            parent.items.append(node)
        elif self.key is None:
            self._key(parent, node)
        else:
            parent.entries.setdefault(self.key, node)
            self.key = None

    def _key(self, parent: Mapping, node: Node) -> None:
        if not isinstance(node, Scalar):
            self.refuse(node.place, "a plain word as key", "", "a list or mapping")
            self.key = "?"
        elif node.plain and node.text == "<<":
            self.refuse(node.place, "every key written out", "merge keys are not part of YAML 1.2", "<<")
            self.key = "<<"
            parent.key_places.setdefault("<<", node.place)
        else:
            self.key = node.text
            if node.text in parent.key_places:
                line = parent.key_places[node.text][0]
                self.refuse(node.place, "each key once", f"it is already in line {line}", "the same key again")
            parent.key_places.setdefault(node.text, node.place)


class Abort(Exception):
    """The document is not read any further."""

    def __init__(self, problem: PlacedProblem) -> None:
        super().__init__(problem)
        self.problem = problem


def _place(event: yaml.Event) -> Place:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


def _events(text: str) -> Iterator[yaml.Event]:
    yield from yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def compose(text: str) -> tuple[Node | None, list[PlacedProblem]]:
    """Parse one document into a tree and its problems. A syntax error or a limit gives one problem and no tree."""
    composer = _Composer()
    documents = 0
    try:
        for event in _events(text):
            documents += isinstance(event, yaml.DocumentStartEvent)
            if documents > 1:
                return None, [
                    PlacedProblem(_place(event), (), Problem("one document", "remove what follows ---", (), "a second"))
                ]
            composer.feed(event)
    except Abort as abort:
        return None, [abort.problem]
    except yaml.MarkedYAMLError as error:
        return None, [_syntax(text, error)]
    except yaml.YAMLError as error:  # a ReaderError: characters that YAML does not allow
        problem = Problem("text without control characters", "", (), str(error).splitlines()[0])
        return None, [PlacedProblem(_place_of(text, getattr(error, "position", 0)), (), problem)]
    return composer.root, composer.problems


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


def node_at(root: Node | None, path: Path) -> Node | None:
    """The node at a path; None when the file has none there."""
    node = root
    for part in path:
        if isinstance(node, Mapping) and part in node.entries:
            node = node.entries[str(part)]
        elif isinstance(node, Sequence) and isinstance(part, int) and part < len(node.items):
            node = node.items[part]
        else:
            return None
    return node


class Bare(str):
    """Raw text that had no quotes: another reader of YAML may have read a number."""

    __slots__ = ()


def plain(
    node: Node,
    problems: list[PlacedProblem],
    path: Path = (),
    *,
    raw_keys: frozenset[str] = RAW_KEYS,
    raw: bool = False,
) -> object:
    """The tree as dicts, lists and scalars. Below a key of ``raw_keys`` every scalar stays text."""
    if isinstance(node, Mapping):
        return {
            key: plain(child, problems, (*path, key), raw_keys=raw_keys, raw=raw or key in raw_keys)
            for key, child in node.entries.items()
        }
    if isinstance(node, Sequence):
        return [
            plain(child, problems, (*path, index), raw_keys=raw_keys, raw=raw) for index, child in enumerate(node.items)
        ]
    if raw:
        return (Bare(node.text) if node.text else None) if node.plain else node.text
    try:
        return node.value()
    except Problems as error:
        problems += [PlacedProblem(node.place, path, problem) for problem in error.items]
        return node.text
