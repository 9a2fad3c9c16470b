"""A server with MIG instances by hand: what udev, NVIDIA's driver and NVML say of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from drabridge.inventory.nvidia import MigInstance, NvidiaFacts
from drabridge.inventory.udev_device import UdevDevice
from tests.support.hardware import record
from tests.support.machines import GPU_UUID, gpu_address, gpu_path

MIG_UUID = "MIG-{0:08x}-2222-3333-4444-{1:012x}"
# An H100 80GB: memory in MiB, multiprocessors, first memory slice of an instance by its number, memory slices.
SIZES: Mapping[str, tuple[int, int, int]] = {
    "1g.10gb": (9856, 16, 1),
    "1g.10gb+me": (9856, 16, 1),
    "2g.20gb": (19968, 32, 2),
    "3g.40gb": (40320, 60, 4),
}
SHARED_NODES = {"/dev/nvidiactl": (195, 255), "/dev/nvidia-uvm": (506, 0)}


def gpu(index: int) -> UdevDevice:
    """A GPU as udev has it."""
    return record(
        f"/sys{gpu_path(index)}",
        "pci",
        driver="nvidia",
        attributes={"vendor": "0x10de", "class": "0x030200", "numa_node": str(index // 4)},
    )


def instance(index: int, gi: int, ci: int = 0, profile: str = "1g.10gb", uuid: str = "", start: int = 0) -> MigInstance:
    """An instance as NVML describes it, with the numbers of its nodes."""
    memory, processors, size = SIZES.get(profile, (1, 1, 1))
    fields = {
        "profile": profile,
        "memory_mib": str(memory),
        "multiprocessor_count": str(processors),
        "copy_engines": "1",
        "decoders": "1",
        "encoders": "0",
        "jpeg_engines": "1",
        "ofa_engines": "0",
        "placement_start": str(start),
        "placement_size": str(size),
        "gi_cap": str(cap(index, gi)),
        "ci_cap": str(cap(index, gi, ci)),
    }
    uuid = uuid or MIG_UUID.format(index, gi * 16 + ci)
    return MigInstance(uuid, gpu_address(index), gi, ci, MappingProxyType(fields))


def cap(index: int, gi: int, ci: int | None = None) -> int:
    """The number of a /dev/nvidia-caps/nvidia-capN, as the driver numbers them: nine for each GPU instance."""
    return 3 + (index * 15 + gi) * 9 + (0 if ci is None else 1 + ci)


def facts(
    instances: Iterable[MigInstance] = (), count: int = 1, mode: Iterable[int] = (), **more: Mapping[str, str]
) -> NvidiaFacts:
    """What the driver says of ``count`` GPUs. Those with instances are in MIG mode, and those of ``mode``.

    ``more``: other fields of a GPU, ``gpu0={...}``.
    """
    mig = tuple(instances)
    enabled = {one.gpu for one in mig} | {gpu_address(index) for index in mode}
    gpus = {
        gpu_address(index): MappingProxyType(
            {
                "uuid": GPU_UUID.format(index),
                "minor": str(index),
                "model": "NVIDIA H100 80GB HBM3",
                "driver_version": "580.95.05",
                "memory_mib": "81559",
                "architecture": "Hopper",
                "brand": "Nvidia",
                "compute_capability": "9.0",
                "cuda_version": "13.0",
                "mig_mode": "enabled" if gpu_address(index) in enabled else "disabled",
                **more.get(f"gpu{index}", {}),
            }
        )
        for index in range(count)
    }
    return NvidiaFacts(MappingProxyType(gpus), mig)


def nodes(instances: Iterable[MigInstance] = (), count: int = 1) -> dict[str, tuple[int, int]]:
    """The device nodes of ``count`` GPUs and of instances."""
    found = {**SHARED_NODES, **{f"/dev/nvidia{index}": (195, index) for index in range(count)}}
    for one in instances:
        for name in {"gi_cap", "ci_cap"} & one.fields.keys():
            found[f"/dev/nvidia-caps/nvidia-cap{one.fields[name]}"] = (237, int(one.fields[name]))
    return found


def capabilities(proc: Path, instances: Iterable[tuple[int, int, int]]) -> Path:
    """What the driver shows of instances (GPU, GI, CI) below ``proc``; returns it."""
    table = ["config 1", "monitor 2"]
    for index in range(8):
        for gi in range(15):
            table.append(f"gpu{index}/gi{gi}/access {cap(index, gi)}")
            table += [f"gpu{index}/gi{gi}/ci{ci}/access {cap(index, gi, ci)}" for ci in range(8)]
    (proc / "driver/nvidia-caps").mkdir(parents=True, exist_ok=True)
    (proc / "driver/nvidia-caps/mig-minors").write_text("\n".join(table) + "\n")
    for index, gi, ci in instances:
        folder = proc / f"driver/nvidia/capabilities/gpu{index}/mig/gi{gi}"
        for place, number in ((folder, cap(index, gi)), (folder / f"ci{ci}", cap(index, gi, ci))):
            place.mkdir(parents=True, exist_ok=True)
            (place / "access").write_text(f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    return proc
