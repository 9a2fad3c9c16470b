"""Find the containers of the processes that use a GPU, and add up what each container uses.

A process's control group names the pod and the container, whatever runs in it; a pod cannot change that part of the
path. Pods: pkg/kubelet/cm/pod_container_manager_linux.go (``pod<UID>``, with systemd ``...-pod<UID with _>.slice``).
Containers: the runtime's id, 64 hexadecimal digits, in ``cri-containerd-<id>.scope`` and the like. Processes outside
pods count as the host's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:  # agents without NVML do not load it
    from drabridge.inventory.nvml_report import Use

CGROUP_BYTES = 16 << 10  # a path has 4,096 bytes at most; cgroup v1 has one for each of a dozen controllers
MOST_CONTAINERS = 1000  # on all GPUs together; the use of further containers is added up as OTHER
OTHER = "other"

Container = tuple[str, str]  # the pod's UID, and the runtime's id of the container; both "" for the host


class GpuUse(Struct, frozen=True):
    """What containers use. Keys of devices are PCI addresses, and UUIDs of MIG instances.

    ``told``: device -> whether NVML reports the memory, and whether the time. ``uses``: bytes, and percent of the time.
    """

    told: Mapping[str, tuple[bool, bool]]
    uses: Mapping[tuple[str, Container], tuple[int, int]]


def by_container(use: Use, proc: Path) -> GpuUse:
    """Add up what the processes of each container use. Reads ``/proc/<pid>/cgroup`` of each process."""
    places: dict[int, Container | None] = {}
    found: dict[tuple[str, Container], tuple[int, int]] = {}
    for device in use.devices:
        for one in device.processes:
            if one.pid not in places:
                places[one.pid] = _container(proc, one.pid)
            if (place := places[one.pid]) is None:
                continue
            if len(found) >= MOST_CONTAINERS and (device.device, place) not in found:
                place = OTHER, ""
            memory, percent = found.get((device.device, place), (0, 0))
            found[device.device, place] = memory + one.memory_bytes, percent + one.percent
    return GpuUse({device.device: (device.memory, device.time) for device in use.devices}, found)


def _container(proc: Path, pid: int) -> Container | None:
    """Return whose process it is; None once it has ended."""
    try:
        with open(proc / str(pid) / "cgroup", encoding="utf-8", errors="replace") as file:
            return container_of(file.read(CGROUP_BYTES))
    except OSError:
        return None


def container_of(cgroup: str) -> Container:
    """Parse ``/proc/<pid>/cgroup``. The first pod in a path counts: groups below its container are the container's."""
    for line in cgroup.splitlines():
        parts = line.replace(":", "/").split("/")  # containerd with systemd writes <pod>.slice:cri-containerd:<id>
        for index, part in enumerate(parts):
            uid = part.removesuffix(".slice").rpartition("pod")[2].replace("_", "-")
            if len(uid) in (32, 36) and _is_hex(uid.replace("-", "")):  # a static pod's has no dashes: 32 characters
                ids = (after.removesuffix(".scope").rpartition("-")[2] for after in parts[index + 1 :])
                return uid, next((one for one in ids if len(one) == 64 and _is_hex(one)), "")
    return "", ""


def _is_hex(text: str) -> bool:
    return bool(text) and set(text) <= set("0123456789abcdef")
