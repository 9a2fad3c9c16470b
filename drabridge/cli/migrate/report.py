"""``drabridge migrate report``: who uses which devices in a cluster, and what stands in the way of claims."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from msgspec import to_builtins

from drabridge.cli.migrate import cluster
from drabridge.cli.options import OUTPUTS, add_output
from drabridge.cli.output import as_json_or_yaml, cell, now, show_document
from drabridge.errors import ConfigError
from drabridge.kube.client import KubernetesCluster
from drabridge.migrate import survey
from drabridge.migrate.convert.settings import Device
from drabridge.migrate.report import page as report_page
from drabridge.migrate.report import text as report_text
from drabridge.migrate.report.build import Facts, build, check_classes
from drabridge.migrate.report.codes import Severity
from drabridge.migrate.report.collect import collect
from drabridge.migrate.report.document import Filter
from drabridge.migrate.report.readers import cluster_role
from drabridge.migrate.report.text import Layout

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
    text = (
        "read the manifests in these folders or files instead: what of them could move today. Of a cluster, "
        "where a kubeconfig is there, the DeviceClasses alone are asked for"
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FOLDER", help=text)
    add_output(parser, (*OUTPUTS, "html"), "how to print; html is one page without scripts; default: table")
    cluster.add_arguments(parser)
    cluster.add_class(parser, "claims of this DeviceClass count as this resource; may be given several times")
    text = "show only this namespace; may be given several times"
    cluster.add_names(parser, "namespaces", text, "-n", "--namespace")
    text = "show only this resource, and who uses it; may be given several times"
    cluster.add_names(parser, "resources", text, "--resource")
    text = "exit with 1 where there is a blocker, where there is a blocker or a trap, or never; default: blocker"
    parser.add_argument("--fail-on", choices=FAIL_ON, default=FAIL_ON[0], help=text)
    parser.add_argument("--rbac", action="store_true", help="print the ClusterRole that this needs, and end")
    parser.epilog = _EPILOG


def run(arguments: argparse.Namespace) -> int:
    """Print the report.

    Raises ConfigError for a kubeconfig that cannot be used or a resource that is not there, ClusterError for the API
    server's answers.
    """
    if arguments.rbac:
        print(as_json_or_yaml(cluster_role(), "yaml"))
        return 0
    if arguments.files:
        return _survey(arguments)
    logging.getLogger().addHandler(logging.NullHandler())  # the report itself lists unreadable objects
    wanted = Filter(sorted(set(arguments.namespaces)), sorted(set(arguments.resources)))
    facts = cluster.ask(arguments, collected)
    classes = {name: resource for resource, name in arguments.classes}
    if not facts.unread:
        check_classes(classes, facts.named_classes)
    report = build(facts, classes, wanted)
    if arguments.output == "html":
        print(report_page.render(report, now()), end="")
    else:
        wide = arguments.output == "wide"
        document = to_builtins(report)
        show_document(document, arguments.output, lambda width: [report_text.text(report, Layout(width, wide))])
    counting = {"blocker": (Severity.BLOCKER,), "trap": tuple(Severity), "never": ()}[arguments.fail_on]
    return int(any(report.count(severity) for severity in counting))


def _survey(arguments: argparse.Namespace) -> int:
    """Print which manifests in folders can move; return 1 if something is blocked and the caller asked for that."""
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

    def screen(width: int | None) -> list[str]:
        return [cell(line) if line else "" for line in survey.text(found, width).split("\n")]

    if arguments.output == "html":
        print(survey.page(found, now()), end="")
    else:
        show_document(survey.as_data(found), arguments.output, screen)
    return int(arguments.fail_on != "never" and any(one.blocked for one in found.subjects))


async def collected(api: KubernetesCluster) -> Facts:
    """Read a cluster, with progress on a terminal."""
    progress = Progress()
    try:
        return await collect(api, progress)
    finally:
        progress.end()


class Progress:
    """Prints on a terminal what is being read, in one overwritten line. The reading thread calls it."""

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
