"""Change values in YAML text, and change only the necessary lines. Knows nothing of Kubernetes.

An operation names a place by its path in the document. ``applied`` returns the wanted document; ``edits`` returns the
changes of the text. The caller parses the changed text and compares it with the wanted document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from itertools import pairwise

import yaml
from msgspec import Struct, field

from drabridge.migrate.convert.yaml_nodes import Leaf, Value, at, content_end, leaf_text
from drabridge.yaml_reader import MappingNode, Node, Path, Scalar, SequenceNode, key_text, node_at, owner_of

_DASH = re.compile(r"[ \t]*-[ ]+")
_LINES = re.compile(r"(?:[!-~][ -~]*\n)+")  # a text that a literal block scalar can contain unchanged
_WORD = re.compile(r"[A-Za-z][-./A-Za-z0-9]*")


class UnspliceableError(Exception):
    """The text is written in a way that cannot be changed in place; the message says why, the hint what to do."""

    def __init__(self, message: str, hint: str = "write these lines out by hand, then convert again") -> None:
        super().__init__(message)
        self.hint = hint


class Remove(Struct, frozen=True):
    """Take out a key of a mapping, or an item of a list."""

    path: Path


class Add(Struct, frozen=True):
    """Put a new key into the mapping at ``path``, before the others."""

    path: Path
    key: str
    new: Value


class Append(Struct, frozen=True):
    """Put a new item at the end of the list at ``path``."""

    path: Path
    new: Value


Operation = Remove | Add | Append


class Edit(Struct, frozen=True, order=True):
    """Replace the characters from ``start`` to ``end``."""

    start: int
    end: int
    text: str


# --- the document that is wanted ------------------------------------------------------------------------------------


def applied(document: Value, operations: Iterable[Operation]) -> Value:
    """Return the document after the operations; the given one stays as it is.

    Removals come last, so that all paths are those of the given document.
    """
    for operation in in_order(operations):
        removes = isinstance(operation, Remove)
        document = _changed(document, operation.path[:-1] if removes else operation.path, operation)
    return document


def in_order(operations: Iterable[Operation]) -> list[Operation]:
    """Return the operations in an order in which they can be done: items of a list from the last to the first."""
    return sorted(operations, key=lambda one: (isinstance(one, Remove), _reverse_of(one.path)))


def _reverse_of(path: Path) -> tuple[tuple[int, str], ...]:
    return tuple((-part, "") if isinstance(part, int) else (0, part) for part in path)


def _changed(document: Value, path: Path, operation: Operation) -> Value:
    """Copy only the values along the path, and share the rest: other places of an alias must not change."""
    if isinstance(document, dict):
        if path:
            return {**document, str(path[0]): _changed(document[str(path[0])], path[1:], operation)}
        if isinstance(operation, Add):
            return {operation.key: operation.new, **document}
        return {key: child for key, child in document.items() if key != operation.path[-1]}
    assert isinstance(document, list)
    if path:
        return [_changed(one, path[1:], operation) if i == path[0] else one for i, one in enumerate(document)]
    if isinstance(operation, Append):
        return [*document, operation.new]
    return [one for i, one in enumerate(document) if i != operation.path[-1]]


# --- where the text changes for it ----------------------------------------------------------------------------------


class _Changes(Struct):
    """All that happens to one mapping or list, whichever aliases lead to it."""

    owner: MappingNode | SequenceNode
    removed: set[int] = field(default_factory=set)
    added: dict[str, Value] = field(default_factory=dict)
    appended: list[Value] = field(default_factory=list)


def edits(text: str, root: SequenceNode, operations: Iterable[Operation], *, is_json: bool = False) -> list[Edit]:
    """Return the edits for a text whose documents are the items of ``root``, in order and apart from each other.

    ``is_json``: what is new is JSON. Raises UnspliceableError where the text does not allow it.
    """
    changes: dict[int, _Changes] = {}
    for operation in operations:
        _collect(changes, root, operation)
    writer = _Writer(text, root, is_json)
    return sorted(edit for change in changes.values() for edit in writer.edits(change))


def spliced(text: str, changes: Iterable[Edit], start: int = 0, end: int | None = None) -> str:
    """Return a part of the text with its edits made. Edits must not overlap."""
    found: list[str] = []
    for edit in sorted(changes):
        if edit.start < start:
            raise UnspliceableError("two changes meet in one line")
        found += [text[start : edit.start], edit.text]
        start = edit.end
    return "".join([*found, text[start:end]])


def newline_of(text: str) -> str:
    """Return how a text breaks its lines."""
    return "\r\n" if text[: text.find("\n") + 1].endswith("\r\n") else "\n"


def _collect(changes: dict[int, _Changes], root: Node, operation: Operation) -> None:
    if isinstance(operation, Remove):
        found = owner_of(root, operation.path)
        if found is None:
            raise UnspliceableError(f"{operation.path[-1]} is not where it seems to be")
        owner, number = found
        changes.setdefault(id(owner), _Changes(owner)).removed.add(number)
        return
    owner_node = node_at(root, operation.path)
    if isinstance(operation, Add) and isinstance(owner_node, MappingNode):
        change = changes.setdefault(id(owner_node), _Changes(owner_node))
        if change.added.setdefault(operation.key, operation.new) != operation.new:
            raise UnspliceableError(f"an alias shares {operation.path[-1]} with another place that needs another value")
    elif isinstance(operation, Append) and isinstance(owner_node, SequenceNode):
        change = changes.setdefault(id(owner_node), _Changes(owner_node))
        if operation.new not in change.appended:
            change.appended.append(operation.new)
    else:
        raise UnspliceableError(f"{operation.path[-1]} is empty; give it a value")


class _Writer:
    """Turn the changes of one collection into edits of the text."""

    def __init__(self, text: str, root: SequenceNode, is_json: bool) -> None:
        self._text = text
        self._is_json = is_json
        self._documents = root.items
        self._known_dashes: dict[int, int] = {}
        self._newline = newline_of(text)

    def edits(self, change: _Changes) -> list[Edit]:
        owner = change.owner
        if owner.flow:
            return self._flow(owner, change)
        if isinstance(owner, MappingNode):
            replaced = bool(change.added) and 0 in change.removed and self._before(owner.entries[0][0].start).strip()
            gone = sorted(change.removed - {0} if replaced else change.removed)
            found = [self._removed_entry(*owner.entries[number]) for number in gone]
            if replaced:
                return [self._replaced_first(owner, change.added), *found]
            return [*self._added_to_block(owner, change.added), *found]
        found = [self._removed_item(owner.items[number]) for number in sorted(change.removed)]
        return [*found, *self._appended_to_block(owner, change.appended)]

    def _dashes(self, owner: Node) -> int:
        """Return how far the document of a node indents the dashes of a list below its key; 0 without such a list."""
        root = next(one for one in reversed(self._documents) if one.start <= owner.start)
        if id(root) not in self._known_dashes:
            self._known_dashes[id(root)] = self._offset_of_dashes(root)
        return self._known_dashes[id(root)]

    def _offset_of_dashes(self, root: Node) -> int:
        pending: list[Node] = [root]
        while pending:
            node = pending.pop()
            if isinstance(node, SequenceNode):
                pending += node.items
            elif isinstance(node, MappingNode):
                for key, child in node.entries:
                    if isinstance(child, SequenceNode) and not child.flow and not self._before(key.start).strip():
                        return max(0, self._before(child.items[0].start).find("-") - len(self._before(key.start)))
                    pending.append(child)
        return 0

    # -- block style: whole lines

    def _before(self, position: int) -> str:
        return self._text[self._line_start(position) : position]

    def _line_start(self, position: int) -> int:
        return self._text.rfind("\n", 0, position) + 1

    def _line_end(self, position: int) -> int:
        found = self._text.find("\n", position)
        return len(self._text) if found < 0 else found + 1

    def _lines(self, start: int, node: Node) -> Edit:
        end = content_end(node)
        if self._text[end - 1 : end] != "\n":  # the end of a block scalar is the next line's start
            rest = self._text[end : self._line_end(end)].strip()
            if rest and not rest.startswith("#"):
                raise UnspliceableError("something else begins in the same line")
            end = self._line_end(end)
        start = self._line_start(start)
        while end and not (last := self._text[self._line_start(end - 1) : end]).strip() and end - len(last) > start:
            end -= len(last)  # empty lines after a block scalar stay
        return Edit(start, end, self._comments(start, end))

    def _comments(self, start: int, end: int) -> str:
        """Return the lines that are comments: they stay when what is between them goes."""
        lines = self._text[start:end].split("\n")
        return "".join(f"{line}\n" for line in lines if line.lstrip().startswith("#"))

    def _removed_entry(self, key: Node, child: Node) -> Edit:
        if self._before(key.start).strip():
            raise UnspliceableError(f"{key_text(key)} shares its line with what stands before it")
        return self._lines(key.start, child)

    def _removed_item(self, item: Node) -> Edit:
        if not _DASH.fullmatch(self._before(item.start)):
            raise UnspliceableError("a list's item shares its line with what stands before it")
        return self._lines(item.start, item)

    def _added_to_block(self, owner: MappingNode, added: dict[str, Value]) -> list[Edit]:
        if not added:
            return []
        key, child = owner.entries[0]
        start = self._line_start(key.start)
        before = self._before(key.start)
        lines = block_lines(added, self._dashes(owner))
        end = self._line_end(child.end)
        if (
            before.strip()
            and isinstance(child, Scalar)
            and self._text[end - 1] == "\n"
            and child.style not in ("|", ">")
        ):
            indent = " " * len(before)  # "- name: x": the new key comes after it
            return [Edit(end, end, "".join(f"{indent}{line}{self._newline}" for line in lines))]
        if before.strip():  # "- &a {...}": the new key takes the dash, the old one gets a line of its own
            indent = " " * len(before)
            joined = f"{self._newline}{indent}".join(lines)
            return [Edit(key.start, key.start, f"{joined}{self._newline}{indent}")]
        start = self._above_comments(start)
        return [Edit(start, start, "".join(f"{before}{line}{self._newline}" for line in lines))]

    def _replaced_first(self, owner: MappingNode, added: dict[str, Value]) -> Edit:
        """Return the edit that puts new keys where the first one stood, behind a list's dash."""
        key, child = owner.entries[0]
        if not isinstance(child, Scalar) or child.style in ("|", ">"):
            raise UnspliceableError(f"{key_text(key)} shares its line with what stands before it")
        indent = " " * len(self._before(key.start))
        lines = block_lines(added, self._dashes(owner))
        return Edit(key.start, child.end, f"{self._newline}{indent}".join(lines))

    def _above_comments(self, start: int) -> int:
        """Return the start of the comment lines directly above a line: they belong to it."""
        while start:
            above = self._line_start(start - 1)
            if not self._text[above:start].lstrip().startswith("#"):
                break
            start = above
        return start

    def _appended_to_block(self, owner: SequenceNode, appended: Items[Value]) -> list[Edit]:
        if not appended:
            return []
        first = owner.items[0]
        before = self._before(first.start)
        if not _DASH.fullmatch(before):
            raise UnspliceableError("a list's item shares its line with what stands before it")
        indent = before[: before.index("-")]
        text = "".join(
            f"{indent}{line}{self._newline}" for new in appended for line in _item_lines(new, self._dashes(owner))
        )
        end = content_end(owner)
        end = end if self._text[end - 1 : end] == "\n" else self._line_end(end)
        if not self._text[:end].endswith("\n"):
            text = self._newline + text.removesuffix(self._newline)
        return [Edit(end, end, text)]

    # -- flow style: parts of a line

    def _flow(self, owner: MappingNode | SequenceNode, change: _Changes) -> list[Edit]:
        if isinstance(owner, MappingNode):
            spans = [(key.start, child.end) for key, child in owner.entries]
            json_style = self._is_json or (bool(owner.entries) and self._text[owner.entries[0][0].start] == '"')
            new = [f"{scalar(key, json_style)}: {flow_text(child, json_style)}" for key, child in change.added.items()]
        else:
            spans = [(item.start, item.end) for item in owner.items]
            json_style = self._is_json or (bool(spans) and self._text[spans[0][0] : spans[0][0] + 2] == '{"')
            new = [flow_text(child, json_style) for child in change.appended]
        kept = [number for number in range(len(spans)) if number not in change.removed]
        if not kept:
            start, end = (spans[0][0], spans[-1][1]) if spans else (owner.end - 1, owner.end - 1)
            return [Edit(start, end, ", ".join(new))]
        found = list(_flow_removals(spans, kept))
        if new and isinstance(owner, MappingNode):
            at = spans[kept[0]][0]
            before = self._before(at)
            joint = f",{self._newline}{before}" if not before.strip() else ", "  # a key with a line of its own keeps it
            return [Edit(found.pop(0).start if kept[0] else at, at, "".join(part + joint for part in new)), *found]
        if new:
            at = spans[kept[-1]][1]
            found.append(Edit(at, at, "".join(f", {part}" for part in new)))
        return found


