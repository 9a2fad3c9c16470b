"""Read untrusted data: a defect in one object is an error of that object only; all others are read.

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

MOST_NAMED = 1024  # unreadable objects remembered for each kind
MOST_TEXT = 300  # characters of foreign text in one of our messages
_READING_ERRORS = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)
"""What reading malformed data raises: wrong types, missing keys, bad text (ValueError), deep nesting."""

_unreadable: Counter[str] = Counter()
_lock = threading.Lock()  # lists and watches have threads of their own


def unreadable() -> Mapping[str, int]:
    """Return kind -> number of objects, or changes of objects, that could not be read since the process began."""
    with _lock:
        return dict(_unreadable)


class UnreadableError(PeerError):
    """An object does not have the form that it should have."""


@contextlib.contextmanager
def reading(what: str, error: type[DrabridgeError] = UnreadableError) -> Iterator[None]:
    """Turn every exception that malformed data raises into ``error`` about ``what``. Our own errors pass unchanged."""
    try:
        yield
    except _READING_ERRORS as problem:
        said = cut(str(problem) or "no reason given")
        raise error(f"{cut(what)} cannot be read: {type(problem).__name__}: {said}") from problem


def parse_mapping(text: str, values: type[T], named: str, example: str) -> dict[str, T]:
    """Parse a JSON object with values of the type ``values`` (``named``: in words). Raises ConfigError if malformed."""
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
                del self._said[next(iter(self._said))]  # the oldest: it is reported again if it recurs
            _unreadable[self._kind] += not known
        if not known:
            log.error("unreadable object left out", extra={"kind": self._kind, "object": name, "reason": said})

    def keep(self, names: Collection[str]) -> None:
        """Forget the reports about all other objects: they are readable again, or gone."""
        kept = set(map(cut, names))
        with _lock:
            self._said = {name: said for name, said in self._said.items() if name in kept}
