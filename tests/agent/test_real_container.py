"""A real container gets the device that the agent allocated; a container without it does not."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

import pytest

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.runtime import MemoryRuntime
from drabridge.sim.kubelet.timings import Timings
from tests.support.agent_process import AgentProcess, pod
from tests.support.cdi_files import device, write_spec
from tests.support.containers import CDI_DIRECTORY, rootfs, run
from tests.support.hardware import Loops, needs_loop_devices
from tests.support.waiting import short_directory, until

pytestmark = [
    pytest.mark.podman,
    pytest.mark.root,
    pytest.mark.loopdev,
    needs_loop_devices,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("podman") or not shutil.which("busybox"),
        reason="needs root, podman, runc and busybox-static (apt-get install podman runc busybox-static)",
    ),
]

RESOURCE = "example.com/loop"


def config(driver: str, loop: Loops, firmware: Path) -> str:
    return f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {driver}
safety: {{minHoldSeconds: 0.5, unconfirmedSeconds: 1, absentSeconds: 0.3, settleSeconds: 0.5, quiesceSeconds: 0.5}}
resources:
- name: {RESOURCE}
  match: [{{subsystem: block, sysname: "{loop.pattern}"}}]
  id: ["{{sysname}}"]
  nodes: [{{from: devnode, as: /dev/disk0}}]
  env: {{WHICH: "{{sysname}}"}}
  mounts: [{{hostPath: {firmware}, containerPath: /firmware}}]
"""


async def test_a_user_opens_the_node_by_its_group_alone(loop: Loops, tmp_path: Path) -> None:
    """Mode and owner as on the host, where the node is 0660 and root's; the group is the container's."""
    root = rootfs(tmp_path / "rootfs")
    (tmp_path / "firmware").write_text("v42\n")
    driver = f"t{uuid.uuid4().hex[:8]}.example.com"
    name = loop.add(0)
    number = os.stat(f"/dev/{name}").st_rdev
    os.chmod(f"/dev/{name}", 0o660)
    text = config(driver, loop, tmp_path / "firmware").replace(
        "as: /dev/disk0}", "as: /dev/disk0, fileMode: host, uid: host, gid: 1000}"
    )
    with short_directory() as place:
        kubelet = SimKubelet(place, timings=Timings.fast())
        agent = AgentProcess(place, text, driver, ("--cdi-dir", "/var/run/cdi"))
        await kubelet.start()
        await agent.start()
        try:
            await agent.ready(20)
            await kubelet.wait_for_resource(RESOURCE, healthy=1)
            await kubelet.run_pod(pod("a", resource=RESOURCE))
            assert isinstance(kubelet.node.runtime, MemoryRuntime)
            names = list(kubelet.node.runtime.running["uid-a", "main"].cdi_devices)
            look = "ls -ln /dev/disk0; exec 3<>/dev/disk0 && echo opened"
            ours = await run(root, look, names, "1000:1000")
            theirs = await run(root, look, names, "1001:1001")
            assert "brw-rw----" in ours.stdout, ours
            assert ours.stdout.split()[2:5] == ["0", "1000", f"{os.major(number)},"], ours
            assert "opened" in ours.stdout, ours
            assert "Permission denied" in theirs.stderr, theirs
        finally:
            await agent.stop(9)
            await kubelet.stop()
            for path in CDI_DIRECTORY.glob(f"*{driver}*"):
                path.unlink()


