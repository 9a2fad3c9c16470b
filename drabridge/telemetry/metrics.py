"""Define every Prometheus metric of agent and coordinator: counters count facts, gauges are read at each scrape.

Names follow the Kubernetes instrumentation guidelines: base units, ``namespace``/``pod``/``container`` labels, label
values bounded by what the node has. ``docs/reference/metrics.md`` is generated from the two tables.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from drabridge import __version__

disable_created_metrics()  # else each counter has a second series, with a time that no rule or dashboard uses

Kind = Literal["counter", "gauge", "histogram"]

# Allocate is budgeted at 1 ms, a claim's prepare at 5 ms plus the API's round trip; kubelet gives up after 45 s.
LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 45.0)


class Definition(Struct, frozen=True):
    """One metric. ``name`` is without the ``drabridge_`` prefix and, for counters, without ``_total``."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def full_name(self) -> str:
        return f"drabridge_{self.name}{'_total' if self.kind == 'counter' else ''}"


TABLE: dict[str, Definition] = {
    definition.name: definition
    for definition in (
        Definition("build_info", "gauge", ("version", "python"), "Always 1; the version of the agent and of Python."),
        Definition("devices", "gauge", ("resource", "health"), "Devices by health: present, faulty or gone."),
        Definition(
            "device_info",
            "gauge",
            ("device", "id", "resource", "pci_bus_id", "numa_node"),
            "Always 1; where a device is. Join other metrics on it.",
        ),
        Definition("device_healthy", "gauge", ("device", "resource"), "1 when the device can be used, else 0."),
        Definition(
            "device_cordoned",
            "gauge",
            ("device", "resource"),
            "Always 1; devices that are out of service, by `drabridge devices cordon` or the Node's annotation.",
        ),
        Definition(
            "device_allocation_info",
            "gauge",
            ("device", "resource", "api", "namespace", "pod", "container", "claim", "share_id"),
            "Always 1; who holds a device, over both APIs. Devices that nobody holds have no series here.",
        ),
        Definition(
            "held_seconds",
            "counter",
            ("namespace", "owner_kind", "owner_name", "api", "resource"),
            "Seconds for which pods and claims had devices, each device and each of its sharers counted, by workload; "
            '`owner_name="other"` stands for those beyond 500 series.',
        ),
        Definition(
            "device_used_memory_bytes",
            "gauge",
            ("device", "resource", "namespace", "pod", "container", "uid"),
            "Memory of a GPU or MIG instance that the processes of one container use, as NVML says; without a pod "
            'those of the host. `pod="other"` stands for containers beyond 1,000.',
        ),
        Definition(
            "device_used_time_ratio",
            "gauge",
            ("device", "resource", "namespace", "pod", "container", "uid"),
            "Share of the last seconds in which processes of one container ran on a GPU, as NVML says.",
        ),
        Definition(
            "device_use_unknown",
            "gauge",
            ("device", "resource", "what", "reason"),
            "Always 1; `memory` or `time` of this GPU is not known by container, because of `hostpid`: the agent's pod "
            "does not see the node's processes; `mig`: NVML does not tell it of instances; `nvml`: it does not answer; "
            "or `driver`: it does not tell.",
        ),
        Definition("device_lane", "gauge", ("device", "resource", "lane", "owner"), "Always 1; lane and owner."),
        Definition("allocations", "counter", ("api", "resource", "result"), "Grants asked for, by outcome."),
        Definition(
            "arbitration_refusals",
            "counter",
            ("api", "resource", "reason"),
            "Grants refused because somebody else holds the device.",
        ),
        Definition(
            "grpc_request_duration_seconds",
            "histogram",
            ("api", "method", "code"),
            "Time to answer kubelet's requests.",
        ),
        Definition("registrations", "counter", ("api", "resource", "result"), "Registrations with kubelet."),
        Definition(
            "registered",
            "gauge",
            ("api", "resource"),
            "1 while kubelet has the agent registered and listens, else 0; `dra` does not notice that kubelet is down.",
        ),
        Definition(
            "ids_left_out",
            "gauge",
            ("resource",),
            "Ids that kubelet is not told of, because it takes lists of 4 MiB; else 0.",
        ),
        Definition("kubelet_restarts", "counter", (), "Restarts of kubelet since the agent started."),
        Definition("udev_events", "counter", ("subsystem", "action"), "Events of udev or of the kernel."),
        Definition("inventory_reconcile_duration_seconds", "histogram", (), "Time of a full enumeration."),
        Definition("inventory_last_reconcile_timestamp_seconds", "gauge", (), "When the last full enumeration ended."),
        Definition("inventory_monitor_restarts", "counter", (), "How often the monitor of device events was replaced."),
        Definition(
            "inventory_collisions", "gauge", (), "Identities that several devices share; none of them is offered."
        ),
        Definition("nvml_up", "gauge", (), "1 while NVML answers, else 0; only where the configuration needs it."),
        Definition("nvml_failures", "counter", (), "How often NVML was found not to answer; the log says why."),
        Definition("nvml_xids", "counter", ("xid",), "XIDs that NVML reported, those of applications included."),
        Definition(
            "podresources_request_duration_seconds",
            "histogram",
            ("method",),
            "Time of the agent's requests to kubelet's PodResources API.",
        ),
        Definition("podresources_errors", "counter", ("code",), "Requests to kubelet's PodResources API that failed."),
        Definition(
            "resourceslices_published",
            "gauge",
            (),
            "1 while the API server is known to have this node's slices as they should be, else 0.",
        ),
        Definition("resourceslice_publish", "counter", ("result",), "Writes of ResourceSlices, by outcome."),
        Definition(
            "evictions",
            "counter",
            ("resource", "result"),
            "Evictions of pods whose device is lost (`evictHolders`): `evicted`; `refused`, by a disruption budget or "
            "because the API server is away, and tried again; `denied`, without the right to.",
        ),
        Definition("hold_reason", "gauge", ("reason",), "Devices by the reason why they are still held."),
        Definition("lane_devices", "gauge", ("resource", "lane"), "Devices by lane."),
        Definition(
            "claim_status_writes",
            "counter",
            ("result",),
            "Writes of a claim's `status.devices` that ended: OK, or failed (the pod runs all the same).",
        ),
        Definition("leases", "counter", ("resource", "result"), "Leases that ended, by outcome; once for each device."),
        Definition(
            "lease_duration_seconds",
            "histogram",
            ("result",),
            "Time from when a claim's allocation was seen to the condition that grants or denies it.",
        ),
        Definition("lane_transfer_seconds", "histogram", ("resource", "direction"), "Time of finished lane moves."),
        Definition(
            "standby",
            "gauge",
            (),
            "1 while this agent waits for another one to end, else 0.",
        ),
        Definition("ledger_healthy", "gauge", (), "1 while grants can be made durable, else 0."),
        Definition("quarantined_devices", "gauge", (), "Devices offered to nobody until it is clear who has them."),
        Definition("config_last_reload_successful", "gauge", (), "0 when the file on disk was refused."),
        Definition("events_dropped", "counter", (), "Kubernetes Events that could not be delivered."),
        Definition(
            "unreadable_objects",
            "counter",
            ("kind",),
            "Objects that were left out because they cannot be read; the log names each.",
        ),
    )
}

