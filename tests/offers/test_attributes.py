"""Attributes, capacity and quantities in the API's form and within its limits."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.config.names import ATTRIBUTES_AND_CAPACITY_MAX, is_attribute_name
from drabridge.config.quantity import canonical, parse
from drabridge.inventory.devices import PCI_BUS_ID, PCIE_ROOT, Attribute, Device, Semver
from drabridge.kube.versions import choose_version, slice_from_v1, slice_to_v1
from drabridge.offers.attributes import describe
from drabridge.offers.slices import slice_name


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1, "1"), (1000, "1k"), (1024, "1Ki"), (1500, "1500"), (64 * 1024**3, "64Gi"), (1024000, "1000Ki")],
)
def test_quantities_are_spelt_as_the_server_spells_them(value: int, text: str) -> None:
    assert canonical(value) == text


@given(st.integers(0, 2**63 - 1))
def test_a_quantity_says_its_number(value: int) -> None:
    assert parse(canonical(value)) == value


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("65536Mi", 64 * 1024**3),
        ("1.5Gi", 3 * 2**29),
        ("100m", Fraction(1, 10)),
        ("3e6", 3_000_000),
        ("2E", 2 * 10**18),
    ],
)
def test_every_spelling_of_a_quantity_is_read(text: str, number: Fraction) -> None:
    assert parse(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "0x10", "1e", "٣"])
def test_text_that_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Kubernetes quantity"):
        parse(text)


def test_the_standard_attributes_come_with_every_pci_device() -> None:
    device = Device(
        "gpu-a",
        "GPU-a",
        "nvidia.com/gpu",
        standard={PCI_BUS_ID: "0000:3b:00.0", PCIE_ROOT: "pci0000:3a"},
        numa_nodes=(1,),
        attributes={"productName": "NVIDIA H200", "cudaComputeCapability": Semver("9.0.0"), "ecc": True, "index": 1},
        capacity={"memory": 80 * 1024**3},
    )

    attributes, capacity, notes = describe(device)

    assert attributes == {
        "cudaComputeCapability": {"version": "9.0.0"},
        "ecc": {"bool": True},
        "index": {"int": 1},
        "productName": {"string": "NVIDIA H200"},
        "resource": {"string": "nvidia.com/gpu"},
        "resource.kubernetes.io/numaNode": {"int": 1},
        "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"},
        "type": {"string": "gpu"},
    }
    assert capacity == {"memory": {"value": "80Gi"}}
    assert notes == ()
    assert "resource.kubernetes.io/numaNode" not in describe(Device("a", "a", "r/a", numa_nodes=(0, 1)))[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bad-name", "x"),
        ("x" * 33, "x"),
        ("v", Semver("r580")),
        ("v", Semver("580.95.05")),
        ("big", 2**63),
        ("Up.per/x", "x"),
        ("a/b/c", 1),
    ],
)
def test_what_the_api_would_refuse_is_left_out_with_a_note(name: str, value: Attribute) -> None:
    attributes, _, notes = describe(Device("a", "a", "r/a", attributes={name: value}))

    assert name not in attributes
    assert len(notes) == 1
    assert "device a" in notes[0]


def test_too_many_attributes_keep_the_standard_ones() -> None:
    many: dict[str, Attribute] = {f"a{i:02d}": i for i in range(60)}
    attributes, capacity, notes = describe(
        Device("a", "a", "r/a", standard={PCIE_ROOT: "pci0000:00"}, attributes=many, capacity={"memory": 1})
    )

    assert len(attributes) + len(capacity) == ATTRIBUTES_AND_CAPACITY_MAX
    assert {"type", "resource.kubernetes.io/pcieRoot"} <= set(attributes)
    assert capacity
    assert len(notes) == 60 + 3 + 1 - ATTRIBUTES_AND_CAPACITY_MAX


@given(st.text())
def test_strings_are_at_most_64_bytes_and_valid(text: str) -> None:
    attributes, _, _ = describe(Device("a", "a", "r/a", attributes={"x": text, "y": "\udcff" + text}))
    for name in ("x", "y"):
        assert len(attributes[name]["string"].encode()) <= 64


def test_names_of_attributes() -> None:
    assert is_attribute_name("a_1")
    assert is_attribute_name("gpu.nvidia.com/uuid")
    assert not is_attribute_name("1a")
    assert not is_attribute_name("/a")


def test_slice_names_sort_by_index_and_fit() -> None:
    names = [slice_name("d.example.com", "n", i) for i in range(12)]
    assert names == sorted(names)
    long = [slice_name("d" * 63, "n" * 253, i) for i in (0, 1)]
    assert all(len(name) <= 253 for name in long)
    assert long[0] != long[1]
    assert slice_name("d" * 63, "n" * 252 + "m", 0) != long[0]


def test_versions_of_the_api() -> None:
    assert choose_version(["v1alpha3", "v1beta1", "v1", "v1beta2"]) == "v1"
    assert choose_version(["v1beta1"]) == "v1beta1"
    assert choose_version(["v1alpha3"]) is None
    v1 = {"metadata": {"name": "s"}, "spec": {"devices": [{"name": "a", "attributes": {"x": {"int": 1}}}]}}
    old = slice_from_v1(v1, "v1beta1")
    assert old["spec"]["devices"] == [{"name": "a", "basic": {"attributes": {"x": {"int": 1}}}}]
    assert slice_to_v1(old, "v1beta1")["spec"] == v1["spec"]
    assert slice_from_v1(v1, "v1beta2")["spec"] == v1["spec"]
    assert slice_to_v1({"spec": {}}, "v1") == {"spec": {}}
