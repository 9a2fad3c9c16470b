"""``python -m tests.gpu``: what a machine with an NVIDIA GPU has to show, step by step."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

EXAMPLES = """\
examples:
  python -m tests.gpu run                               on a machine with a driver, as root
  python -m tests.gpu pack build/gpu --python 3.12      for a machine without network: two pieces, below build/gpu
  python -m tests.gpu run --programs build/gpu          there
  umockdev-wrapper python -m tests.gpu run --simulated  with stand-ins for GPU, driver and node, as in make test
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m tests.gpu",
        description=__doc__.partition(": ")[2],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the steps; exit status 1 if one failed")
    run.add_argument("--simulated", action="store_true", help="on the simulated node, with stand-ins")
    run.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    run.add_argument("--step", action="append", default=[], metavar="NAME", help="only this one and takeover")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    from tests.gpu.stand_ins import simulated_ground
    from tests.gpu.steps import play, report

    async with simulated_ground() as ground:
        results = await play(ground, lambda text: print(text, flush=True), options.step)
    if options.json:
        options.json.write_text(report(results, {}))
    return int(any(one.outcome == "failed" for one in results))


if __name__ == "__main__":
    sys.exit(main())
