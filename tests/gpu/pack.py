"""All that ``run`` needs on a machine without network: programs, wheels, generated stubs, as one archive in pieces.

Each piece is a folder that can travel alone, with a copy of the checkout. This module needs no package.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.node import build
from tests.node.errors import NodeError
from tests.node.images import libraries
from tests.node.releases import release

ROOT = Path(__file__).resolve().parents[2]
PIECE_BYTES = 52 << 20  # with the checkout it travels in 64 MiB
TESTS = ("pytest", "cryptography", "nvidia-ml-py")
PROGRAMS = ("runc", "nsenter", "ip", "losetup", "busybox")  # tests/node/cluster.py, PACKAGES
CNI = Path("/usr/lib/cni")
FOREIGN = ("dra-test-driver", "sample-device-plugin")  # of the node's programs, what no node needs
PART = "part"
C_LIBRARY = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util))\.so")
WRAPPER = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH=$here/lib exec "$here/programs/{name}" "$@"
"""


def pack(folder: Path, python: str, of: str, programs: Mapping[str, str]) -> list[Path]:
    """Write the pieces and return them. ``python``: the machine's version; ``programs``: NVIDIA's, by name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="pack", dir=folder) as directory:
        work = Path(directory)
        place = work / "drabridge/node"
        lay_out(place, of, programs)
        archives = [_archive(work, folder / f"{one.name}.tar.xz", [one]) for one in sorted(place.iterdir())]
        archives.append(_archive(ROOT, folder / "stubs.tar.xz", _stubs()))
        _wheels(work / "wheels", python)
        archives += [Path(shutil.copy(one, folder)) for one in (work / "wheels").iterdir()]
    return _pieces(folder, archives)


def lay_out(place: Path, of: str, programs: Mapping[str, str]) -> None:
    """Copy a node's programs, and what a machine may lack beside them, to a folder as that of ``build.cache``."""
    for one in build.built(release(of), build.tell):
        shutil.copytree(one, place / one.name, symlinks=True, ignore=shutil.ignore_patterns(*FOREIGN))
    _tools(place / "tools", programs)


def _archive(root: Path, path: Path, content: Sequence[Path]) -> Path:
    build.tell(f"packing {path.name}")
    with tarfile.open(path, "w:xz", preset=6) as archive:  # a fifth smaller than by 1, which takes a third of the time
        for one in content:
            archive.add(one, one.relative_to(root))
    return path


def _stubs() -> list[Path]:
    """What ``hatch_build.py`` generates, and git does not have."""
    return [one for top in ("deviceplugin", "podresources", "drabridge") for one in (ROOT / top).rglob("*_pb2*.py")]


def _tools(folder: Path, programs: Mapping[str, str]) -> None:
    found = {name: shutil.which(name) or "" for name in PROGRAMS}
    found |= {name: str(CNI / name) for name in ("bridge", "host-local", "loopback")}
    for name, path in {**found, **{name: path for name, path in programs.items() if path}}.items():
        if not Path(path).is_file():
            raise NodeError(f"{path or name}: no such program to pack.")
        _tool(folder, name, Path(path))


def _tool(folder: Path, name: str, path: Path) -> None:
    """A program; where it needs more than the C library, a script that runs it with its libraries."""
    static = subprocess.run(["ldd", path], capture_output=True, check=False).returncode != 0
    needed = [] if static else [one for one in libraries(path) if not C_LIBRARY.match(one.name)]
    target = folder / "programs" / name if needed else folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)
    for one in needed:
        (folder / "lib").mkdir(exist_ok=True)
        shutil.copy(one, folder / "lib")
    if needed:
        (folder / name).write_text(WRAPPER.format(name=name))
        (folder / name).chmod(0o755)


def _wheels(folder: Path, python: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *TESTS]
    options = ("--only-binary", ":all:", "--python-version", python, "--dest", str(folder), "--quiet")
    _run([sys.executable, "-m", "pip", "download", *options, *wanted])


def _run(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NodeError(f"{shlex.join(words[:5])} ... failed:\n{done.stderr.strip()[-2000:]}")


def _pieces(folder: Path, archives: Sequence[Path]) -> list[Path]:
    """Divide one archive of all these into equal pieces."""
    whole = folder / "all.tar"
    with tarfile.open(whole, "w") as archive:
        for one in archives:
            archive.add(one, one.name)
            one.unlink()
    size = whole.stat().st_size
    count = -(-size // PIECE_BYTES)
    pieces = [folder / str(number + 1) for number in range(count)]
    with whole.open("rb") as source:
        for piece in pieces:
            piece.mkdir()
            (piece / PART).write_bytes(source.read(-(-size // count)))
    whole.unlink()
    return pieces


def unpack(folder: Path) -> dict[str, str]:
    """Lay out what the pieces have, beside them; the variables with which Python and ``tests.node`` find it."""
    there = folder / "unpacked"
    parts = sorted(folder.glob(f"[0-9]*/{PART}"))
    if not parts:
        raise NodeError(f"{folder}: no pieces: `python -m tests.gpu pack {folder}` makes them.")
    if not (there / "site").is_dir():
        shutil.rmtree(there, ignore_errors=True)
        there.mkdir()
        with (there / "all.tar").open("wb") as whole:
            for one in parts:
                whole.write(one.read_bytes())
        _extract(there / "all.tar", there)
        (there / "all.tar").unlink()
        for one in there.glob("*.tar.xz"):
            _extract(one, ROOT if one.name == "stubs.tar.xz" else there)
            one.unlink()
        wheels = [str(one) for one in there.glob("*.whl")]
        options = ("--quiet", "--no-index", "--no-deps", "--no-compile", "--target", str(there / "half"))
        _run([sys.executable, "-m", "pip", "install", *options, *wheels])
        (there / "half").rename(there / "site")  # whole
    return {
        "PYTHONPATH": str(there / "site"),
        "XDG_CACHE_HOME": str(there),
        "PATH": str(there / "drabridge/node/tools"),
    }


def _extract(path: Path, to: Path) -> None:
    with tarfile.open(path) as archive:
        archive.extraction_filter = lambda member, _: member  # an argument that not every Python 3.11 has
        archive.extractall(to)
