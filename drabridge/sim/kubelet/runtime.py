"""Start containers for the simulated kubelet: a record in memory, or a lock for each device."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from drabridge.sim.kubelet.pods import Container, PodSpec


class ContainerStartError(Exception):
    """CreateContainerError: the runtime could not start the container; the kubelet tries again."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a container is started with.

    ``devices``: (host path, container path, permissions); ``mounts``: (host path, container path, read-only);
    ``device_ids``: (resource, id) from the device plugin; ``dra_devices``: (driver, pool, device).
    """

    cdi_devices: tuple[str, ...] = ()
    envs: dict[str, str] = field(default_factory=dict)
    mounts: tuple[tuple[str, str, bool], ...] = ()
    devices: tuple[tuple[str, str, str], ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)
    device_ids: tuple[tuple[str, str], ...] = ()
    dra_devices: tuple[tuple[str, str, str], ...] = ()


class Runtime(Protocol):
    """A container runtime. It outlives the kubelet, as containerd does."""

    async def start_container(self, pod: PodSpec, container: Container, options: RunOptions) -> None:
        """Start a container. Raises ContainerStartError."""

    async def stop_container(self, pod_uid: str, container: str) -> None:
        """Stop a container. It succeeds if it does not run."""


class MemoryRuntime:
    """Remembers what runs and what has ever been started."""

    def __init__(self) -> None:
        self.running: dict[tuple[str, str], RunOptions] = {}
        self.started: list[tuple[str, str, RunOptions]] = []  # (pod uid, container, options)

    async def start_container(self, pod: PodSpec, container: Container, options: RunOptions) -> None:
        self.running[pod.uid, container.name] = options
        self.started.append((pod.uid, container.name, options))

    async def stop_container(self, pod_uid: str, container: str) -> None:
        self.running.pop((pod_uid, container), None)


def names_of_devices(options: RunOptions) -> list[str]:
    """Return device-plugin ids and DRA device names. This is right if both lanes give a device the same name."""
    return [id_ for _, id_ in options.device_ids] + [device for _, _, device in options.dra_devices]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A start that would have made two holders of a device; holders are ``namespace/pod/container``."""

    device: str
    holder: str
    refused: str

    def __str__(self) -> str:
        return f"device {self.device} is used by {self.holder} and was given to {self.refused} as well"


class LockingRuntime(MemoryRuntime):
    """Take an exclusive flock on one file per device for the life of the container.

    So two holders of a device are seen. ``conflicts`` keeps every refused start.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.conflicts: list[Conflict] = []
        self._directory = directory
        self._files: dict[tuple[str, str], list[int]] = {}

    async def start_container(self, pod: PodSpec, container: Container, options: RunOptions) -> None:
        files: list[int] = []
        holder = f"{pod.namespace}/{pod.name}/{container.name}"
        try:
            for name in sorted(set(names_of_devices(options))):
                files += [self._lock(name, holder)]
        except ContainerStartError:
            _close(files)
            raise
        self._files[pod.uid, container.name] = files
        await super().start_container(pod, container, options)

    async def stop_container(self, pod_uid: str, container: str) -> None:
        _close(self._files.pop((pod_uid, container), []))
        await super().stop_container(pod_uid, container)

    def _lock(self, name: str, holder: str) -> int:
        path = self._directory / (re.sub(r"[^\w.-]", "_", name) + ".lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = os.pread(descriptor, 4096, 0).decode()
            os.close(descriptor)
            conflict = Conflict(name, other, holder)
            self.conflicts.append(conflict)
            raise ContainerStartError(str(conflict)) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        return descriptor


def _close(files: Iterable[int]) -> None:
    for descriptor in files:
        os.close(descriptor)
