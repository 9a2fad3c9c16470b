"""``drabridge demo``"""

from __future__ import annotations

import argparse
import asyncio


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="wait before each step")
    parser.epilog = (
        "A real agent and real devices of this machine; kubelet, API server and containers are simulated, and it\n"
        "says so. As root it makes loop devices, plugs them in and out, and removes them at the end.\n\n"
        "examples:\n"
        "  drabridge demo\n"
        "  drabridge demo --pause 2"
    )


def run(arguments: argparse.Namespace) -> int:
    from drabridge.demo.hardware import choose
    from drabridge.demo.narrator import Narrator
    from drabridge.demo.story import Story

    asyncio.run(Story(choose(), Narrator(pause_seconds=arguments.pause)).run())
    return 0
