"""``python -m tests.gpu``: what a machine with an NVIDIA GPU has to show, step by step."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.node.errors import NodeError
from tests.node.releases import DEFAULT, release

ROOT = Path(__file__).resolve().parents[2]
NVIDIA = ("nvidia-device-plugin", "gpu-kubelet-plugin", "nvidia-ctk", "nvidia-cdi-hook")
UNPACKED = "DRABRIDGE_GPU_UNPACKED"  # set in the second of two processes
EXAMPLES = """\
examples:
  sudo python -m tests.gpu run --json build/gpu.json     on a machine with a driver and Go, with network
  python -m tests.gpu pack build/gpu --python 3.12       for a machine without: build/gpu/1, build/gpu/2
  sudo python3 -m tests.gpu run --programs build/gpu     there, in the same checkout
  umockdev-wrapper python -m tests.gpu run --simulated   no GPU, no node: as in make test
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m tests.gpu",
        description="What a machine with an NVIDIA GPU has to show, step by step, on a real node of one's own. It "
        "changes no clocks, no MIG and no persistence, and resets nothing.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the steps; exit status 1 if one failed, 2 if nothing was tried")
    run.add_argument("--programs", type=Path, metavar="FOLDER", help="take all from what `pack` wrote there")
    run.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    run.add_argument("--step", action="append", default=[], metavar="NAME", help="only this one, and takeover")
    run.add_argument("--stand-in", action="store_true", help="no GPU: /dev/zero, and a stand-in for CUDA")
    run.add_argument("--simulated", action="store_true", help="no node either; under umockdev-wrapper")
    pack = commands.add_parser("pack", help="write what `run` needs on a machine without network")
    pack.add_argument("folder", type=Path, metavar="FOLDER", help="it is emptied first")
    here = platform.python_version()
    pack.add_argument("--python", default=here, metavar="VERSION", help="of that machine (default: %(default)s)")
    for one in (run, pack):
        one.add_argument("--release", default=DEFAULT, help="of Kubernetes (default: %(default)s)")
        for name in NVIDIA:
            one.add_argument(
                f"--{name}", default=shutil.which(name) or "", metavar="PROGRAM", help="if it is not found"
            )
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0, 1 where a step failed, 2 where nothing was tried."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs this in the background has it ignored
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        release(options.release)
        if options.command == "pack":
            return _pack(options)
        if options.programs and UNPACKED not in os.environ:
            _again(options.programs)
        return asyncio.run(_run(options))
    except NodeError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _programs(options: argparse.Namespace) -> dict[str, str]:
    return {name: getattr(options, name.replace("-", "_")) for name in NVIDIA}


def _pack(options: argparse.Namespace) -> int:
    from tests.gpu.pack import pack

    for piece in pack(options.folder, options.python, options.release, _programs(options)):
        print(f"{piece}  {sum(one.stat().st_size for one in piece.iterdir()) / (1 << 20):.1f} MiB")
    return 0


def _again(folder: Path) -> None:
    """Become a Python that has what the pieces have."""
    from tests.gpu.pack import unpack

    found = unpack(folder.resolve())
    path = f"{os.environ.get('PATH', '')}:{found.pop('PATH')}"  # the machine's own programs first
    words = [sys.executable, "-m", "tests.gpu", *sys.argv[1:]]
    os.execve(sys.executable, words, {**os.environ, **found, "PATH": path, UNPACKED: "1"})


async def _run(options: argparse.Namespace) -> int:
    from tests.gpu.real import real_ground
    from tests.gpu.stand_ins import simulated_ground
    from tests.gpu.steps import SkipStep, play, report

    ground = (
        simulated_ground()
        if options.simulated
        else real_ground(options.release, _programs(options), stand_in=options.stand_in)
    )
    async with ground as g:
        machine: dict[str, Any] = {"kernel": platform.release(), "kubernetes": release(options.release).version}
        try:
            machine |= g.nvml()
        except SkipStep as reason:
            machine["nvml"] = str(reason)
        print(json.dumps(machine), flush=True)
        results = await play(g, lambda text: print(text, flush=True), options.step)
        machine["slices"] = {"NVIDIA's": g.theirs, "ours": g.ours}
    if options.json:
        options.json.write_text(report(results, machine))
    counts = [sum(one.outcome == name for one in results) for name in ("ok", "failed", "skipped")]
    print("{} ok, {} failed, {} skipped in {:.0f} s".format(*counts, sum(one.seconds for one in results)))
    return int(any(one.outcome == "failed" for one in results))


if __name__ == "__main__":
    sys.exit(main())
