"""Make HTML by function calls, so that text cannot become markup."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


_VOID = frozenset({"meta", "link", "br"})


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element. Children and attribute values are escaped unless :class:`Html`; None is left out.

    ``class_`` is the attribute ``class``; other underscores become dashes.
    """
    parts = [
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    start = f"<{name}{''.join(parts)}>"
    return Html(start) if name in _VOID else Html(f"{start}{join(children)}</{name}>")


def join(children: Iterable[object]) -> str:
    """Return children one after the other, escaped likewise."""
    return "".join(
        child if isinstance(child, Html) else html.escape(str(child)) for child in children if child is not None
    )
