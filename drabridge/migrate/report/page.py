"""Show the report as one HTML page: no scripts, nothing fetched from elsewhere, light and dark.

Names come from users, so nothing is put into the page but through :func:`drabridge.status.markup.tag`, which escapes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from drabridge.migrate.report.codes import Severity
from drabridge.migrate.report.model import Obstacle, Report, Ways
from drabridge.migrate.report.text import (
    LEGEND,
    NOBODY,
    details,
    filter_line,
    headline,
    lacking_features,
    percent,
    place,
    ways,
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
    yield tag("p", *_legend(), class_="legend")
    if not report.resources:
        yield tag("p", "No node has devices, and no pod asks for one.")
    elif filter_line(report) and not report.workloads:
        yield tag("p", NOBODY)
    rows: list[Sequence[object]] = [
        (
            tag("code", one.name),
            _bar(one.pods, one.name),
            *ways(one.pods),
            percent(one.done_percent),
            one.nodes,
            one.allocatable,
            one.in_slices,
            ", ".join(one.classes) or "-",
        )
        for one in report.resources
    ]
    columns = ("Resource", "Share", *_columns(), "Done", "Nodes", "Allocatable", "In slices", "Classes")
    yield from section("Resources", columns, rows)
    rows = [
        (
            one.name,
            tag("code", use.resource),
            _bar(use.pods, f"{use.resource} in {one.name}"),
            *ways(use.pods),
            percent(use.done_percent),
            Html(f"{tag('strong', one.fits)}{tag('small', one.because)}"),
        )
        for one in report.namespaces
        for use in one.uses
    ]
    yield from section("Namespaces", ("Namespace", "Resource", "Share", *_columns(), "Done", "Fits"), rows)
    for severity in Severity:
        yield from _obstacles(severity, [one for one in report.obstacles if one.severity is severity])
    found = sorted(report.workloads, key=lambda one: (-one.pods.total, one.namespace, one.kind, one.name))
    rows = [
        (
            one.namespace,
            Html(f"{tag('code', f'{one.kind}/{one.name}')}{tag('small', ' < '.join(reversed(one.chain)))}"),
            tag("code", one.resource),
            _bar(one.pods, f"{one.kind} {one.namespace}/{one.name}"),
            *ways(one.pods),
            one.per_pod or "-",
        )
        for one in found
    ]
    yield from section("Workloads", ("Namespace", "Workload", "Resource", "Share", *_columns(), "Each"), rows)
    if lacking := lacking_features(report):
        yield tag("section", tag("h2", "Not in this cluster"), tag("ul", *(tag("li", one) for one in lacking)))
    if report.unread:
        items = [tag("li", f"{one.verb} {one.resource}: {one.reason}".strip()) for one in report.unread[:MOST_ROWS]]
        yield tag("section", tag("h2", "Not read"), tag("ul", *items))


def _columns() -> tuple[str, ...]:
    return ("Limits", "By DRA", "Claims", "Pending")


def _legend() -> list[Html]:
    return [
        tag("span", tag("span", symbol, class_=f"symbol {way}", aria_hidden="true"), words)
        for way, symbol, words in _WAYS
    ]


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


def _obstacles(severity: Severity, obstacles: Sequence[Obstacle]) -> Iterable[Html]:
    if not obstacles:
        return
    blocks = []
    is_open = "" if severity is Severity.BLOCKER else None
    for code, group in groupby(obstacles, key=lambda one: one.code):
        same = list(group)
        items = [tag("li", tag("code", place(one)), details(one)) for one in same[:MOST_ROWS]]
        if len(same) > MOST_ROWS:
            items.append(tag("li", f"and {len(same) - MOST_ROWS:,} more: -o json has all"))
        words = tag("summary", tag("strong", code), f" ({len(same)}): {same[0].why}")
        advice = tag("p", f"What to do: {same[0].action}.")
        blocks.append(tag("details", words, advice, tag("ul", *items), open=is_open))
    yield tag("section", tag("h2", f"{severity.capitalize()}s"), *blocks, class_=severity)


def section(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterable[Html]:
    """Yield a section with a table; nothing without rows."""
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
    )
