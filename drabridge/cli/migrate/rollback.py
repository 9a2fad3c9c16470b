"""``drabridge migrate rollback``: undo the last steps of a plan."""

from __future__ import annotations

import argparse

from drabridge.cli.migrate.following import add_arguments, follow, place_of
from drabridge.migrate.apply.runner import Options, Runner, undoable
from drabridge.migrate.apply.state import State
from drabridge.migrate.plan.document import Plan

_EPILOG = """\
Undoes the last step that was begun: lanes, the namespace's switch or the
manifests become what they were, byte for byte, and what the step rolled out is
rolled out again. ResourceClaimTemplates stay: pods that run may use them.

examples:
  drabridge migrate rollback plan.yaml
  drabridge migrate rollback plan.yaml --to team-b
  drabridge migrate rollback plan.yaml --all

exit status: 0 done, 1 something cannot be undone, 2 bad usage, 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    how_far = parser.add_mutually_exclusive_group()
    how_far.add_argument("--to", metavar="STEP", help="undo every step after this one; default: the last step only")
    how_far.add_argument("--all", action="store_true", help="undo every step")
    add_arguments(parser)
    parser.epilog = _EPILOG


def run(arguments: argparse.Namespace) -> int:
    """Undo steps. Raises ConfigError if one cannot be undone, ClusterError if the API server fails."""

    async def act(plan: Plan, state: State, runner: Runner) -> None:
        steps = undoable(plan, state)
        if arguments.to:
            last = place_of(plan, arguments.to)
            steps = [step for step in steps if place_of(plan, step.name) > last]
        elif not arguments.all:
            steps = steps[:1]
        for step in steps:
            await runner.undo(step)
        if arguments.output == "text" and not steps:
            print("no step is done: there is nothing to undo")

    return follow(arguments, Options(arguments.wait), act)
