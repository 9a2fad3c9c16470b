"""The driver's files on the machine with an H100, as a tree of empty files: those of nvidia.yaml and ldconfig.txt."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path

import yaml

from drabridge.inventory.host import HostPaths
from drabridge.inventory.nvidia_files import MACHINE

HERE = Path(__file__).parent
VERSION = "580.159.04"
SPEC = yaml.safe_load((HERE / "nvidia.yaml").read_text())
MOUNTS = SPEC["containerEdits"]["mounts"]
LINKS = [
    word.split("::")
    for hook in SPEC["containerEdits"]["hooks"]
    if "create-symlinks" in hook["args"]
    for word in hook["args"]
    if "::" in word
]
CACHED = re.findall(r"^\t(\S+) \(libc6,x86-64\) => (\S+)$", (HERE / "ldconfig.txt").read_text(), re.MULTILINE)

_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}[MACHINE]
ELF = b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + {"x86_64": 62, "aarch64": 183}[MACHINE].to_bytes(2, "little")
ELF_32 = ELF[:4] + b"\x01" + ELF[5:]  # as x32's


def ld_cache(entries: Iterable[tuple[str, str]], flags: int = _FLAGS) -> bytes:
    """An ld.so.cache as ldconfig of glibc 2.41 writes it."""
    entries = list(entries)
    strings, table = b"", b""
    start = 48 + 24 * len(entries)
    for name, path in entries:
        where = [start + len(strings), start + len(strings) + len(name) + 1]
        strings += f"{name}\0{path}\0".encode()
        table += struct.pack("<iIIIQ", flags, *where, 0, 0)
    return b"glibc-ld.so.cache1.1" + struct.pack("<II", len(entries), len(strings)).ljust(28, b"\0") + table + strings


def put(root: Path, path: str, content: bytes = b"", mode: int = 0o755) -> Path:
    """Make a file below a host's root."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(mode)
    return file


def link(root: Path, path: str, target: str) -> None:
    """Make a link below a host's root."""
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.is_symlink():
        os.symlink(target, file)


def load(proc: Path, version: str = VERSION) -> None:
    """Let the driver of this version be the one that is loaded."""
    line = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (nixbld@)\n"
    put(proc, "driver/nvidia/version", line.encode())


def libraries(
    root: Path, folder: str, names: Iterable[str] = ("cuda", "nvidia-ml"), version: str = VERSION
) -> set[str]:
    """Put the files of libraries into a folder, with the links that an installer makes; return their paths."""
    paths = set()
    for name in names:
        put(root, path := f"{folder}/lib{name}.so.{version}", ELF)
        link(root, f"{folder}/lib{name}.so.1", f"lib{name}.so.{version}")
        paths.add(path)
    return paths


def host_paths(folder: Path) -> HostPaths:
    """Where the agent sees what is not below the host's root: the loaded driver, the path of firmware."""
    load(folder / "proc")
    put(folder / "modules", "firmware_class/parameters/path", b"/usr/local/nvidia/firmware\n")
    return HostPaths(proc=folder / "proc", modules=folder / "modules", cdi=(folder / "cdi",))


def h100(root: Path) -> None:
    """Make the machine's files: what nvidia.yaml mounts, its links, /lib's links, and ld.so.cache."""
    for mount in MOUNTS:
        if mount["hostPath"] != "/dev/null":
            put(root, mount["hostPath"], ELF if ".so." in mount["hostPath"] else b"")
    for target, path in LINKS:
        link(root, path, target)
    for _, path in CACHED:
        if path.startswith("/lib/"):
            link(root, path, f"/usr/local/nvidia/lib64/{os.path.basename(path)}")
    put(root, "/etc/ld.so.cache", ld_cache(CACHED), 0o644)
