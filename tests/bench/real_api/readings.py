"""Read what an API server has done: its own metrics, and /proc. A difference of two readings is what a phase took.

Bytes are those of bodies, as they are sent (after compression), without HTTP headers and TLS.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

COUNTED = frozenset({"resourceslices", "resourceclaims", "nodes", "pods"})  # what agents ask for; and discovery: ""
BY_OTHERS = frozenset(
    {"POST pods", "POST nodes", "POST resourceclaims", "PUT resourceclaims", "PUT resourceclaims/status"}
)
"""What only the benchmark asks for, in place of scheduler and controllers; and everything that deletes. The sizes of
requests name no subresource."""
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Reading:
    """Since the server began. ``requests``: "LIST pods" -> how many; a watch counts when it begins.

    ``live_bytes`` is the server's heap and stacks: after a garbage collection, what it needs.
    """

    requests: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0
    open_watches: int = 0
    live_bytes: int = 0
    cpu_seconds: float = 0.0
    etcd_cpu_seconds: float = 0.0

    def since(self, before: Reading) -> Reading:
        """Return what happened after ``before``; watches and memory as the difference."""
        requests = Counter({key: count - before.requests[key] for key, count in self.requests.items()})
        return Reading(
            Counter({key: count for key, count in requests.items() if count}),
            self.bytes_in - before.bytes_in,
            self.bytes_out - before.bytes_out,
            self.open_watches - before.open_watches,
            self.live_bytes - before.live_bytes,
            self.cpu_seconds - before.cpu_seconds,
            self.etcd_cpu_seconds - before.etcd_cpu_seconds,
        )


def samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield name, labels and value of each sample of Prometheus' text format."""
    for line in text.splitlines():
        if found := _LINE.match(line):
            yield found[1], dict(_LABEL.findall(found[2] or "")), float(found[3])


def parsed(text: str) -> Reading:
    """Read the text of an API server's ``/metrics``."""
    requests: Counter[str] = Counter()
    bytes_in = bytes_out = watches = live = 0
    for name, labels, value in samples(text):
        if name in ("go_memstats_alloc_bytes", "go_memstats_stack_inuse_bytes"):
            live += int(value)
        if labels.get("resource") not in COUNTED:
            continue
        what = _asked(labels)
        if what in BY_OTHERS or what.startswith("DELETE"):
            continue
        match name:
            case "apiserver_request_total":  # counts a watch when it ends
                requests[what] += int(value)
            case "apiserver_longrunning_requests" if labels["verb"] == "WATCH":
                requests[what] += int(value)
                watches += int(value)
            case "apiserver_response_sizes_sum" if labels["verb"] != "WATCH":
                bytes_out += int(value)
            case "apiserver_watch_events_sizes_sum":
                bytes_out += int(value)
            case "apiserver_request_body_size_bytes_sum":
                bytes_in += int(value)
    return Reading(requests, bytes_in, bytes_out, watches, live)


def _asked(labels: Mapping[str, str]) -> str:
    sub = labels.get("subresource", "")
    verb = labels.get("verb", "").upper()
    # apiserver_request_body_size_bytes says create, update and patch.
    verb = {"CREATE": "POST", "UPDATE": "PUT"}.get(verb, verb)
    return f"{verb} {labels['resource']}{'/' if sub else ''}{sub}".strip()


def cpu_seconds(pid: int) -> float:
    """Read the processor time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def anonymous_bytes(pid: int) -> int:
    """Read the memory of a process that no file backs."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def children(pid: int) -> dict[int, str]:
    """Return pid -> command of each child of a process."""
    found = {}
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found[child] = Path(f"/proc/{child}/comm").read_text().strip()
    return found
