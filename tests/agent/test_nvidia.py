"""A real agent with the shipped profile for NVIDIA's GPUs and MIG instances: each case is a process of its own."""

from __future__ import annotations

import pytest

from tests.agent import umockdev_nvidia
from tests.support.nvml import needs_compiler
from tests.support.umockdev import needs_umockdev, run_under_umockdev

pytestmark = [*needs_umockdev, needs_compiler]


@pytest.mark.parametrize("case", sorted(umockdev_nvidia.CASES))
def test_gpus_and_instances(case: str) -> None:
    run_under_umockdev("tests.agent.umockdev_nvidia", case)
