"""Parse JSON into the nodes of ``yaml_nodes.py``. Knows nothing of Kubernetes.

JSON is not quite YAML: PyYAML refuses tabs, pairs of surrogates, and several objects one after the other, which kubectl
takes. And what was JSON must still be JSON when it was changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from drabridge.migrate.convert.yaml_nodes import DEPTH_MAX, NotYaml, key_text, loaded, parse
from drabridge.yaml_reader import Mapping, Node, Scalar, Sequence

_SPACE = re.compile(r"[ \t\r\n]*+")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]++|\\.)*+"')
_OTHER = re.compile(r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null)(?![A-Za-z0-9_.+-])")


def parse_json(text: str) -> list[Node]:
    """Return the objects of a text, which may be several, one after the other.

    Raises NotYaml with line and reason: no JSON objects, the same key twice, too deep.
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
    """Yield what each document of a text says, as Python has it: JSON, or else YAML. Raises NotYaml."""
    text = text.removeprefix("\ufeff")
    try:
        roots = parse_json(text)
    except NotYaml:
        yield from map(loaded, parse(text))
        return
    for root in roots:
        try:
            yield json.loads(text[root.start : root.end])
        except ValueError as error:  # a number with thousands of digits
            raise NotYaml(text.count("\n", 0, root.start) + 1, str(error)) from error


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text

    def skip(self, position: int) -> int:
        """Return the place of the next thing that is no space."""
        found = _SPACE.match(self._text, position)
        return found.end() if found else position

    def error(self, position: int, message: str) -> NotYaml:
        """Return the error for a place in the text."""
        return NotYaml(self._text.count("\n", 0, position) + 1, message)

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
            text.encode()  # half a pair of surrogates is no text
        except ValueError as error:
            raise self.error(position, f"a string that says no text: {error}") from error
        return Scalar(position, found.end(), text, '"')

    def _mapping(self, position: int, depth: int) -> Mapping:
        found = Mapping(position, position, flow=True)
        first: dict[str, int] = {}
        place = self.skip(position + 1)
        while not self._ends(place, "}", bool(found.entries)):
            key = self._string(self.skip(place + 1) if found.entries else place)
            if key.text in first:
                line = self._text.count("\n", 0, first[key.text]) + 1
                raise self.error(key.start, f"the key {key_text(key)} a second time; the first is in line {line}")
            first[key.text] = key.start
            colon = self.skip(key.end)
            if self._text[colon : colon + 1] != ":":
                raise self.error(colon, "expected a colon")
            found.entries.append((key, self.node(self.skip(colon + 1), depth - 1)))
            place = self.skip(found.entries[-1][1].end)
        found.end = place + 1
        return found

    def _sequence(self, position: int, depth: int) -> Sequence:
        found = Sequence(position, position, flow=True)
        place = self.skip(position + 1)
        while not self._ends(place, "]", bool(found.items)):
            found.items.append(self.node(self.skip(place + 1) if found.items else place, depth - 1))
            place = self.skip(found.items[-1].end)
        found.end = place + 1
        return found

    def _ends(self, position: int, bracket: str, comma: bool) -> bool:
        """Return whether a collection ends here. Raises NotYaml where it neither ends nor goes on."""
        if self._text[position : position + 1] == bracket:
            return True
        if comma and self._text[position : position + 1] != ",":
            raise self.error(position, f"expected a comma or {bracket}")
        return False
