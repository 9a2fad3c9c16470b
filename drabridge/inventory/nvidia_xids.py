"""Tell which XIDs are an application's fault: they say nothing about the GPU.

The numbers are those that NVIDIA's own programs ignore: NVIDIA/k8s-device-plugin internal/rm/health.go, and
kubernetes-sigs/dra-driver-nvidia-gpu cmd/gpu-kubelet-plugin/device_health.go (xidsToSkip); the texts are those of
https://docs.nvidia.com/deploy/xid-errors/ (catalog). Every other XID counts.
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
        109: "context switch timeout",
    }
)
