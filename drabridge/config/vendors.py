"""List the vendors whose software a profile of ``deploy/examples`` replaces, and the hardware that has an example."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct


class Vendor(Struct, frozen=True):
    """A vendor: its name, and how its device plugin names its sockets (glob)."""

    name: str
    plugin_sockets: str


VENDORS: Mapping[str, Vendor] = MappingProxyType(
    {
        # NVIDIA/k8s-device-plugin internal/plugin/server.go: nvidia-<resource's name>.sock
        "gpu.nvidia.com": Vendor("NVIDIA", "nvidia-*.sock"),
        # ROCm/k8s-device-plugin, kubevirt/device-plugin-manager pkg/dpm/plugin.go: <domain>_<resource's name>
        "gpu.amd.com": Vendor("AMD", "amd.com_*"),
        # intel/intel-device-plugins-for-kubernetes pkg/deviceplugin/server.go: <domain>-<resource's name>.sock
        "gpu.intel.com": Vendor("Intel", "gpu.intel.com-*.sock"),
    }
)
"""Name of the vendor's DRA driver -> vendor. A configuration may use this name as its driver."""

EXAMPLES: Mapping[str, str] = MappingProxyType({
    "amdgpu": "amd-gpu.yaml", "i915": "intel-gpu.yaml", "xe": "intel-gpu.yaml",
    "dfl-pci": "fpga.yaml", "xclmgmt": "fpga.yaml", "xocl": "fpga.yaml",
})  # fmt: skip
"""Kernel driver of a PCI function -> the example that ``drabridge suggest`` names. NVIDIA's GPUs get the profile."""
