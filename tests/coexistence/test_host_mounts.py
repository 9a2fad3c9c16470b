"""A disk that the host uses is not given to a pod: what the kernel's files say of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from drabridge.coexistence.host_mounts import HostMounts
from drabridge.coexistence.other_agents import OtherAgents
from drabridge.coexistence.withheld import WithheldDevices
from drabridge.inventory.devices import Device, DeviceNode, Presence, Snapshot
from drabridge.ledger.entries import Entry, Lane, Ledger, LedgerDevice, Owner
from drabridge.system.paths import Paths

DISKS = {"sda": "8:0", "sda1": "8:1", "sda2": "8:2", "sdb": "8:16", "dm-0": "253:0", "dm-1": "253:1", "md0": "9:0"}
DISK = Device(
    "sda", "S", "a/disk", nodes=(DeviceNode("/dev/sda", "/dev/sda", "rw", "b", 8, 0),), also_at=("b8:1", "b8:2")
)
OTHER = Device("sdb", "T", "a/disk", nodes=(DeviceNode("/dev/sdb", "/dev/sdb", "rw", "b", 8, 16),))
TTY = Device("tty", "U", "a/tty", nodes=(DeviceNode("/dev/ttyS0", "/dev/ttyS0", "rw", "c", 8, 0),))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, number in DISKS.items():
        folder = tmp_path / "sys/devices" / name
        (folder / "holders").mkdir(parents=True)
        (folder / "dev").write_text(f"{number}\n")
        for link in (f"sys/class/block/{name}", f"sys/dev/block/{number}"):
            (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / link).symlink_to(folder)
    for one in ("fs/ext4/features", "fs/btrfs/4a1c/devices", "fs/cgroup/user.slice"):
        (tmp_path / "sys" / one).mkdir(parents=True)
    for process in ("1", "self"):
        (tmp_path / "proc" / process).mkdir(parents=True)
        (tmp_path / f"proc/{process}/mountinfo").write_text("22 1 0:21 / /sys rw - sysfs sysfs rw\nbroken\n")
    (tmp_path / "proc/swaps").write_text("Filename Type Size Used Priority\n/swapfile file 1 0 -2\n")
    return tmp_path


def used(root: Path, *devices: Device) -> dict[str, str]:
    return dict(HostMounts(root / "sys", root / "proc").used(devices))


def held_by(root: Path, *stack: str) -> None:
    """The first is a part of the second, and so on."""
    for below, above in pairwise(stack):
        (root / f"sys/devices/{below}/holders/{above}").mkdir()


def test_a_disk_that_nobody_uses_is_free(root: Path) -> None:
    held_by(root, "sda1", "dm-0")  # a volume that nobody has mounted
    assert used(root, DISK, OTHER, TTY) == {}


def test_a_mounted_partition_is_the_disk_in_use(root: Path) -> None:
    (root / "sys/fs/ext4/sda1").mkdir()
    assert used(root, DISK, OTHER) == {"sda": "the host uses it: sda1 is mounted"}


@pytest.mark.parametrize("process", ["1", "self"])
def test_file_systems_without_a_folder_in_sysfs_are_found_by_their_mount(root: Path, process: str) -> None:
    line = "36 22 8:2 / /boot/efi rw,relatime shared:1 - vfat /dev/sda2 rw\n"
    (root / f"proc/{process}/mountinfo").write_text(line)
    assert used(root, DISK, OTHER) == {"sda": "the host uses it: sda2 is mounted"}


def test_a_volume_on_a_raid_on_a_partition_is_the_disk_in_use(root: Path) -> None:
    held_by(root, "sda2", "md0", "dm-1")
    held_by(root, "sdb", "dm-0")
    (root / "sys/fs/xfs/dm-1").mkdir(parents=True)
    assert used(root, DISK, OTHER) == {"sda": "the host uses it: dm-1 is mounted"}


def test_btrfs_and_swap_count(root: Path) -> None:
    (root / "sys/fs/btrfs/4a1c/devices/sdb").mkdir()
    (root / "proc/swaps").write_text("Filename Type\n/dev/sda2 partition 1 0 -2\n")
    assert used(root, DISK, OTHER) == {
        "sda": "the host uses it: sda2 is swap",
        "sdb": "the host uses it: sdb is mounted",
    }


def test_what_cannot_be_read_withholds_nothing(tmp_path: Path) -> None:
    assert used(tmp_path, DISK, OTHER) == {}


def test_a_volume_that_loops_ends(root: Path) -> None:
    held_by(root, "sda1", "dm-0", "sda1")
    assert used(root, DISK) == {}


async def test_who_holds_a_disk_may_mount_it_and_a_resource_may_say_that_it_only_looks(root: Path) -> None:
    (root / "sys/fs/ext4/sda1").mkdir()
    paths = Paths.of("d.io", kubelet=root)
    paths.state.mkdir(parents=True)
    withheld = WithheldDevices(OtherAgents(paths, "d.io", "n"), HostMounts(root / "sys", root / "proc"))
    snapshot = Snapshot(1, (DISK, OTHER))

    async def faulty(ledger: Ledger, *mounted: str) -> list[str]:
        shown = await withheld.update(snapshot, ledger, mounted)
        return [one.name for one in shown.devices if one.presence is Presence.FAULTY]

    free = Ledger.of(())
    assert await faulty(free) == ["sda"]
    assert withheld.again_seconds, "a mount sends no event"
    assert await faulty(free, "a/disk") == []
    held = Ledger.of((Entry(LedgerDevice.of(DISK), lane=Lane.LEGACY, owner=Owner.LEGACY),))
    assert await faulty(held) == []
    await withheld.leave(free, ended=False)
