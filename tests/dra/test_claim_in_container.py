"""The whole way without a cluster: loop device, inventory, slice, claim, NodePrepareResources, real container."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from drabridge.containers.cdi_store import CdiStore
from drabridge.inventory.inventory import Inventory
from drabridge.ledger.entries import Owner
from tests.support.containers import CDI_DIRECTORY, rootfs, run
from tests.support.dra_node import DRIVER, DraNode, a_node
from tests.support.hardware import loop_devices, needs_loop_devices
from tests.support.waiting import until

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

CONFIG = """\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {driver}
resources:
- name: example.com/gpu
  match: [{{subsystem: block, sysname: "{pattern}"}}]
  id: ["{{sysname}}"]
  nodes: [{{from: devnode, as: /dev/disk0}}]
  env: {{WHICH: "{{sysname}}"}}
  mounts: [{{hostPath: {firmware}, containerPath: /firmware}}]
  lanes: {{legacy: 0, dra: "*"}}
  claimConfig: {{env: [MODE]}}
"""
LOOK = "ls -l /dev/disk0 /dev/{name} 2>&1; cat /firmware 2>&1; echo WHICH=$WHICH MODE=$MODE; ls {metadata} 2>&1"


async def test_a_container_with_the_claim_gets_the_device_and_one_without_does_not(tmp_path: Path) -> None:
    root = rootfs(tmp_path / "rootfs")
    (tmp_path / "firmware").write_text("v42\n")
    metadata = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/cl/gpu/"
    with loop_devices() as loops:
        config = CONFIG.format(driver=DRIVER, pattern=loops.pattern, firmware=tmp_path / "firmware")
        async with a_node(config, start=False) as node:
            node.cdi = CdiStore(CDI_DIRECTORY, DRIVER)
            CDI_DIRECTORY.mkdir(parents=True, exist_ok=True)
            inventory = Inventory(node.config)
            name = loops.add(0)
            changed: Any = asyncio.Event()
            following = asyncio.create_task(inventory.run(lambda _: changed.set()))
            try:
                await until(lambda: name in inventory.current.by_name(), why="the loop device")
                node.snapshot = inventory.current
                await node.start()
                await uses_it(node, root, name, LOOK.format(name=name, metadata=metadata))
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                await node.stop()
                for path in CDI_DIRECTORY.glob(f"{DRIVER}*"):
                    path.unlink()


async def uses_it(node: DraNode, root: Path, name: str, look: str) -> None:
    await until(lambda: node.published() == [name], why="the slice")
    parameters = {"apiVersion": "drabridge/v1alpha1", "kind": "DeviceConfig", "env": {"MODE": "fast"}}
    config = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}
    claim = node.claims.add("cl", name, config=(config,))

    (device,) = await node.prepared(claim)
    assert len(device.cdi_device_ids) == 2  # the device, and its metadata
    with_it = await run(root, look, list(device.cdi_device_ids))
    without = await run(root, look, [])

    number = os.stat(f"/dev/{name}").st_rdev
    assert with_it.returncode == 0, with_it.stderr
    assert f"{os.major(number)}," in with_it.stdout
    assert "/dev/disk0" in with_it.stdout
    assert f"/dev/{name}: No such file" in with_it.stdout  # the alias, and not the host's name
    assert "v42" in with_it.stdout
    assert f"WHICH={name} MODE=fast" in with_it.stdout
    assert f"{DRIVER}-metadata.json" in with_it.stdout
    assert "/dev/disk0: No such file" in without.stdout
    assert "v42" not in without.stdout
    assert "WHICH= MODE=\n" in without.stdout

    assert await node.unprepare(claim) == {claim.uid: ""}
    gone = await run(root, look, list(device.cdi_device_ids))
    assert gone.returncode != 0
    assert "unresolvable CDI devices" in gone.stderr
    node.claims.delete("cl")
    await until(lambda: node.owner(name) is Owner.NONE, why="the release")
