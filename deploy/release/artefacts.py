"""Build what a release consists of, so that the same commit gives the same bytes on every machine.

Every function takes ``source``, a folder with nothing but committed files, and ``epoch``, the commit's time in seconds:
it is the only date in what is built.
"""

from __future__ import annotations

import gzip
import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import yaml

LIMIT_SECONDS = 1800.0  # ends a build that hangs


def run(*words: str | Path, epoch: int, cwd: Path) -> None:
    """Run a program. Raises RuntimeError with its output if it fails."""
    path = f"{os.path.dirname(words[0])}:{os.environ['PATH']}"  # protoc looks there for its plugins
    environment = os.environ | {"PATH": path, "SOURCE_DATE_EPOCH": str(epoch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"{words[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def builder(source: Path, folder: Path, epoch: int) -> Path:
    """Make an environment with the locked build tools, hashes checked; returns its Python."""
    run(sys.executable, "-m", "venv", folder, epoch=epoch, cwd=source)
    python = folder / "bin/python"
    lock = source / "deploy/image/build.lock"
    pip: tuple[str | Path, ...] = (python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:")
    run(*pip, "--require-hashes", "-r", lock, epoch=epoch, cwd=source)
    return python


def wheels_and_sdist(python: Path, source: Path, out: Path, epoch: int) -> None:
    """Write the sdist, and the three wheels built from it, into ``out``. ``python``: that of ``builder``.

    A wheel from the sdist names the two libraries by version, one from a clone by folder (``hatch_build.py``).
    """
    build: tuple[str | Path, ...] = (python, "-m", "hatchling", "build", "-d", out)
    run(*build, "-t", "sdist", epoch=epoch, cwd=source)
    (sdist,) = out.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        files.extractall(out.parent, filter="data")
    unpacked = out.parent / sdist.name.removesuffix(".tar.gz")
    for folder in (unpacked, unpacked / "deviceplugin", unpacked / "podresources"):
        run(*build, "-t", "wheel", epoch=epoch, cwd=folder)


def chart(source: Path, out: Path, epoch: int, registries: tuple[str, str]) -> Path:
    """Pack the chart as Helm does (``NAME-VERSION.tgz``, everything below ``NAME/``).

    ``registries``: the one that its files name, and the one that they are to name.
    """
    folder = source / "deploy/chart"
    for path in (folder / "values.yaml", folder / "README.md"):
        path.write_text(path.read_text(encoding="utf-8").replace(f"{registries[0]}/", f"{registries[1]}/"), "utf-8")
    about = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
    target = out / f"{about['name']}-{about['version']}.tgz"
    with target.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=epoch) as file:
        _pack(folder, about["name"], file, epoch)
    return target


def _pack(folder: Path, name: str, target: IO[bytes] | gzip.GzipFile, epoch: int) -> None:
    """Write a tar of the files below ``folder`` as ``NAME/...``, in one order, with one date and one owner."""
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            entry = tarfile.TarInfo(os.path.join(name, path.relative_to(folder).as_posix()))
            entry.size, entry.mtime, entry.mode = path.stat().st_size, epoch, 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)


def wheels(python: Path, source: Path, folder: Path, architecture: str, epoch: int) -> None:
    """Fetch the packages of an image, as locked, and check their hashes."""
    download: tuple[str | Path, ...] = (python, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder)
    download += ("--only-binary", ":all:", "--require-hashes", "--python-version", "3.11")
    run(*download, "-r", source / "deploy/image/build.lock", epoch=epoch, cwd=source)
    script = source / "deploy/image/wheel_platforms.sh"
    platforms = subprocess.run(["sh", script, architecture], capture_output=True, text=True, check=True).stdout.split()
    abi = ("--implementation", "cp", "--abi", "cp311", "--abi", "abi3", "--abi", "none")
    run(*download, *abi, *platforms, "-r", source / "deploy/image/requirements.lock", epoch=epoch, cwd=source)


def image(
    python: Path, source: Path, out: Path, version: str, architecture: str, epoch: int, options: Sequence[str] = ()
) -> Path:
    """Build the agent's image for ``amd64`` or ``arm64`` and write it as an OCI archive. ``options``: podman's.

    No program of the image's own architecture runs meanwhile: one machine builds both.
    """
    name = f"localhost/drabridge-release:{version}-{architecture}"
    target, saved = out / f"drabridge-{version}-image-{architecture}.oci.tar", out.parent / f"image-{architecture}"
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    fetched = out.parent / f"wheels-{architecture}"
    wheels(python, source, fetched, architecture, epoch)
    podman: tuple[str | Path, ...] = ("podman", "build", "--platform", f"linux/{architecture}", "--format", "oci")
    podman += ("--timestamp", str(epoch), "--layers=false", "--no-cache")
    podman += ("--build-arg", f"BUILDPLATFORM=linux/{machine}", "--build-arg", f"BUILDARCH={machine}")
    podman += ("--volume", f"{fetched}:/wheels:ro", "--build-arg", "PIP_NO_INDEX=1")
    podman += ("--build-arg", "PIP_FIND_LINKS=/wheels", *options)
    run(*podman, "-f", source / "deploy/image/Containerfile", "-t", name, source, epoch=epoch, cwd=source)
    try:
        run("podman", "save", "--format", "oci-dir", "-o", saved, name, epoch=epoch, cwd=source)
    finally:
        subprocess.run(["podman", "rmi", "-f", name], capture_output=True, check=False, timeout=LIMIT_SECONDS)
    with target.open("wb") as file:  # podman's own archives have the time of the moment in them
        _pack(saved, "", file, epoch)
    return target
