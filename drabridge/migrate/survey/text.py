"""Show a survey as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from drabridge.migrate.survey.tally import Share, Survey

_PLACES = 3  # of each block, in a table
_READ = 10  # of what was not read


def headline(survey: Survey) -> str:
    """Return the result in one sentence."""
    devices = ", ".join(f"{count} {name}" for name, count in sorted(survey.devices.items())) or "no devices"
    blocked = len(survey.subjects) - survey.moves
    return (
        f"{survey.files:,} files read, {survey.speaking:,} with devices: "
        f"{survey.moves:,} move to claims today ({devices}), {blocked:,} blocked"
    )


def text(survey: Survey, width: int | None) -> str:
    """Return the survey as tables, at most as wide as the terminal where lines can be broken."""
    lines = [headline(survey)]
    for title, shares in (
        ("OWNER", survey.shares(lambda one: one.owner)),
        ("TOOL", survey.shares(lambda one: one.tool)),
    ):
        if shares:
            lines += ["", *_table((title, "MOVES", "BLOCKED", "DEVICES"), [_cells(one) for one in shares])]
    blocks = survey.blocks()
    if blocks:
        lines += ["", "BLOCKED"]
    for block in blocks:
        where = ", ".join(block.places[:_PLACES])
        more = f" and {len(block.places) - _PLACES} more" if len(block.places) > _PLACES else ""
        lines += _wrapped(f"{block.count}: {block.action}", width, "  ")
        lines += _wrapped(f"- {where}{more}", width, "    ")
    if survey.unread:
        lines += ["", "NOT READ", *(f"  {one}" for one in survey.unread[:_READ])]
        if len(survey.unread) > _READ:
            lines.append(f"  and {len(survey.unread) - _READ} more: -o json has all")
    return "\n".join(lines)


def _cells(one: Share) -> tuple[str, ...]:
    return one.name or "-", str(one.moves), str(one.blocked), str(one.devices)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _wrapped(line: str, width: int | None, indent: str) -> list[str]:
    return textwrap.wrap(
        line,
        max(width or 120, 40),
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
