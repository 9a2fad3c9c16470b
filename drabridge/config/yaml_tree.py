"""Parse YAML into a tree that knows the place of every node and never guesses what a scalar means."""

from __future__ import annotations

import re
from bisect import bisect_right

import yaml
from msgspec import Struct, field

from drabridge import yaml_reader
from drabridge.config.problems import Path, Problem, Problems, unmet
from drabridge.yaml_reader import Fault, Found

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
_MERGE = "<<"

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
        """Return the value. Raises Problems where readers of YAML disagree about it."""
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


class Abort(Exception):
    """The document is not read any further."""

    def __init__(self, problem: PlacedProblem) -> None:
        super().__init__(problem)
        self.problem = problem


class _Tree:
    """Make our tree of a reader's nodes; what is odd in them becomes problems."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._made: dict[int, Node] = {}
        self.problems: list[PlacedProblem] = []

    def place(self, position: int) -> Place:
        line = bisect_right(self._starts, position)
        return line, position - self._starts[line - 1] + 1

    def refuse(self, start: int, path: Path, expected: str, hint: str, found: str) -> None:
        self.problems.append(PlacedProblem(self.place(start), path, Problem(expected, hint, (), found)))

    def tell(self, found: Found) -> None:
        """Take a fault. Raises Abort for a second document."""
        start, path, word = found.start, found.path, found.word
        if found.fault is Fault.DOCUMENT:
            problem = Problem("one document", "remove what follows ---", (), "a second")
            raise Abort(PlacedProblem(self.place(start), (), problem))
        if found.fault is Fault.TAG:
            self.refuse(start, path, "no tags", "quote what is meant as text", f"a {word} tag")
        elif found.fault is Fault.KEY:
            self.refuse(start, path, "a plain word as key", "", "a list or mapping")
        elif found.fault is Fault.AGAIN:
            line = self.place(found.first)[0]
            self.refuse(start, path, "each key once", f"it is already in line {line}", "the same key again")
        else:
            inside = found.fault is Fault.OWN_ALIAS
            hint = "an anchor cannot contain itself" if inside else f"define &{word} above it"
            self.refuse(start, path, "an alias of something complete", hint, f"*{word}")

    def node(self, node: yaml_reader.Node, path: Path) -> Node:
        """Return a node of ours. An anchor's node and its aliases are one object."""
        if isinstance(node, yaml_reader.Alias):
            return self.node(node.target, path)
        if id(node) in self._made:
            return self._made[id(node)]
        made: Node
        if isinstance(node, yaml_reader.Scalar):
            made = Scalar(self.place(node.start), node.text, not node.style and not node.string)
        elif isinstance(node, yaml_reader.SequenceNode):
            items = [self.node(item, (*path, number)) for number, item in enumerate(node.items)]
            made = Sequence(self.place(node.start), items)
        else:
            made = self._mapping(node, path)
        self._made[id(node)] = made
        return made

    def _mapping(self, node: yaml_reader.MappingNode, path: Path) -> Mapping:
        made = Mapping(self.place(node.start))
        for key, child in node.entries:
            if not isinstance(key, yaml_reader.Scalar):
                made.entries.setdefault("?", self.node(child, (*path, "?")))
                continue
            name = key.text
            if name == _MERGE and not key.style and not key.string:
                self.refuse(key.start, path, "every key written out", "merge keys are not part of YAML 1.2", name)
            made.key_places.setdefault(name, self.place(key.start))
            made.entries.setdefault(name, self.node(child, (*path, name)))
        return made


def compose(text: str) -> tuple[Node | None, list[PlacedProblem]]:
    """Parse one document into a tree and its problems. A syntax error or a limit gives one problem and no tree."""
    tree = _Tree(text)
    try:
        roots = yaml_reader.read(text, DEPTH_MAX, NODES_MAX, tree.tell)
        root = tree.node(roots[0], ()) if roots else None
    except Abort as abort:
        return None, [abort.problem]
    except yaml_reader.TooLarge as error:
        place = tree.place(error.of)
        return None, [_too_deep(place, error.path[:8]) if error.deep else _too_many(place)]
    except yaml.MarkedYAMLError as error:
        return None, [_syntax(text, error)]
    except yaml.YAMLError as error:  # a ReaderError: characters that YAML does not allow
        problem = Problem("text without control characters", "", (), str(error).splitlines()[0])
        return None, [PlacedProblem(_place_of(text, getattr(error, "position", 0)), (), problem)]
    return root, tree.problems


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


def node_at(root: Node | None, path: Path) -> Node | None:
    """Return the node at a path; None when the file has none there."""
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
    """Return the tree as dicts, lists and scalars. Below a key of ``raw_keys`` every scalar stays text."""
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
