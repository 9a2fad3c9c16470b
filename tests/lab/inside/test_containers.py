"""What the agent gives, as a container runtime applies it: device nodes and the rules of cgroup v2."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drabridge.sim.kubelet.pods import Phase
from tests.lab.inside.found import find
from tests.lab.inside.nodes import DISKS, DRIVER, HEAD, NVME, given_nodes, listed, number
from tests.support.agent_process import node, pod

LOOK = """
set -e
head -c 512 /dev/disk0 | wc -c
test "$(stat -c '%t:%T' /dev/disk0)" = OWN
mknod /tmp/other b MAJOR MINOR
if head -c 512 /tmp/other >/dev/null 2>&1; then echo opened; else echo refused; fi
"""


def spec(folder: Path, nodes: list[dict[str, Any]], script: str) -> dict[str, Any]:
    """A container of this machine's root, with these nodes and rules for them, as CDI's library adds them."""
    subprocess.run(["crun", "spec"], cwd=folder, check=True)
    made: dict[str, Any] = json.loads((folder / "config.json").read_text())
    made["root"] = {"path": "root", "readonly": True}
    made["process"]["terminal"] = False
    made["process"]["args"] = ["sh", "-c", script]
    capabilities = ["CAP_MKNOD", "CAP_DAC_OVERRIDE"]  # what containerd gives a plain container, and more
    made["process"]["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), capabilities)
    made["mounts"].append({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["dev"]})
    devices, rules = [], [{"allow": False, "access": "rwm"}]
    for one in nodes:
        status = os.stat(one["hostPath"])
        kind = "b" if stat.S_ISBLK(status.st_mode) else "c"
        devices.append(
            {"path": one["path"], "type": kind, "major": one["major"], "minor": one["minor"], "fileMode": 0o660}
        )
        rules.append(
            {"allow": True, "type": kind, "major": one["major"], "minor": one["minor"], "access": one["permissions"]}
        )
    rules.append(
        {"allow": True, "type": "b", "access": "m"}
    )  # runtimes let a container make any node (runc's defaults)
    made["linux"]["devices"] = devices
    made["linux"]["resources"] = {"devices": rules}
    return made


@contextlib.contextmanager
def root_bound_to(folder: Path) -> Iterator[None]:
    """This machine's root as a mount of its own: ``pivot_root`` takes no root that is the old one."""
    folder.mkdir()
    subprocess.run(["mount", "--bind", "/", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("runtime", ["crun", "runc"])
async def test_a_container_opens_its_disk_and_no_other(runtime: str) -> None:
    async with node(HEAD + DISKS, DRIVER) as (agent, kubelet):
        await listed(agent, kubelet, NVME, {"NV-0002", "NV-0003"}, set())
        assert (await kubelet.run_pod(pod("a", 1, NVME))).phase is Phase.RUNNING
        (given,) = given_nodes(agent)
        all_disks = {f"/dev/{Path(find(name)).name}" for name in ("nvme2", "nvme3")}
        (other,) = all_disks - {given["hostPath"]}
        major, minor = number(other)
        own = "{:x}:{:x}".format(*number(given["hostPath"]))
        script = LOOK.replace("OWN", own).replace("MAJOR", str(major)).replace("MINOR", str(minor))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "config.json").write_text(json.dumps(spec(folder, [given], script)))
            command = [runtime, "run", f"lab-{runtime}"]
            with root_bound_to(folder / "root"):
                done = await asyncio.to_thread(
                    subprocess.run, command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
                )
        assert (done.returncode, done.stdout.split()) == (0, ["512", "refused"]), done.stdout + done.stderr
        await kubelet.delete_pod("uid-a")
