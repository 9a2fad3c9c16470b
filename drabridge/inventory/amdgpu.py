"""Read what AMD's driver says of a render node: GPU, partition, compute units. udev knows none of them.

A partitioned GPU (MI300) has one render node for each partition. The first is the PCI function's own; the others belong
to platform devices ``amdgpu_xcp_<n>``, which nothing in sysfs ties to the GPU, and which stay when the partitions are
gone (Linux drivers/gpu/drm/amd/amdxcp/amdgpu_xcp_drv.c). The topology of KFD, AMD's compute driver, says which render
nodes are in use and on which PCI function each computes; AMD's device plugin looks there too (ROCm/k8s-device-plugin
internal/pkg/amdgpu/amdgpu.go). ``udev.py`` adds what is read here as properties ``AMDGPU_*``, and makes the PCI
function the parent of the platform device. So match rules, identities and attributes need no special keys for AMD.

Nothing here opens a device. If a file is missing or malformed, its property is left out.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from drabridge.inventory.udev_device import clean
from drabridge.system.files import names_in

PREFIX = "AMDGPU_"
"""Prefix of the properties' names. udev and its rules use no such names."""

NODES = Path("/sys/class/kfd/kfd/topology/nodes")
PCI_DEVICES = Path("/sys/bus/pci/devices")

READ_BYTES = 64 << 10  # a node's properties are about 1 KiB

_RENDER = re.compile(r"renderD(\d{1,4})", re.ASCII)
_CARD = re.compile(r"card(\d{1,4})", re.ASCII)
_PARTITION = re.compile(r"amdgpu_xcp[_.]\d{1,4}", re.ASCII)  # amdgpu_xcp.1 in older kernels


class ComputeNode(Struct, frozen=True):
    """One GPU, or one partition of it, in KFD's topology. ``gpu``: the PCI address of the GPU; numbers are text."""

    number: str
    gpu: str
    properties: Mapping[str, str]
    vram_bytes: str = ""


Topology = Mapping[int, ComputeNode]
"""By minor number of the render node."""


def read_topology(nodes: Path = NODES) -> Topology:
    """Return the compute nodes that have a render node, by its minor number; empty without KFD."""
    found: dict[int, ComputeNode] = {}
    with contextlib.suppress(OSError):
        for folder in filter(lambda folder: folder.name.isdecimal(), nodes.iterdir()):
            fields = _fields(folder / "properties")
            minor, location = _number(fields, "drm_render_minor"), _number(fields, "location_id")
            if minor > 0 and location >= 0:  # 0: a CPU
                memory = _fields(folder / "mem_banks/0/properties").get("size_in_bytes", "")
                gpu = _address(max(_number(fields, "domain"), 0), location)
                found[minor] = ComputeNode(folder.name, gpu, MappingProxyType(fields), memory)
    return MappingProxyType(found)


def is_render_node(sysname: str) -> bool:
    """Whether a DRM device of this name is a render node."""
    return _RENDER.fullmatch(sysname) is not None


def is_partition(sysname: str) -> bool:
    """Whether a platform device of this name stands for a partition of a GPU."""
    return _PARTITION.fullmatch(sysname) is not None


def gpu_of_partition(syspath: str, topology: Topology) -> str:
    """Return the PCI address of the GPU behind ``amdgpu_xcp_<n>``; empty while no partition uses it."""
    for minor in _minors(f"{syspath}/drm", _RENDER):
        if node := topology.get(minor):
            return node.gpu
    return ""


def properties_of(sysname: str, holder: str, topology: Topology) -> Mapping[str, str]:
    """Return the properties of the render node ``sysname``. ``holder``: the syspath of its parent.

    Empty for a render node that no partition uses.
    """
    match = _RENDER.fullmatch(sysname)
    if match is None:
        return {}
    name = os.path.basename(holder)
    node = topology.get(int(match.group(1)))
    if node is None and is_partition(name):
        return {}
    gpu = PCI_DEVICES / (node.gpu if node and is_partition(name) else name)
    found = {"DEVICE": name, "PARTITION": _profile(gpu), "PRODUCT_NAME": _product_name(gpu)}
    found["CARD"] = next(map(str, _minors(f"{holder}/drm", _CARD)), "")
    if node is not None:
        found |= {
            "KFD_NODE": node.number,
            "UNIQUE_ID": node.properties.get("unique_id", ""),
            "XGMI_HIVE": node.properties.get("hive_id", "").removeprefix("0"),  # 0: linked to no other GPU
            "GFX_VERSION": node.properties.get("gfx_target_version", ""),
            "SIMD_UNITS": node.properties.get("simd_count", ""),
            "COMPUTE_UNITS": _compute_units(node.properties),
            "VRAM_BYTES": node.vram_bytes,
        }
    return {f"{PREFIX}{key}": value for key, value in found.items() if value}


def _compute_units(properties: Mapping[str, str]) -> str:
    simds, each = _number(properties, "simd_count"), _number(properties, "simd_per_cu")
    return str(simds // each) if simds > 0 and each > 0 else ""


def _profile(gpu: Path) -> str:
    """``spx_nps1``, as AMD's plugin names the resource; empty for a GPU that cannot be partitioned."""
    compute, memory = (_line(gpu / f"current_{kind}_partition").lower() for kind in ("compute", "memory"))
    return f"{compute}_{memory}" if compute and memory else ""


def _product_name(gpu: Path) -> str:
    """Return the product's name as AMD's DRA driver publishes it: ``AMD_Instinct_MI300X_OAM``."""
    return _line(gpu / "product_name").replace(" ", "_").replace("(", "").replace(")", "")


def _address(domain: int, location: int) -> str:
    """Return ``0000:05:00.0``. The function is always 0: its bits in ``location_id`` number the partitions."""
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.0"


def _minors(folder: str, name: re.Pattern[str]) -> Iterator[int]:
    for entry in names_in(folder):
        if match := name.fullmatch(entry):
            yield int(match.group(1))


def _fields(path: Path) -> dict[str, str]:
    """Parse lines of ``name value``. The first line of a name counts, as in AMD's plugin."""
    fields: dict[str, str] = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        fields.setdefault(name, clean(value))
    return fields


def _number(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1


def _line(path: Path) -> str:
    return clean(_text(path).partition("\n")[0])


def _text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(READ_BYTES).decode(errors="replace")
    except OSError:
        return ""
