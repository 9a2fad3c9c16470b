"""The disk of the ledger is full, or read-only after an error, under an agent: nothing is given that is not on it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.timings import Timings
from tests.lab.inside.nodes import DRIVER, HEAD, SERIAL, SERIAL_PORTS, ids
from tests.support.agent_process import AgentProcess, lists_read, pod
from tests.support.waiting import short_directory, until


class SmallDisk:
    """An ext4 file system of 8 MiB on a loop device, which is read-only after an error, as Debian mounts its own."""

    def __init__(self, folder: Path) -> None:
        self._image, self.mount = folder / "image", folder / "plugins" / DRIVER
        self.mount.mkdir(parents=True)
        self._image.touch()
        os.truncate(self._image, 8 << 20)
        subprocess.run(["modprobe", "loop"], check=True)
        subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", str(self._image)], check=True)

    def put_in(self) -> None:
        options = "loop,errors=remount-ro"
        subprocess.run(["mount", "-o", options, str(self._image), str(self.mount)], check=True)

    def take_out(self) -> None:
        subprocess.run(["umount", str(self.mount)], check=True)

    def repair(self) -> None:
        """As a boot does: 1 is "errors corrected"."""
        assert subprocess.run(["e2fsck", "-p", str(self._image)], check=False).returncode in (0, 1)

    def fill(self) -> Path:
        """Take all that is left; returns the file that has it."""
        filler = self.mount / "filler"
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        return filler

    def fail(self) -> None:
        """Let the file system find an error in itself."""
        source = next(line.split()[0] for line in _mounts() if line.split()[1] == str(self.mount))
        Path(f"/sys/fs/ext4/{Path(source).name}/trigger_fs_error").write_text("1")


def _mounts() -> list[str]:
    return Path("/proc/mounts").read_text().splitlines()


@contextlib.contextmanager
def small_disk() -> Iterator[tuple[Path, SmallDisk]]:
    with short_directory() as folder:
        disk = SmallDisk(folder)
        disk.put_in()
        try:
            yield folder, disk
        finally:
            subprocess.run(["umount", "-l", str(disk.mount)], check=False)


async def test_nothing_is_given_on_a_full_disk_or_a_read_only_one() -> None:
    with small_disk() as (root, disk):
        kubelet = SimKubelet(root, timings=Timings.fast())
        agent = AgentProcess(root, HEAD + SERIAL_PORTS, DRIVER)
        await kubelet.start()
        await agent.start()
        try:
            await agent.ready()
            await lists_read(kubelet)
            await until(lambda: len(ids(kubelet, SERIAL)[0]) >= 4, 20, agent.text)
            assert (await kubelet.run_pod(pod("a", resource=SERIAL))).phase is Phase.RUNNING
            filler, given = disk.fill(), 1
            while (refused := await kubelet.run_pod(pod(f"b{given}", resource=SERIAL))).phase is Phase.RUNNING:
                given += 1  # its grant has found place in the last block of the ledger's file, a kilobyte
                assert given <= 4, "its grant is on no disk"
            assert "the ledger cannot be written" in refused.message
            filler.unlink()
            await agent.ready()
            await until(lambda: len(ids(kubelet, SERIAL)[0]) > given, 20, agent.text)
            assert (await kubelet.run_pod(pod("c", resource=SERIAL))).phase is Phase.RUNNING
            given += 1

            disk.fail()
            refused = await kubelet.run_pod(pod("d", resource=SERIAL))
            assert refused.phase is Phase.FAILED
            assert "the ledger cannot be written" in refused.message
            assert await _held(agent) == given
            await agent.stop(signal.SIGKILL)
            disk.take_out()
            disk.repair()
            disk.put_in()
            await agent.start()
            await agent.ready()
            assert await _held(agent) == given, "as it was on the disk"
            await until(lambda: len(ids(kubelet, SERIAL)[0]) > given, 20, agent.text)
            assert (await kubelet.run_pod(pod("e", resource=SERIAL))).phase is Phase.RUNNING
        finally:
            with contextlib.suppress(ProcessLookupError):
                await agent.stop(signal.SIGKILL)
            await kubelet.stop()


async def _held(agent: AgentProcess) -> int:
    return [row["owner"] for row in (await agent.status())["devices"]].count("legacy")
