"""``drabridge demo``: a real agent on this machine's devices beside a simulated cluster, step by step."""

from __future__ import annotations

import argparse
import asyncio
from importlib.util import find_spec

from drabridge.errors import HostError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="wait before each step")
    parser.add_argument(
        "--stay", action="store_true", help="keep the agent up at the end, and say what to try from a second terminal"
    )
    parser.epilog = (
        "A real agent and real devices of this machine; kubelet, API server and containers are simulated, and it\n"
        "says so. As root it makes loop devices, plugs them in and out, and removes them at the end.\n\n"
        "examples:\n"
        "  drabridge demo\n"
        "  drabridge demo --pause 2\n"
        "  drabridge demo --stay        # until Ctrl-C"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo. Raises HostError where the simulation is not installed.

    The agent's image leaves it out.
    """
    if find_spec("celpy") is None or find_spec("drabridge.sim") is None:
        raise HostError("the demo's simulated cluster is not installed", hint="pip install 'drabridge[demo]'")
    from drabridge.cli.demo.hardware import choose
    from drabridge.cli.demo.narrator import Narrator
    from drabridge.cli.demo.story import Story

    asyncio.run(Story(choose(), Narrator(pause_seconds=arguments.pause), stay=arguments.stay).run())
    return 0
