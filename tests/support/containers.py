"""Run a script in a real container (podman) with CDI devices."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

from tests.support.waiting import HANG_SECONDS

CDI_DIRECTORY = Path("/var/run/cdi")  # podman reads this one


def rootfs(path: Path) -> Path:
    """A root file system with busybox alone."""
    for name in ("bin", "dev", "proc", "sys", "etc", "tmp", "run", "var/run"):
        (path / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox
    shutil.copy(busybox, path / "bin" / "busybox")
    for applet in ("sh", "ls", "cat", "echo"):
        (path / "bin" / applet).symlink_to("busybox")
    return path


def podman(root: Path, script: str, devices: list[str], user: str = "0:0") -> subprocess.CompletedProcess[str]:
    """Run a script in a container with CDI devices.

    runc and small limits: without CAP_SYS_RESOURCE crun fails at setrlimit; --cgroup-manager: there is no systemd.
    """
    command = ["podman", "--runtime", "runc", "--cgroup-manager=cgroupfs", "run", "--rm", "--network=none"]
    command += ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
    command += ["--user", user]
    command += [argument for device in devices for argument in ("--device", device)]
    return subprocess.run(
        [*command, "--rootfs", str(root), "/bin/sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=5 * HANG_SECONDS,
    )


async def run(root: Path, script: str, devices: list[str], user: str = "0:0") -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(podman, root, script, devices, user)
