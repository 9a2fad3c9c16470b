"""What others write into the API: the memory that it costs the agent."""

from __future__ import annotations

import asyncio

import pytest

from tests.abuse import foreign
from tests.bench.core import Benchmark

PODS, CLAIMS = 200, 100  # of 1.1 MB and of 320 KiB


def benchmarks() -> list[Benchmark]:
    return [Benchmark("foreign_objects_peak_mib", "MiB", 128.0, peak_mib)]


def peak_mib() -> float:
    """The most memory that an agent has while they come, while it starts, and while it lists them."""
    with pytest.MonkeyPatch.context() as patching:
        return asyncio.run(foreign.peak_mib(patching, PODS, CLAIMS))
