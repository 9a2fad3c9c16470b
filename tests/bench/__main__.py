"""``python -m tests.bench``: run the benchmarks, print a table, keep the numbers as JSON.

Processes start from compiled modules, as they do after an installation and in the image, whatever the shell says about
writing bytecode: compiling a hundred modules at every start takes 0.2 s.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import json
import pkgutil
import sys
from dataclasses import asdict
from pathlib import Path

import tests.bench as package
from tests.bench import history, peers
from tests.bench.core import Benchmark, NotHere, Result, measure


def collect() -> list[Benchmark]:
    """Every benchmark of every module in this package that offers ``benchmarks()``."""
    found: list[Benchmark] = []
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        if info.name not in ("__main__", "core", "history"):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            found.extend(getattr(module, "benchmarks", list)())
    return found


def compile_modules() -> None:
    """Bring the compiled form of this project's modules up to date, beside them."""
    root = Path(__file__).resolve().parents[2]
    for name in ("deviceplugin", "drabridge", "podresources"):
        compileall.compile_dir(root / name, quiet=2)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measure against the budgets. Times are noisy: compare ratios within one run.",
        epilog="example: python -m tests.bench --json numbers.json allocate reregister",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only benchmarks whose name contains one of these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to FILE, as a list")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="append the numbers to tests/bench/history.jsonl, if all of this is committed",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="only the ratios to Kubernetes' programs in Go; a node is started for those with pods",
    )
    parser.add_argument("--list", action="store_true", help="print the names and budgets, measure nothing")
    arguments = parser.parse_args()
    offered = peers.benchmarks(start_cluster=True) if arguments.peers else collect()
    chosen = [b for b in offered if not arguments.names or any(name in b.name for name in arguments.names)]
    if not chosen:
        parser.error(f"no benchmark is called like {arguments.names}")
    if not arguments.list:
        compile_modules()
    width = max(len(b.name) for b in chosen)
    results: list[Result] = []
    print(f"{'BENCHMARK':{width}}  {'VALUE':>12}  {'BUDGET':>12}  UNIT")
    for benchmark in chosen:
        sign = "<=" if benchmark.better == "lower" else ">="
        budget = f"{sign} {benchmark.budget:g}"
        if arguments.list:
            print(f"{benchmark.name:{width}}  {'':>12}  {budget:>12}  {benchmark.unit}")
            continue
        try:
            result = measure(benchmark)
        except NotHere as reason:
            print(f"{benchmark.name:{width}}  {'skipped':>12}  {budget:>12}  {reason}", flush=True)
            continue
        results.append(result)
        verdict = "" if result.ok else "  OVER BUDGET"
        print(f"{result.name:{width}}  {result.value:12.3f}  {budget:>12}  {result.unit}{verdict}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    if arguments.keep and not history.append(results):
        print("not kept: files differ from the commit, which is what a figure is of", file=sys.stderr)
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
