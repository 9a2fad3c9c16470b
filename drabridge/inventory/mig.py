"""Show NVIDIA's MIG instances as devices below their GPU, as udev shows the partitions of a disk.

The kernel has no device for a MIG instance. This module makes one for each: ``<GPU>/nvidia-mig/gi1-ci0``, in the
subsystem ``nvidia-mig``. So match rules, identities, ``partition:``, lanes and the ledger treat it like any part of a
whole. An instance that another program creates or destroys looks like hardware that is plugged in or unplugged.

Which instances exist is in ``/proc/driver/nvidia/capabilities/gpu<minor>/mig/gi<N>/ci<N>``; the numbers of their nodes
``/dev/nvidia-caps/nvidia-cap<number>`` are in ``/proc/driver/nvidia-caps/mig-minors``, ``gpu0/gi1/ci0/access 12``
(NVIDIA/k8s-device-plugin internal/rm/nvml_devices.go, internal/mig/mig.go). Only NVML knows their UUIDs and profiles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec.structs import replace

from drabridge.inventory import topology
from drabridge.inventory.nvidia import MigInstance, NvidiaFacts
from drabridge.inventory.udev_device import UdevDevice, clean
from drabridge.inventory.udev_scope import MIG

MODE = "mig_mode"  # a GPU's field: "enabled" while it can only be used in instances
ENABLED = "enabled"

NO_IDENTITY = "The UUID and the profile of a MIG instance come from NVML: look why it gives no answer"

_INSTANCE = re.compile(r"gi(\d{1,4})/ci(\d{1,4})", re.ASCII)
_MEMORY_SLICES = 8  # of an A100 and its successors
_AS_THE_GPU = frozenset({
    "minor", "model", "driver_version", "architecture", "brand", "compute_capability", "cuda_version",
    "addressing_mode", "clique", "serial", "excluded",
})  # fmt: skip
"""Fields of a GPU that also hold for its instances."""


# --- what the driver's files say --------------------------------------------------------------------------------------


def with_capabilities(facts: NvidiaFacts, proc: Path) -> NvidiaFacts:
    """Return the facts with what ``/proc`` says of MIG: nodes of the known instances, and instances NVML does not know.

    A GPU that has instances in ``/proc`` is in MIG mode, whatever else is known. Without MIG, returns ``facts`` itself.
    """
    minors: Mapping[str, str] | None = None
    known = {(one.gpu, one.gpu_instance, one.compute_instance): one for one in facts.mig}
    gpus = dict(facts.gpus)
    for address, gpu in facts.gpus.items():
        for gi, ci, folder in _existing(proc / f"driver/nvidia/capabilities/gpu{gpu.get('minor', '')}/mig"):
            if minors is None:
                minors = _minors(proc / "driver/nvidia-caps/mig-minors")
            name = f"gpu{gpu['minor']}/gi{gi}"
            here = {
                "capability": str(folder),
                "gi_cap": minors.get(f"{name}/access", ""),
                "ci_cap": minors.get(f"{name}/ci{ci}/access", ""),
            }
            one = known.get((address, gi, ci)) or MigInstance("", address, gi, ci)
            known[address, gi, ci] = replace(one, fields=MappingProxyType({**one.fields, **here}))
            gpus[address] = MappingProxyType({**gpu, MODE: ENABLED})
    if minors is None:
        return facts
    return replace(facts, gpus=MappingProxyType(gpus), mig=tuple(known[key] for key in sorted(known)))


def _existing(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield the compute instances that exist: number of the GPU instance, number in it, directory."""
    try:
        found = sorted(folder.glob("gi*/ci*"))
    except OSError:  # removed meanwhile
        return
    for path in found:
        if match := _INSTANCE.fullmatch(f"{path.parent.name}/{path.name}"):
            yield int(match[1]), int(match[2]), path


def _minors(path: Path) -> dict[str, str]:
    """Read ``gpu0/gi1/ci0/access`` -> ``12``. The file lists every possible node, some 4,300 lines."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.split(" ", 1) for line in lines if " " in line)
    return {name: number for name, number in pairs if number.isascii() and number.isdecimal()}


# --- instances as devices ---------------------------------------------------------------------------------------------


def with_instances(udev_devices: Mapping[str, UdevDevice], facts: NvidiaFacts) -> Mapping[str, UdevDevice]:
    """Return the devices and the MIG instances of the GPUs among them, by syspath; without MIG the same mapping."""
    if not facts.mig:
        return udev_devices
    gpus = {device.sysname: device for device in udev_devices.values() if device.subsystem == "pci"}
    made = [_device(instance, gpu) for instance in facts.mig if (gpu := gpus.get(instance.gpu)) is not None]
    return {**udev_devices, **{device.syspath: device for device in made}}


def _device(instance: MigInstance, gpu: UdevDevice) -> UdevDevice:
    fields = dict(instance.fields)
    start, size = fields.get("placement_start", ""), fields.get("placement_size", "")
    if start.isdecimal() and size.isdecimal():
        for index in range(int(start), min(int(start) + int(size), _MEMORY_SLICES)):
            fields[f"memory_slice_{index}"] = "1"
    own = {
        "uuid": instance.uuid,
        "gpu_instance": str(instance.gpu_instance),
        "compute_instance": str(instance.compute_instance),
    }
    sysname = f"gi{instance.gpu_instance}-ci{instance.compute_instance}"
    return UdevDevice(
        syspath=f"{gpu.syspath}/{MIG}/{sysname}",
        sysname=sysname,
        subsystem=MIG,
        attributes=MappingProxyType({name: clean(value) for name, value in {**fields, **own}.items() if value}),
        seen_at=fields.get("capability", "") or gpu.syspath,
        above=gpu,
    )


def fields_of(facts: NvidiaFacts, device: UdevDevice) -> Mapping[str, str]:
    """Return the driver's fields for templates: a GPU's own; for an instance its own and some of its GPU."""
    if not facts.gpus:
        return {}
    gpu = facts.of(topology.pci_bus_id(device))
    if device.subsystem != MIG:
        return gpu
    shared = {name: value for name, value in gpu.items() if name in _AS_THE_GPU}
    return {**shared, "parent_uuid": gpu.get("uuid", ""), **device.attributes}


def identity_hint(device: UdevDevice) -> str:
    """Return what to do about an instance that only ``/proc`` shows; empty for any other device."""
    return NO_IDENTITY if device.subsystem == MIG and "uuid" not in device.attributes else ""


def is_in_instances(gpu: Mapping[str, str]) -> bool:
    """Whether a GPU is in MIG mode: pods can use it only through its instances. ``gpu``: its fields."""
    return gpu.get(MODE) == ENABLED
