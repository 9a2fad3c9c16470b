"""How NVIDIA's GPUs are watched: `nvidia:`, and the rule `nvml` of `health:`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from drabridge.config.declaration import Model
from drabridge.config.field_types import AbsolutePath

Xid = Annotated[int, Meta(ge=1, le=9999)]


class Nvidia(Model, frozen=True):
    """NVIDIA's management library (NVML), which a process of its own asks, and where the driver's files are."""

    nvml: bool = True
    """Whether NVML is asked, where a resource reads what NVIDIA's driver says. While it is asked a GPU
    cannot be reset, nor its MIG mode changed: say `false` for that time."""
    library: AbsolutePath | None = None
    """The file libnvidia-ml.so.1, where the agent sees it. Left out: where NVIDIA's operator mounts its driver, then
    the folders of libraries."""
    driver_root: AbsolutePath | None = None
    """Where the driver's files are on the host, for `driverFiles: nvidia`: a root with `usr/lib64` and the like, or a
    folder with `lib64` and `bin`. Left out: where they are usually."""
    host_root: AbsolutePath = "/"
    """Where the agent sees the host's file system, to look for the driver's files. In a pod, say `/host`: if this is
    set, the chart mounts the host's file system there, read-only."""
    xid_recovery_seconds: Annotated[int, Meta(ge=0, le=604_800)] = 600
    """An XID makes a device faulty until the GPU was reset, or this long after the last one while NVML finds nothing
    else. 0: until it was reset, or the agent is started again."""


class NvmlHealth(Model, frozen=True):
    """Which faults that NVML reports count. A GPU that is lost, or needs a reset, is never healthy."""

    xid: bool = True
    """Whether XIDs count, apart from those that are an application's fault."""
    ecc: bool = True
    """Whether uncorrectable errors of the memory count, and pages or rows that wait for a reset."""
    thermal: bool = True
    """Whether it counts that the hardware slows a GPU down because it is too hot."""
    ignore_xids: tuple[Xid, ...] = ()
    """XIDs that do not count, besides those of applications."""
    also_xids: tuple[Xid, ...] = ()
    """XIDs of applications that count nevertheless."""
