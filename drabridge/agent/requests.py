"""Read what the operator asks of the control socket."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from drabridge.errors import ConfigError

T = TypeVar("T")


def read_request(body: bytes, form: type[T], expected: str, example: str = "") -> T:
    """Parse a request into a struct. Raises ConfigError, which says what was ``expected``, if it is malformed."""
    try:
        return msgspec.json.decode(body, type=form)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ConfigError(expected, hint=example) from None
