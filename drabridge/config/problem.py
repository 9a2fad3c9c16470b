"""What is wrong with a value, in the three parts that a person needs: where, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from msgspec import Struct


class Problem(Struct, frozen=True):
    """One thing that cannot be meant as it stands. ``path`` is relative to the value that was being checked."""

    expected: str
    hint: str = ""
    path: tuple[str | int, ...] = ()
    found: str | None = None  # None: the loader quotes what the file says

    def __str__(self) -> str:
        return f"expected {self.expected}" + (f"; {self.hint}" if self.hint else "")

    def under(self, *path: str | int) -> Problem:
        """The same problem seen from further up."""
        return Problem(self.expected, self.hint, (*path, *self.path), self.found)


class Problems(ValueError):
    """One or more problems of one value; pydantic carries it to the loader, which adds the place in the file."""

    def __init__(self, *items: Problem) -> None:
        super().__init__("; ".join(map(str, items)))
        self.items = items


def unmet(expected: str, hint: str = "", *, found: str | None = None) -> Problems:
    """An error for one value: what was expected of it and what to do."""
    return Problems(Problem(expected, hint, (), found))


def refuse_if_any(problems: Iterable[Problem]) -> None:
    """Raise every problem at once, or do nothing."""
    items = tuple(problems)
    if items:
        raise Problems(*items)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean "match"?`` when one of the known words is close enough to be a slip, else nothing."""
    by_folded = {name.casefold(): name for name in known}
    close = get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return f'did you mean "{by_folded[close[0]]}"?' if close else ""