COORDINATOR_TABLE: dict[str, Definition] = {
    definition.name: definition
    for definition in (
        Definition("coordinator_leading", "gauge", (), "1 while this coordinator leads, else 0."),
        Definition(
            "coordinator_following",
            "gauge",
            (),
            "1 while this coordinator follows the cluster's claims, else 0; one that does not lead follows none.",
        ),
        Definition("coordinator_pending_claims", "gauge", (), "Claims that wait for a lease, on all nodes."),
        Definition("coordinator_hint_writes", "counter", ("result",), "Writes of a node's hints, by outcome."),
    )
}
"""What ``drabridge coordinator`` serves: nothing of the agent's, whose alerts are about each node."""

_SAMPLED = frozenset(
    {"unreadable_objects", "held_seconds"}
)  # counters that are counted elsewhere and read at each scrape

Sample = tuple[str, tuple[str, ...], float]
"""The value of a gauge, or of such a counter: (metric name, label values, value)."""


class Metrics(Collector):
    """The registry of one process."""

    def __init__(self, samples: Callable[[], Iterable[Sample]], table: Mapping[str, Definition] = TABLE) -> None:
        """``samples`` is called at each scrape for all that is not counted here."""
        self._table = table
        self.registry = CollectorRegistry(auto_describe=False)
        self._samples = samples
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for definition in table.values():
            full = f"drabridge_{definition.name}"
            if definition.name in _SAMPLED:
                continue
            if definition.kind == "counter":
                self._counters[definition.name] = Counter(
                    full, definition.help, definition.labels, registry=self.registry
                )
            elif definition.kind == "histogram":
                self._histograms[definition.name] = Histogram(
                    full, definition.help, definition.labels, registry=self.registry, buckets=LATENCY_BUCKETS
                )
        self.registry.register(self)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add to a counter of the table."""
        counter = self._counters[name]
        (counter.labels(*labels) if labels else counter).inc(by)

    def time(self, name: str, seconds: float, *labels: str) -> None:
        """Add a duration to a histogram of the table."""
        histogram = self._histograms[name]
        (histogram.labels(*labels) if labels else histogram).observe(max(seconds, 0.0))

    def describe(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        for definition in self._table.values():
            if definition.kind == "gauge":
                yield GaugeMetricFamily(definition.full_name, definition.help, labels=definition.labels)
            elif definition.name in _SAMPLED:
                yield CounterMetricFamily(f"drabridge_{definition.name}", definition.help, labels=definition.labels)

    def collect(self) -> Iterator[Metric]:
        families = {family.name: family for family in self.describe()}
        if info := families.get("drabridge_build_info"):
            info.add_metric((__version__, platform.python_version()), 1)
        for name, labels, value in self._samples():
            families[f"drabridge_{name}"].add_metric(labels, value)
        yield from families.values()

    def exposition(self) -> bytes:
        """Return the text behind ``/metrics``."""
        return generate_latest(self.registry)


def reference(table: Mapping[str, Definition] = TABLE) -> str:
    """Return a table of metrics for ``docs/reference/metrics.md``, as Markdown."""
    rows = ["| metric | type | labels | what it says |", "|---|---|---|---|"]
    for definition in table.values():
        labels = ", ".join(f"`{label}`" for label in definition.labels)
        rows.append(f"| `{definition.full_name}` | {definition.kind} | {labels} | {definition.help} |")
    return "\n".join(rows)
