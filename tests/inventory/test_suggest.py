"""A suggested resource loads, and matches the device that it was made for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.config import load
from drabridge.config.nvidia_profile import nvidia_profile
from drabridge.inventory.match import matches
from drabridge.inventory.suggest import suggest
from drabridge.inventory.udev_device import UdevDevice
from tests.support.configurations import HEAD
from tests.support.udev_tree import pci, udev_device, usb_device, usb_tty

LOOP = udev_device("loop7", "block", "disk", devnode="/dev/loop7")
VF = pci("0000:3b:00.2", "0x15b3", "0x101e", "0x020000", "vfio-pci", physfn="0000:3b:00.0", iommu_group="7")
RENDER = udev_device("renderD128", "drm", "drm_minor", devnode="/dev/dri/renderD128",
              above=pci("0000:03:00.0", "0x1002", "0x744c", "0x030000", "amdgpu"))  # fmt: skip


def _matched(view: UdevDevice, other: UdevDevice | None = None) -> bool:
    config = load(HEAD + "resources:\n" + suggest(view))
    return matches(view if other is None else other, config.resources[0].match)


@pytest.mark.parametrize(
    "view", [usb_tty("0403", "6001", serial="A5"), usb_device("0bda", "2838", serial="00000001"), LOOP, VF, RENDER]
)
def test_round_trip(view: UdevDevice) -> None:
    assert _matched(view)


H100 = pci("0000:00:06.0", "0x10de", "0x2330", "0x030200", "nvidia")
NIC = pci("0000:3b:00.0", "0x15b3", "0x101d", "0x020000", "mlx5_core")
FPGA = pci("0000:5e:00.0", "0x8086", "0x0b30", "0x120000", "dfl-pci")
NVME = pci("0000:05:00.0", "0x144d", "0xa80a", "0x010802", "nvme")
AMD = pci("0000:03:00.0", "0x1002", "0x744c", "0x030000", "amdgpu")


def child(of: UdevDevice, name: str, subsystem: str, devnode: str = "") -> UdevDevice:
    return udev_device(name, subsystem, devnode=devnode, above=of)


def test_a_gpu_of_nvidias_driver_gets_the_item_of_its_profile() -> None:
    entry = suggest(H100, [H100, AMD])
    assert nvidia_profile().endswith("resources:\n" + entry)
    assert _matched(H100)
    assert "vfio" not in entry


FUNCTIONS = {
    "an interface is the host's": (
        NIC,
        [child(NIC, "eth0", "net")],
        "Only when it is bound to vfio-pci",
        "driverBound: vfio-pci",
    ),
    "RDMA": (
        NIC,
        [child(NIC, "uverbs0", "infiniband_verbs", "/dev/infiniband/uverbs0"), child(NIC, "ptp0", "ptp", "/dev/ptp0")],
        '[{subsystem: ["infiniband_verbs"], exists: [devnode]}]',
        "nodes: [{from: group}]",
    ),
    "an FPGA": (
        FPGA,
        [child(child(FPGA, "region0", "fpga_region"), "dfl-port.0", "dfl", "/dev/dfl-port.0")],
        '{subsystem: ["dfl"], exists: [devnode]}',
        "deploy/examples/fpga.yaml offers",
    ),
    "a GPU": (
        AMD,
        [child(AMD, "card0", "drm", "/dev/dri/card0")],
        '{subsystem: ["drm"], exists',
        "deploy/examples/amd-gpu.yaml offers",
    ),
    "a disk is not its controller's node": (
        NVME,
        [child(child(NVME, "nvme0", "nvme", "/dev/nvme0"), "nvme0n1", "block", "/dev/nvme0n1")],
        "it is nvme's now",
        "driverBound: vfio-pci",
    ),
    "a function of vfio-pci": (
        VF,
        [],
        'driver: "vfio-pci"',
        'nodes: [{path: "/dev/vfio/{iommu_group}"}, {path: /dev/vfio/vfio}]',
    ),
    "a virtual function": (VF, [], "deploy/examples/sriov-vf.yaml offers", "driverBound: vfio-pci"),
}


@pytest.mark.parametrize("case", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_gets_what_its_driver_has_made_of_it(case: tuple[UdevDevice, list[UdevDevice], str, str]) -> None:
    function, below, *lines = case
    entry = suggest(function, [function, H100, *below])
    assert ("Only when" in entry) == ("driverBound" in entry and function is not VF)
    assert [line for line in lines if line not in entry] == [], entry
    (resource,) = load(HEAD + "resources:\n" + entry).resources
    assert matches(function, resource.match)
    assert not matches(H100, resource.match)


def test_a_tty_is_found_again_under_another_number() -> None:
    before = usb_tty("0403", "6001", serial="A5", number=0)
    assert _matched(before, usb_tty("0403", "6001", serial="A5", number=3, port="1-4"))
    assert not _matched(before, usb_tty("0403", "6001", serial="A6"))
    assert not _matched(before, usb_tty("10c4", "6001", serial="A5"))


def test_the_text_is_what_a_person_would_write() -> None:
    assert suggest(usb_tty("0403", "6001", serial="A5")) == (
        "- name: example.com/ttyusb\n"
        "  match:\n"
        "  - subsystem: tty\n"
        '    sysname: "ttyUSB*"\n'
        "    parent:\n"
        "      subsystem: usb\n"
        "      devtype: usb_device\n"
        "      attr:\n"
        '        idVendor: "0403"\n'
        '        idProduct: "6001"\n'
        '        serial: "A5"  # remove this line to match every device of this kind\n'
        '  id: ["{parent.attr:serial}", "{pci}-usb-{parent.attr:devpath}-{parent.attr:bInterfaceNumber}"]\n'
        "  nodes: [{from: devnode}]\n"
    )


def _alone(view: UdevDevice, *others: UdevDevice) -> bool:
    rules = load(HEAD + "resources:\n" + suggest(view, [view, *others])).resources[0].match
    return matches(view, rules) and not any(matches(other, rules) for other in others)


def _disk(number: int, serial: str, partition: str = "") -> UdevDevice:
    """A namespace of an NVMe controller, or a partition of it, as the lab's guest has them."""
    function = pci(f"0000:0{number + 1}:00.0", "0x1b36", "0x0010", "0x010802", "nvme")
    controller = udev_device(f"nvme{number}", "nvme", attrs={"serial": f"{serial}   \n"}, above=function)
    name = f"nvme{number}n1"
    disk = udev_device(
        name, "block", "disk", devnode=f"/dev/{name}", attrs={"wwid": f"nvme.{serial}\n"}, above=controller
    )
    if not partition:
        return disk
    part = f"{name}p{partition}"
    return udev_device(part, "block", "partition", devnode=f"/dev/{part}", attrs={"partition": partition}, above=disk)


