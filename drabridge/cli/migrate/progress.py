"""``drabridge migrate status``: show which steps of a plan are done. Reads two files, and no cluster."""

from __future__ import annotations

import argparse
from pathlib import Path

from drabridge.cli.options import add_output
from drabridge.cli.output import show
from drabridge.migrate.apply.state import State, state_path
from drabridge.migrate.plan.document import load

_EPILOG = """\
examples:
  drabridge migrate status plan.yaml
  drabridge migrate status plan.yaml -o json"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN", help="the file that `drabridge migrate plan --write` made")
    add_output(parser)
    parser.epilog = _EPILOG


def run(arguments: argparse.Namespace) -> int:
    """Print a row for each step. Raises ConfigError for a plan, or a state, that cannot be read."""
    plan = load(arguments.plan)
    state = State(state_path(arguments.plan), plan)
    rows = []
    for step in plan.steps:
        record = state.of(step)
        rows.append(
            {
                "step": step.name,
                "state": record.progress.value if record else "to do",
                "since": record.since if record else "",
                "pods": sum(move.pods for move in step.moves),
                "fits": "no" if step.missing else "yes",
            }
        )
    show(rows, arguments.output, columns=("step", "state", "since", "pods", "fits"))
    return 0