def _flow_removals(spans: Items[tuple[int, int]], kept: Items[int]) -> Iterable[Edit]:
    """Yield the edits that leave only the kept parts, each with one comma between them."""
    if kept[0]:
        yield Edit(spans[0][0], spans[kept[0]][0], "")
    for one, other in pairwise(kept):
        if other > one + 1:
            yield Edit(spans[one + 1][0], spans[other][0], "")
    if kept[-1] < len(spans) - 1:
        yield Edit(spans[kept[-1]][1], spans[-1][1], "")


def block_lines(new: dict[str, Value], dashes: int = 0) -> list[str]:
    """Return the lines of a mapping in block style. ``dashes``: how far those of a list are indented below its key."""
    lines: list[str] = []
    for key, child in new.items():
        name = scalar(key)
        if isinstance(child, dict):
            lines += [f"{name}:", *(f"  {line}" for line in block_lines(child, dashes))]
        elif isinstance(child, list):
            lines += [f"{name}:", *(" " * dashes + line for item in child for line in _item_lines(item, dashes))]
        elif _LINES.fullmatch(text := leaf_text(child)):
            lines += [f"{name}: |", *(f"  {line}" for line in text.splitlines())]
        else:
            lines.append(f"{name}: {flow_text(child, json_style=False)}")
    return lines


