"""What watching NVIDIA's GPUs costs, with a stand-in for the driver's library.

The real library has memory of its own beside that, in the same process, which nobody but NVIDIA can make smaller.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.bench.core import Benchmark
from tests.support.umockdev import run_under_umockdev


def _measure(name: str) -> Callable[[], float]:
    return lambda: float(
        run_under_umockdev("tests.support.nvml.measure", name, alone=True).splitlines()[-1]  # remarks come first
    )


def benchmarks() -> list[Benchmark]:
    return [
        Benchmark("nvml_anonymous_mib", "MiB", 6.0, _measure("memory")),
        Benchmark("health_event_to_list_ms", "ms", 50.0, _measure("event")),
    ]
