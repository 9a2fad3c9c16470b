"""``drabridge migrate report``: who uses which devices in a cluster, and what stands in the way of claims."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from drabridge.cli.migrate import cluster
from drabridge.cli.output import OUTPUTS, as_json_or_yaml, cell, terminal_width
from drabridge.errors import ConfigError

if TYPE_CHECKING:
    from drabridge.kube.client import KubernetesCluster
    from drabridge.migrate.report.build import Facts
    from drabridge.migrate.report.model import Report

PROGRESS_SECONDS = 0.2  # between two lines of progress
FAIL_ON = ("blocker", "trap", "never")

_EPILOG = """\
Asks the API server alone, and writes nothing; two objects are tried by dry
runs, where you may. Nothing of drabridge needs to be installed in the cluster.
What you have no right to read is named, and the rest is reported. With -n and
--resource it shows less, and the exit status is about what is shown; what is
wrong with the whole cluster stays.

examples:
  drabridge migrate report
  drabridge migrate report -o wide
  drabridge migrate report -n team-a -n team-b --resource nvidia.com/gpu
  drabridge migrate report -o html > report.html
  drabridge migrate report --class nvidia.com/gpu=gpu.example.com
  drabridge migrate report deploy/ -o html > moves.html
  drabridge migrate report --rbac | kubectl apply -f -

exit status: 0 nothing blocks, 1 something does (--fail-on says what counts)
or the cluster cannot be read, 2 bad usage"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FOLDER",
        help="read the manifests in these folders or files instead: what of them could move today. Of a cluster, "
        "where a kubeconfig is there, the DeviceClasses alone are asked for",
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=(*OUTPUTS, "html"),
        default=OUTPUTS[0],
        help="how to print; html is one page without scripts; default: table",
    )
    cluster.add_arguments(parser)
    cluster.add_class(parser, "claims of this DeviceClass count as this resource; may be given several times")
    parser.add_argument(
        "-n",
        "--namespace",
        dest="namespaces",
        action="append",
        default=[],
        metavar="NAME",
        help="show only this namespace; may be given several times",
    )
    parser.add_argument(
        "--resource",
        dest="resources",
        action="append",
        default=[],
        metavar="NAME",
        help="show only this resource, and who uses it; may be given several times",
    )
    parser.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        default=FAIL_ON[0],
        help="exit with 1 where there is a blocker, where there is a blocker or a trap, or never; default: blocker",
    )
    parser.add_argument("--rbac", action="store_true", help="print the ClusterRole that this needs, and end")
    parser.epilog = _EPILOG


def run(arguments: argparse.Namespace) -> int:
    """Print the report.

    Raises ConfigError for a kubeconfig that cannot be used or a resource that is not there, ClusterError for the API
    server's answers.
    """
    if arguments.rbac:
        from drabridge.migrate.report.facts import cluster_role

        print(as_json_or_yaml(cluster_role(), "yaml"))
        return 0
    if arguments.files:
        return _survey(arguments)
    from drabridge.migrate.report.build import Filter, build, check_classes

    logging.getLogger().addHandler(logging.NullHandler())  # what is logged of strange objects is in the report
    api = cluster.connect(arguments.kubeconfig, arguments.context)
    wanted = Filter(frozenset(arguments.namespaces), frozenset(arguments.resources))
    facts = asyncio.run(collected(api))
    classes = {name: resource for resource, name in arguments.classes}
    if not facts.unread:
        check_classes(classes, facts.named_classes)
    report = build(facts, classes, wanted)
    _print(report, arguments.output)
    return _status(report, arguments.fail_on)


def _survey(arguments: argparse.Namespace) -> int:
    """Print what of the manifests in folders moves; return 1 where something is blocked, if that counts."""
    from drabridge.migrate import survey
    from drabridge.migrate.convert.settings import Device

    if arguments.namespaces or arguments.resources:
        raise ConfigError("-n and --resource are for a cluster", hint="Name fewer folders, or give --class")
    if gone := [str(path) for path in arguments.files if not path.exists()]:
        raise ConfigError(f"there is no {', '.join(gone)}", hint="Name folders or files with manifests")
    progress = Progress()
    try:
        devices = {resource: Device(name) for resource, name in arguments.classes}
        classes, why = ({}, "") if devices else cluster.classes_if_there(arguments)
        if why:
            print(cell(f"note: DeviceClasses are the vendors': {why}"), file=sys.stderr)
        found = survey.survey_folders(arguments.files, devices, progress, classes)
    finally:
        progress.end()
    if arguments.output in ("json", "yaml"):
        print(as_json_or_yaml(survey.as_data(found), arguments.output))
    elif arguments.output == "html":
        print(survey.page(found, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")), end="")
    else:
        for line in survey.text(found, terminal_width(arguments.output)).split("\n"):
            print(cell(line) if line else "")
    return int(arguments.fail_on != "never" and any(one.blocked for one in found.subjects))


async def collected(api: KubernetesCluster) -> Facts:
    """Read a cluster with progress on a terminal, and close the connection."""
    from drabridge.migrate.report.collect import collect

    progress = Progress()
    try:
        return await collect(api, progress)
    finally:
        progress.end()
        api.close()


def _print(report: Report, output: str) -> None:
    from drabridge.migrate.report import text

    if output in ("json", "yaml"):
        print(as_json_or_yaml(text.builtins(report), output))
    elif output == "html":
        from drabridge.migrate.report import page

        print(page.render(report, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")), end="")
    else:
        print(text.text(report, text.Layout(terminal_width(output), output == "wide")))


def _status(report: Report, fail_on: str) -> int:
    from drabridge.migrate.report.codes import Severity

    counting = {"blocker": (Severity.BLOCKER,), "trap": tuple(Severity), "never": ()}[fail_on]
    return int(any(report.count(severity) for severity in counting))


class Progress:
    """Says on a terminal what is read, in one line that is written over. The thread that reads calls it."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._next_seconds = 0.0
        self._written = False

    def __call__(self, kind: str, count: int) -> None:
        if self._shown and (now := time.monotonic()) >= self._next_seconds:
            self._next_seconds = now + PROGRESS_SECONDS
            self._written = True
            print(f"\r\033[Kreading {kind}: {count:,}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        self._shown = False
        if self._written:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
