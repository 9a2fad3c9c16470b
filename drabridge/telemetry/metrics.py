"""Define every Prometheus metric of agent and coordinator: counters count facts, gauges are read at each scrape.

Names follow the Kubernetes instrumentation guidelines: base units, ``namespace``/``pod``/``container`` labels, label
values bounded by what the node has. ``docs/reference/metrics.md`` is generated from the two tables.

The page is written here, because prometheus_client imports three HTTP servers and takes 2 MiB of an agent.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Literal

from msgspec import Struct

from drabridge import __version__

# Allocate is budgeted at 1 ms, a claim's prepare at 5 ms plus the API's round trip; kubelet gives up after 45 s.
LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 45.0)


class Definition(Struct, frozen=True):
    """One metric. ``name`` is without the ``drabridge_`` prefix and, for counters, without ``_total``."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str

    @property
    def full_name(self) -> str:
        return f"drabridge_{self.name}{'_total' if self.kind == 'counter' else ''}"


def _gauge(name: str, labels: str, words: str) -> Definition:
    return Definition(name, "gauge", tuple(labels.split()), words)


def _counter(name: str, labels: str, words: str) -> Definition:
    return Definition(name, "counter", tuple(labels.split()), words)


def _histogram(name: str, labels: str, words: str) -> Definition:
    return Definition(name, "histogram", tuple(labels.split()), words)


def _table(*definitions: Definition) -> dict[str, Definition]:
    return {definition.name: definition for definition in definitions}


TABLE = _table(
    _gauge("build_info", "version python", "Always 1; the version of the agent and of Python."),
    _gauge("devices", "resource health", "Devices by health: present, faulty or gone."),
    _gauge(
        "device_info",
        "device id resource pci_bus_id numa_node",
        "Always 1; where a device is. Join other metrics on it.",
    ),
    _gauge("device_healthy", "device resource", "1 when the device can be used, else 0."),
    _gauge(
        "device_cordoned",
        "device resource",
        "Always 1; devices that are out of service, by `drabridge devices cordon` or the Node's annotation.",
    ),
    _gauge(
        "device_allocation_info",
        "device resource api namespace pod container claim share_id",
        "Always 1; who holds a device, over both APIs. Devices that nobody holds have no series here.",
    ),
    _counter(
        "held_seconds",
        "namespace owner_kind owner_name api resource",
        "Seconds for which pods and claims had devices, each device and each of its sharers counted, by workload; "
        '`owner_name="other"` stands for those beyond 500 series.',
    ),
    _gauge(
        "device_used_memory_bytes",
        "device resource namespace pod container uid",
        "Memory of a GPU or MIG instance that the processes of one container use, as NVML says; without a pod "
        'those of the host. `pod="other"` stands for containers beyond 1,000.',
    ),
    _gauge(
        "device_used_time_ratio",
        "device resource namespace pod container uid",
        "Share of the last seconds in which processes of one container ran on a GPU, as NVML says.",
    ),
    _gauge(
        "device_use_unknown",
        "device resource what reason",
        "Always 1; `memory` or `time` of this GPU is not known by container, because of `hostpid`: the agent's pod "
        "does not see the node's processes; `mig`: NVML does not tell it of instances; `nvml`: it does not answer; "
        "or `driver`: it does not tell.",
    ),
    _gauge("device_lane", "device resource lane owner", "Always 1; lane and owner."),
    _counter("allocations", "api resource result", "Grants asked for, by outcome."),
    _counter("arbitration_refusals", "api resource reason", "Grants refused because somebody else holds the device."),
    _histogram("grpc_request_duration_seconds", "api method code", "Time to answer kubelet's requests."),
    _counter("registrations", "api resource result", "Registrations with kubelet."),
    _gauge(
        "registered",
        "api resource",
        "1 while kubelet has the agent registered and listens, else 0; `dra` does not notice that kubelet is down.",
    ),
    _gauge("ids_left_out", "resource", "Ids that kubelet is not told of, because it takes lists of 4 MiB; else 0."),
    _counter("kubelet_restarts", "", "Restarts of kubelet since the agent started."),
    _counter("udev_events", "subsystem action", "Events of udev or of the kernel."),
    _histogram("inventory_reconcile_duration_seconds", "", "Time of a full enumeration."),
    _gauge("inventory_last_reconcile_timestamp_seconds", "", "When the last full enumeration ended."),
    _counter("inventory_monitor_restarts", "", "How often the monitor of device events was replaced."),
    _gauge("inventory_collisions", "", "Identities that several devices share; none of them is offered."),
    _gauge("nvml_up", "", "1 while NVML answers, else 0; only where the configuration needs it."),
    _counter("nvml_failures", "", "How often NVML was found not to answer; the log says why."),
    _counter("nvml_xids", "xid", "XIDs that NVML reported, those of applications included."),
    _histogram(
        "podresources_request_duration_seconds", "method", "Time of the agent's requests to kubelet's PodResources API."
    ),
    _counter("podresources_errors", "code", "Requests to kubelet's PodResources API that failed."),
    _gauge(
        "resourceslices_published",
        "",
        "1 while the API server is known to have this node's slices as they should be, else 0.",
    ),
    _counter("resourceslice_publish", "result", "Writes of ResourceSlices, by outcome."),
    _counter(
        "evictions",
        "resource result",
        "Evictions of pods whose device is lost (`evictHolders`): `evicted`; `refused`, by a disruption budget or "
        "because the API server is away, and tried again; `denied`, without the right to.",
    ),
    _gauge("hold_reason", "reason", "Devices by the reason why they are still held."),
    _gauge("lane_devices", "resource lane", "Devices by lane."),
    _counter(
        "claim_status_writes",
        "result",
        "Writes of a claim's `status.devices` that ended: OK, or failed (the pod runs all the same).",
    ),
    _counter("leases", "resource result", "Leases that ended, by outcome; once for each device."),
    _histogram(
        "lease_duration_seconds",
        "result",
        "Time from when a claim's allocation was seen to the condition that grants or denies it.",
    ),
    _histogram("lane_transfer_seconds", "resource direction", "Time of finished lane moves."),
    _gauge("standby", "", "1 while this agent waits for another one to end, else 0."),
    _gauge("ledger_healthy", "", "1 while grants can be made durable, else 0."),
    _gauge("quarantined_devices", "", "Devices offered to nobody until it is clear who has them."),
    _gauge("config_last_reload_successful", "", "0 when the file on disk was refused."),
    _counter("events_dropped", "", "Kubernetes Events that could not be delivered."),
    _counter(
        "unreadable_objects", "kind", "Objects that were left out because they cannot be read; the log names each."
    ),
)

