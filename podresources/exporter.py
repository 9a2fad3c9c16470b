"""Collect Prometheus metrics of the PodResources API, for this program's registry or another one's.

``Exposition`` holds what is to be exposed; the program that polls kubelet feeds it. ``Exporter`` polls by itself, at
scrape time::

    REGISTRY.register(podresources.exporter.Exporter())

While kubelet does not answer, the last good answer stays exposed with ``podresources_up 0``: containers go on holding
their devices while kubelet restarts. ``podresources_last_success_timestamp_seconds`` tells its age.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from podresources.errors import NotSupported, PodResourcesError
from podresources.families import MAX_SERIES, FamilyInput, families
from podresources.features import KubeletFeatures
from podresources.model import Allocatable, DeviceKey, NodeSnapshot
from podresources.socket_path import DEFAULT_SOCKET
from podresources.sync import SyncClient
from podresources.transport import DEFAULT_RECEIVE_LIMIT_BYTES, Attempt

if TYPE_CHECKING:
    from podresources.resolve.resolver import Resolved, Resolver

MAX_AGE_SECONDS = 5.0
"""Scrapes within this time get the same answer: several Prometheus servers must not use up the node's limit."""

SCRAPE_TIMEOUT_SECONDS = 4.0
"""The limit of each of the two requests. Both fit into Prometheus' default scrape timeout of 10 s, with rendering."""

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds. A List of a full node takes kubelet 5 to 50 ms; the client gives up at 10 s."""


class KnownDevices:
    """The devices that an exporter has seen, at most ``limit``.

    So no device vanishes from the metrics when its holder releases it. The device-plugin side has a list of capacity,
    but without devices that are unhealthy or whose plugin is gone; the DRA side has no list at all. Devices are
    remembered for the life of the process. If there is no room, those not seen for longest are forgotten first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._seen: dict[DeviceKey, None] = {}  # insertion order is age

    def __iter__(self) -> Iterator[DeviceKey]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)

    def see(self, keys: Iterable[DeviceKey]) -> int:
        """Note that these devices are there now. Returns how many had to be forgotten for them."""
        for key in keys:
            self._seen.pop(key, None)
            self._seen[key] = None
        excess = list(self._seen)[: max(len(self._seen) - self.limit, 0)]
        for key in excess:
            del self._seen[key]
        return len(excess)


class Exposition(Collector):
    """What is exposed; thread-safe. Call ``observe`` (a client's observer), ``update`` and ``failed``."""

    def __init__(self, *, max_series: int = MAX_SERIES, clock: Callable[[], float] = time.time) -> None:
        self._max_series = max_series
        self._clock = clock
        self._lock = Lock()
        self._known = KnownDevices(max_series)
        self._view: FamilyInput | None = None
        self._up = False
        self._last_success = 0.0
        self._durations = Histogram(
            "podresources_request_duration_seconds",
            "Requests to kubelet, by method and gRPC status.",
            ["rpc", "code"],
            registry=None,
            buckets=BUCKETS,
        )
        self._errors = Counter(
            "podresources_request_errors",
            "Requests to kubelet that failed, by method and gRPC status.",
            ["rpc", "code"],
            registry=None,
        )
        self._dropped = Counter(
            "podresources_dropped_series",
            "Series left out of an exposition because a family exceeded its limit.",
            ["metric"],
            registry=None,
        )

    def observe(self, attempt: Attempt) -> None:
        """Count one request."""
        self._durations.labels(attempt.rpc, attempt.code).observe(attempt.seconds)
        if attempt.code != "OK":
            self._errors.labels(attempt.rpc, attempt.code).inc()

    def update(
        self,
        snapshot: NodeSnapshot,
        allocatable: Allocatable | None,
        features: KubeletFeatures,
        resolved: Resolved | None = None,
    ) -> None:
        """Expose a complete answer; ``allocatable`` is None if this kubelet does not serve it."""
        with self._lock:
            forgotten = self._known.see(device.device_key for device in (allocatable.devices if allocatable else ()))
            forgotten += self._known.see(allocation.device_key for allocation in snapshot.allocations)
            if forgotten:
                self._note_dropped("podresources_device_holders", forgotten)
            self._view = FamilyInput(snapshot, allocatable, tuple(self._known), features, resolved)
            self._up = True
            self._last_success = self._clock()

    def failed(self) -> None:
        """Note that kubelet did not answer: the last answer stays, marked as old."""
        with self._lock:
            self._up = False

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registering does not ask kubelet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield all families, for prometheus_client."""
        with self._lock:
            view, up, last_success = self._view, self._up, self._last_success
        yield GaugeMetricFamily("podresources_up", "1 if kubelet answered the last time it was asked.", value=float(up))
        yield GaugeMetricFamily(
            "podresources_last_success_timestamp_seconds",
            "When kubelet last answered, in Unix time; 0 before the first answer.",
            value=last_success,
        )
        if view is not None:
            yield from families(view, self._note_dropped, self._max_series)
        yield from self._durations.collect()
        yield from self._errors.collect()
        yield from self._dropped.collect()

    def _note_dropped(self, metric: str, count: int) -> None:
        self._dropped.labels(metric).inc(count)


class Exporter(Collector):
    """Asks kubelet when it is scraped, at most every ``max_age_seconds``. Never raises out of ``collect``.

    ``resolver`` finds the hardware behind the devices, for ``podresources_device_resolved_info``; None for without.
    """

    def __init__(
        self,
        path: str | Path = DEFAULT_SOCKET,
        *,
        max_age_seconds: float = MAX_AGE_SECONDS,
        max_series: int = MAX_SERIES,
        timeout_seconds: float = SCRAPE_TIMEOUT_SECONDS,
        receive_limit_bytes: int = DEFAULT_RECEIVE_LIMIT_BYTES,
        resolver: Resolver | None = None,
    ) -> None:
        self._resolver = resolver
        self.last_error: PodResourcesError | None = None
        self._exposition = Exposition(max_series=max_series)
        self._client = SyncClient(
            path,
            timeout_seconds=timeout_seconds,
            receive_limit_bytes=receive_limit_bytes,
            observe=self._exposition.observe,
        )
        self._max_age_seconds = max_age_seconds
        self._asked_at = float("-inf")
        self._lock = Lock()

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registering does not ask kubelet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield all families, after asking kubelet when the last answer is too old."""
        with self._lock:
            if time.monotonic() - self._asked_at >= self._max_age_seconds:
                self._refresh()
                self._asked_at = time.monotonic()
        return self._exposition.collect()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
        if self._resolver is not None:
            self._resolver.close()

    def _refresh(self) -> None:
        try:
            snapshot = self._client.list()
            try:
                allocatable = self._client.allocatable()
            except NotSupported:
                allocatable = None
            if not snapshot.has_dynamic_resources:
                self._client.probe()
        except PodResourcesError as error:
            self.last_error = error
            self._exposition.failed()
            return
        self.last_error = None
        resolved = None if self._resolver is None else self._resolver.resolve(snapshot.allocations)
        self._exposition.update(snapshot, allocatable, self._client.features, resolved)
