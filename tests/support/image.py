"""Build and run the agent's image without a registry: a base by debootstrap, wheels from the package index.

The flags are what a small virtual machine without CAP_SYS_RESOURCE and with hybrid cgroups needs (measured): building
in chroot isolation (which has the host's network: PIP_NO_INDEX keeps the build off it), running by runc with small
limits.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from deploy.helm import ROOT

IMAGE_FOLDER = ROOT / "deploy/image"
SUITE = "bookworm"
BASE = f"localhost/drabridge-test-base:{SUITE}"
IMAGE = "localhost/drabridge-test:1"
PACKAGES = "python3,python3-venv"
RUN = (
    *("podman", "--runtime", "runc", "--cgroup-manager=cgroupfs", "run", "--rm"),
    *("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1024:1024"),
)
BUILD_SECONDS = 420.0


def command(*words: str | Path, seconds: float = 60.0) -> str:
    """Standard output; fails with what the program said."""
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT, errors="replace"
    )
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def _make_base() -> None:
    """Debian's minimal system with Python. Stays in podman's store: it takes a minute, and nothing of ours is in it."""
    if subprocess.run(["podman", "image", "exists", BASE], check=False).returncode == 0:
        return
    with tempfile.TemporaryDirectory(prefix="drabase") as directory:
        root = Path(directory) / "root"
        command("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root, seconds=BUILD_SECONDS)
        archive = Path(directory) / "base.tar"
        command("tar", "-C", root, "-cf", archive, ".")
        command("podman", "import", "-q", archive, BASE, seconds=120)


def build(name: str = IMAGE) -> None:
    """An image of this name in podman's store, from the Containerfile as it is. Skips where that cannot be tried."""
    for program in ("podman", "runc", "debootstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    _make_base()
    with tempfile.TemporaryDirectory(prefix="drawheels") as wheels:
        for lock in ("build.lock", "requirements.lock"):
            command(
                *(sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "--require-hashes"),
                *("--python-version", "3.11", "--no-deps", "-r", IMAGE_FOLDER / lock, "-d", wheels),
                seconds=180,
            )
        command(
            *("podman", "build", "--layers=false", "--isolation=chroot", "--network=host", "--format", "oci"),
            *("--volume", f"{wheels}:/wheels:ro", "--build-arg", f"BASE={BASE}"),
            *("--build-arg", "PIP_NO_INDEX=1", "--build-arg", "PIP_FIND_LINKS=/wheels"),
            *("-f", IMAGE_FOLDER / "Containerfile", "-t", name, ROOT),
            seconds=BUILD_SECONDS,
        )


def remove(name: str = IMAGE) -> None:
    """Of what was built here; the base stays."""
    subprocess.run(["podman", "rmi", "-f", name], capture_output=True, check=False, timeout=60)
