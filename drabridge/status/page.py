"""Show the status document as one HTML page: read-only, without scripts, nothing fetched from elsewhere.

Device names, pod names and messages come from udev, users and peers. So everything goes into the page through
:func:`drabridge.status.markup.tag`, which escapes all text that is not :class:`~drabridge.status.markup.Html`.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from drabridge.status.markup import Html, join, tag
from drabridge.status.wording import (
    DOUBT,
    Row,
    age,
    doubts,
    evidence,
    grouped_refusals,
    holder,
    move_text,
    owner,
    parse_time,
    verdict,
)

ROWS_MAX = 400  # devices shown in all; a browser lays out this many at once, and nobody reads more
CELLS_MAX = 64  # devices drawn one by one in a bar; more cells would be thinner than the gaps between them
REFUSALS_MAX = 10
REFRESH_SECONDS = 10

STYLE = Path(__file__).with_name("page.css").read_text("utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

HEADERS: Mapping[str, str] = {
    # Only our own style sheet and the embedded icon; an injected script would not run.
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

# Lane -> (class of its colour, symbol for readers without colour).
_LANES = {
    "legacy": ("legacy", "■"),
    "dra": ("dra", "●"),
    "shared": ("shared", "◆"),
    "legacy-to-dra": ("moving", "▶"),
    "dra-to-legacy": ("moving", "◀"),
}
_API = {"deviceplugin": "DevicePlugin", "legacy": "DevicePlugin", "dra": "DRA"}


def render(document: Row, *, refresh: bool = True) -> bytes:
    """Return the whole page in UTF-8.

    ``refresh``: whether it loads itself again every REFRESH_SECONDS.
    """
    now = parse_time(document["at"])
    devices: dict[str, list[Row]] = defaultdict(list)
    for row in document["devices"]:
        devices[row["resource"]].append(row)
    shown, left_out = _fit(document["devices"])
    trouble = list(_trouble(document))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="refresh", content=REFRESH_SECONDS) if refresh else None,
        tag("title", f"{document['node']}: {verdict(document)[1]}"),
        tag("link", rel="icon", href=_icon("well" if not trouble else "bad")),
        tag("style", Html(STYLE)),
    )
    main = tag(
        "main",
        _trouble_section(trouble),
        *(_resource(row, devices[row["name"]], shown.get(row["name"], ()), now) for row in document["resources"]),
        None if document["resources"] else tag("p", "No resource is configured.", class_="quiet"),
        _left_out(left_out, len(document["devices"])),
        _refusals(document["refusals"], now),
        _endpoints(document["endpoints"], now),
        _notes(document),
    )
    body = tag("body", _header(document, now), main, _footer(document, refresh))
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n".encode(errors="backslashreplace")


# --- the head of the page --------------------------------------------------------------------------------------------


def _header(document: Row, now: float) -> Html:
    well, words = verdict(document)
    kind = "well" if well else "bad"
    return tag(
        "header",
        tag(
            "p",
            tag("span", f"drabridge {document['version']}"),
            tag("span", document["driver"]),
            tag("span", f"up {age(now, parse_time(document['startedAt']))}"),
            class_="crumbs",
        ),
        tag("h1", document["node"]),
        tag("p", _mark(kind), words[:1].upper() + words[1:], class_=f"verdict {kind}"),
    )


def _mark(kind: str) -> Html:
    """Return a sign that says the same as the colour, well or bad. Screen readers skip it and read the words."""
    return tag("span", "✓" if kind == "well" else "!", class_=f"mark {kind}", aria_hidden="true")


def _icon(kind: str) -> str:
    """Return the tab's icon: a circle if all is well, else a triangle."""
    well = '<circle cx="8" cy="8" r="7" fill="#1e7a46"/>'
    shape = well if kind == "well" else '<path d="M8 1l7 14H1z" fill="#c62f24"/>'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16">{shape}</svg>'
    return f"data:image/svg+xml,{quote(svg)}"


def _trouble(document: Row) -> Iterator[tuple[str, str]]:
    """Yield (heading, words) for everything that a person must look at."""
    for reason in document["notReadyBecause"]:
        yield "Not ready", reason
    for collision in document["collisions"]:
        yield "Not offered", collision
    for what, words in doubts(document):
        yield what.capitalize(), words


def _trouble_section(trouble: Sequence[tuple[str, str]]) -> Html | None:
    if not trouble:
        return None
    items = [tag("li", tag("strong", what), " ", tag("span", words)) for what, words in trouble[:ROWS_MAX]]
    if len(trouble) > ROWS_MAX:
        items.append(tag("li", f"and {len(trouble) - ROWS_MAX} more"))
    return tag("section", tag("h2", "Needs a person"), tag("ul", *items), class_="trouble", role="alert")


# --- one resource ----------------------------------------------------------------------------------------------------


