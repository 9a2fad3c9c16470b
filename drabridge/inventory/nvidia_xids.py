"""Tell which XIDs are an application's fault: they say nothing about the GPU.

The numbers are those that NVIDIA's own programs ignore (NVIDIA/k8s-device-plugin internal/rm/health.go, and
kubernetes-sigs/dra-driver-nvidia-gpu cmd/gpu-kubelet-plugin/device_health.go, xidsToSkip), but for two that NVIDIA's
catalogue has otherwise (https://docs.nvidia.com/deploy/xid-errors/): 94 asks for the application to be started again,
109, which those programs ignore, for a reset of the GPU. Every other XID counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

APPLICATION_XIDS: Mapping[int, str] = MappingProxyType(
    {
        13: "graphics engine exception",
        31: "GPU memory page fault",
        43: "GPU stopped processing",
        45: "preemptive cleanup, due to previous errors",
        68: "video processor exception",
        94: "contained memory error",
    }
)