def test_a_disk_is_itself_under_another_number_and_not_its_partition() -> None:
    disk = _disk(0, "NV-0002")
    part, second = _disk(0, "NV-0002", "1"), _disk(0, "NV-0002", "2")
    other = _disk(1, "NV-0003")
    assert _alone(disk, part, second, other)
    assert _alone(part, disk, second, other)
    rules = load(HEAD + "resources:\n" + suggest(disk, [other])).resources[0].match
    assert matches(_disk(3, "NV-0002"), rules)
    assert not matches(_disk(0, "NV-0003"), rules), "the other one has its number after a reboot"


HOSTILE = st.text(st.characters(codec=None), max_size=30) | st.just("x" * 300) | st.sampled_from(
    ["a|b", "[x]", "*", "\\", "\udcff", "\n", "{name}", "'\"", "#", ": ", "\x00", " ", "a\\", "0403 "]
)  # fmt: skip


@given(HOSTILE, HOSTILE, HOSTILE, st.booleans())
def test_whatever_the_hardware_says_it_round_trips(sysname: str, serial: str, model: str, on_usb: bool) -> None:
    above = usb_device("0403", "6001", serial=serial) if on_usb else None
    view = udev_device(
        sysname or "x", "tty", devnode="/dev/x", properties={"ID_MODEL": model}, attrs={"serial": serial}, above=above
    )
    assert _matched(view)


@given(HOSTILE, HOSTILE)
def test_hostile_ids_round_trip(vendor: str, serial: str) -> None:
    assert _matched(usb_device(vendor, "6001", serial=serial))
    assert _matched(pci("0000:01:00.0", vendor, serial, "0x030000"))


@pytest.mark.parametrize(("serial", "other"), [("A*", "AB"), ("A?", "AB"), ("A\\B", "AB")])
def test_signs_in_a_serial_stand_for_themselves(serial: str, other: str) -> None:
    assert not _matched(usb_device("0403", "6001", serial=serial), usb_device("0403", "6001", serial=other))
