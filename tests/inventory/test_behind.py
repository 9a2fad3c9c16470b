"""Block devices that are made of others: whoever has one has what is behind it, and nobody else may."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from drabridge.inventory.behind import behind
from drabridge.inventory.container_edits import places_of
from drabridge.inventory.devices import DeviceNode
from drabridge.ledger.entries import LedgerDevice

NUMBERS = {
    "sda": (8, 0), "sda1": (8, 1), "sda2": (8, 2), "sdb": (8, 16), "sdc": (8, 32), "nvme0n1": (259, 0),
    "nvme0n1p1": (259, 1), "md0": (9, 0), "md0p1": (259, 2), "dm-0": (253, 0), "dm-1": (253, 1),
    "dm-2": (253, 2), "md0p2": (259, 3),
}  # fmt: skip
PARTITIONS = {"sda1": "sda", "sda2": "sda", "nvme0n1p1": "nvme0n1", "md0p1": "md0", "md0p2": "md0"}
MEMBERS = {"md0": ("sda1", "sdb"), "dm-0": ("md0p1",), "dm-1": ("dm-0", "sdc"), "dm-2": ("sdc",)}


@pytest.fixture(scope="module")
def sys(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder that stands for /sys, as the kernel has it: partitions below their disk, members as links."""
    root = tmp_path_factory.mktemp("sys")
    places = {name: root / "devices" / PARTITIONS.get(name, "") / name for name in NUMBERS}
    (root / "dev/block").mkdir(parents=True)
    for name, place in places.items():
        place.mkdir(parents=True, exist_ok=True)
        (place / "dev").write_text("{}:{}\n".format(*NUMBERS[name]))
        (place / "slaves").mkdir()
        (root / "dev/block/{}:{}".format(*NUMBERS[name])).symlink_to(place)
        if name in PARTITIONS:
            (place / "partition").write_text("1\n")
    for name, members in MEMBERS.items():
        for member in members:
            (places[name] / "slaves" / member).symlink_to(places[member])
    return str(root)


def device(name: str, sys: str) -> LedgerDevice:
    number = NUMBERS[name]
    node = DeviceNode(f"/dev/{name}", f"/dev/{name}", "rw", "b", *number)
    return LedgerDevice(name, syspath=f"/sys/{name}", also_at=places_of(node, behind(node.path, "b", number, sys)))


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("sda", "sda1", False),
        ("sda1", "sda2", True),
        ("sda", "sdb", True),
        ("md0", "sda1", False),
        ("md0", "sda", False),
        ("md0", "sda2", True),
        ("md0", "sdb", False),
        ("dm-0", "sdb", False),
        ("dm-1", "sdb", False),
        ("dm-1", "sda2", True),
        ("dm-1", "sda", False),
        ("dm-0", "sdc", True),
        ("nvme0n1", "nvme0n1p1", False),
        ("nvme0n1", "dm-1", True),
        ("md0p1", "md0p2", True),
        ("md0p2", "md0", False),
        ("md0p2", "sdb", False),
        ("md0p2", "dm-1", True),
        ("dm-1", "dm-2", True),  # two volumes on one disk
        ("dm-2", "sdc", False),
    ],
)
def test_what_shares_blocks_is_one_place(one: str, other: str, together: bool, sys: str) -> None:
    assert device(one, sys).same_place(device(other, sys)) is not together
    assert device(other, sys).same_place(device(one, sys)) is not together


def test_a_disk_that_several_controllers_lead_to_is_at_the_functions_of_each(sys: str, tmp_path: Path) -> None:
    """It is below none of them in sysfs: a virtual machine that gets a function gets the disk."""
    root = tmp_path / "sys"
    shutil.copytree(sys, root, symlinks=True)
    subsystem = root / "devices/virtual/nvme-subsystem/nvme-subsys0"
    disk = subsystem / "nvme1n1"
    (disk / "nvme1n1p1").mkdir(parents=True)
    (disk / "dev").write_text("259:7\n")
    for name, text in {"dev": "259:8\n", "partition": "1\n"}.items():
        (disk / "nvme1n1p1" / name).write_text(text)
    (root / "dev/block/259:7").symlink_to(disk)
    (root / "dev/block/259:8").symlink_to(disk / "nvme1n1p1")
    function, fabric = root / "devices/pci0000:00/0000:01:00.0", root / "devices/virtual/nvme-fabrics/ctl"
    for name, parent in {"nvme1": function, "nvme2": fabric}.items():
        place = parent / "nvme" / name
        place.mkdir(parents=True)
        (place / "device").symlink_to(parent)
        (subsystem / name).symlink_to(place)
    (function / "iommu_group").symlink_to("/sys/kernel/iommu_groups/3")
    for number in ((259, 7), (259, 8)):
        assert str(function) in behind("/dev/disk", "b", number, str(root))
        assert str(fabric) not in behind("/dev/disk", "b", number, str(root))
    places = places_of(DeviceNode("/dev/d", "/dev/d", "rw", "b", 259, 7), (str(function),))
    held = LedgerDevice("disk", syspath=str(disk), also_at=places)
    beside = LedgerDevice("other", syspath=str(disk), also_at=("b259:9", str(function)))
    assert held.related(LedgerDevice("vm", syspath=str(function)))
    assert not replace(held, syspath="/sys/a").same_place(replace(beside, syspath="/sys/b")), "two namespaces"


def test_members_that_go_in_circles_or_away_do_no_harm(sys: str, tmp_path: Path) -> None:
    root = tmp_path / "sys"
    shutil.copytree(sys, root, symlinks=True)
    assert behind("/dev/none", "b", (1, 1), str(root)) == ()
    own = root / "dev/block/7:0"
    (own / "slaves").mkdir(parents=True)
    (own / "slaves/again").symlink_to(own)
    (own / "dev").write_text("7:0\n")
    (own / "slaves/gone").symlink_to("/nowhere")
    (own / "slaves/odd").mkdir()
    (own / "slaves/odd/dev").write_bytes(b"\xff\xfe")
    assert behind("/dev/odd", "b", (7, 0), str(root)) == ("+b7:0",)