COORDINATOR_TABLE = _table(
    _gauge("coordinator_leading", "", "1 while this coordinator leads, else 0."),
    _gauge(
        "coordinator_following",
        "",
        "1 while this coordinator follows the cluster's claims, else 0; one that does not lead follows none.",
    ),
    _gauge("coordinator_pending_claims", "", "Claims that wait for a lease, on all nodes."),
    _counter("coordinator_hint_writes", "result", "Writes of a node's hints, by outcome."),
)
"""What ``drabridge coordinator`` serves; none of the agent's metrics, because the agent's alerts are per node."""

_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

# Counters that are kept elsewhere and read at each scrape.
_SAMPLED = frozenset({"unreadable_objects", "held_seconds"})

Sample = tuple[str, tuple[str, ...], float]
"""(metric name, label values, value) of a gauge, or of a counter in ``_SAMPLED``."""


class _Durations:
    """One series of a histogram: how many durations are in each bucket, and their sum."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BUCKETS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BUCKETS, seconds)] += 1
        self.sum += seconds


class Metrics:
    """The metrics of one process, and the page that shows them. Belongs to one event loop."""

    def __init__(self, samples: Callable[[], Iterable[Sample]], table: Mapping[str, Definition] = TABLE) -> None:
        """Begin with nothing counted. ``samples`` is called at each scrape for the values that are not counted here."""
        self._table = table
        self._samples = samples
        self._counters: dict[str, dict[tuple[str, ...], float]] = {}
        self._histograms: dict[str, dict[tuple[str, ...], _Durations]] = {}
        for name, definition in table.items():
            if definition.kind == "counter" and name not in _SAMPLED:
                self._counters[name] = {} if definition.labels else {(): 0.0}
            elif definition.kind == "histogram":
                self._histograms[name] = {} if definition.labels else {(): _Durations()}

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter of the table."""
        series = self._counters[name]
        series[labels] = series.get(labels, 0.0) + by

    def time(self, name: str, seconds: float, *labels: str) -> None:
        """Add a duration to a histogram of the table."""
        self._histograms[name].setdefault(labels, _Durations()).add(max(seconds, 0.0))

    def exposition(self) -> bytes:
        """Return the text behind ``/metrics``, in Prometheus' text format 0.0.4."""
        values: dict[str, list[tuple[tuple[str, ...], float]]] = {name: [] for name in self._table}
        if "build_info" in self._table:
            values["build_info"].append(((__version__, platform.python_version()), 1))
        for name, labels, value in self._samples():
            values[name].append((labels, value))
        lines = []
        for name, definition in self._table.items():
            full = definition.full_name
            lines += [f"# HELP {full} {definition.help}", f"# TYPE {full} {definition.kind}"]
            values[name] += self._counters.get(name, {}).items()
            lines += [_line(full, definition.labels, labels, value) for labels, value in values[name]]
            for labels, durations in self._histograms.get(name, {}).items():
                lines += _histogram_lines(full, definition.labels, labels, durations)
        return "\n".join([*lines, ""]).encode()


def _histogram_lines(
    name: str, labels: tuple[str, ...], values: tuple[str, ...], durations: _Durations
) -> Iterator[str]:
    bounds = [*map(str, LATENCY_BUCKETS), "+Inf"]
    for bound, count in zip(bounds, accumulate(durations.counts), strict=True):
        yield _line(f"{name}_bucket", (*labels, "le"), (*values, bound), count)
    yield _line(f"{name}_count", labels, values, sum(durations.counts))
    yield _line(f"{name}_sum", labels, values, durations.sum)


def _line(name: str, labels: tuple[str, ...], values: tuple[str, ...], value: float) -> str:
    """Write one sample, its labels in alphabetical order."""
    named = sorted(zip(labels, values, strict=True))
    pairs = ",".join(f'{label}="{text.translate(_ESCAPED)}"' for label, text in named)
    return f"{name}{{{pairs}}} {float(value)}" if pairs else f"{name} {float(value)}"


def reference(table: Mapping[str, Definition] = TABLE) -> str:
    """Return a table of metrics for ``docs/reference/metrics.md``, as Markdown."""
    rows = ["| metric | type | labels | what it says |", "|---|---|---|---|"]
    for definition in table.values():
        labels = ", ".join(f"`{label}`" for label in definition.labels)
        rows.append(f"| `{definition.full_name}` | {definition.kind} | {labels} | {definition.help} |")
    return "\n".join(rows)