def _item_lines(new: Value, dashes: int) -> list[str]:
    if isinstance(new, dict):
        first, *others = block_lines(new, dashes)
        return [f"- {first}", *(f"  {line}" for line in others)]
    return [f"- {flow_text(new, json_style=False)}"]


def flow_text(new: Value, json_style: bool) -> str:
    if isinstance(new, Leaf) and new.plain:
        return new.text
    if isinstance(new, str | Leaf):
        return scalar(leaf_text(new), json_style)
    if isinstance(new, list):
        return "[" + ", ".join(flow_text(item, json_style) for item in new) + "]"
    return (
        "{"
        + ", ".join(f"{scalar(key, json_style)}: {flow_text(child, json_style)}" for key, child in new.items())
        + "}"
    )


def scalar(text: str, json_style: bool = False) -> str:
    """Return a scalar that every reader reads as this text: plain if it can only be text, else quoted."""
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers.get(text[:1], [])
    if not json_style and _WORD.fullmatch(text) and not any(pattern.match(text) for _, pattern in resolvers):
        return text
    if not json_style and '"' in text and "'" not in text and text.isascii() and text.isprintable():
        return f"'{text}'"
    return json.dumps(text)


# --- as RFC 6902 has it ---------------------------------------------------------------------------------------------


def json_patch(operations: Iterable[Operation], body: Value, start: Path = ()) -> Iterator[str]:
    """Yield the lines of a JSON patch in order; a removal is preceded by a test. ``body``: the value at ``start``."""
    for one in operations:
        path = (*start, *one.path)
        if isinstance(one, Add):
            yield _operation("add", (*path, one.key), one.new)
        elif isinstance(one, Append):
            yield _operation("add", (*path, "-"), one.new)
        else:
            if (there := at(body, one.path)) is not None:
                yield _operation("test", path, there)
            yield _operation("remove", path)


def _operation(word: str, path: Path, new: Value | None = None) -> str:
    pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
    said: dict[str, Value] = {"op": word, "path": pointer}
    if new is not None:
        said["value"] = new
    return flow_text(said, json_style=True)
