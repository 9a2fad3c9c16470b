"""Read how much memory a process has: resident, and anonymous, which is what a node must have for it alone."""

from __future__ import annotations

from pathlib import Path


def resident_mib(pid: int) -> float:
    """Every page that is mapped now, program text that others use as well included."""
    return _mib(pid, "Rss:")


def anonymous_mib(pid: int) -> float:
    """The process' share of pages that no file backs."""
    return _mib(pid, "Pss_Anon:")


def _mib(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no {name} for {pid}")
