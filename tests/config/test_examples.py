"""The examples load, match the devices they are for, and no similar ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from drabridge.config import load, vendors
from drabridge.inventory.match import explain, matches
from drabridge.inventory.udev_device import UdevDevice
from tests.support.udev_tree import pci, udev_device, usb_device, usb_tty

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"


def _drm(name: str, function: UdevDevice) -> UdevDevice:
    return udev_device(name, "drm", "drm_minor", devnode=f"/dev/dri/{name}", above=function)


AMD = pci("0000:03:00.0", "0x1002", "0x744c", "0x030000", "amdgpu")
INTEL = pci("0000:00:02.0", "0x8086", "0x7d67", "0x030000", "i915")
BACKED = {"loop/backing_file": "/tmp/disk.img\n", "size": "2048\n"}


def _instance() -> UdevDevice:
    gpu = pci("0000:18:00.0", "0x10de", "0x2335", "0x030200", "nvidia")
    return udev_device("gi1-ci0", "nvidia-mig", attrs={"profile": "1g.10gb"}, above=gpu)


WANTED: dict[str, list[UdevDevice]] = {
    "nvidia-gpu": [
        pci("0000:18:00.0", "0x10de", "0x2335", "0x030200", "nvidia"),  # H200: 3D controller
        pci("0000:01:00.0", "0x10de", "0x2684", "0x030000", "nvidia"),  # RTX 4090: VGA
    ],
    "nvidia-mig": [_instance(), pci("0000:18:00.0", "0x10de", "0x2335", "0x030200", "nvidia")],
    "amd-gpu": [_drm("renderD128", AMD)],
    "amd-gpu-partitions": [
        replace(_drm("renderD128", AMD), properties={"AMDGPU_PARTITION": profile})
        for profile in ("spx_nps1", "cpx_nps1", "cpx_nps4")
    ]
    + [replace(_drm("renderD128", AMD), properties={"AMDGPU_DEVICE": "0000:03:00.0"})],  # it cannot be partitioned
    "intel-gpu": [
        _drm("card0", pci("0000:00:02.0", "0x8086", "0x7d67", "0x030000", "i915")),
        _drm("card1", pci("0000:04:00.1", "0x8086", "0xe211", "0x030000", "xe", physfn="0000:04:00.0")),
    ],
    "usb-serial": [
        usb_tty("0403", "6001", serial="A50285BI"),
        usb_tty("10c4", "ea60", serial="0001"),
        usb_tty("1a86", "7523"),
        usb_tty("0403", "6015", number=12),
    ],
    "rtl-sdr": [
        usb_device("0bda", "2838", serial="00000001"),
        usb_device("0bda", "2832", serial="00000001", port="1-3"),
    ],
    "fpga": [
        pci("0000:3b:00.0", "0x8086", "0x0b30", "0x120000", "dfl-pci"),
        pci("0000:3b:00.0", "0x10ee", "0x5000", "0x120000", "xclmgmt"),
        pci("0000:3b:00.0", "0x10ee", "0x5001", "0x120000", "vfio-pci", iommu_group="12"),
    ],
    "sriov-vf": [
        pci("0000:3b:00.2", "0x15b3", "0x101e", "0x020000", "vfio-pci", physfn="0000:3b:00.0", iommu_group="7")
    ],
    "fabric": [udev_device("kvm", "misc", devnode="/dev/kvm")],
    "kvm": [udev_device("kvm", "misc", devnode="/dev/kvm")],
    "loop": [udev_device("loop900", "block", "disk", devnode="/dev/loop900", attrs=BACKED)],
}

NEAR_MISSES: dict[str, list[UdevDevice]] = {
    "nvidia-gpu": [
        pci("0000:18:00.1", "0x10de", "0x22bc", "0x040300", "snd_hda_intel"),  # the card's audio function
        pci("0000:18:00.0", "0x10de", "0x2335", "0x030200", "vfio-pci"),  # given to virtual machines
        pci("0000:18:00.0", "0x10de", "0x2335", "0x030200", ""),  # no driver
        pci("0000:05:00.0", "0x10de", "0x22a3", "0x068000", "nvidia-nvswitch"),
    ],
    "nvidia-mig": [
        pci("0000:18:00.0", "0x10de", "0x2335", "0x030200", "vfio-pci"),
        pci("0000:05:00.0", "0x10de", "0x22a3", "0x068000", "nvidia-nvswitch"),
    ],
    "amd-gpu": [
        _drm("card0", AMD),
        _drm("renderD129", pci("0000:03:00.0", "0x10de", "0x2684", "0x030000", "nvidia")),
        udev_device("renderD130", "drm", "drm_minor", devnode="/dev/dri/renderD130"),  # virtual
    ],
    "amd-gpu-partitions": [_drm("renderD128", AMD)],  # no GPU's: AMDGPU_DEVICE is missing
    "intel-gpu": [
        _drm("renderD128", pci("0000:00:02.0", "0x8086", "0x7d67", "0x030000", "i915")),
        _drm("card0-DP-1", pci("0000:00:02.0", "0x8086", "0x7d67", "0x030000", "i915")),
        _drm("card0", AMD),
        _drm("card0", udev_device("simple-framebuffer.0", "platform", above=INTEL)),  # of the firmware
    ],
    "usb-serial": [
        usb_tty("0403", "6002"),
        usb_tty("2341", "0043"),  # an Arduino
        usb_device("0403", "6001"),  # the USB device itself
        udev_device("ttyS0", "tty", devnode="/dev/ttyS0"),
    ],
    "rtl-sdr": [
        usb_device("0bda", "8153"),  # the same maker's network adapter
        usb_device("1d6b", "2838"),
        udev_device("1-2:1.0", "usb", "usb_interface", above=usb_device("0bda", "2838")),
    ],
    "fpga": [
        pci("0000:3b:00.0", "0x8086", "0x1533", "0x020000", "igb"),
        pci("0000:3b:00.0", "0x10ee", "0x5000", "0x120000", ""),
    ],
    "sriov-vf": [
        pci("0000:3b:00.0", "0x15b3", "0x101d", "0x020000", "mlx5_core"),  # the physical function: the uplink
        pci("0000:3b:00.0", "0x15b3", "0x101d", "0x020000", "vfio-pci"),  # a whole card for a virtual machine
        pci("0000:3b:00.2", "0x15b3", "0x101e", "0x020000", "mlx5_core", physfn="0000:3b:00.0"),
        pci("0000:5e:00.2", "0x8086", "0x0d54", "0x010802", "vfio-pci", physfn="0000:5e:00.0"),  # NVMe
    ],
    "kvm": [udev_device("vhost-net", "misc", devnode="/dev/vhost-net"), udev_device("kvm", "module")],
    "fabric": [udev_device("kvm", "module")],
    "loop": [
        udev_device("loop7", "block", "disk", devnode="/dev/loop7", attrs=BACKED),
        udev_device("loop901", "block", "disk", devnode="/dev/loop901", attrs={"size": "0\n"}),  # nothing attached
        udev_device("loop900p1", "block", "partition", devnode="/dev/loop900p1", attrs=BACKED),
    ],
}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_matches_its_devices_and_no_similar_ones(path: Path) -> None:
    """Of an example whose machine was recorded, ``tests/agent/umockdev_examples.py`` says more."""
    match = [matcher for resource in load(path).resources for matcher in resource.match]
    assert path.read_text().startswith("# "), "an example opens with a comment that says what it does"
    for view in WANTED.get(path.stem, ()):
        assert matches(view, match), explain(view, match)
    for view in NEAR_MISSES.get(path.stem, ()):
        assert not matches(view, match), explain(view, match)


def test_the_table_of_vendors_has_those_of_the_examples_and_no_others() -> None:
    """A configuration with the driver of a vendor serves nothing beside that vendor's software."""
    drivers = {load(path).driver for path in EXAMPLES.glob("*.yaml")}
    assert {driver for driver in drivers if not driver.endswith(".example.com")} == vendors.VENDORS.keys()
    assert set(vendors.EXAMPLES.values()) <= {path.name for path in EXAMPLES.glob("*.yaml")}


