"""Build and run the agent's image without a registry: a base by debootstrap, wheels from the package index.

The flags are what a small virtual machine without CAP_SYS_RESOURCE and with hybrid cgroups needs (measured): building
in chroot isolation (which has the host's network: PIP_NO_INDEX keeps the build off it), running by runc with small
limits.
"""

from __future__ import annotations

import hashlib
import os
import re
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
KEEP = "DRABRIDGE_TEST_KEEP_IMAGE"


def command(*words: str | Path, seconds: float = 60.0) -> str:
    """Standard output; fails with what the program said."""
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=seconds, check=False, cwd=ROOT, errors="replace"
    )
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def _make_base() -> None:
    """Debian's minimal system with Python. Stays in podman's store: it takes a minute, and nothing of ours is in it."""
    if _exists(BASE):
        return
    with tempfile.TemporaryDirectory(prefix="drabase") as directory:
        root = Path(directory) / "root"
        command("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root, seconds=BUILD_SECONDS)
        archive = Path(directory) / "base.tar"
        command("tar", "-C", root, "-cf", archive, ".")
        command("podman", "import", "-q", archive, BASE, seconds=120)


def build(name: str = IMAGE, root: Path = ROOT) -> None:
    """An image of this name in podman's store, from the Containerfile of a checkout. Skips where that cannot be tried.

    With DRABRIDGE_TEST_KEEP_IMAGE it is kept, and the next build of the same files takes it.
    """
    for program in ("podman", "runc", "debootstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    kept = f"localhost/drabridge-test:{_digest(root)}" if os.environ.get(KEEP) else ""
    if kept and _exists(kept):
        command("podman", "tag", kept, name)
        return
    _make_base()
    with tempfile.TemporaryDirectory(prefix="drawheels") as wheels:
        for lock in ("build.lock", "requirements.lock"):
            command(
                *(sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "--require-hashes"),
                *("--python-version", "3.11", "--no-deps", "-r", root / "deploy/image" / lock, "-d", wheels),
                seconds=180,
            )
        command(
            *("podman", "build", "--layers=false", "--isolation=chroot", "--network=host", "--format", "oci"),
            *("--volume", f"{wheels}:/wheels:ro", "--build-arg", f"BASE={BASE}"),
            *("--build-arg", "PIP_NO_INDEX=1", "--build-arg", "PIP_FIND_LINKS=/wheels"),
            *("-f", root / "deploy/image/Containerfile", "-t", name, root),
            seconds=BUILD_SECONDS,
        )
    if kept:
        command("podman", "tag", name, kept)


def _exists(name: str) -> bool:
    return subprocess.run(["podman", "image", "exists", name], check=False).returncode == 0


def _digest(root: Path) -> str:
    """Return a name for what the image is made of: every file that the Containerfile copies."""
    digest = hashlib.sha256()
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", (root / "deploy/image/Containerfile").read_text(), re.MULTILINE)
    for source in " ".join(copied).split():
        for path in sorted((root / source).rglob("*")) if (root / source).is_dir() else [root / source]:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(
                    f"{path.relative_to(root)} {path.stat().st_mode & 0o111:o}\n".encode() + path.read_bytes()
                )
    return digest.hexdigest()[:16]


def remove(name: str = IMAGE) -> None:
    """Of what was built here; the base stays."""
    subprocess.run(["podman", "rmi", "-f", name], capture_output=True, check=False, timeout=60)
