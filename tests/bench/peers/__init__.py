"""Times beside Kubernetes' own programs in Go, in one run, ours and theirs in turns: ratios, which noise hits alike."""

from __future__ import annotations

from tests.bench.core import Benchmark
from tests.bench.peers import calls, pod_starts


def benchmarks(*, start_cluster: bool = False) -> list[Benchmark]:
    """The ratios. ``start_cluster``: start a node for those that need one, and end it; else they need one that runs."""
    return [*calls.benchmarks(), *pod_starts.benchmarks(start_cluster=start_cluster)]
