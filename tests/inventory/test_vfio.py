"""An IOMMU group that vfio cannot open: which drivers are in the way. Groups as the lab's guest has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from drabridge.inventory.vfio import why_not_viable

BRIDGE, CARD, NETWORK = "0000:03:00.0", "0000:04:00.0", "0000:04:01.0"


def group(root: Path, **drivers: str) -> str:
    """Group 5 of a folder that stands for /sys/kernel/iommu_groups: functions with their drivers, "" for none."""
    for name, driver in drivers.items():
        function = root / "5" / "devices" / name
        function.mkdir(parents=True)
        if driver:
            (function / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    return why_not_viable("/dev/vfio/5", str(root))


@pytest.mark.parametrize("other", ["", "vfio-pci", "mlx5-vfio-pci", "pci-stub"])
def test_a_group_whose_other_functions_are_free_can_be_opened(tmp_path: Path, other: str) -> None:
    assert group(tmp_path, **{BRIDGE: "pcieport", CARD: "vfio-pci", NETWORK: other}) == ""


def test_the_function_with_a_driver_of_the_host_is_named(tmp_path: Path) -> None:
    assert group(tmp_path, **{BRIDGE: "", CARD: "vfio-pci", NETWORK: "e1000"}) == (
        "vfio cannot open IOMMU group 5: 0000:04:01.0 has the driver e1000; "
        "give every function of the group to vfio-pci"
    )


@pytest.mark.parametrize("path", ["/dev/vfio/vfio", "/dev/vfio/devices/vfio5", "/dev/null", "/dev/vfio/6"])
def test_other_nodes_have_no_group_to_look_at(tmp_path: Path, path: str) -> None:
    group(tmp_path, **{NETWORK: "e1000"})
    assert why_not_viable(path, str(tmp_path)) == ""
