"""Check whether a token can be sent in a header before it is sent: an error of sending would show the token."""

from __future__ import annotations

import re


def defect(token: str) -> str:
    """Return why a text cannot be a token, without quoting it; "" if it can."""
    if not token:
        return "is empty"
    if not (token.isascii() and token.isprintable()):
        return "has a line break, or another character that no token has"
    return ""


def yaml_problem(problem: str | None) -> str:
    """Return what a YAML library says of a file with secrets, up to the first text of the file that it quotes.

    A password may begin with ``!`` or ``*``, which make it a tag or an alias.
    """
    found = re.match(r"(?:[^'\"]|'.')*", problem or "")
    return found[0].strip() if found else ""
