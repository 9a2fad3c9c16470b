"""Make HTML by function calls, so that text cannot become markup."""

from __future__ import annotations

from collections.abc import Iterable

from podresources.table import printable


class Html(str):
    """Text that is HTML already and is not escaped."""

    __slots__ = ()


# As in html.escape; that module would also load the table of all named characters, 0.5 MiB.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_VOID = frozenset({"meta", "link", "br"})


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element. Children and attribute values are escaped unless :class:`Html`; None is left out.

    ``class_`` is the attribute ``class``; other underscores become dashes.
    """
    parts = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    ]
    start = f"<{name}{''.join(parts)}>"
    return Html(start) if name in _VOID else Html(f"{start}{join(children)}</{name}>")


def escape(value: object) -> str:
    """Return a value as text without markup and without characters that change the direction of writing."""
    return "\n".join(map(printable, str(value).split("\n"))).translate(_ESCAPES)


def join(children: Iterable[object]) -> str:
    """Return the children one after the other, each escaped unless it is :class:`Html`."""
    return "".join(child if isinstance(child, Html) else escape(child) for child in children if child is not None)
