"""Benchmarks of objects that users write: the memory that they cost, and whether any reader fails on them."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from pathlib import Path

import pytest

from tests.bench.core import Benchmark
from tests.support import foreign_objects, strange_objects

PODS, CLAIMS = 200, 100  # of 1.1 MB and of 320 KiB
ROUNDS = 2_500  # of the fuzzer, each with one strange object for every reader


def benchmarks() -> list[Benchmark]:
    return [
        Benchmark("foreign_objects_peak_mib", "MiB", 128.0, peak_mib),
        Benchmark("fuzz_foreign_objects_seconds", "s", 300.0, fuzz_seconds),
    ]


def peak_mib() -> float:
    """The most memory that an agent has while they come, while it starts, and while it lists them."""
    with pytest.MonkeyPatch.context() as patching:
        return asyncio.run(foreign_objects.peak_mib(patching, PODS, CLAIMS))


def fuzz_seconds() -> float:
    """How long the fuzzer took for its strange objects, a fixed number of them; it ends at the first failure."""
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as root:
            count = strange_objects.run(1, ROUNDS, Path(root))
    finally:
        logging.disable(logging.NOTSET)
    print(f"fuzz: objects={count} failures=0")
    return time.monotonic() - began
