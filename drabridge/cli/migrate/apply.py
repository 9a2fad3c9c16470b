"""``drabridge migrate apply``: do the next steps of a plan."""

from __future__ import annotations

import argparse

from drabridge.cli.migrate.following import add_arguments, follow, place_of
from drabridge.errors import ConfigError
from drabridge.migrate.apply.runner import Options, Runner, next_step
from drabridge.migrate.apply.state import State
from drabridge.migrate.plan.document import Plan

_EPILOG = """\
Does one step: gives claims the devices that the plan says and waits for the
agents, switches the namespace or applies the converted manifests, then rolls
workloads out and waits for them. Stops at the first thing that is not as
planned. What was there before is kept in PLAN.state.json. The command may be
interrupted at any time: the same command goes on, `rollback` goes back.

examples:
  drabridge migrate apply plan.yaml
  drabridge migrate apply plan.yaml --until team-b
  drabridge migrate apply plan.yaml --all -o json
  drabridge migrate apply plan.yaml --lanes-only --wait-for-manifests

exit status: 0 done, 1 something is not as planned, 2 bad usage, 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    how_far = parser.add_mutually_exclusive_group()
    how_far.add_argument("--until", metavar="STEP", help="do every step up to this one; default: the next step only")
    how_far.add_argument("--all", action="store_true", help="do every step")
    text = "change lanes only: what pods ask for is changed by your own repository"
    parser.add_argument("--lanes-only", action="store_true", help=text)
    text = "with --lanes-only: wait until no pod of the step has limits"
    parser.add_argument("--wait-for-manifests", action="store_true", help=text)
    add_arguments(parser)
    parser.epilog = _EPILOG


def run(arguments: argparse.Namespace) -> int:
    """Do the steps. Raises ConfigError if something differs from the plan, ClusterError if the API server fails."""
    if arguments.wait_for_manifests and not arguments.lanes_only:
        raise ConfigError("--wait-for-manifests belongs to --lanes-only")
    options = Options(arguments.wait, arguments.lanes_only, arguments.wait_for_manifests)

    async def act(plan: Plan, state: State, runner: Runner) -> None:
        last = place_of(plan, arguments.until) if arguments.until else len(plan.steps) - 1
        one = not (arguments.all or arguments.until)
        while (step := next_step(plan, state)) is not None and place_of(plan, step.name) <= last:
            await runner.apply(step)
            if one:
                break
        if arguments.output == "text":
            following = next_step(plan, state)
            print(f"next: {following.name}" if following else "every step of the plan is done")

    return follow(arguments, options, act)