async def test_the_container_gets_node_variable_and_mount(loop: Loops, tmp_path: Path) -> None:
    root = rootfs(tmp_path / "rootfs")
    (tmp_path / "firmware").write_text("v42\n")
    driver = f"t{uuid.uuid4().hex[:8]}.example.com"  # /var/run/cdi is the machine's
    name = loop.add(0)
    look = f"ls -l /dev/disk0 /dev/{name} 2>&1; cat /firmware 2>&1; echo WHICH=$WHICH; echo no > /firmware"
    with short_directory() as place:
        kubelet = SimKubelet(place, timings=Timings.fast())
        agent = AgentProcess(place, config(driver, loop, tmp_path / "firmware"), driver, ("--cdi-dir", "/var/run/cdi"))
        await kubelet.start()
        await agent.start()
        try:
            await agent.ready(20)
            await kubelet.wait_for_resource(RESOURCE, healthy=1)
            assert (await kubelet.run_pod(pod("a", resource=RESOURCE))).phase is Phase.RUNNING
            assert isinstance(kubelet.node.runtime, MemoryRuntime)
            names = list(kubelet.node.runtime.running["uid-a", "main"].cdi_devices)
            assert names == [f"{driver}/device=legacy-{name}"]
            inside = await run(root, look, names)
            outside = await run(root, look, [])

            number = os.stat(f"/dev/{name}").st_rdev
            assert f"{os.major(number)}, {os.minor(number)}" in inside.stdout.replace(",  ", ", "), inside
            assert f"/dev/{name}: No such file" in inside.stdout  # the alias, and not the host's name
            assert "v42" in inside.stdout
            assert f"WHICH={name}\n" in inside.stdout
            assert "Read-only file system" in inside.stderr
            assert "/dev/disk0: No such file" in outside.stdout
            assert "v42" not in outside.stdout
            assert "WHICH=\n" in outside.stdout

            await kubelet.delete_pod("uid-a")
            await until(lambda: not list(CDI_DIRECTORY.glob(f"{driver}*")), 20, agent.text)
            gone = await run(root, look, names)
            assert gone.returncode != 0
            assert "unresolvable CDI devices" in gone.stderr
        finally:
            await agent.stop(9)
            await kubelet.stop()
            for path in CDI_DIRECTORY.glob(f"{driver}*"):
                path.unlink()


async def test_the_container_gets_the_cdi_device_of_another_program(loop: Loops, tmp_path: Path) -> None:
    """Node, variable and mount of its file, with our variable beside them; and the file is generated anew meanwhile."""
    root = rootfs(tmp_path / "rootfs")
    (tmp_path / "lib").write_text("v42\n")
    name = uuid.uuid4().hex[:8]
    driver, vendor = f"t{name}.example.com", f"v{name}.example.com"
    theirs = CDI_DIRECTORY / f"{vendor}.json"
    text = config(driver, loop, tmp_path / "lib").replace("from: devnode, as: /dev/disk0", "path: /dev/null")
    text = text[: text.index("  mounts:")] + f'  cdiDevices: ["{vendor}/disk=LOOP-{{sysname}}"]\n'
    number = os.stat(f"/dev/{loop.add(0)}").st_rdev
    sysname = loop.name(0)
    node = {"path": "/dev/disk0", "hostPath": f"/dev/{sysname}", "permissions": "rw"}
    mount = {"hostPath": str(tmp_path / "lib"), "containerPath": "/lib42", "options": ["ro", "bind"]}
    entry = device(f"LOOP-{sysname}", deviceNodes=[node], mounts=[mount], env=["WHICH=theirs", "THEIRS=1"])
    with short_directory() as place:
        kubelet = SimKubelet(place, timings=Timings.fast())
        agent = AgentProcess(place, text, driver, ("--cdi-dir", "/var/run/cdi"))
        write_spec(theirs, entry, kind=f"{vendor}/disk")
        await kubelet.start()
        await agent.start()
        try:
            await agent.ready(20)
            await kubelet.wait_for_resource(RESOURCE, healthy=1)
            assert (await kubelet.run_pod(pod("a", resource=RESOURCE))).phase is Phase.RUNNING
            assert isinstance(kubelet.node.runtime, MemoryRuntime)
            names = list(kubelet.node.runtime.running["uid-a", "main"].cdi_devices)
            assert names == [f"{vendor}/disk=LOOP-{sysname}", f"{driver}/device=legacy-{sysname}"]
            write_spec(theirs, entry, kind=f"{vendor}/disk")
            inside = await run(root, "ls -l /dev/disk0; cat /lib42; echo WHICH=$WHICH THEIRS=$THEIRS", names)
            assert f"{os.major(number)}, {os.minor(number)}" in inside.stdout.replace(",  ", ", "), inside
            assert "v42" in inside.stdout
            assert f"WHICH={sysname} THEIRS=1\n" in inside.stdout  # ours comes last, so it counts
            theirs.unlink()
            await kubelet.wait_for_resource(RESOURCE, healthy=0)
            assert f"CDI device {vendor}/disk=LOOP-{sysname} is in no file" in str(await agent.status())
            write_spec(theirs, entry, kind=f"{vendor}/disk")
            await kubelet.wait_for_resource(RESOURCE, healthy=1)
        finally:
            await agent.stop(9)
            await kubelet.stop()
            for path in (theirs, *CDI_DIRECTORY.glob(f"{driver}*")):
                path.unlink(missing_ok=True)
