"""Say whether a token can be sent in a header, before anything is sent: errors of sending would show it."""

from __future__ import annotations


def defect(token: str) -> str:
    """Return what keeps a token from being one, without quoting it; "" where nothing does."""
    if not token:
        return "is empty"
    if not (token.isascii() and token.isprintable()):
        return "has a line break, or another character that no token has"
    return ""
