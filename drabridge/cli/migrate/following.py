"""Share among ``apply``, ``rollback`` and ``status``: a plan, its state, and progress messages."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from drabridge.cli.migrate import cluster
from drabridge.cli.options import add_output, seconds
from drabridge.cli.output import cell
from drabridge.config.problems import did_you_mean
from drabridge.errors import ConfigError
from drabridge.kube.client import KubernetesCluster
from drabridge.migrate.apply.runner import Options, Runner
from drabridge.migrate.apply.state import State, alone, state_path
from drabridge.migrate.apply.waiting import Event
from drabridge.migrate.plan.document import Plan, load

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the commands that change a cluster."""
    parser.add_argument("plan", type=Path, metavar="PLAN", help="the file that `drabridge migrate plan --write` made")
    text = "how long to wait for each thing: devices, a rollout; default: 1800"
    parser.add_argument("--wait", type=seconds(604_800), default=1800.0, metavar="SECONDS", help=text)
    add_output(parser, ("text", "json"), "json: an event in each line")
    cluster.add_arguments(parser)


def place_of(plan: Plan, name: str) -> int:
    """Return the index of the step with this name. Raises ConfigError if there is none."""
    names = [step.name for step in plan.steps]
    if name not in names:
        hint = did_you_mean(name, names) or f"It has {', '.join(names)}"
        raise ConfigError(f"the plan has no step {name}", hint=hint)
    return names.index(name)


def follow(
    arguments: argparse.Namespace,
    options: Options,
    act: Callable[[Plan, State, Runner], Awaitable[None]],
) -> int:
    """Run ``act`` on the cluster, as the only command. If interrupted, say how to continue."""
    teller = Teller(arguments.output)

    plan = load(arguments.plan)
    with alone(arguments.plan):
        state = State(state_path(arguments.plan), plan)

        async def work(api: KubernetesCluster) -> None:
            runner = Runner(api, plan, state, arguments.plan.absolute().parent, options, teller)
            await runner.check()
            await act(plan, state, runner)

        try:
            cluster.ask(arguments, work)
        except KeyboardInterrupt:
            teller.end()
            print(
                f"interrupted: the same command goes on here; drabridge migrate rollback {arguments.plan} goes back",
                file=sys.stderr,
            )
            return INTERRUPTED
        finally:
            teller.end()
    return 0


class Teller:
    """Prints progress: a line for each finished thing; on a terminal, one line that is overwritten while waiting."""

    def __init__(self, output: str) -> None:
        self._json = output == "json"
        self._terminal = sys.stdout.isatty()
        self._waiting = ""
        self._said = ""

    def __call__(self, event: Event) -> None:
        if self._json:
            words = {"step": event.step, "object": event.object, "message": event.message}
            waited = {} if event.waited is None else {"waitedSeconds": round(event.waited, 1)}
            print(json.dumps(words | waited), flush=True)
            return
        line = cell(f"{event.step}: {event.object}: {event.message}")
        if event.waited is None:
            self.end()
            print(line, flush=True)
        elif self._terminal:
            self._waiting = f"{line} ({event.waited:.0f} s)"
            print(f"\r\033[K{self._waiting}", end="", flush=True)
        elif line != self._said:  # once for each thing that is waited for
            self._said = line
            print(f"{line} ...", flush=True)

    def end(self) -> None:
        """Clear the overwritten line."""
        if self._waiting:
            self._waiting = ""
            print("\r\033[K", end="", flush=True)
