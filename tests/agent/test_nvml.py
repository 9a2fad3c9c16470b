"""A real agent on a machine of eight GPUs, with a stand-in for NVIDIA's library: each case is a process of its own."""

from __future__ import annotations

import pytest

from tests.agent import umockdev_nvml
from tests.support.nvml import needs_compiler
from tests.support.umockdev import needs_umockdev, run_under_umockdev

pytestmark = [*needs_umockdev, needs_compiler]


@pytest.mark.parametrize("case", sorted(umockdev_nvml.CASES))
def test_gpus(case: str) -> None:
    run_under_umockdev("tests.agent.umockdev_nvml", case)
