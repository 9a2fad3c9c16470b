"""Show a survey as one HTML page, in the style of the report's: no scripts, nothing fetched from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drabridge.migrate.report.page import MOST_ROWS, document, section
from drabridge.migrate.survey.tally import Block, Share, Survey
from drabridge.migrate.survey.text import headline
from drabridge.status.markup import Html, tag

_TITLE = "What moves to claims"


def render(survey: Survey, at: str) -> str:
    """Return the page. ``at``: when the files were read, RFC 3339."""
    return document(_TITLE, [headline(survey)], at, list(_sections(survey)), ["drabridge migrate report FOLDER"])


def _sections(survey: Survey) -> Iterable[Html]:
    columns = ("Moves", "Blocked", "Devices", "Share")
    for title, shares in (
        ("Owners", survey.shares(lambda one: one.owner)),
        ("Tools", survey.shares(lambda one: one.tool)),
    ):
        yield from section(title, (title[:-1], *columns), [_row(one) for one in shares])
    blocks = survey.blocks()
    if blocks:
        yield tag("section", tag("h2", "Blocked"), *map(_block, blocks), class_="blocker")
    rows: list[Sequence[object]] = [
        (
            tag("code", f"{one.file}:{one.line}"),
            one.name or one.tool,
            one.owner,
            ", ".join(f"{count} {name}" for name, count in one.devices.items()) or "-",
            one.blocked or "moves",
        )
        for one in survey.subjects
    ]
    yield from section("Workloads", ("Place", "Workload", "Owner", "Devices", "State"), rows)
    if survey.unread:
        items = [tag("li", one) for one in survey.unread[:MOST_ROWS]]
        yield tag("section", tag("h2", "Not read"), tag("ul", *items))


def _row(one: Share) -> Sequence[object]:
    share = 100 * one.moves // (one.moves + one.blocked)
    return one.name or "-", one.moves, one.blocked, one.devices, f"{share} %"


def _block(block: Block) -> Html:
    items = [tag("li", tag("code", place)) for place in block.places[:MOST_ROWS]]
    return tag(
        "details",
        tag("summary", tag("strong", str(block.count)), f" {block.example}"),
        tag("p", f"What to do: {block.action}."),
        tag("ul", *items),
    )