def test_what_the_examples_promise() -> None:
    gpu = load(EXAMPLES / "nvidia-gpu.yaml").resource("nvidia.com/gpu")
    assert [str(template) for template in gpu.id] == ["{nvidia.uuid}"]  # the ids of NVIDIA's plugin
    assert gpu.lanes.targets(8) == (8, 0)
    assert not gpu.lanes.uses_dra
    machines = load(EXAMPLES / "kubevirt/config.yaml")
    assert [one.vfio is not None for one in machines.resources] == [False, True]
    assert {str(one.lanes) for one in machines.resources} == {str(machines.resources[0].lanes)}
    names = [one.device_class.name for one in machines.resources if one.device_class]
    assert (machines.driver, *names) == (
        "gpu.nvidia.com",
        "gpu.nvidia.com",
        "vfio.gpu.nvidia.com",
    )
    kvm = load(EXAMPLES / "kvm.yaml").resource("example.com/kvm")
    assert (kvm.replicas.count, kvm.replicas.max_per_request) == (1000, 1)
    sticks = load(EXAMPLES / "rtl-sdr.yaml").resource("example.com/rtl-sdr")
    first, second = (stick.properties["ID_PATH"] for stick in WANTED["rtl-sdr"])
    assert str(sticks.id[0]) == "{property:ID_PATH}"
    assert first != second  # identical sticks are told apart by their ports
