"""How commands print: tables that fit the terminal, the same wide, JSON, YAML."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from podresources.table import render

OUTPUTS = ("table", "wide", "json", "yaml")


def cell(value: Any) -> str:
    """One value as a person reads it: lists joined, nothing as a dash, no control characters."""
    if value is None or value == "" or value == [] or value == ():
        text = "-"
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, (list, tuple)):
        text = ",".join(map(str, value))
    else:
        text = str(value)
    return "".join(char if char.isprintable() else "�" for char in text)


def terminal_width(output: str) -> int | None:
    """What lines must fit into; None where they may be as long as they like."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() and output == "table" else None


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], width: int | None = None) -> str:
    """Render rows under upper-case headings. ``width``: cut the longest columns until a line fits; None: never cut."""
    header = [column.upper().replace("_", " ") for column in columns]
    return render(header, [[cell(row.get(column)) for column in columns] for row in rows], width, drop_empty=False)


def sentences(texts: Iterable[str], width: int | None, first: str) -> list[str]:
    """Each after ``first``, wrapped between words: a path or a name stays whole, to be copied."""
    if width is None:
        return [first + cell(text) for text in texts]
    wrapper = textwrap.TextWrapper(
        width, initial_indent=first, subsequent_indent=" " * 4, break_long_words=False, break_on_hyphens=False
    )
    return [line for text in texts for line in wrapper.wrap(cell(text))]


def encoded(document: Any, output: str) -> str:
    """A document as JSON or YAML."""
    if output == "json":
        return json.dumps(document, indent=2)
    import yaml

    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True)).rstrip()


def complaint(error: Exception) -> str:
    """What a command says of its failure, wrapped where a person reads it; each line of several is one fault."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    return "\n".join(sentences((line for line in f"drabridge: {error}".splitlines() if line), width, ""))


def show(
    rows: Iterable[Mapping[str, Any]],
    output: str,
    *,
    columns: Sequence[str],
    wide: Sequence[str] = (),
    empty: str = "nothing to show",
) -> None:
    """Print rows in one of ``OUTPUTS``. JSON and YAML carry every key of a row, tables the named columns."""
    rows = list(rows)
    if output in ("json", "yaml"):
        print(encoded(json.loads(json.dumps(rows, default=str)), output))
    elif not rows:
        print(empty, file=sys.stderr)
    else:
        print(table(rows, [*columns, *wide] if output == "wide" else list(columns), terminal_width(output)))
