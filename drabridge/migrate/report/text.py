"""Show the report as tables. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec
from msgspec import Struct

from drabridge.kube.features import AskedBy, FeatureState
from drabridge.migrate.report.codes import Severity
from drabridge.migrate.report.model import Obstacle, Report, Ways, number
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


def ways(one: Ways) -> list[str]:
    return [str(count) for count in (one.kubelet, one.dra, one.claims, one.pending)]


def percent(done: int | None) -> str:
    return "-" if done is None else f"{done} %"


def _lines(report: Report, layout: Layout) -> Iterator[str]:
    yield from wrapped(headline(report), layout, "")
    yield from wrapped(filter_line(report), layout, "") if filter_line(report) else ()
    yield ""
    if report.resources:
        yield from _resources(report, layout)
        yield from _namespaces(report, layout)
        yield from _workloads(report, layout)
        if filter_line(report) and not report.workloads:
            yield NOBODY
            yield ""
        for line in LEGEND:
            yield from wrapped(line, layout, "")
    else:
        yield "No node has devices, and no pod asks for one."
    for severity in Severity:
        found = [one for one in report.obstacles if one.severity is severity]
        if found:
            yield ""
            yield f"{severity.upper()}S"
            yield from _obstacles(found, layout)
    yield from _features(report, layout)
    if report.unread:
        yield ""
        yield "NOT READ"
        for one in report.unread:
            yield from wrapped(f"{one.verb} {one.resource}: {one.reason}".strip(), layout, "  ")


def _resources(report: Report, layout: Layout) -> Iterator[str]:
    header = ["resource", "nodes", "allocatable", "in slices", "free", *WAYS, "done"]
    header += ["devices", "by DRA", "claims", "pending", "classes"] if layout.wide else []
    rows = [
        [
            one.name,
            *map(str, (one.nodes, one.allocatable, one.in_slices, one.free_in_slices)),
            *ways(one.pods),
            percent(one.done_percent),
            *([*ways(one.devices), ",".join(one.classes)] if layout.wide else ()),
        ]
        for one in report.resources
    ]
    yield _table(header, rows, layout)
    yield ""


def _namespaces(report: Report, layout: Layout) -> Iterator[str]:
    header = ["namespace", "resource", *WAYS, "done", "fits"]
    spaces = sorted(report.namespaces, key=lambda one: (-sum(use.pods.total for use in one.uses), one.name))
    shown = spaces if layout.wide else spaces[:MOST_ROWS]
    rows = [
        [one.name, use.resource, *ways(use.pods), percent(use.done_percent), one.fits]
        for one in shown
        for use in one.uses
    ]
    if rows:
        yield _table(header, rows, layout)
        yield from _left_out(len(spaces) - len(shown), "namespaces")
    for one in shown:
        yield from wrapped(f"{one.name}: {one.fits}: {one.because}", layout, "  - ")
    yield ""


def _workloads(report: Report, layout: Layout) -> Iterator[str]:
    header = ["namespace", "workload", "resource", "each", *WAYS, *(["owners"] if layout.wide else ())]
    found = sorted(report.workloads, key=lambda one: (-one.pods.total, one.namespace, one.kind, one.name))
    shown = found if layout.wide else found[:MOST_ROWS]
    rows = [
        [
            one.namespace,
            f"{one.kind}/{one.name}",
            one.resource,
            str(one.per_pod or "-"),
            *ways(one.pods),
            *([" < ".join(reversed(one.chain))] if layout.wide else ()),
        ]
        for one in shown
    ]
    if rows:
        yield _table(header, rows, layout)
        yield from _left_out(len(found) - len(shown), "workloads")
        yield ""


def _obstacles(obstacles: Sequence[Obstacle], layout: Layout) -> Iterator[str]:
    for code, group in groupby(obstacles, key=lambda one: one.code):
        same = list(group)
        yield from wrapped(f"{code} ({len(same)}): {same[0].why}", layout, "  ")
        yield from wrapped(f"-> {same[0].action}", layout, "    ", hanging=3)
        shown = same if layout.wide else same[:MOST_OBJECTS]
        for one in shown:
            yield from wrapped(f"{place(one)}{details(one)}", layout, "    - ")
        yield from _left_out(len(same) - len(shown), "objects", "      ")


def place(one: Obstacle) -> str:
    return f"{one.namespace}/{one.object}" if one.namespace else one.object


def details(one: Obstacle) -> str:
    """Return what was seen there, and how many pods it is about: `` (2 pods): nvidia.com/gpu, ...``."""
    counted = f" ({number(one.pods, 'pod')})" if one.pods else ""
    seen = ", ".join(filter(None, (one.resource, one.seen)))
    return f"{counted}: {seen}" if seen else counted


def _features(report: Report, layout: Layout) -> Iterator[str]:
    if lacking := lacking_features(report):
        yield ""
        yield "NOT IN THIS CLUSTER"
        for sentence in lacking:
            yield from wrapped(sentence, layout, "  ")


def lacking_features(report: Report) -> list[str]:
    """Return a sentence for each feature that the cluster lacks, and one about those that could not be asked for."""
    found = [one.sentence for one in report.features if one.sentence and one.name not in OFF_BY_DEFAULT]
    silent = [one for one in report.features if one.state is FeatureState.UNKNOWN and one.asked_by in DRY_RUNS]
    if silent:
        names = ", ".join(one.name for one in silent)
        ways = " and ".join(dict.fromkeys(str(one.asked_by) for one in silent))
        found.append(f"not known, because {ways} was not allowed: {names}")
    return found


def _left_out(count: int, what: str, indent: str = "") -> Iterator[str]:
    if count > 0:
        yield f"{indent}and {count:,} more {what}: -o wide shows all"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], layout: Layout) -> str:
    heads = [one.upper() for one in header]
    return render(heads, [[cut(cell, MOST_WORDS) for cell in row] for row in rows], layout.width, drop_empty=False)


def wrapped(words: str, layout: Layout, indent: str, *, hanging: int = 0) -> Iterator[str]:
    words = cut(words, MOST_WORDS)
    if layout.width is None:
        yield indent + words
        return
    later = " " * (len(indent) + hanging)
    yield from textwrap.wrap(words, layout.width, initial_indent=indent, subsequent_indent=later)


def builtins(report: Report) -> Any:
    """Return the report as JSON and YAML have it."""
    return msgspec.to_builtins(report)
