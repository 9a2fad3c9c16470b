"""Templates such as ``/dev/nvidia{nvidia.minor}``: parsed when the file is loaded, filled in for each device."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from drabridge.config.problems import did_you_mean, unmet

TEMPLATE_MAX = 4096  # PATH_MAX; no template has a reason to be longer

# What a field without a key gives.
PLAIN_FIELDS = {
    "sysname": "kernel name, as KERNEL in udev rules: ttyUSB0",
    "sysnum": "digits at the end of the kernel name",
    "devnode": "the device's own node: /dev/ttyUSB0",
    "devname": "last part of a node's path: ttyUSB0. In `as`, of the node that is being renamed",
    "major": "major number of the device's own node",
    "minor": "minor number of the device's own node",
    "subsystem": "subsystem: tty, usb, pci",
    "devtype": "device type: usb_device, disk",
    "driver": "kernel driver that is bound, of the device or its nearest ancestor that has one",
    "pci": "PCI address of the device or its nearest PCI ancestor: 0000:3b:00.0",
    "pcie_root": "PCIe root complex: pci0000:3a",
    "pcie_switch": "PCIe switch that the device hangs on: address of its upstream port; empty at a root port",
    "numa": "NUMA node; empty when the firmware says none",
    "iommu_group": "IOMMU group number of the device or its nearest PCI ancestor",
    "nvidia.uuid": "GPU UUID, as nvidia-smi -L prints it",
    "nvidia.minor": "number of the GPU's /dev/nvidiaN",
    "nvidia.model": "product name: NVIDIA H100 80GB HBM3",
    "nvidia.driver_version": "version of the loaded NVIDIA driver",
    "nvidia.mig_mode": "enabled or disabled, where the GPU has MIG; needs NVML",
    "nvidia.memory_mib": "GPU memory in MiB; needs NVML",
    "nvidia.architecture": "Hopper, Ada Lovelace; needs NVML",
    "nvidia.brand": "Nvidia, Tesla, GeForceRTX; needs NVML",
    "nvidia.compute_capability": "9.0; needs NVML",
    "nvidia.cuda_version": "CUDA version of the driver; needs NVML",
    "nvidia.addressing_mode": "HMM or ATS, where the driver has one of them; needs NVML",
    "nvidia.clique": "NVLink domain and clique of GPUs that reach each other across nodes; needs NVML",
    "nvidia.profile": "profile of a MIG instance: 1g.10gb, 1g.10gb+me; needs NVML, as all below but the caps",
    "nvidia.parent_uuid": "UUID of the GPU that a MIG instance is a part of",
    "nvidia.gi_cap": "number of the /dev/nvidia-caps/nvidia-capN of a MIG instance's GPU instance",
    "nvidia.ci_cap": "number of the /dev/nvidia-caps/nvidia-capN of a MIG instance's compute instance",
    "nvidia.multiprocessor_count": "multiprocessors of a MIG instance",
    "nvidia.slices": "compute slices of a MIG instance",
    "nvidia.copy_engines": "copy engines of a MIG instance",
    "nvidia.decoders": "video decoders of a MIG instance",
    "nvidia.encoders": "video encoders of a MIG instance",
    "nvidia.jpeg_engines": "JPEG engines of a MIG instance",
    "nvidia.ofa_engines": "optical flow engines of a MIG instance",
    **{f"nvidia.memory_slice_{n}": f"1 for a MIG instance that has the GPU's memory slice {n}" for n in range(8)},
}
# What a field with a key gives; written source:key.
KEYED_FIELDS = {
    "attr": "sysfs attribute",
    "property": "udev property",
    "link": "last part of a symbolic link's target in the device's sysfs directory",
    "file": "first line of a file, by absolute path",
}
# Known only once the device has its identity, so not allowed in `id`.
IDENTITY_FIELDS = {
    "id": "the device's id, as kubelet counts it",
    "name": "the device's name in a ResourceSlice",
    "resource": "the extended resource name",
}
# Known only once a container gets the device, so allowed only in its paths and variables.
CONTAINER_FIELDS = {
    "index": "position, from 0, of the device among those that the container gets by the same limit or request",
    "request": "name of the claim's request; `limits` for devices by limits",
}
PARENT = "parent."  # parent.attr:, parent.property:, parent.link: of the nearest ancestor that has it
_FIELDS_WITHOUT_KEY = {**PLAIN_FIELDS, **IDENTITY_FIELDS, **CONTAINER_FIELDS}
_FOREIGN_SOURCES = frozenset({"attr", "property", "link", "file"})  # hardware or other software chooses the values

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Field:
    """A value to look up: ``{parent.attr:serial}`` is ``Field("attr", "serial", of_parent=True)``."""

    source: str  # a key of PLAIN_FIELDS, KEYED_FIELDS, IDENTITY_FIELDS or CONTAINER_FIELDS
    key: str = ""  # name of the attribute, property or link; path of the file
    of_parent: bool = False  # of the nearest strict ancestor that has a non-empty value

    def to_data(self) -> str:
        """Return it as the file writes it."""
        return str(self)

    def __str__(self) -> str:
        return (PARENT if self.of_parent else "") + (f"{self.source}:{self.key}" if self.key else self.source)

    @classmethod
    def parse(cls, text: str) -> Field:
        """Read ``attr:serial``. Raises Problems for a field that does not exist."""
        of_parent = text.startswith(PARENT)
        source, colon, key = text.removeprefix(PARENT).partition(":")
        if colon and source in KEYED_FIELDS:
            return cls._keyed(source, key, of_parent)
        if not colon and not of_parent and source in _FIELDS_WITHOUT_KEY:
            return cls(source)
        words = [*_FIELDS_WITHOUT_KEY, *(f"{name}:" for name in KEYED_FIELDS)]
        hint = did_you_mean(source + colon, words)
        if not colon and source in KEYED_FIELDS:
            hint = f"{source} needs a name: {{{source}:NAME}}"
        elif of_parent:
            hint = "parent. goes before attr:, property: or link:"
        hint = hint or f"a sysfs attribute is {{attr:{text}}}, a udev property {{property:{text}}}"
        raise unmet("a known field", hint, found=f"{{{text}}}")

    @classmethod
    def _keyed(cls, source: str, key: str, of_parent: bool) -> Field:
        if not key or "\0" in key or "\n" in key:
            raise unmet(f"a name after {source}:", found=f"{{{source}:{key}}}")
        if source == "file" and (of_parent or not key.startswith("/") or ".." in key.split("/")):
            raise unmet("file: with an absolute path without ..", found=f"{{file:{key}}}")
        if source != "file" and (key.startswith("/") or ".." in key.split("/")):
            raise unmet("a name inside the device's own sysfs directory", "leave out .. and the leading /", found=key)
        return cls(source, key, of_parent)


Lookup = Callable[[Field], "str | None"]


@dataclass(frozen=True, slots=True)
class Template:
    """Text with fields in braces; ``{{`` and ``}}`` stand for braces."""

    parts: tuple[str | Field, ...]

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields that the template reads, in order, repetitions included."""
        return tuple(part for part in self.parts if isinstance(part, Field))

    @property
    def device_fields(self) -> tuple[Field, ...]:
        """The fields with values of the device, without those that are filled in for a container."""
        return tuple(field for field in self.fields if field.source not in CONTAINER_FIELDS)

    @property
    def literal(self) -> str | None:
        """The text when nothing in it depends on the device, else None."""
        return None if self.fields else "".join(map(str, self.parts))

    def to_data(self) -> str:
        """Return it as the file writes it."""
        return str(self)

    def __str__(self) -> str:
        return "".join(
            f"{{{part}}}" if isinstance(part, Field) else part.replace("{", "{{").replace("}", "}}")
            for part in self.parts
        )

    def render(self, lookup: Lookup) -> str | None:
        """Fill in the fields; None when one of them is missing or empty. Those of the container stay, in braces."""
        return self._render(lookup, lambda field, value: True)

    def render_path(self, lookup: Lookup) -> str | None:
        """Fill in a path; None also when a value that hardware chose could lead out of its directory.

        A USB stick chooses its own serial number: ``/dev/serial/{attr:serial}`` must not become ``/dev/serial/../sda``.
        """
        return self._render(lookup, _stays_in_place)

    def _render(self, lookup: Lookup, accept: Callable[[Field, str], bool]) -> str | None:
        out: list[str] = []
        for part in self.parts:
            if isinstance(part, str) or part.source in CONTAINER_FIELDS:  # filled in by containers/together.py
                out.append(part if isinstance(part, str) else f"{{{part}}}")
                continue
            value = lookup(part)
            if not value or not accept(part, value):
                return None
            out.append(value)
        return "".join(out)


@lru_cache(maxsize=1024)
def variable_name(text: str) -> Template:
    """Return the name of an environment variable, which may have fields, as a template. Raises Problems."""
    return parse(text)


def _stays_in_place(field: Field, value: str) -> bool:
    if "\0" in value:
        return False
    return field.source not in _FOREIGN_SOURCES or ("/" not in value and value not in {".", ".."})


def parse(text: str) -> Template:
    """Parse a template. Raises Problems for unbalanced braces and unknown fields."""
    if len(text) > TEMPLATE_MAX:
        raise unmet(f"at most {TEMPLATE_MAX} characters", found=f"{len(text)} characters")
    return Template(tuple(_parts(text)))


def _parts(text: str) -> Iterator[str | Field]:
    literal = ""
    for token in _TOKEN.finditer(text):
        piece = token.group()
        if token.group(1) is not None:
            if literal:
                yield literal
                literal = ""
            yield Field.parse(token.group(1))
        elif piece in "{}":
            raise unmet("balanced braces", "write {{ and }} for braces that are meant literally", found=text)
        else:
            literal += piece[0] if piece in ("{{", "}}") else piece
    if literal:
        yield literal
