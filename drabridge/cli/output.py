"""Print what commands show: tables that fit the terminal, wide tables, JSON or YAML."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from podresources.table import printable, render


def cell(value: Any) -> str:
    """Return one value as text for people: lists joined, an empty value as a dash, no control characters."""
    if value is None or value == "" or value == [] or value == ():
        text = "-"
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, (list, tuple)):
        text = ",".join(map(str, value))
    else:
        text = str(value)
    return printable(text)


def terminal_width(output: str) -> int | None:
    """Return how many characters a line may have; None: any number (a pipe, wide output)."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() and output == "table" else None


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], width: int | None = None) -> str:
    """Render rows under upper-case headings.

    ``width``: the longest columns are cut until a line fits. None cuts nothing.
    """
    header = [column.upper().replace("_", " ") for column in columns]
    return render(header, [[cell(row.get(column)) for column in columns] for row in rows], width, drop_empty=False)


def wrapped(texts: Iterable[str], width: int | None, first: str) -> list[str]:
    """Put ``first`` before each text and wrap it between words.

    A path or a name stays whole, so that it can be copied.
    """
    if width is None:
        return [first + cell(text) for text in texts]
    wrapper = textwrap.TextWrapper(
        width, initial_indent=first, subsequent_indent=" " * 4, break_long_words=False, break_on_hyphens=False
    )
    return [line for text in texts for line in wrapper.wrap(cell(text))]


def as_json_or_yaml(document: Any, output: str) -> str:
    """Return a document as text in the format ``output``: ``json``, else YAML."""
    if output == "json":
        return json.dumps(document, indent=2)
    import yaml

    return str(yaml.safe_dump(document, sort_keys=False)).rstrip()


def said(texts: Iterable[str]) -> list[str]:
    """Return the lines of texts for standard error, wrapped on a terminal."""
    return wrapped(texts, shutil.get_terminal_size().columns if sys.stderr.isatty() else None, "")


def error_text(error: Exception) -> str:
    """Return what a command says of its failure, wrapped on a terminal.

    Each line of the error is one fault.
    """
    return "\n".join(said(line for line in f"drabridge: {error}".splitlines() if line))


def now() -> str:
    """Return the time in UTC as documents have it (RFC 3339)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def show_document(document: Any, output: str, screen: Callable[[int | None], Iterable[str]]) -> None:
    """Print a document as JSON or YAML, or else the lines that ``screen`` makes for the terminal's width."""
    if output in ("json", "yaml"):
        print(as_json_or_yaml(document, output))
    else:
        print("\n".join(screen(terminal_width(output))))


def show(
    rows: Iterable[Mapping[str, Any]],
    output: str,
    *,
    columns: Sequence[str],
    wide: Sequence[str] = (),
    empty: str = "nothing to show",
) -> None:
    """Print rows in one of the formats. JSON and YAML have every key of a row, tables the named columns."""
    rows = list(rows)
    if output in ("json", "yaml"):
        print(as_json_or_yaml(json.loads(json.dumps(rows, default=str)), output))
    elif not rows:
        print(empty, file=sys.stderr)
    else:
        print(table(rows, [*columns, *wide] if output == "wide" else list(columns), terminal_width(output)))
