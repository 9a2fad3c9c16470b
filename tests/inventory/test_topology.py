"""NUMA nodes and PCI addresses from paths and attributes."""

from __future__ import annotations

import pytest

from drabridge.config.published import RESERVED_ATTRIBUTES
from drabridge.inventory import topology
from tests.support.hardware import record

ROOT = record("/sys/devices/pci0000:3a", "", attributes={"numa_node": "1"})


BRIDGE = record("/sys/devices/pci0000:3a/0000:3a:00.0", "pci", ROOT, attributes={"numa_node": "1"})


@pytest.mark.parametrize(
    ("own", "nodes"), [("0", (0,)), ("-1", (1,)), ("", (1,)), ("x", (1,)), ("64", (64,)), ("1024", (1,)), ("²", (1,))]
)
def test_numa_walks_up_past_minus_one(own: str, nodes: tuple[int, ...]) -> None:
    gpu = record("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", "pci", BRIDGE, attributes={"numa_node": own})
    assert topology.numa_nodes(gpu) == nodes


@pytest.mark.parametrize(
    ("files", "near"),
    [
        ({}, (1,)),
        ({"node/node1/distance": "10"}, (1,)),  # as in a machine without that node
        ({"node/node1/distance": "21 10"}, (1, 0)),  # sockets are not known: as the standard helper does
        ({"node/node1/distance": "12 10 12 32", "node/node1/cpulist": "4-7",
          "cpu/cpu4/topology/physical_package_id": "0",
          "node/node0/cpulist": "0-3", "cpu/cpu0/topology/physical_package_id": "0",
          "node/node2/cpulist": "8-11", "cpu/cpu8/topology/physical_package_id": "1"}, (1, 0)),  # node 2 is not
        ({"node/node1/distance": "21 10", "node/node1/cpulist": "4-7", "cpu/cpu4/topology/physical_package_id": "0",
          "node/node0/cpulist": ""}, (1, 0)),  # memory without CPUs
        ({"node/node1/distance": "x 10"}, (1,)),
    ],
)  # fmt: skip
def test_nodes_that_are_as_near_on_one_socket_follow_the_devices_own(
    files: dict[str, str], near: tuple[int, ...]
) -> None:
    device = record("/sys/devices/pci0000:3a/0000:3a:00.0", "pci", ROOT, attributes={"numa_node": "1"})
    read = {f"/sys/devices/system/{path}": text for path, text in files.items()}
    assert topology.near_numa_nodes(device, read.get) == near


def test_no_numa_node_is_empty_and_never_minus_one() -> None:
    assert topology.numa_nodes(record("/sys/devices/virtual/misc/kvm", "misc", attributes={"numa_node": "-1"})) == ()


@pytest.mark.parametrize(
    ("syspath", "subsystem", "address", "root"),
    [
        ("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", "pci", "0000:3b:00.0", "pci0000:3a"),
        ("/sys/devices/pci10000:00/10000:01:00.0", "pci", "10000:01:00.0", "pci10000:00"),  # VMD: five digits
        ("/sys/devices/platform/40000000.pcie/pci0001:00/0001:01:00.0", "pci", "0001:01:00.0", "pci0001:00"),
        ("/sys/devices/pci0000:3a/0000:3a:00.0:pcie001", "pci_express", "", ""),
        ("/sys/devices/virtual/block/loop0", "block", "", ""),
    ],
)
def test_pci_address_and_root(syspath: str, subsystem: str, address: str, root: str) -> None:
    device = record(syspath, subsystem)
    assert topology.pci_bus_id(device) == address
    assert topology.pcie_root(device) == root


def test_the_configuration_leaves_room_for_what_every_device_has() -> None:
    """Beside the standard ones: ``numaNode``, ``type`` and ``resource``."""
    assert len(topology.STANDARD) + 3 == RESERVED_ATTRIBUTES


def test_a_device_below_a_pci_function_has_its_place() -> None:
    function = record(
        "/sys/devices/pci0000:3a/0000:3b:00.0", "pci", links={"iommu_group": "/sys/kernel/iommu_groups/42"}
    )
    tty = record("/sys/devices/pci0000:3a/0000:3b:00.0/tty/ttyS4", "tty", function)
    assert (topology.pci_bus_id(tty), topology.pcie_root(tty)) == ("0000:3b:00.0", "pci0000:3a")
    assert topology.iommu_group(tty) == "42"


FUNCTION = "0000:3b:00.0"


@pytest.mark.parametrize(
    ("below", "address"),
    [
        ((), FUNCTION),
        (("drm",), FUNCTION),
        (("net",), FUNCTION),
        (("nvme", "block"), FUNCTION),
        (("virtio", "block"), FUNCTION),
        (("vfio-dev",), FUNCTION),
        (("usb", "usb", "usb-serial", "tty"), ""),
        (("scsi", "scsi", "block"), ""),
        (("i2c", "i2c-dev"), ""),
        (("mdev",), ""),
        (("hid", "hidraw"), ""),
    ],
)
def test_a_device_on_another_bus_has_no_pci_address_of_its_own(below: tuple[str, ...], address: str) -> None:
    """Who takes the address for the device would take its controller."""
    device = record(f"/sys/devices/pci0000:3a/0000:3a:00.0/{FUNCTION}", "pci", BRIDGE)
    for level, subsystem in enumerate(below):
        device = record(f"{device.syspath}/{subsystem}{level}", subsystem, device)
    assert topology.own_pci_bus_id(device) == address
    assert topology.pci_bus_id(device) == FUNCTION, "{pci} says where it is"


@pytest.mark.parametrize(
    ("above", "switch"),
    [
        ((), ""),
        (("0000:3a:00.0",), ""),  # at a root port
        (("0000:3a:00.0", "0000:3b:00.0"), ""),  # behind a bridge
        (("0000:3a:00.0", "0000:3b:00.0", "0000:3c:04.0"), "0000:3b:00.0"),
        (("0000:3a:00.0", "0000:3b:00.0", "0000:3c:04.0", "0000:3d:00.0", "0000:3e:08.0"), "0000:3d:00.0"),  # nearest
    ],
)
def test_devices_of_one_pcie_switch_name_it(above: tuple[str, ...], switch: str) -> None:
    """A GPU and a network card that name one switch reach each other without the root complex."""
    device = ROOT
    for address in (*above, "0000:5e:00.0"):
        device = record(f"{device.syspath}/{address}", "pci", device)
    for name in ("drm/card0", "drm/card0/renderD128"):
        assert topology.pcie_switch(device) == switch
        device = record(f"{device.syspath}/{name}", "drm", device)
    assert topology.pcie_switch(record("/sys/devices/virtual/misc/kvm", "misc")) == ""
