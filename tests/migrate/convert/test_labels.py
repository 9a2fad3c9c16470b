"""Node labels of GPU feature discovery as CEL on what the driver publishes."""

from __future__ import annotations

import pytest

from drabridge.migrate.convert.settings import NVIDIA, Term, cel
from drabridge.sim.scheduler.cel import device_value, matches
from tests.migrate.convert.checks import PUBLISHED

GPU = "nvidia.com/gpu"
PRODUCT = f"{GPU}.product"


@pytest.mark.parametrize(
    "term",
    [
        Term("kubernetes.io/arch", "In", ("amd64",)),
        Term(f"{GPU}.count", "In", ("8",)),
        Term(f"{GPU}.present", "In", ("false",)),
        Term(f"{GPU}.compute.major", "In", ("eight",)),
        Term("nvidia.com/cuda.runtime.major", "In", ("12",)),  # not published here
        Term(PRODUCT, "Exists"),
        Term(PRODUCT, "Gt", ("1",)),
        Term(PRODUCT, "In", ("NVIDIA-A100-SHARED",)),
        Term(PRODUCT, "In", ("NVIDIA-A100-MIG-1g.5gb",)),
        Term(PRODUCT, "In", ('x" || true || "',)),
    ],
)
def test_what_no_attribute_says_stays_a_label(term: Term) -> None:
    assert cel(term, GPU, PUBLISHED) is None


A100 = {
    "attributes": {
        "productName": {"string": "NVIDIA A100-SXM4-80GB"},
        "architecture": {"string": "Ampere"},
        "cudaComputeCapability": {"version": "8.0.0"},
        "driverVersion": {"version": "570.86.15"},
    },
    "capacity": {"memory": {"value": "80Gi"}},
}


@pytest.mark.parametrize(
    ("label", "operator", "values", "fits"),
    [
        ("gpu.product", "In", ("NVIDIA-A100-SXM4-80GB",), True),
        ("gpu.product", "In", ("NVIDIA-A100-SXM4-40GB",), False),
        ("gpu.product", "In", ("Tesla-T4", "NVIDIA-A100-SXM4-80GB"), True),
        ("gpu.product", "In", ("NVIDIA-A100-SXM4",), False),
        ("gpu.product", "NotIn", ("Tesla-T4",), True),
        ("gpu.family", "In", ("ampere",), True),
        ("gpu.compute.major", "Gt", ("7",), True),
        ("gpu.compute.minor", "In", ("0",), True),
        ("cuda.driver.major", "In", ("550", "560"), False),
        ("gpu.memory", "Gt", ("40000",), True),
        ("gpu.memory", "In", ("81920",), True),
        ("gpu.memory", "Lt", ("81920",), False),
    ],
)
def test_a_scheduler_chooses_by_the_cel_as_by_the_label(
    label: str, operator: str, values: tuple[str, ...], fits: bool
) -> None:
    pytest.importorskip("celpy", reason="the simulated scheduler's CEL is not installed")
    expression = cel(Term(f"nvidia.com/{label}", operator, values), GPU, PUBLISHED)
    assert expression
    assert matches(expression, device_value("gpu.example.com", A100)) is fits


@pytest.mark.parametrize("label", sorted(set(NVIDIA) - {f"{GPU}.present"}))
@pytest.mark.parametrize(("operator", "fits"), [("In", False), ("Gt", False), ("Lt", False), ("NotIn", True)])
def test_a_device_without_the_key_is_no_error_and_is_taken_as_a_node_without_the_label(
    label: str, operator: str, fits: bool
) -> None:
    pytest.importorskip("celpy", reason="the simulated scheduler's CEL is not installed")
    expression = cel(Term(label, operator, ("1", "2")), GPU, PUBLISHED)
    if expression is not None:
        assert matches(expression, device_value("gpu.example.com", {})) is fits
