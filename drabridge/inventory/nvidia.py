"""Read what NVIDIA's driver says about its GPUs: the part that udev cannot know.

``/dev/nvidiaN`` are not udev devices; udev sees the PCI function only. Minor number, UUID and model are in
``/proc/driver/nvidia/gpus/<address>/information``, which any process can read without touching the hardware.
NVML adds more: ``nvml_process.py`` runs the process that asks it, and ``nvml_report.py`` adds its answers. Without NVML
only the fields that it adds are empty.

The files appear when the driver is loaded. A UUID may read ``GPU-????????-...`` until the GPU was initialised: fields
stay empty until then, and the next event or enumeration finds them. MIG instances become devices in ``mig.py``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from drabridge.inventory.udev_device import clean

PROC = Path("/proc/driver/nvidia")

_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s")

_LABELS = MappingProxyType({"GPU UUID": "uuid", "Device Minor": "minor", "Model": "model", "GPU Excluded": "excluded"})


class FailureKind(StrEnum):
    """Why a GPU or a MIG instance is not healthy, the worst first."""

    LOST = "lost"  # the GPU has fallen off the bus, or does not answer
    RESET = "reset"  # the GPU cannot be used before a reset
    XID = "xid"  # NVML's event: an error that the driver wrote to the kernel's log
    ECC = "ecc"
    THERMAL = "thermal"


class Failure(Struct, frozen=True, array_like=True):
    """One failure. ``text``: for people; ``xid``: its number, 0 for another kind."""

    kind: FailureKind
    text: str
    xid: int = 0


class MigInstance(Struct, frozen=True):
    """One MIG instance, which is a compute instance of a GPU instance, as NVML describes it.

    ``gpu``: PCI address of its GPU. ``fields``: more of it, named as in templates: ``profile`` (``1g.10gb``,
    ``1c.3g.20gb``, ``1g.10gb+me``), ``profile_id``, ``parent_uuid``, ``gpu_instance``, ``compute_instance``,
    ``memory_mib``, ``multiprocessor_count``, ``slices`` (of the GPU instance), ``compute_slices``, ``copy_engines``,
    ``decoders``, ``encoders``, ``jpeg_engines``, ``ofa_engines``, ``placement_start``, ``placement_size`` (in memory
    slices).
    """

    uuid: str
    gpu: str
    gpu_instance: int
    compute_instance: int
    fields: Mapping[str, str] = MappingProxyType({})


class NvidiaFacts(Struct, frozen=True):
    """Fields of every GPU by PCI address (``0000:3b:00.0``), and of the driver.

    Field names are those of templates without their prefix: ``uuid``, ``minor``, ``model``, ``driver_version``, and
    from NVML ``memory_mib``, ``architecture``, ``brand``, ``compute_capability``, ``cuda_version``, ``serial``,
    ``addressing_mode``, ``clique``, ``mig_mode`` (enabled, disabled). With MIG enabled also the totals that its
    instances share: ``memory_slices``, ``mig_memory_mib``, ``multiprocessor_count``, ``copy_engines``, ``decoders``,
    ``encoders``, ``jpeg_engines``, ``ofa_engines``. ``mig``: the MIG instances that exist. ``failures``: why a GPU or
    MIG instance is not healthy, by UUID.
    """

    gpus: Mapping[str, Mapping[str, str]]
    mig: tuple[MigInstance, ...] = ()
    failures: Mapping[str, tuple[Failure, ...]] = MappingProxyType({})

    def of(self, pci_bus_id: str) -> Mapping[str, str]:
        """Return what is known about the GPU at this address; empty when the driver does not know it."""
        return self.gpus.get(pci_bus_id, {})


NOTHING = NvidiaFacts(MappingProxyType({}))


def parse_information(text: str) -> dict[str, str]:
    """Return the fields of one ``information`` file; values that the driver does not know yet (``?``) are left out."""
    found = {}
    for line in text.splitlines():
        label, colon, value = line.partition(":")
        name = _LABELS.get(label.strip())
        if colon and name and value.strip() and "?" not in value:
            found[name] = clean(value)
    found["excluded"] = "true" if found.get("excluded", "No").lower() == "yes" else "false"
    return found


def uuid_hint(gpu: Mapping[str, str]) -> str:
    """Return what to do about a GPU whose UUID is not known yet; empty for any other device. ``gpu``: its fields."""
    if not gpu or "uuid" in gpu:
        return ""
    return (
        "The driver knows a GPU's UUID once something has opened the GPU, and the agent opens none: start "
        "nvidia-persistenced on the node, or run nvidia-smi there once after each boot"
    )


def parse_version(text: str) -> str:
    """Return the driver's version from ``/proc/driver/nvidia/version``: ``550.54.14``."""
    match = _VERSION.search(text)
    return match.group(1) if match else ""


def read(proc: Path = PROC) -> NvidiaFacts:
    """Return everything that the driver's files say now; ``NOTHING`` without the driver."""
    try:
        folders = sorted((proc / "gpus").iterdir())
    except OSError:
        return NOTHING
    version = ""
    with contextlib.suppress(OSError):
        version = parse_version((proc / "version").read_text(encoding="utf-8", errors="replace"))
    gpus = {}
    for folder in folders:
        with contextlib.suppress(OSError):  # unbound meanwhile
            facts = parse_information((folder / "information").read_text(encoding="utf-8", errors="replace"))
            if version:
                facts["driver_version"] = version
            gpus[folder.name.lower()] = MappingProxyType(facts)
    return NvidiaFacts(MappingProxyType(gpus))
