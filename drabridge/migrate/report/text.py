"""Show the report as tables. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from drabridge.kube.features import AskedBy, FeatureState
from drabridge.migrate.report.codes import Severity
from drabridge.migrate.report.document import Obstacle, Report, Ways, number
from drabridge.offers.slices import OFF_BY_DEFAULT
from drabridge.system.untrusted import cut
from podresources.table import render

MOST_ROWS = 20  # of namespaces and workloads; -o wide shows all
MOST_OBJECTS = 5  # of one code
MOST_WORDS = 2000  # characters of a cell, or of a paragraph

NOBODY = "No pod and no workload of those asks for a device."
DRY_RUNS = (AskedBy.DEVICE_CLASS, AskedBy.SLICE)
WAYS = ("limits", "by DRA", "claims", "pending")
LEGEND = (
    "FREE: devices in slices that no claim holds.",
    "Pods by way: limits that kubelet serves, limits that DRA serves, claims; pending pods have no node yet.",
    "DONE: pods that DRA serves, of those with a node.",
    "FITS: convert (rewrite the manifests to claims), switch (a MutatingAdmissionPolicy rewrites pods at creation), "
    "limits (keep them, and let DRA serve them), switched (its new pods get claims), done.",
)


class Layout(Struct, frozen=True):
    """How to show it. ``width``: characters of a line, None for any number; ``wide``: everything."""

    width: int | None
    wide: bool


def text(report: Report, layout: Layout) -> str:
    """Return the report for a terminal, or for a pipe."""
    return "\n".join(_lines(report, layout))


def headline(report: Report) -> str:
    """Return the report in one line."""
    counts = ", ".join(number(report.count(severity), severity) for severity in Severity)
    read = f"{number(report.nodes, 'node')}, {number(report.pods, 'pod')}"
    return f"Kubernetes {report.server_version}, {read} read: {counts}"


def filter_line(report: Report) -> str:
    """Return what the report is limited to; "" where it shows everything."""
    names = (("namespace", report.filter.namespaces), ("resource", report.filter.resources))
    words = [f"{one}{'s' if len(found) > 1 else ''} {', '.join(found)}" for one, found in names if found]
    if not words:
        return ""
    return f"Shown: {'; '.join(words)}. Nodes, slices and obstacles without a namespace are the cluster's."


def _lines(report: Report, layout: Layout) -> Iterator[str]:
    yield from wrapped(headline(report), layout, "")
    yield from wrapped(filter_line(report), layout, "") if filter_line(report) else ()
    yield ""
    if report.resources:
        for table in tables(report, None if layout.wide else MOST_ROWS, wide=layout.wide):
            yield from _table(table, layout)
        if filter_line(report) and not report.workloads:
            yield NOBODY
            yield ""
        for line in LEGEND:
            yield from wrapped(line, layout, "")
    else:
        yield "No node has devices, and no pod asks for one."
    for severity, codes in by_code(report).items():
        yield ""
        yield f"{severity.upper()}S"
        for same in codes:
            yield from _obstacles(same, layout)
    if lacking := lacking_features(report):
        yield ""
        yield "NOT IN THIS CLUSTER"
        for sentence in lacking:
            yield from wrapped(sentence, layout, "  ")
    if report.unread:
        yield ""
        yield "NOT READ"
        for one in report.unread:
            yield from wrapped(f"{one.verb} {one.resource}: {one.reason}".strip(), layout, "  ")


class Table(Struct, frozen=True):
    """One table of the report. ``left_out``: how many more of these there are; ``notes``: sentences below it.

    ``named``: so many cells at the front say what a row is about; ``pods``: the same of each row as a bar shows it.
    """

    title: str
    named: int
    columns: tuple[str, ...]
    rows: list[list[str]]
    pods: list[Ways]
    left_out: int = 0
    notes: Sequence[str] = ()


def tables(report: Report, most: int | None, *, wide: bool) -> Iterator[Table]:
    """Yield the tables of resources, namespaces and workloads. ``most``: of namespaces and workloads; None: all."""
    columns: tuple[str, ...] = ("resource", "nodes", "allocatable", "in slices", "free", *WAYS, "done")
    rows = [
        [
            one.name,
            *map(str, (one.nodes, one.allocatable, one.in_slices, one.free_in_slices)),
            *_ways(one.pods),
            _percent(one.done_percent),
            *([*_ways(one.devices), ",".join(one.classes)] if wide else ()),
        ]
        for one in report.resources
    ]
    columns += ("devices", *WAYS[1:], "classes") if wide else ()
    yield Table("resources", 1, columns, rows, [one.pods for one in report.resources])
    spaces = sorted(report.namespaces, key=lambda one: (-sum(use.pods.total for use in one.uses), one.name))
    shown = spaces[:most]
    uses = [(one, use) for one in shown for use in one.uses]
    columns = ("namespace", "resource", *WAYS, "done", "fits")
    rows = [[one.name, use.resource, *_ways(use.pods), _percent(use.done_percent), one.fits] for one, use in uses]
    notes = [f"{one.name}: {one.fits}: {one.because}" for one in shown]
    yield Table("namespaces", 2, columns, rows, [use.pods for _, use in uses], len(spaces) - len(shown), notes)
    found = sorted(report.workloads, key=lambda one: (-one.pods.total, one.namespace, one.kind, one.name))
    columns = ("namespace", "workload", "resource", "each", *WAYS, *(("owners",) if wide else ()))
    rows = [
        [
            one.namespace,
            f"{one.kind}/{one.name}",
            one.resource,
            str(one.per_pod or "-"),
            *_ways(one.pods),
            *([" < ".join(reversed(one.chain))] if wide else ()),
        ]
        for one in found[:most]
    ]
    yield Table("workloads", 3, columns, rows, [one.pods for one in found[:most]], len(found) - len(rows))


def by_code(report: Report) -> dict[Severity, list[list[Obstacle]]]:
    """Return the obstacles of each severity that there is, those of one code together."""
    found: dict[Severity, list[list[Obstacle]]] = {}
    for _, same in groupby(report.obstacles, key=lambda one: one.code):
        group = list(same)
        found.setdefault(group[0].severity, []).append(group)
    return found


def _ways(one: Ways) -> list[str]:
    return [str(count) for count in (one.kubelet, one.dra, one.claims, one.pending)]


def _percent(done: int | None) -> str:
    return "-" if done is None else f"{done} %"


def _table(table: Table, layout: Layout) -> Iterator[str]:
    if table.rows:
        heads = [one.upper() for one in table.columns]
        rows = [[cut(cell, MOST_WORDS) for cell in row] for row in table.rows]
        yield render(heads, rows, layout.width, drop_empty=False)
        yield from _left_out(table.left_out, table.title)
    for note in table.notes:
        yield from wrapped(note, layout, "  - ")
    if table.rows or table.notes:
        yield ""


def _obstacles(same: list[Obstacle], layout: Layout) -> Iterator[str]:
    yield from wrapped(f"{same[0].code} ({len(same)}): {same[0].why}", layout, "  ")
    yield from wrapped(f"-> {same[0].action}", layout, "    ", hanging=3)
    shown = same if layout.wide else same[:MOST_OBJECTS]
    for one in shown:
        yield from wrapped(f"{place(one)}{details(one)}", layout, "    - ")
    yield from _left_out(len(same) - len(shown), "objects", "      ")


def _left_out(count: int, what: str, indent: str = "") -> Iterator[str]:
    if count > 0:
        yield f"{indent}and {count:,} more {what}: -o wide shows all"


def place(one: Obstacle) -> str:
    return f"{one.namespace}/{one.object}" if one.namespace else one.object


def details(one: Obstacle) -> str:
    """Return what was seen there, and how many pods it is about: `` (2 pods): nvidia.com/gpu, ...``."""
    counted = f" ({number(one.pods, 'pod')})" if one.pods else ""
    seen = ", ".join(filter(None, (one.resource, one.seen)))
    return f"{counted}: {seen}" if seen else counted


def lacking_features(report: Report) -> list[str]:
    """Return a sentence for each feature that the cluster lacks, and one about those that could not be asked for."""
    found = [one.sentence for one in report.features if one.sentence and one.name not in OFF_BY_DEFAULT]
    silent = [one for one in report.features if one.state is FeatureState.UNKNOWN and one.asked_by in DRY_RUNS]
    if silent:
        names = ", ".join(one.name for one in silent)
        ways = " and ".join(dict.fromkeys(str(one.asked_by) for one in silent))
        found.append(f"not known, because {ways} was not allowed: {names}")
    return found


def wrapped(words: str, layout: Layout, indent: str, *, hanging: int = 0) -> Iterator[str]:
    words = cut(words, MOST_WORDS)
    if layout.width is None:
        yield indent + words
        return
    later = " " * (len(indent) + hanging)
    yield from textwrap.wrap(words, layout.width, initial_indent=indent, subsequent_indent=later)
