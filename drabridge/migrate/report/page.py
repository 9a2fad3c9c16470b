"""Show the report as one HTML page: no scripts, nothing fetched from elsewhere, light and dark.

Names come from users, so nothing is put into the page but through :func:`drabridge.status.markup.tag`, which escapes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from drabridge.migrate.report.codes import Severity
from drabridge.migrate.report.document import Obstacle, Report, Ways
from drabridge.migrate.report.text import (
    LEGEND,
    NOBODY,
    Table,
    by_code,
    details,
    filter_line,
    headline,
    lacking_features,
    place,
    tables,
)
from drabridge.status.markup import Html, tag

MOST_ROWS = 500  # of one table: a browser lays out this many at once
STYLE = Path(__file__).with_name("page.css").read_text("utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'"
# way -> (class of its colour, symbol that says the same without colour, words)
_WAYS = (
    ("kubelet", "■", "limits, served by kubelet"),
    ("dra", "◆", "limits, served by DRA"),
    ("claims", "●", "claims"),
    ("pending", "○", "pending"),
)


def render(report: Report, at: str) -> str:
    """Return the page. ``at``: when the cluster was read, RFC 3339."""
    said = [line for line in (headline(report), filter_line(report)) if line]
    return document("From limits to claims", said, at, list(_sections(report)), [*LEGEND, "drabridge migrate report"])


def document(title: str, said: Sequence[str], at: str, sections: Sequence[Html], footer: Sequence[str]) -> str:
    """Return a page with a title, sentences below it, sections and lines at its foot."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    header = tag(
        "header",
        tag("h1", title),
        *(tag("p", line) for line in said),
        tag("p", f"as of {at}", class_="quiet"),
    )
    body = tag(
        "body",
        header,
        tag("main", *sections),
        tag("footer", *(tag("p", line) for line in footer)),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def _sections(report: Report) -> Iterable[Html]:
    symbols = (
        tag("span", tag("span", symbol, class_=f"symbol {way}", aria_hidden="true"), words)
        for way, symbol, words in _WAYS
    )
    yield tag("p", *symbols, class_="legend")
    if not report.resources:
        yield tag("p", "No node has devices, and no pod asks for one.")
    elif filter_line(report) and not report.workloads:
        yield tag("p", NOBODY)
    resources, namespaces, workloads = tables(report, None, wide=True)
    yield from _table(resources)
    yield from _table(namespaces)
    for severity, codes in by_code(report).items():
        yield from _obstacles(severity, codes)
    yield from _table(workloads)
    if lacking := lacking_features(report):
        yield sentences("Not in this cluster", lacking)
    if report.unread:
        yield sentences("Not read", [f"{one.verb} {one.resource}: {one.reason}".strip() for one in report.unread])


def _table(table: Table) -> Iterable[Html]:
    """Draw a table, with a bar of the pods in each row."""
    heads = [column[:1].upper() + column[1:] for column in table.columns]
    heads.insert(table.named, "Share")
    rows = []
    for row, pods in zip(table.rows, table.pods, strict=True):
        names = [tag("code", name) for name in row[: table.named]]
        bar = _bar(pods, " ".join(row[: table.named]))
        rows.append([*names, bar, *row[table.named :]])
    yield from section(table.title.capitalize(), heads, rows, table.notes)


def _bar(one: Ways, what: str) -> Html:
    """Draw the share of each way side by side."""
    whole = one.total
    if not whole:
        return tag("span", "no pods", class_="quiet")
    drawn, x = [], 0.0
    for way, _, _ in _WAYS:
        if count := getattr(one, way):
            width = 100 * count / whole
            drawn.append(tag("rect", x=f"{x:.3f}%", width=f"{width:.3f}%", height="100%", class_=way))
            x += width
    said = ", ".join(f"{words} {getattr(one, way)}" for way, _, words in _WAYS)
    return tag("svg", *drawn, class_="bar", role="img", aria_label=f"Pods of {what}: {said}")


def _obstacles(severity: Severity, codes: Iterable[Sequence[Obstacle]]) -> Iterable[Html]:
    blocks = []
    is_open = "" if severity is Severity.BLOCKER else None
    for same in codes:
        items = [tag("li", tag("code", place(one)), details(one)) for one in same[:MOST_ROWS]]
        if len(same) > MOST_ROWS:
            items.append(tag("li", f"and {len(same) - MOST_ROWS:,} more: -o json has all"))
        words = tag("summary", tag("strong", same[0].code), f" ({len(same)}): {same[0].why}")
        advice = tag("p", f"What to do: {same[0].action}.")
        blocks.append(tag("details", words, advice, tag("ul", *items), open=is_open))
    yield tag("section", tag("h2", f"{severity.capitalize()}s"), *blocks, class_=severity)


def sentences(title: str, lines: Sequence[str]) -> Html:
    """Return a section with a list of sentences."""
    return tag("section", tag("h2", title), tag("ul", *(tag("li", line) for line in lines[:MOST_ROWS])))


def section(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[str] = ()
) -> Iterable[Html]:
    """Yield a section with a table, and sentences below it; nothing without rows."""
    if not rows:
        return
    heads = [tag("th", column, scope="col") for column in columns]
    lines = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows[:MOST_ROWS]
    ]
    more = len(rows) - MOST_ROWS
    yield tag(
        "section",
        tag("h2", title),
        tag("div", tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *lines)), class_="scroll"),
        tag("p", f"and {more:,} more: -o json has all", class_="quiet") if more > 0 else None,
        tag("ul", *(tag("li", note) for note in notes[:MOST_ROWS])) if notes else None,
    )
