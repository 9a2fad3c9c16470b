"""Which events to listen to: the kernel's or udevd's."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from drabridge.inventory import event_source
from drabridge.inventory.event_source import EventKind

UNIX_HEAD = "Num       RefCount Protocol Flags    Type St Inode Path\n"


@pytest.mark.parametrize(
    ("lines", "listens"),
    [
        ("0000000000000000: 00000002 00000000 00010000 0005 01 21 /run/udev/control\n", True),
        ("0000000000000000: 00000003 00000000 00000000 0005 03 21 /run/udev/control\n", False),  # connected
        ("0000000000000000: 00000002 00000000 00010000 0005 01 21 /tmp/run/udev/control\n", False),
        ("", False),
    ],
)
def test_a_listening_control_socket_of_this_namespace_means_udevd(lines: str, listens: bool, tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/unix").write_text(UNIX_HEAD + lines)
    assert event_source.udevd_listens(tmp_path) is listens


def test_without_proc_nothing_is_claimed(tmp_path: Path) -> None:
    assert not event_source.udevd_listens(tmp_path)
    assert event_source.netlink_groups(1, tmp_path) is None


@pytest.mark.parametrize(
    ("groups", "control", "kind", "word"),
    [
        (2, True, EventKind.UDEV, "udevd listens"),
        (0, True, EventKind.KERNEL, "did not join"),
        (2, False, EventKind.KERNEL, "/run/udev/control"),
    ],
)
def test_the_verdict_follows_from_groups_and_control(
    groups: int, control: bool, kind: EventKind, word: str, tmp_path: Path
) -> None:
    (tmp_path / "net").mkdir()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15) as uevents:
        inode = os.fstat(uevents.fileno()).st_ino
        (tmp_path / "net/netlink").write_text(
            "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n"
            f"000000001dd6f314 15  0          {groups:08x} 0        0        0     2        0        {inode}\n"
        )
        line = "0000000000000000: 00000002 00000000 00010000 0005 01 21 /run/udev/control\n" if control else ""
        (tmp_path / "net/unix").write_text(UNIX_HEAD + line)
        found = event_source.udev_group_works(uevents.fileno(), tmp_path)
    assert found.kind is kind
    assert word in found.why


def test_a_real_socket_s_groups_are_seen() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15) as uevents:
        uevents.bind((0, 1))
        assert event_source.netlink_groups(os.fstat(uevents.fileno()).st_ino) == 1
