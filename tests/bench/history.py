"""Keep what each run of all benchmarks measured: one line for each commit and machine, in ``history.jsonl``.

``docs/benchmarks.md`` shows the figures over the commits as a picture, each as a part of its budget.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.core import Result

FILE = Path(__file__).with_name("history.jsonl")
ROOT = Path(__file__).resolve().parents[2]


def machine() -> str:
    """Name the machine by what makes its figures differ: cores, processor, kernel, Python."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores, model = len(models), models[0] if models else platform.machine()
    return f"{cores} x {model}, Linux {platform.release()}, Python {platform.python_version()}"


def commit() -> str:
    """The commit that is measured; empty where it cannot be named, because files differ from it."""
    words = ("git", "-C", str(ROOT))
    try:
        changed = subprocess.run(
            (*words, "status", "--porcelain"), capture_output=True, text=True, check=True, timeout=60
        )
        head = subprocess.run((*words, "rev-parse", "HEAD"), capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    own = {f" M {FILE.relative_to(ROOT)}"}  # what an earlier run has appended
    return "" if set(changed.stdout.splitlines()) - own else head.stdout.strip()


def line_of(results: Iterable[Result], commit: str, machine: str, at: datetime) -> str:
    """One run as a line of JSON: ``{commit, at, machine, figures: {name: [value, budget]}}``."""
    figures = {one.name: [one.value, one.budget] for one in results}
    return json.dumps(
        {"commit": commit, "at": at.isoformat(timespec="seconds"), "machine": machine, "figures": figures}
    )


def append(results: Iterable[Result], file: Path = FILE) -> bool:
    """Add a run of the present commit; false, and nothing written, where files differ from it."""
    if not (measured := commit()):
        return False
    with file.open("a", encoding="utf-8") as lines:
        lines.write(line_of(results, measured, machine(), datetime.now(UTC)) + "\n")
    return True


def read(file: Path = FILE) -> list[dict[str, Any]]:
    """All runs, the oldest first."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
