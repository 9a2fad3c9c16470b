"""A real agent has AMD's and Intel's GPUs, from recorded trees: names, ids, attributes, partitions, health."""

from __future__ import annotations

import pytest

from tests.agent import umockdev_gpus
from tests.support.umockdev import needs_umockdev, run_under_umockdev

pytestmark = needs_umockdev


@pytest.mark.parametrize("case", sorted(umockdev_gpus.CASES))
def test_gpus(case: str) -> None:
    run_under_umockdev("tests.agent.umockdev_gpus", case)
