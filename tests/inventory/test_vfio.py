"""An IOMMU group that vfio cannot open: which drivers are in the way. Groups as the lab's guest has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from drabridge.inventory.behind import behind
from drabridge.inventory.vfio import why_not_viable

BRIDGE, CARD, NETWORK = "0000:03:00.0", "0000:04:00.0", "0000:04:01.0"


def group(root: Path, **drivers: str) -> str:
    """Group 5 of a folder that stands for /sys: functions with their drivers, "" for none."""
    for name, driver in drivers.items():
        function = root / "kernel/iommu_groups/5/devices" / name
        function.mkdir(parents=True)
        if driver:
            (function / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    return why_not_viable("/dev/vfio/5", (236, 0), str(root))


@pytest.mark.parametrize("other", ["", "vfio-pci", "mlx5-vfio-pci", "pci-stub"])
def test_a_group_whose_other_functions_are_free_can_be_opened(tmp_path: Path, other: str) -> None:
    assert group(tmp_path, **{BRIDGE: "pcieport", CARD: "vfio-pci", NETWORK: other}) == ""


def test_the_function_with_a_driver_of_the_host_is_named(tmp_path: Path) -> None:
    assert group(tmp_path, **{BRIDGE: "", CARD: "vfio-pci", NETWORK: "e1000"}) == (
        "vfio cannot open IOMMU group 5: 0000:04:01.0 has the driver e1000; "
        "give every function of the group to vfio-pci"
    )


@pytest.mark.parametrize("path", ["/dev/vfio/vfio", "/dev/null", "/dev/vfio/6"])
def test_other_nodes_have_no_group_to_look_at(tmp_path: Path, path: str) -> None:
    group(tmp_path, **{NETWORK: "e1000"})
    assert why_not_viable(path, (236, 0), str(tmp_path)) == ""


def own_node(sys: Path, function: str = NETWORK, iommu_group: str = "5") -> tuple[str, tuple[int, int], str]:
    """A function's node of its own for IOMMUFD, its number, and the folder that stands for /sys."""
    place = sys / "devices/pci0000:00" / function
    (place / "vfio-dev/vfio0").mkdir(parents=True)
    (place / "iommu_group").symlink_to(f"../../../kernel/iommu_groups/{iommu_group}")
    (sys / "dev/char").mkdir(parents=True)
    (sys / "dev/char/511:0").symlink_to(place / "vfio-dev/vfio0")
    return "/dev/vfio/devices/vfio0", (511, 0), str(sys)


def test_a_function_of_its_own_node_needs_its_whole_group_as_well(tmp_path: Path) -> None:
    node = own_node(tmp_path)
    assert why_not_viable(*node) == ""
    group(tmp_path, **{NETWORK: "vfio-pci", CARD: "snd_hda_intel"})
    assert why_not_viable(*node).startswith(
        "vfio cannot open IOMMU group 5: 0000:04:00.0 has the driver snd_hda_intel;"
    )
    assert why_not_viable("/dev/vfio/devices/vfio0", (511, 1), str(tmp_path)) == ""


def test_the_place_of_a_function_is_its_group_by_either_node(tmp_path: Path) -> None:
    path, number, sys = own_node(tmp_path)
    assert behind(path, "c", number, sys) == behind("/dev/vfio/5", "c", (236, 0), sys) == ("/dev/vfio/5",)
    assert behind("/dev/vfio/vfio", "c", (10, 196), sys) == ()
    assert behind("/dev/null", "c", number, sys) == ()
