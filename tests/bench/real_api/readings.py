"""Read what an API server has done: its own metrics, and times. A difference of two readings is what a phase took.

Bytes are those of bodies, as they are sent (after compression), without HTTP headers and TLS.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

COUNTED = frozenset({"resourceslices", "resourceclaims", "nodes", "pods"})  # what agents ask for; and discovery: ""
BY_OTHERS = frozenset(
    {"POST pods", "POST nodes", "POST resourceclaims", "PUT resourceclaims", "PUT resourceclaims/status"}
)
"""What only the benchmark asks for, in place of scheduler and controllers; and everything that deletes. The sizes of
requests name no subresource."""
_WANTED = re.compile(
    "go_memstats_(alloc|stack_inuse)_bytes |apiserver_(request_total|longrunning_requests|response_sizes_sum|"
    "watch_events_sizes_sum|request_body_size_bytes_sum){"
)


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


def parsed(text: str) -> Reading:
    """Read the text of an API server's ``/metrics``."""
    requests: Counter[str] = Counter()
    bytes_in = bytes_out = watches = live = 0
    lines = "".join(f"{line}\n" for line in text.splitlines() if _WANTED.match(line))  # of some 20,000
    for name, labels, value, *_ in (one for family in text_string_to_metric_families(lines) for one in family.samples):
        if name.startswith("go_memstats_"):
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
