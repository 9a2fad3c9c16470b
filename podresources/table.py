"""Render text tables that fit a terminal, and make texts of others harmless there. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

GAP = "  "
ELLIPSIS = "…"
NARROWEST = 8
"""No column is cut below this; a terminal narrower than all columns together just wraps."""


def render(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    drop_empty: bool = True,
    whole: Collection[str] = (),
) -> str:
    """Render left-aligned columns under a header, one line per row.

    ``width`` is the terminal's, in characters; the widest columns are cut until the lines fit. None cuts nothing,
    which is what a pipe wants. ``drop_empty`` leaves out columns without any value; those in ``whole`` are never cut.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    kept = [index for index in range(len(header)) if not (rows and drop_empty) or any(row[index] for row in rows)]
    lines = [[header[index] for index in kept], *([row[index] or "-" for index in kept] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if width is not None:
        room = width - len(GAP) * (len(widths) - 1)
        uncut = [lines[0][place] in whole for place in range(len(widths))]
        fitted = iter(
            _fit(
                [size for size, keep in zip(widths, uncut, strict=True) if not keep],
                room - sum(size for size, keep in zip(widths, uncut, strict=True) if keep),
            )
        )
        widths = [size if keep else next(fitted) for size, keep in zip(widths, uncut, strict=True)]
    return "\n".join(
        GAP.join(_cell(cell, size) for cell, size in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def printable(text: str) -> str:
    """Return somebody else's text as one line without control characters: for a terminal, log, page or metric.

    Line breaks, escape sequences, marks that turn the direction of writing and half characters are written out.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def ranges(numbers: Sequence[int]) -> str:
    """``0-3,8`` for 0, 1, 2, 3, 8: how cpusets are written."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def size(size_bytes: int) -> str:
    """``4Gi``: the largest binary unit that divides it exactly, as Kubernetes writes quantities."""
    for power, suffix in ((40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
        if size_bytes and size_bytes % (1 << power) == 0:
            return f"{size_bytes >> power}{suffix}"
    return str(size_bytes)


def _fit(widths: list[int], room: int) -> list[int]:
    """Cut the widest column, again and again, until the sum fits or all are at the minimum."""
    widths = list(widths)
    while sum(widths) > room and max(widths, default=0) > NARROWEST:
        widest = widths.index(max(widths))
        others = sorted(widths)[-2] if len(widths) > 1 else NARROWEST
        excess = sum(widths) - room
        widths[widest] = max(widths[widest] - excess, min(others, widths[widest] - 1), NARROWEST)
    return widths


def _cell(text: str, size: int) -> str:
    """Pad, or cut in the middle: names of one domain, or of one maker, differ at their ends."""
    if len(text) <= size:
        return text.ljust(size)
    tail = (size - 1) // 2
    return text[: size - 1 - tail] + ELLIPSIS + text[len(text) - tail :]
