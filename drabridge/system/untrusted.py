"""Read untrusted data: a defect of one object is an error of that object, and all others are read.

Claims, pods, slices, nodes, files and answers come from people and programs that may be careless or hostile. Code that
reads one object goes through :func:`reading`. Code that reads many reports the unreadable ones to :class:`Unreadable`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

from drabridge.errors import ConfigError, DrabridgeError, PeerError
from podresources.table import printable

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_NAMED = 1024  # unreadable objects of one kind that are remembered
MOST_TEXT = 300  # characters of somebody else's text in a message of ours
_READING_ERRORS = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)
"""What reading strange data raises: wrong types, missing keys, no text (a ValueError), too deep, no such file name."""

_unreadable: Counter[str] = Counter()
_lock = threading.Lock()  # lists and watches have threads of their own


def unreadable() -> Mapping[str, int]:
    """Return kind -> how many objects, or changes of them, could not be read since the process began."""
    with _lock:
        return dict(_unreadable)


class UnreadableError(PeerError):
    """An object does not have the form that it should have."""


@contextlib.contextmanager
def reading(what: str, error: type[DrabridgeError] = UnreadableError) -> Iterator[None]:
    """Turn every exception that strange data raises into ``error`` about ``what``; our own errors pass."""
    try:
        yield
    except _READING_ERRORS as problem:
        said = cut(str(problem) or "no reason given")
        raise error(f"{cut(what)} cannot be read: {type(problem).__name__}: {said}") from problem


def parse_mapping(text: str, values: type[T], named: str, example: str) -> dict[str, T]:
    """Parse a JSON object whose values all have one type, ``named`` in words. Raises ConfigError for another form."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}", hint=example) from None
    if not isinstance(found, dict) or not all(isinstance(value, values) for value in found.values()):
        raise ConfigError(f"not an object of {named}", hint=example)
    return found


def cut(text: str, most: int = MOST_TEXT) -> str:
    """Return ``text`` as one printable line of at most ``most`` characters, and "..." if it was cut."""
    text = text if len(text) <= most else f"{text[:most]}..."
    return printable(text)


class Unreadable:
    """Reports unreadable objects of one kind: each once, and again when its error changes."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._said: dict[str, str] = {}

    def tell(self, name: str, error: Exception) -> None:
        """Report that object ``name`` was left out because of ``error``."""
        name, said = cut(name), cut(str(error))
        with _lock:
            known = self._said.get(name) == said
            self._said[name] = said
            if len(self._said) > MOST_NAMED:
                del self._said[next(iter(self._said))]  # the oldest: it is told once more if it comes again
            _unreadable[self._kind] += not known
        if not known:
            log.error("unreadable object left out", extra={"kind": self._kind, "object": name, "reason": said})

    def keep(self, names: Collection[str]) -> None:
        """Forget the reports about all other objects: they are readable again, or gone."""
        kept = set(map(cut, names))
        with _lock:
            self._said = {name: said for name, said in self._said.items() if name in kept}
