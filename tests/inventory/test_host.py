"""The host's device nodes and files, as the inventory reads them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drabridge.inventory.host import Host


def test_a_node_is_a_device_behind_all_links(tmp_path: Path) -> None:
    host = Host()
    link = tmp_path / "by-id"
    link.symlink_to("/dev/null")
    node = host.node(str(link))
    assert (node.path, node.kind, node.major, node.minor) == ("/dev/null", "c", 1, 3)


def test_what_is_no_usable_node_says_why(tmp_path: Path) -> None:
    host = Host()
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name, words in {
        "file": "not a device node",
        "none": "no such file or directory",
        "dangling": "no such file or directory",
        "circle": "too many levels of symbolic links",
    }.items():
        with pytest.raises(OSError, match=words):
            host.node(str(tmp_path / name))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="mknod needs root")
def test_a_node_that_nobody_may_open_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "node"
    os.mknod(path, 0o020666, os.makedev(1, 3))
    assert Host().node(str(path)).minor == 3
    path.chmod(0)
    with pytest.raises(OSError, match="nobody may open it"):
        Host().node(str(path))


def test_files_are_read_but_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"first\xff\nsecond\n")
    host = Host()
    assert host.first_line(str(tmp_path / "fifo")) is None
    assert host.first_line(str(tmp_path / "none")) is None
    assert host.first_line(str(tmp_path / "file")) == "first\\xff"
