"""Describe what is wrong with a configuration: problems of a value, and faults with their place in the file.

Code that checks a value raises :class:`Problems`. The loader adds the place and raises :class:`ConfigErrors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from drabridge.errors import ConfigError
from podresources.table import printable

SHOWN_MAX = 120  # characters of a value that a message quotes

Path = tuple[str | int, ...]  # ("resources", 1, "match")


class Problem(Struct, frozen=True):
    """One thing that is wrong with a value: what was expected, and what to do. ``path`` begins at that value."""

    expected: str
    hint: str = ""
    path: Path = ()
    found: str | None = None  # None: the loader quotes what the file says

    def __str__(self) -> str:
        return f"expected {self.expected}" + (f"; {self.hint}" if self.hint else "")

    def under(self, *path: str | int) -> Problem:
        """Return the same problem, with a path that begins further up."""
        return Problem(self.expected, self.hint, (*path, *self.path), self.found)


class Problems(ValueError):
    """One or more problems of one value. The loader adds the place in the file."""

    def __init__(self, *items: Problem) -> None:
        super().__init__("; ".join(map(str, items)))
        self.items = items


class Fault(Struct, frozen=True, order=True):
    """One fault of a configuration file, with its place; sorts by place."""

    file: str
    line: int  # from 1; 0 when the file could not be read at all
    column: int
    path: str  # resources[1].match[0].attr.idVendor
    found: str
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        what = f"found {self.found}, expected {self.expected}"
        return ": ".join(filter(None, (where, self.path, what))) + (f". {self.hint}" if self.hint else "")


class ConfigErrors(ConfigError):
    """All faults of a configuration at once."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


def unmet(expected: str, hint: str = "", *, found: str | None = None) -> Problems:
    """Return an error for one value: what was expected of it, and what to do."""
    return Problems(Problem(expected, hint, (), found or None))


def refuse_if_any(problems: Iterable[Problem]) -> None:
    """Raise all problems at once; do nothing when there is none."""
    items = tuple(problems)
    if items:
        raise Problems(*items)


def problems_of(check: Callable[[Any], object], value: Any, *path: str | int) -> Iterator[Problem]:
    """Yield the problems that a check finds in a value, with the path of the value."""
    try:
        check(value)
    except Problems as error:
        yield from (problem.under(*path) for problem in error.items)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean "match"?`` if a known word is close enough for a typing error, else ""."""
    from difflib import get_close_matches  # 0.2 MiB that a right configuration does not need

    by_folded = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return f'did you mean "{by_folded[close[0]]}"?' if close else ""


def path_text(path: Path) -> str:
    """``("resources", 1, "match")`` -> ``resources[1].match``; keys that are no words are quoted."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        else:
            word = part if part.replace("_", "a").isalnum() else f'"{shorten(part)}"'
            out += f".{word}" if out else word
    return out


def shorten(text: str) -> str:
    """Return a text, which may be hostile or long, as one printable line of bounded length."""
    shown = printable(text[: SHOWN_MAX + 1])
    return shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}… ({len(text)} characters)"
