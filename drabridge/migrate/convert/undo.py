"""Keep the former lines of a converted file in the file, and restore them byte for byte.

A conversion adds one block at the end of a file, between two marked comments: a comment for each group of changed
lines, then the ResourceClaimTemplates. Nothing else is needed to undo it, no second file and no state. JSON has no
comments: there the block, without templates, is a file of its own. Other lines that a person changes stay changed. If a
converted line was changed again, the undo is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct, structs

from drabridge.migrate.convert.splice import Edit, newline_of, spliced
from drabridge.migrate.convert.templates import Template, templates_file

BEGIN = "# drabridge migrate convert wrote the lines from here to its end mark; --reverse needs them as they are"
END = "# drabridge migrate convert: end mark"
_WAS = "# was "
_NO_BREAK = "# the last line had no line break"


class Hunk(Struct, frozen=True, array_like=True):
    """Lines that were changed together: what they are now and were before, with their line breaks.

    ``place`` tells them from equal lines elsewhere in the converted text: they are number ``place`` of ``places``,
    from 0. So they are found when lines come or go above them, and nothing else is taken for them.
    """

    place: int
    places: int
    now: str
    was: str


class CannotUndoError(Exception):
    """The block at the end, or a line that was converted, is not as the conversion left it. ``line`` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


def with_block(before: str, after: str, edits: Iterable[Edit], templates: Sequence[Template]) -> str:
    """Return the converted text with the block that can undo it and with its templates."""
    newline = newline_of(before)
    comments = "".join(f"{line}{newline}" for line in _comments(before, after, edits))
    after += "" if after.endswith("\n") else newline
    return with_templates(after + comments, templates) + END + newline


def block_alone(before: str, after: str, edits: Iterable[Edit]) -> str:
    """Return the block that can undo a converted text, for a text that cannot contain it (JSON)."""
    return "".join(f"{line}\n" for line in (*_comments(before, after, edits), END))


def _comments(before: str, after: str, edits: Iterable[Edit]) -> list[str]:
    lines = [BEGIN, *([] if after.endswith("\n") else [_NO_BREAK])]
    return lines + [f"{_WAS}{json.dumps(structs.astuple(hunk))}" for hunk in _hunks(before, after, edits)]


def with_templates(text: str, templates: Iterable[Template]) -> str:
    """Return the text with the templates as documents after it."""
    newline = newline_of(text)
    written = "".join(f"---\n{templates_file([one])}" for one in templates)
    return text + ("" if text.endswith("\n") else newline) + written.replace("\n", newline)


def _hunks(before: str, after: str, edits: Iterable[Edit]) -> Iterator[Hunk]:
    """Yield the edits as changes of whole lines. If lines are only removed, the line before them marks the place."""
    found_at = _Lines(_split(after))
    shift = 0  # number of lines added by the hunks above
    for start, end, members in _line_groups(before, edits):
        was, now = before[start:end], spliced(before, members, start, end)
        if not now and start:
            above = before.rfind("\n", 0, start - 1) + 1
            was, now, start = before[above:end], before[above:start], above
        places = found_at.places(now)
        yield Hunk(places.index(before.count("\n", 0, start) + shift), len(places), now, was)
        shift += now.count("\n") - was.count("\n")


def _line_groups(text: str, edits: Iterable[Edit]) -> list[tuple[int, int, list[Edit]]]:
    """Return the edits by the lines that they change: the lines' start and end, and the edits within them."""
    groups: list[tuple[int, int, list[Edit]]] = []
    for edit in sorted(edits):
        start = text.rfind("\n", 0, edit.start) + 1
        if edit.start == edit.end == start or text[edit.end - 1 : edit.end] == "\n":
            end = edit.end
        else:
            end = text.find("\n", edit.end) + 1 or len(text)
        if groups and start <= groups[-1][1]:
            first, last, members = groups.pop()
            groups.append((first, max(last, end), [*members, edit]))
        else:
            groups.append((start, end, [edit]))
    return groups


class _Lines:
    """The lines of a text, with an index to find them: fast for thousands of questions."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._known: dict[str, list[int]] = {}
        self._at: dict[str, list[int]] = {}
        for number, line in enumerate(lines):
            self._at.setdefault(line, []).append(number)

    def places(self, text: str) -> list[int]:
        """Return the line numbers at which these lines begin."""
        if text not in self._known:
            wanted = _split(text)
            first = self._at.get(wanted[0], []) if wanted else range(len(self._lines) + 1)
            self._known[text] = [at for at in first if self._lines[at : at + len(wanted)] == wanted]
        return self._known[text]


def undone(text: str) -> str:
    """Return the text as it was before it was converted. Raises CannotUndoError."""
    while BEGIN in text:
        text = _undone_once(text)
    return text


def undone_by(text: str, blocks: str) -> str:
    """Return the text before the conversions that wrote these blocks (oldest first). Raises CannotUndoError."""
    for block in reversed(blocks.split(BEGIN)[1:]):
        above = text if text.endswith("\n") else text + newline_of(text)
        try:
            text = _undone_once(above + BEGIN + block)
        except CannotUndoError as error:
            raise CannotUndoError(0, error.message) from error
    return text


def _undone_once(text: str) -> str:
    start = text.rindex(BEGIN)
    line = text.count("\n", 0, start) + 1
    end = text.find(END, start)
    if end < 0:
        raise CannotUndoError(line, "the end mark of what convert wrote is gone")
    end = text.find("\n", end) + 1 or len(text)
    block, before, after = text[start:end].replace("\r", "").split("\n"), text[:start], text[end:]
    kept: list[tuple[int, Hunk]] = []
    for number, one in enumerate(block):
        if one.startswith(_WAS):
            kept.append((line + number, _read(one.removeprefix(_WAS), line + number)))
    if _NO_BREAK in block:
        before = before.removesuffix(newline_of(before))
    before = _put_back(before, kept)
    if after and not before.endswith("\n"):  # a person added text after the block
        before += newline_of(before)
    return before + after


def _read(text: str, line: int) -> Hunk:
    try:
        return msgspec.json.decode(text, type=Hunk)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CannotUndoError(line, "the comment that says what lines were cannot be read") from error


def _put_back(text: str, hunks: Iterable[tuple[int, Hunk]]) -> str:
    """Replace the new lines by the old ones. Each hunk has the line number of its comment."""
    lines = _split(text)
    found_at = _Lines(lines)
    found: list[tuple[int, Hunk]] = []
    for comment, hunk in hunks:
        places = found_at.places(hunk.now)
        if not hunk.now or len(places) != hunk.places or not 0 <= hunk.place < len(places):
            shown = hunk.now.strip().partition("\n")[0].strip()
            raise CannotUndoError(comment, f"the converted lines at {shown!r} were changed, added or taken out since")
        found.append((places[hunk.place], hunk))
    for place, hunk in sorted(found, key=lambda one: one[0], reverse=True):
        lines[place : place + len(_split(hunk.now))] = [hunk.was]
    return "".join(lines)


def _split(text: str) -> list[str]:
    """Split at line feeds only: other characters that Python takes for line breaks are text in YAML or in editors."""
    return [part for part in text.replace("\n", "\n\0").split("\0") if part]
