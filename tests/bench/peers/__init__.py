"""Times beside Kubernetes' own programs in Go, in one run, ours and theirs in turns: ratios, which noise hits alike."""

from __future__ import annotations

from tests.bench.core import Benchmark
from tests.bench.peers import calls, pod_starts


def benchmarks() -> list[Benchmark]:
    """What ``python -m tests.bench --peers`` measures."""
    return [*calls.benchmarks(), *pod_starts.benchmarks()]