def _resource(resource: Row, devices: Sequence[Row], rows: Sequence[Row], now: float) -> Html:
    """Return a resource's section: figures and bar for all its ``devices``, and a table of ``rows``."""
    figures = (
        ("free", "free", "quiet"),
        ("heldByPods", "held by pods", "quiet"),
        ("heldByClaims", "held by claims", "quiet"),
        ("moving", "moving", "moving"),
        ("cordoned", "cordoned", "moving"),
        ("unusable", "unusable", "bad"),
        ("inDoubt", "in doubt", "bad"),
    )
    always = ("free", "heldByPods", "heldByClaims")
    numbers = [
        tag("div", tag("dd", resource[key]), tag("dt", words), class_=kind if resource[key] else None)
        for key, words, kind in figures
        if resource.get(key) or key in always
    ]
    total = resource["devices"]
    return tag(
        "section",
        tag("h2", resource["name"], tag("small", f"{total} device{'' if total == 1 else 's'}")),
        tag("dl", *numbers, class_="figures"),
        _bar(resource, devices) if total else None,
        _legend(resource, any(_kind(row) == "bad" for row in devices)),
        _devices(resource["name"], rows, now) if rows else None,
        class_="resource",
    )


def _bar(resource: Row, rows: Sequence[Row]) -> Html:
    """Draw the lanes side by side: solid is held, pale is free.

    One cell is one device; with more than CELLS_MAX devices it is a group.
    """
    order = {"legacy": 0, "legacy-to-dra": 2, "dra-to-legacy": 2, "shared": 3}
    cells = [(row["lane"], row["owner"] != "none", 1, _kind(row) == "bad") for row in rows]
    if len(cells) > CELLS_MAX:
        counts = Counter((lane, is_held) for lane, is_held, _, _ in cells)
        cells = [(lane, is_held, count, False) for (lane, is_held), count in counts.items()]
    cells.sort(key=lambda cell: (order.get(cell[0], 4), not cell[1] if cell[0] == "legacy" else cell[1]))
    whole = sum(weight for _, _, weight, _ in cells) or 1
    drawn, x = [], 0.0
    for lane, is_held, weight, bad in cells:
        width = 100 * weight / whole
        kind = f"{'bad' if bad else _lane(lane)[0]} {'held' if is_held else 'free'}"
        drawn.append(tag("rect", x=f"{x:.3f}%", width=f"{width:.3f}%", height="100%", rx=3, class_=kind))
        x += width
    words = ", ".join(f"{lane} {count}" for lane, count in resource["lanes"].items())
    return tag("svg", *drawn, class_="bar", role="img", aria_label=f"Lanes of {resource['name']}: {words}")


def _legend(resource: Row, bad: bool) -> Html:
    lanes = [tag("span", *_lane_words(lane), f" {count}") for lane, count in resource["lanes"].items()]
    wanted = resource["wanted"]
    shares = ", ".join(f"{wanted[lane]} {lane}" for lane in ("legacy", "dra", "shared") if lane in wanted)
    wish = f"wanted: {shares} ({wanted['source']})" if wanted["legacy"] else None
    return tag(
        "p",
        *lanes,
        tag("span", tag("span", "✕", class_="symbol bad", aria_hidden="true"), "in trouble") if bad else None,
        tag("span", "solid is held, pale is free", class_="quiet") if resource["devices"] else None,
        tag("span", wish, class_="quiet") if wish else None,
        class_="legend",
    )


def _lane(lane: str) -> tuple[str, str]:
    return _LANES.get(lane, ("shared", "◇"))


def _lane_words(lane: str) -> tuple[Html, str]:
    kind, symbol = _lane(lane)
    return tag("span", symbol, class_=f"symbol {kind}", aria_hidden="true"), lane.replace("-to-", " → ")


# --- tables ----------------------------------------------------------------------------------------------------------


def _table(caption: str, columns: Sequence[str], rows: Iterable[tuple[str | None, Sequence[object]]]) -> Html:
    """Return a table. ``rows``: (class, cells); the first cell is the row's header.

    A phone shows rows as cards; the roles keep the table's meaning for screen readers.
    """
    heads = [tag("th", column, scope="col", role="columnheader") for column in columns]
    lines = []
    for kind, cells in rows:
        first = tag("th", cells[0], scope="row", role="rowheader")
        others = [
            tag("td", tag("div", cell), data_label=column, role="cell")
            for column, cell in zip(columns[1:], cells[1:], strict=True)
            if cell not in ("", None) or column
        ]
        lines.append(tag("tr", first, *others, role="row", class_=kind))
    return tag(
        "table",
        tag("caption", caption, class_="unseen"),
        tag("thead", tag("tr", *heads, role="row"), role="rowgroup"),
        tag("tbody", *lines, role="rowgroup"),
        role="table",
    )


