"""The edges: NVIDIA's files, detection of the event group, the host's nodes, what a configuration makes us read."""

from __future__ import annotations

import os
import socket
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from drabridge.inventory import event_source, nvidia
from drabridge.inventory.event_source import EventKind
from drabridge.inventory.host import RealHost
from drabridge.inventory.udev_scope import UdevScope, needs_nvidia, scope_of
from tests.support import machines
from tests.support.hardware import config

# --- NVIDIA ---------------------------------------------------------------------------------------------------------


def test_the_driver_s_files_are_read(tmp_path: Path) -> None:
    facts = nvidia.read(machines.nvidia_proc(tmp_path, 2, excluded=[1]) / "driver/nvidia", nvml=False)
    assert dict(facts.of(machines.gpu_address(0))) == {
        "uuid": machines.GPU_UUID.format(0),
        "minor": "0",
        "model": "NVIDIA H100 80GB HBM3",
        "excluded": "false",
        "driver_version": "580.95.05",
    }
    assert facts.of(machines.gpu_address(1))["excluded"] == "true"
    assert facts.of("0000:00:00.0") == {}


def test_no_driver_is_no_error(tmp_path: Path) -> None:
    assert nvidia.read(tmp_path / "none") is nvidia.NOTHING


@pytest.mark.parametrize(
    "text", ["", "\0\xff", "GPU UUID: GPU-????????-????-????-????-????????????\nVideo BIOS: ??.??", "no colon\n:::\n"]
)
def test_unfinished_and_odd_information_gives_nothing(text: str) -> None:
    assert nvidia.parse_information(text) == {"excluded": "false"}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6\n", "535.54.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n", "580.95.05"),
        ("something else", ""),
    ],
)
def test_driver_versions(text: str, version: str) -> None:
    assert nvidia.parse_version(text) == version


class NVMLError(Exception):
    pass


def nvml_library(**more: Any) -> types.ModuleType:
    """A pynvml of one GPU. NVML itself needs the hardware; what is tested is how its answers are read."""
    library = types.ModuleType("pynvml")
    answers: dict[str, Any] = {
        "NVMLError": NVMLError,
        "NVML_DEVICE_ARCH_HOPPER": 9,
        "NVML_BRAND_TESLA": 2,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: machines.GPU_UUID.format(0).encode(),
        "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(total=80 << 30),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
        "nvmlDeviceGetArchitecture": lambda handle: 9,
        "nvmlDeviceGetBrand": lambda handle: 99,
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 12040,
    }
    for name, value in (answers | more).items():
        setattr(library, name, value)
    return library


def fails(*_: object) -> None:
    raise NVMLError


@pytest.mark.parametrize(
    ("more", "known"),
    [
        ({}, {"memory_mib": "81920", "architecture": "Hopper", "compute_capability": "9.0", "cuda_version": "12.4"}),
        ({"nvmlDeviceGetMemoryInfo": fails, "nvmlDeviceGetArchitecture": fails}, {"compute_capability": "9.0"}),
        ({"nvmlInit": fails}, {}),
        ({"nvmlDeviceGetHandleByIndex": fails}, {}),
    ],
)
def test_nvml_adds_what_it_knows_and_its_failures_take_nothing_away(
    more: dict[str, Any], known: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml_library(**more))
    facts = nvidia.read(machines.nvidia_proc(tmp_path, 1) / "driver/nvidia").of(machines.gpu_address(0))
    assert facts["uuid"] == machines.GPU_UUID.format(0)
    assert known.items() <= facts.items()
    assert "brand" not in facts, "a constant that the library has no name for"


# --- detection ------------------------------------------------------------------------------------------------------

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


# --- the host's nodes -----------------------------------------------------------------------------------------------


def test_a_node_is_a_device_behind_all_links(tmp_path: Path) -> None:
    host = RealHost()
    link = tmp_path / "by-id"
    link.symlink_to("/dev/null")
    node = host.node(str(link))
    assert (node.path, node.kind, node.major, node.minor) == ("/dev/null", "c", 1, 3)


def test_what_is_no_usable_node_says_why(tmp_path: Path) -> None:
    host = RealHost()
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
    assert RealHost().node(str(path)).minor == 3
    path.chmod(0)
    with pytest.raises(OSError, match="nobody may open it"):
        RealHost().node(str(path))


def test_files_are_read_but_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"first\xff\nsecond\n")
    host = RealHost()
    assert host.first_line(str(tmp_path / "fifo")) is None
    assert host.first_line(str(tmp_path / "none")) is None
    assert host.first_line(str(tmp_path / "file")) == "first\\xff"


# --- what is wanted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matchers", "subsystems"),
    [
        ([{"subsystem": "usb"}], {"usb"}),
        ([{"subsystem": "usb|tty"}], {"usb", "tty"}),
        ([{"subsystem": "usb"}, {"subsystem": ["pci", "tty"]}], {"usb", "pci", "tty"}),
        ([{"subsystem": "us*"}], set()),
        ([{"subsystem": {"regex": "usb"}}], set()),
        ([{"subsystem": "usb"}, {"sysname": "x"}], set()),
        ([{"sysname": "x", "parent": {"subsystem": "usb"}}], set()),
        ([{"sysname": "x", "not": {"subsystem": "usb"}}], set()),
        ([{"rule": 'SUBSYSTEM=="tty", ATTRS{idVendor}=="0403"'}], {"tty"}),
    ],
)
def test_subsystems_that_must_be_enumerated(matchers: list[dict[str, Any]], subsystems: set[str]) -> None:
    """An empty set is everything: slower, never wrong."""
    assert scope_of(config({"name": "x.com/a", "match": matchers})).subsystems == subsystems


def test_every_attribute_and_link_that_is_named_is_read() -> None:
    resource = {
        "name": "x.com/a",
        "match": [
            {"subsystem": "usb", "attr": {"a1": "x"}, "parent": {"attr": {"a2": "x"}}, "not": {"link": {"l1": "x"}}}
        ],
        "id": ["{parent.attr:a3}"],
        "nodes": [{"path": "/dev/{attr:a4}", "as": "/dev/{link:l2}"}],
        "env": {"A": "{attr:a5}"},
        "mounts": [{"hostPath": "/x/{attr:a6}"}],
        "attributes": {"x": {"from": "attr:a7"}},
        "capacity": {"y": {"from": "attr:a8"}},
        "health": [{"attr": {"a9": "1"}}, {"file": {"/x/{attr:a10}": "1"}}],
        "group": {"match": [{"subsystem": "tty", "attr": {"a11": "x"}}]},
    }
    found = scope_of(config(resource))
    assert found == UdevScope(
        frozenset({"usb", "tty"}), frozenset(f"a{n}" for n in range(1, 12)), frozenset({"l1", "l2"})
    )
    assert not needs_nvidia(config(resource))
    assert needs_nvidia(config(machines.GPU_RESOURCE))


def test_companions_of_any_kind_make_everything_wanted() -> None:
    resource = {"name": "x.com/a", "match": [{"subsystem": "usb"}], "group": {"with": "children"}}
    assert scope_of(config(resource)).subsystems == frozenset()
