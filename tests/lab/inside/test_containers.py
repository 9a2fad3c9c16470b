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
from tests.lab.inside.found import devnode
from tests.lab.inside.nodes import DISKS, DRIVER, HEAD, NVME, given_nodes, listed, number
from tests.support.agent_on_cluster import CLASS, bridge, claim_pod, limits_pod
from tests.support.agent_process import DRIVER as MEMORY_DRIVER
from tests.support.agent_process import RESOURCE, node, pod

LOOK = """
set -e
head -c 512 /dev/disk0 | wc -c
test "$(stat -c '%t:%T' /dev/disk0)" = OWN
mknod /tmp/other b MAJOR MINOR
if head -c 512 /tmp/other >/dev/null 2>&1; then echo opened; else echo refused; fi
"""


def spec(folder: Path, nodes: list[dict[str, Any]], script: str, user: int) -> dict[str, Any]:
    """A container of this machine's root, with these nodes and rules for them, as CDI's library adds them.

    It takes a node's mode from the host's, and its owner from the container's user, where the CDI file says neither
    (``fillMissingInfo`` and ``Apply`` in container-device-interface's pkg/cdi/container-edits.go).
    """
    subprocess.run(["crun", "spec"], cwd=folder, check=True)
    made: dict[str, Any] = json.loads((folder / "config.json").read_text())
    made["root"] = {"path": "root", "readonly": True}
    made["process"]["terminal"] = False
    made["process"] |= {"args": ["sh", "-c", script], "user": {"uid": user, "gid": user}}
    capabilities = ["CAP_MKNOD", "CAP_DAC_OVERRIDE"]  # what containerd gives a plain container, and more
    made["process"]["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), capabilities)
    made["mounts"].append({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["dev"]})
    devices, rules = [], [{"allow": False, "access": "rwm"}]
    for one in nodes:
        status = os.stat(one["hostPath"])
        kind = "b" if stat.S_ISBLK(status.st_mode) else "c"
        numbers = {"type": kind, "major": one["major"], "minor": one["minor"]}
        filled = {"fileMode": stat.S_IMODE(status.st_mode), "uid": user, "gid": user}
        devices.append({"path": one["path"], **filled, **numbers, **{key: one[key] for key in filled if key in one}})
        rules.append({"allow": True, "access": one["permissions"], **numbers})
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


async def run_in_container(runtime: str, nodes: list[dict[str, Any]], script: str, user: int = 0) -> list[str]:
    """The words that a script says in a container with these nodes; it must end well."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(spec(folder, nodes, script, user)))
        command = [runtime, "run", f"lab-{runtime}"]
        with root_bound_to(folder / "root"):
            done = await asyncio.to_thread(
                subprocess.run, command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
            )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("runtime", ["crun", "runc"])
async def test_a_container_opens_its_disk_and_no_other(runtime: str) -> None:
    async with node(HEAD + DISKS, DRIVER) as (agent, kubelet):
        await listed(agent, kubelet, NVME, {"NV-0002", "NV-0003"}, set())
        assert (await kubelet.run_pod(pod("a", 1, NVME))).phase is Phase.RUNNING
        (given,) = given_nodes(agent)
        (other,) = {devnode("nvme2"), devnode("nvme3")} - {given["hostPath"]}
        major, minor = number(other)
        own = "{:x}:{:x}".format(*number(given["hostPath"]))
        script = LOOK.replace("OWN", own).replace("MAJOR", str(major)).replace("MINOR", str(minor))
        assert await run_in_container(runtime, [given], script) == ["512", "refused"]
        await kubelet.delete_pod("uid-a")


async def test_a_node_has_the_mode_of_the_hosts_and_is_the_containers_users_for_pods_and_claims() -> None:
    lanes = DISKS + "  lanes: {legacy: 1, dra: 1}\n"
    async with bridge(HEAD + lanes, driver=DRIVER) as (agent, cluster, _runtime):
        await cluster.apply(CLASS.replace(MEMORY_DRIVER, DRIVER))
        await cluster.apply(limits_pod("a").replace(RESOURCE, NVME))
        await cluster.apply(claim_pod("c"))
        for name in ("a", "c"):
            await cluster.wait_pod(name)
        nodes = given_nodes(agent)
        assert {one["hostPath"] for one in nodes} == {devnode("nvme2"), devnode("nvme3")}
        for one in nodes:
            host = Path(one["hostPath"])
            assert (host.owner(), host.group(), stat.S_IMODE(host.stat().st_mode)) == ("root", "disk", 0o660)
            said = await run_in_container(
                "runc", [one], "head -c 512 /dev/disk0 | wc -c; stat -c %u:%g:%a /dev/disk0", 7
            )
            assert said == ["512", "7:7:660"]