def _fit(rows: Sequence[Row]) -> tuple[dict[str, list[Row]], int]:
    """Return devices by resource, ROWS_MAX at most, and how many are left out.

    The least urgent devices are left out first.
    """
    chosen = range(len(rows))
    if len(rows) > ROWS_MAX:
        chosen = sorted(sorted(chosen, key=lambda index: _urgency(rows[index]))[:ROWS_MAX])  # type: ignore[assignment]
    found: dict[str, list[Row]] = {}
    for index in chosen:
        found.setdefault(rows[index]["resource"], []).append(rows[index])
    return found, len(rows) - len(chosen)


def _urgency(row: Row) -> int:
    """Return how soon a person must see the device: 0 first."""
    if row["owner"] in DOUBT:
        return 0
    return 1 if row["presence"] != "present" else 2 if row["move"] else 3 if row["owner"] != "none" else 4


def _left_out(count: int, total: int) -> Html | None:
    if not count:
        return None
    return tag(
        "p",
        f"{total - count:,} of {total:,} devices are shown, those in trouble, moving and held first; ",
        tag("code", "drabridge status"),
        " shows all of them.",
        class_="quiet note",
    )


def _devices(resource: str, rows: Sequence[Row], now: float) -> Html:
    columns = ("Device", "Health", "Lane", "Owner", "Held by", "Since", "Evidence")
    return _table(f"Devices of {resource}", columns, ((_kind(row), _device(row, now)) for row in rows))


def _kind(row: Row) -> str | None:
    if row["owner"] in DOUBT or row["presence"] != "present":
        return "bad"
    return "free" if row["owner"] == "none" else None


def _device(row: Row, now: float) -> Sequence[object]:
    where = " ".join(
        dict.fromkeys(text for text in (row["id"], row["pciBusID"]) if text.lower() not in ("", row["name"]))
    )
    held = [tag("div", *_holder(one)) for one in row["holders"]]
    return (
        _with_detail(tag("code", row["name"]), where),
        _health(row),
        _with_detail(Html(join(_lane_words(row["lane"]))), _move(row, now)),
        owner(row) if row["owner"] != "none" else "free",
        Html("".join(held)) if held else "nobody" if row["owner"] == "none" else "an unknown holder",
        age(now, parse_time(row["since"])),
        evidence(row, now),
    )


def _with_detail(first: Html, detail: str) -> Html:
    return Html(first + tag("small", detail)) if detail else first


def _health(row: Row) -> Html:
    well = row["presence"] == "present"
    first = tag("span", "✓ well" if well else f"✕ {row['presence']}", class_="well" if well else "bad")
    return _with_detail(first, row["reason"])


def _move(row: Row, now: float) -> str:
    return f"→ {row['move']['to']}: {move_text(row, now)}" if row["move"] else ""


def _holder(one: Row) -> Iterator[object]:
    yield tag("code", holder(one))
    if one["api"] == "dra":
        yield tag("small", f"{one['phase']}{'; shares ' + ', '.join(one['shares']) if one['shares'] else ''}")


def _refusals(refusals: Sequence[Row], now: float) -> Html:
    title = tag("h2", "Recent refusals")
    if not refusals:
        return tag("section", title, tag("p", "None.", class_="quiet"))
    rows = [(None, _refusal(one, now)) for one in grouped_refusals(refusals)[:REFUSALS_MAX]]
    return tag("section", title, _table("Recent refusals", ("When", "Asked by", "Device", "Reason", "Message"), rows))


def _refusal(one: Row, now: float) -> Sequence[object]:
    when = f"{age(now, parse_time(one['at']))}\N{NO-BREAK SPACE}ago"
    return when, _API.get(one["api"], one["api"]), tag("code", one["device"]), one["reason"], one["message"]


def _endpoints(endpoints: Sequence[Row], now: float) -> Html | None:
    if not endpoints:
        return None
    rows = (
        (
            None if one["ready"] else "bad",
            (
                tag("code", one["name"]),
                _API.get(one["api"], one["api"]),
                tag("span", f"{'✓' if one['ready'] else '✕'} {one['phase']}", class_="well" if one["ready"] else "bad"),
                age(now, parse_time(one["since"])),
                one["error"] or "none",
            ),
        )
        for one in endpoints
    )
    columns = ("Endpoint", "API", "Registration", "Since", "Error")
    return tag("section", tag("h2", "Registered with kubelet"), _table("Endpoints", columns, rows))


def _notes(document: Row) -> Html | None:
    loud = set(document["collisions"])
    notes = [tag("li", note) for note in document["notes"] if note not in loud]
    return tag("section", tag("h2", "Notes"), tag("ul", *notes), class_="notes") if notes else None


def _footer(document: Row, refresh: bool) -> Html:
    rhythm = (
        (f"loaded again every {REFRESH_SECONDS} s", tag("a", "stop that", href="/?refresh=off"))
        if refresh
        else ("not loaded again by itself", tag("a", "do that", href="/"))
    )
    return tag(
        "footer",
        tag("span", "as of ", tag("time", document["at"], datetime=document["at"])),
        tag("span", rhythm[0], ", ", rhythm[1]),
        tag("span", "the same on the node: ", tag("code", "drabridge status")),
    )
