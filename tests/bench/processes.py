"""Read what the kernel says of a process: its memory, its processor time, its children."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def resident_mib(pid: int) -> float:
    """Every page that is mapped now, program text that others use as well included."""
    return _mib(pid, "Rss:")


def anonymous_mib(pid: int) -> float:
    """The process' share of pages that no file backs: what a node must have for it alone."""
    return _mib(pid, "Pss_Anon:")


def _mib(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no {name} for {pid}")


def cpu_seconds(pid: int) -> float:
    """Processor time so far, user and system (proc(5), stat, fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> dict[int, str]:
    """The pid of each child, with the name of its program."""
    found = {}
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            with contextlib.suppress(OSError):  # it has ended
                found[child] = os.path.basename(os.readlink(f"/proc/{child}/exe"))
    return found
