"""``drabridge migrate verify``: say which workloads are on claims, and which fell back."""

from __future__ import annotations

import argparse
from pathlib import Path

from drabridge.cli.migrate import cluster
from drabridge.cli.migrate.report import collected
from drabridge.cli.options import OUTPUTS, add_output
from drabridge.cli.output import cell, show
from drabridge.migrate.apply.state import Progress, State, state_path
from drabridge.migrate.plan.document import load
from drabridge.migrate.plan.text import BACK, gone, verified
from drabridge.migrate.report.build import build

_EPILOG = """\
Reads the cluster, as `report` does, and writes nothing. A workload fell back
where it has pods with limits although its step of the PLAN is done, or beside
others with claims: what installed it brought the old manifest again.

examples:
  drabridge migrate verify
  drabridge migrate verify plan.yaml
  drabridge migrate verify -o json

exit status: 0 nothing fell back, 1 something did, 2 bad usage"""


def configure(parser: argparse.ArgumentParser) -> None:
    text = "what its done steps brought to claims must be on claims"
    parser.add_argument("plan", nargs="?", type=Path, metavar="PLAN", help=text)
    cluster.add_class(parser, "claims of this DeviceClass count as this resource; may be given several times")
    add_output(parser)
    cluster.add_arguments(parser)
    parser.epilog = _EPILOG


def run(arguments: argparse.Namespace) -> int:
    """Print a row for each workload. Raises ConfigError and ClusterError as `report` and `status` do."""
    done, classes = _done(arguments.plan)
    classes |= {name: resource for resource, name in arguments.classes}
    report = build(cluster.ask(arguments, collected), classes)
    rows = verified(report, done)
    show(rows, arguments.output, columns=("namespace", "workload", "resource", "limits", "claims", "state"))
    if arguments.output == OUTPUTS[0]:
        for namespace, name in gone(done, rows):
            print(cell(f"note: {namespace}/{name} has no devices any more, or is gone"))
    return int(any(row["state"] == BACK for row in rows))


def _done(path: Path | None) -> tuple[set[tuple[str, str]], dict[str, str]]:
    """Return the workloads that a plan's steps moved to claims, and the plan's DeviceClass -> resource."""
    if path is None:
        return set(), {}
    plan = load(path)
    state = State(state_path(path), plan)
    steps = [step for step in plan.steps if (record := state.of(step)) and record.progress is Progress.DONE]
    return {(step.namespace, move.object) for step in steps for move in step.moves}, {plan.device_class: plan.resource}
