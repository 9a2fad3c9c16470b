"""Make the two images of a node without a registry: Debian's busybox with ``flock``, and one that only sleeps."""

from __future__ import annotations

import _ctypes
import hashlib
import io
import json
import platform
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from tests.node import build
from tests.node.errors import NodeError

BUSYBOX = "docker.io/local/busybox:1"
PAUSE = "docker.io/local/pause:1"
PYTHON = "docker.io/local/python:1"
PROGRAM = "/bin/busybox"
FLOCK = Path("/usr/bin/flock")  # Debian's busybox has none
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
FOLDERS = ("bin", "etc", "tmp", "dev", "proc", "sys", "var", "var/run", "root")


def write(folder: Path) -> list[Path]:
    """Write both images into the folder as archives that ``ctr images import`` reads; return their paths."""
    if not build.tool(PROGRAM).exists():
        raise NodeError(f"{PROGRAM} is missing: install Debian's package busybox-static.")
    layer = _layer(FLOCK)
    folder.mkdir(parents=True, exist_ok=True)
    commands = {BUSYBOX: ["/bin/sh"], PAUSE: ["/bin/sleep", "2147483647"]}
    return [_image(folder, name, command, layer) for name, command in commands.items()]


def write_python(folder: Path) -> Path:
    """Write an image with this Python and what ``ctypes`` needs; mount its standard library and name the program."""
    python = Path(sys.executable).resolve()
    (libc,) = (one for one in libraries(python) if one.name == "libc.so.6")
    older = [libc.with_name(name) for name in ("libdl.so.2", "libpthread.so.0", "librt.so.1")]  # NVIDIA's need them
    ctypes = Path(getattr(_ctypes, "__file__", python))  # some Pythons have it within
    modules = [ctypes, *(one for one in older if one.exists())]
    return _image(folder, PYTHON, [str(python)], _layer(FLOCK, python, *modules))


def _layer(*programs: Path) -> bytes:
    buffer, busybox = io.BytesIO(), build.tool(PROGRAM)
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in FOLDERS:
            _add(archive, name, kind=tarfile.DIRTYPE)
        _add(archive, "bin/busybox", busybox.read_bytes())
        applets = subprocess.run([busybox, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        for name in sorted({*applets} - {"busybox"}):
            _add(archive, f"bin/{name}", kind=tarfile.SYMTYPE, link="busybox")
        for path in dict.fromkeys(path for one in programs for path in (one, *libraries(one))):
            _add(archive, str(path).removeprefix("/"), path.read_bytes())
            if ".so" in path.suffixes and not str(path).startswith(("/lib", "/usr/lib")):  # ld.so finds it by /lib, too
                _add(archive, f"lib/{path.name}", kind=tarfile.SYMTYPE, link=str(path))
        _add(archive, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644)
    return buffer.getvalue()


def libraries(program: Path) -> list[Path]:
    """The libraries that a program or library is loaded with, by the paths where the machine has them."""
    said = subprocess.run(["ldd", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", said)]


def _add(
    archive: tarfile.TarFile,
    name: str,
    data: bytes = b"",
    mode: int = 0o755,
    *,
    kind: bytes = tarfile.REGTYPE,
    link: str = "",
) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.type, entry.linkname, entry.size = mode, kind, link, len(data)
    archive.addfile(entry, io.BytesIO(data) if data else None)


def _image(folder: Path, name: str, command: list[str], layer: bytes) -> Path:
    """One archive in OCI's image layout."""
    blobs: dict[str, bytes] = {}

    def put(kind: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    rootfs = put("layer.v1.tar", layer)
    machine = platform.machine()
    config = {
        "architecture": ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Env": ["PATH=/bin:/usr/bin"], "Cmd": command, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [rootfs["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": put("config.v1+json", json.dumps(config).encode()),
        "layers": [rootfs],
    }
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{**put("manifest.v1+json", json.dumps(manifest).encode()), "annotations": names}],
    }
    path = folder / f"{re.sub('[/:]', '_', name)}.tar"
    with tarfile.open(path, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}', 0o644)
        _add(archive, "index.json", json.dumps(index).encode(), 0o644)
        for digest, data in blobs.items():
            _add(archive, f"blobs/sha256/{digest}", data, 0o644)
    return path
