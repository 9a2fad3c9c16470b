"""Check whether a token can be sent in a header before it is sent: an error of sending would show the token."""

from __future__ import annotations


def defect(token: str) -> str:
    """Return why a text cannot be a token, without quoting it; "" if it can."""
    if not token:
        return "is empty"
    if not (token.isascii() and token.isprintable()):
        return "has a line break, or another character that no token has"
    return ""
