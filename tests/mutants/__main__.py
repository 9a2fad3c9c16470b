"""``python -m tests.mutants drabridge/dra/leases.py``: which small faults of a module would its tests not see?

Works in a copy of the packages, so it changes nothing here, and several may run at once.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.mutations import Mutation, mutations

ROOT = Path(__file__).parents[2]
COPIED = ("drabridge", "deviceplugin", "podresources", "tests", "deploy", "docs", "proto")
FILES = ("pyproject.toml", "CHANGELOG.md", "README.md", "hatch_build.py")
SURVIVORS = 0.05  # so many at most of a sample are no reason for more tests
STUCK = "ran into the time limit"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description="Break a module in one small way after the other (a condition, a statement or an argument less), "
        "and run its tests each time. Prints what no test saw. Exit status 1 when that is more than one in twenty.",
        epilog="example: python -m tests.mutants drabridge/lanes/shared.py --tests tests/lanes --count 20",
    )
    parser.add_argument("module", type=Path, help="the file to break")
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="default: those that import the module")
    parser.add_argument("--count", type=int, default=40, help="so many, chosen at random (default 40; 0: all)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the changes, and run nothing")
    given = parser.parse_args()
    module = given.module.resolve().relative_to(ROOT)
    source = (ROOT / module).read_text()
    chosen = sample(mutations(source), given.count, given.seed)
    if given.list:
        for one in chosen:
            print(f"{module}:{one.line}: {one.what}")
        return 0
    tests = given.tests or importers(module)
    if not tests:
        parser.error(f"no test file imports {module}: name them with --tests")
    print(f"{len(chosen)} changes of {module}; tests: {' '.join(tests)}", flush=True)
    return hunt(module, source, chosen, tests)


def sample(found: Sequence[Mutation], count: int, seed: int) -> list[Mutation]:
    """Choose ``count`` of them, in their order; all with 0."""
    if not count or count >= len(found):
        return list(found)
    return sorted(random.Random(seed).sample(found, count), key=lambda one: one.start)


def importers(module: Path) -> list[str]:
    """Return the test files that import the module by name."""
    package, name = ".".join(module.parent.parts), module.stem
    words = (f"from {package}.{name} import", f"from {package} import {name}\n", f"import {package}.{name}\n")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(one.relative_to(ROOT)) for one in files if any(word in one.read_text() for word in words)]


def hunt(module: Path, source: str, chosen: Sequence[Mutation], tests: Sequence[str]) -> int:
    """Run the tests on each change; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        place = Path(folder)
        for name in COPIED:
            shutil.copytree(ROOT / name, place / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            shutil.copy(ROOT / name, place / name)
        began = time.monotonic()
        if why := run(place, tests, 3600.0):
            print(f"the tests fail on the module as it is: {why}", file=sys.stderr)
            return 2
        limit = 60.0 + 5 * (time.monotonic() - began)
        survivors = []
        for number, one in enumerate(chosen, start=1):
            (place / module).write_text(one.apply(source))
            why = run(place, tests, limit)
            print(f"{number:4}/{len(chosen)}  {module}:{one.line}: {one.what}: {why or 'NOBODY SAW IT'}", flush=True)
            survivors += [] if why else [one]
    print(f"{len(survivors)} of {len(chosen)} were not seen")
    for one in survivors:
        print(f"  {module}:{one.line}: {one.what}")
    return int(len(survivors) > SURVIVORS * len(chosen))


def run(place: Path, tests: Sequence[str], limit: float) -> str:
    """Run the tests in the copy; returns which one failed, or "" if none did."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return STUCK
    if done.returncode == 0:
        return ""
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].partition(" - ")[0].partition(" ")[2] if lines else f"exit status {done.returncode}"


if __name__ == "__main__":
    sys.exit(main())
