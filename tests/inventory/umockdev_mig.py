"""A running inventory on a MIG server: ``umockdev-wrapper python -m tests.inventory.umockdev_mig``; see test_mig.py.

NVML is not here: what it would say of the instances is added to what the files under /proc say.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from drabridge.config.loader import load
from drabridge.config.nvidia import Nvidia
from drabridge.errors import HostError
from drabridge.inventory import mig
from drabridge.inventory.devices import Presence
from drabridge.inventory.host import HostPaths
from drabridge.inventory.nvidia import MigInstance, NvidiaFacts
from tests.support import machines
from tests.support.hardware import watching
from tests.support.mig import MIG_UUID, cap, capabilities
from tests.support.nvidia_h100 import libraries
from tests.support.umockdev import Testbed

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "nvidia-mig.yaml"
NO_DATABASE = Path("/nonexistent")


def node(name: str, major: int, minor: int) -> str:
    path = f"/devices/virtual/fakenodes/{name.replace('/', '-')}"
    return machines.device(path, "fakenodes", node=name, attributes={"dev": f"{major}:{minor}"})


def matched() -> dict[str, str]:
    """What ``drabridge match`` prints: device -> resource."""
    command = [sys.executable, "-m", "drabridge", "match", "-c", str(EXAMPLE), "-o", "json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {row["device"]: row["resource"] for row in rows}


async def check() -> None:
    """An instance comes, is resolved, and goes: at once for who is about to get it, in the list when NVML says so."""
    caps = [node(f"nvidia-caps/nvidia-cap{n}", 237, n) for n in (cap(0, 1), cap(0, 1, 0))]
    nodes = [machines.gpu_node("nvidia0", 0), machines.gpu_node("nvidia1", 1), machines.gpu_node("nvidiactl", 255)]
    bed = Testbed(machines.tree([machines.gpu(0), machines.gpu(1), *nodes, machines.gpu_node("nvidia-uvm", 9), *caps]))
    os.environ["UMOCKDEV_DIR"] = str(bed.root)  # for the command, which is a process of its own
    proc = machines.nvidia_proc(bed.root / "proc", 2)
    known: list[MigInstance] = []
    from_nvml: dict[str, str] = {}
    from_proc = mig.with_capabilities

    def with_nvml(facts: NvidiaFacts, proc: Path) -> NvidiaFacts:
        second = machines.gpu_address(1)
        return from_proc(NvidiaFacts({**facts.gpus, second: {**facts.of(second), **from_nvml}}, tuple(known)), proc)

    mig.with_capabilities = with_nvml
    gpus = [machines.GPU_UUID.format(index).lower() for index in (0, 1)]
    libraries(bed.root / "host", "/usr/lib64", version=machines.DRIVER_VERSION)
    config = replace(load(EXAMPLE), nvidia=Nvidia(host_root=str(bed.root / "host")))
    async with watching(config, paths=HostPaths(proc, NO_DATABASE), tombstone_seconds=0.3) as watched:
        inventory = watched.inventory
        assert watched.states() == dict.fromkeys(gpus, "present")
        assert [resource.name for resource in inventory.config.resources] == ["nvidia.com/gpu"]

        capabilities(proc, [(0, 1, 0)])
        known.append(MigInstance(MIG_UUID.format(0, 1), machines.gpu_address(0), 1, 0, {"profile": "1g.10gb"}))
        inventory.refresh()
        snapshot = await watched.snapshot_with(lambda s: any(device.root for device in s.devices))
        (instance,) = (device for device in snapshot.devices if device.root)
        assert (instance.resource, instance.root, instance.presence) == ("nvidia.com/mig-1g.10gb", gpus[0], "present")
        assert [resource.name for resource in inventory.config.resources] == ["nvidia.com/gpu", instance.resource]
        edits = inventory.resolve(instance)
        assert edits.fallback is not None
        assert [found.path for found in edits.fallback.nodes][3:] == [
            f"/dev/nvidia-caps/nvidia-cap{n}" for n in (cap(0, 1), cap(0, 1, 0))
        ]
        whole = await watched.snapshot_with(lambda s: gpus[0] not in s.by_name())
        assert whole.by_name()[gpus[1]].presence is Presence.PRESENT

        assert matched() == {"0000:18:00.0": "nvidia.com/gpu", "0000:2b:00.0": "nvidia.com/gpu"} | {
            "gi1-ci0": "nvidia.com/mig-{attr:profile}"
        }
        assert not inventory.notes
        from_nvml["mig_mode"] = "enabled"  # of the other GPU, and no instance yet
        inventory.refresh()
        await watched.snapshot_with(lambda s: gpus[1] not in s.by_name())
        why = "MIG mode is on, and it has no instance: make some, or switch MIG mode off"
        assert inventory.notes == (f"nvidia.com/gpu: {machines.gpu_address(1)}: {why}",)
        from_nvml.clear()

        shutil.rmtree(proc / "driver/nvidia/capabilities")
        with pytest.raises(HostError, match="unplugged"):
            inventory.resolve(instance)
        known.clear()
        inventory.refresh()
        await watched.snapshot_with(lambda s: s.by_name().keys() == set(gpus))
        assert watched.states() == dict.fromkeys(gpus, "present")


if __name__ == "__main__":
    asyncio.run(check())
