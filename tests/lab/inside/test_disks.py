"""The ledger's disk is full, or becomes read-only, under a real agent: nothing is given that is not on disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.timings import Timings
from tests.lab.inside.nodes import DRIVER, HEAD, SERIAL, SERIAL_PORTS, ids, run
from tests.support.agent_process import AgentProcess, pod
from tests.support.waiting import until


@contextlib.contextmanager
def small_disk() -> Iterator[Path]:
    """A file system of its own, of 8 MiB, on a loop device."""
    with tempfile.TemporaryDirectory(prefix="d", dir="/tmp") as name:
        image, mount = Path(name) / "image", Path(name) / "m"
        mount.mkdir()
        image.write_bytes(b"")
        os.truncate(image, 8 << 20)
        subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(mount)], check=True)
        try:
            yield mount
        finally:
            subprocess.run(["umount", "-l", str(mount)], check=True)


def fill(folder: Path) -> Path:
    """Take all that is left of a file system."""
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


async def test_nothing_is_given_on_a_full_disk_or_a_read_only_one() -> None:
    with small_disk() as root:
        kubelet, agent = SimKubelet(root, timings=Timings.fast()), AgentProcess(root, HEAD + SERIAL_PORTS, DRIVER)
        await kubelet.start()
        await agent.start()
        try:
            await agent.ready()
            await until(lambda: len(ids(kubelet, SERIAL)[0]) >= 4, 20, agent.text)
            assert (await kubelet.run_pod(pod("a", resource=SERIAL))).phase is Phase.RUNNING
            filler = fill(root)
            refused = await kubelet.run_pod(pod("b", resource=SERIAL))
            assert refused.phase is Phase.FAILED, "its grant is on no disk"
            assert "No space left" in refused.message or "cannot be written" in refused.message, refused.message
            filler.unlink()
            assert await until(lambda: _gives(kubelet, "c"), 30, agent.text)
            Path("/proc/sysrq-trigger").write_text("u")  # all file systems read-only, whoever writes to them
            await until(lambda: not os.access(root, os.W_OK), 10)
            assert (await kubelet.run_pod(pod("d", resource=SERIAL))).phase is Phase.FAILED
            await run("mount", "-o", "remount,rw", str(root))
            await run("mount", "-o", "remount,rw", "/")
            owners = [row["owner"] for row in (await agent.status())["devices"]]
            assert owners.count("legacy") == 2
        finally:
            await agent.stop(9)
            await kubelet.stop()


_attempts = 0


async def _gives(kubelet: SimKubelet, name: str) -> bool:
    """Whether a pod gets a device now."""
    global _attempts
    _attempts += 1
    return (await kubelet.run_pod(pod(f"{name}{_attempts}", resource=SERIAL))).phase is Phase.RUNNING
