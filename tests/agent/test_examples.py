"""A real agent runs every example of ``deploy/examples`` on a machine made for it in a umockdev test bed."""

from __future__ import annotations

import pytest

from tests.agent import umockdev_examples
from tests.support.umockdev import needs_umockdev, run_under_umockdev


def test_every_example_has_its_machine() -> None:
    assert {path.stem for path in umockdev_examples.EXAMPLES.glob("*.yaml")} == set(umockdev_examples.CASES)


@pytest.mark.parametrize(
    "example", [pytest.param(name, marks=needs_umockdev) for name in sorted(umockdev_examples.CASES)]
)
def test_an_agent_serves_every_device_of_an_example(example: str) -> None:
    run_under_umockdev("tests.agent.umockdev_examples", example)


@pytest.mark.parametrize(
    "bed", [pytest.param("tests.agent.umockdev_time_slicing", marks=needs_umockdev, id="time-slicing")]
)
def test_a_file_of_nvidias_plugin_is_served_with_the_labels_of_gfd(bed: str) -> None:
    run_under_umockdev(bed)


@pytest.mark.parametrize("bed", [pytest.param("tests.agent.umockdev_kubevirt", marks=needs_umockdev, id="kubevirt")])
def test_kubevirt_finds_the_functions_of_its_machines(bed: str) -> None:
    run_under_umockdev(bed)
