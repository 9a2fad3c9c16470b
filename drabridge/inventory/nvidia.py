"""Read what NVIDIA's driver says about its GPUs: the part that udev cannot know.

``/dev/nvidiaN`` are not udev devices; udev sees the PCI function only. Minor number, UUID and model are in
``/proc/driver/nvidia/gpus/<address>/information``, which any process can read without touching the hardware.
NVML adds architecture, brand and memory when the optional ``nvidia-ml-py`` is installed. It is asked when the inventory
is built, never inside an RPC. Its absence or failure only leaves those fields empty.

The files appear when the driver is loaded. A UUID may read ``GPU-????????-...`` until the GPU was initialised: fields
stay empty until then, and the next event or enumeration finds them. MIG instances become devices in ``mig.py``.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType

from msgspec import Struct

from drabridge.inventory.udev_device import clean

PROC = Path("/proc/driver/nvidia")

_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s")
_MIB = 1 << 20

_LABELS = MappingProxyType({"GPU UUID": "uuid", "Device Minor": "minor", "Model": "model", "GPU Excluded": "excluded"})


class MigInstance(Struct, frozen=True):
    """One MIG instance, which is a compute instance of a GPU instance, as NVML describes it.

    ``gpu``: PCI address of its GPU. ``profile``: as NVIDIA's plugin writes it after ``mig-``: ``1g.10gb``,
    ``1c.3g.20gb``, ``1g.10gb.me``. ``fields``: more of it, named as in templates (``memory_mib``, ``slices``, ...).
    """

    uuid: str
    gpu: str
    gpu_instance: int
    compute_instance: int
    profile: str
    fields: Mapping[str, str] = MappingProxyType({})


class NvidiaFacts(Struct, frozen=True):
    """Fields of every GPU by PCI address (``0000:3b:00.0``), and of the driver.

    Field names are those of templates without their prefix: ``uuid``, ``minor``, ``model``, ``driver_version``, and
    from NVML ``memory_mib``, ``architecture``, ``brand``, ``compute_capability``, ``cuda_version``.
    ``mig``: the MIG instances that exist. ``failures``: why a GPU or MIG instance is not healthy, by UUID, for people.
    """

    gpus: Mapping[str, Mapping[str, str]]
    mig: tuple[MigInstance, ...] = ()
    failures: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def of(self, pci_bus_id: str) -> Mapping[str, str]:
        """What is known about the GPU at this address; empty when the driver does not know it."""
        return self.gpus.get(pci_bus_id, {})


NOTHING = NvidiaFacts(MappingProxyType({}))


def parse_information(text: str) -> dict[str, str]:
    """The fields of one ``information`` file; what the driver does not know yet (``?``) is left out."""
    found = {}
    for line in text.splitlines():
        label, colon, value = line.partition(":")
        name = _LABELS.get(label.strip())
        if colon and name and value.strip() and "?" not in value:
            found[name] = clean(value)
    found["excluded"] = "true" if found.get("excluded", "No").lower() == "yes" else "false"
    return found


def uuid_hint(gpu: Mapping[str, str]) -> str:
    """What to do about a GPU whose UUID is not known yet; empty for any other device. ``gpu``: its fields."""
    if not gpu or "uuid" in gpu:
        return ""
    return (
        "The driver knows a GPU's UUID once something has opened the GPU, and the agent opens none: start "
        "nvidia-persistenced on the node, or run nvidia-smi there once after each boot"
    )


def parse_version(text: str) -> str:
    """The driver's version out of ``/proc/driver/nvidia/version``: ``550.54.14``."""
    match = _VERSION.search(text)
    return match.group(1) if match else ""


def read(proc: Path = PROC, *, nvml: bool = True) -> NvidiaFacts:
    """Everything that the driver says now; ``NOTHING`` without the driver."""
    try:
        folders = sorted((proc / "gpus").iterdir())
    except OSError:
        return NOTHING
    version = ""
    with contextlib.suppress(OSError):
        version = parse_version((proc / "version").read_text(encoding="utf-8", errors="replace"))
    more = _nvml() if nvml else {}
    gpus = {}
    for folder in folders:
        with contextlib.suppress(OSError):  # unbound meanwhile
            facts = parse_information((folder / "information").read_text(encoding="utf-8", errors="replace"))
            if version:
                facts["driver_version"] = version
            gpus[folder.name.lower()] = MappingProxyType(facts | more.get(facts.get("uuid", ""), {}))
    return NvidiaFacts(MappingProxyType(gpus))


def _nvml() -> dict[str, dict[str, str]]:
    """More fields by GPU UUID, as far as NVML is installed and answers."""
    try:
        pynvml = importlib.import_module("pynvml")
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        cuda = _cuda(pynvml)
        return {uuid: facts | cuda for uuid, facts in map(_gpu, _handles(pynvml)) if uuid}
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _handles(pynvml: ModuleType) -> Iterator[tuple[ModuleType, object]]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        with contextlib.suppress(pynvml.NVMLError):  # excluded, or fallen off the bus: the others still count
            yield pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)


def _gpu(item: tuple[ModuleType, object]) -> tuple[str, dict[str, str]]:
    pynvml, handle = item
    found: dict[str, str] = {}
    with contextlib.suppress(pynvml.NVMLError):
        found["memory_mib"] = str(pynvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB)
    with contextlib.suppress(pynvml.NVMLError):
        found["compute_capability"] = "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    with contextlib.suppress(pynvml.NVMLError):
        found["architecture"] = _constant(pynvml, "NVML_DEVICE_ARCH_", pynvml.nvmlDeviceGetArchitecture(handle))
    with contextlib.suppress(pynvml.NVMLError):
        found["brand"] = _constant(pynvml, "NVML_BRAND_", pynvml.nvmlDeviceGetBrand(handle))
    uuid = ""
    with contextlib.suppress(pynvml.NVMLError):
        uuid = clean(pynvml.nvmlDeviceGetUUID(handle))  # bytes in releases before 12
    return uuid, {name: value for name, value in found.items() if value}


def _cuda(pynvml: ModuleType) -> dict[str, str]:
    try:
        number = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())  # 12040 is 12.4
    except pynvml.NVMLError:
        return {}
    return {"cuda_version": f"{number // 1000}.{number % 1000 // 10}"}


def _constant(pynvml: ModuleType, prefix: str, value: int) -> str:
    """The name of a constant as people write it: 9 -> ``Hopper``. Empty for one newer than the library."""
    for name in dir(pynvml):
        if name.startswith(prefix) and getattr(pynvml, name) == value:
            return name.removeprefix(prefix).replace("_", " ").capitalize()
    return ""
