"""The keys that say what a container gets with a device: nodes, mounts, companions, hooks.

A new key also needs its value for one device (``inventory/container_edits.py``), a field for that value
(``inventory/devices.py``) and a place in the CDI file (``containers/cdi_spec.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta, field

from drabridge.config.declaration import Model
from drabridge.config.field_types import (
    ContainerPath,
    ContainerTemplate,
    FileMode,
    OwnerId,
    PathTemplate,
    Permissions,
    VariableName,
)
from drabridge.config.matcher import Match
from drabridge.config.problems import Problem

COMMAND_MAX = 64  # words of a hook


class NodeRule(Model, frozen=True):
    """Device nodes under /dev that go into the container. Give `from` or `path`."""

    one_of = ("from", "path")

    source: Literal["devnode", "group"] | None = field(default=None, name="from")
    """`devnode`: the device's own node; `group`: the nodes of its companions."""
    path: PathTemplate | None = None
    """A node by its path on the host, with fields: `/dev/nvidia{nvidia.minor}`. If fields lead several devices to one
    node (`/dev/vfio/{iommu_group}`), only one of these devices is given out at a time. The same holds for nodes of one
    IOMMU group, of a disk and its partition, and of a volume and its member. Devices share a path without fields."""
    alias: ContainerPath | None = field(default=None, name="as")
    """Its path in the container, so that renumbering is invisible; the host's path when left out. `{index}` numbers the
    devices that a container gets together."""
    permissions: Permissions = "rw"
    """What the container may do: `r`, `w` or `rw`."""
    file_mode: FileMode | None = None
    """The mode of the node in the container, as CDI's `fileMode`: `"0660"`, or `host` for the mode on the host. When
    left out the runtime decides: the host's mode, or `0666`. This key and the next three need CDI."""
    uid: OwnerId | None = None
    """Its owner in the container, a number or `host`; when left out, the user that the container runs as."""
    gid: OwnerId | None = None
    """Its group in the container, a number or `host`; when left out, the group of the container's user."""
    join_group: bool = False
    """Whether the container's process also gets the node's group, `gid` or else the host's, as with
    `supplementalGroups`. It is CDI's `additionalGids`, and needs a runtime that knows CDI 0.7.0."""
    optional: bool = False
    """Whether the device is healthy without this node."""

    @property
    def needs_cdi(self) -> bool:
        """Whether kubelet's DeviceSpec cannot say what the container gets."""
        return self.file_mode is not None or self.uid is not None or self.gid is not None or self.join_group

    def _problems(self) -> Iterator[Problem]:
        for key, path in ("path", self.path), ("as", self.alias):
            if path is not None and str(path).endswith("/"):
                yield Problem("a node's path, without a slash at its end", "in a folder: /dev/serial/{devname}", (key,))
        if self.source == "group" and self.alias is not None and not self.alias.device_fields:
            hint = "use {devname}, for example /dev/fpga/{devname}"
            yield Problem("an alias that differs for every companion", hint, ("as",))


class MountRule(Model, frozen=True):
    """A bind mount that comes with the device."""

    host_path: PathTemplate
    """File or directory on the host."""
    container_path: ContainerPath | None = None
    """Where it appears; the host's path when left out."""
    read_only: bool = True
    """Whether the container may not write to it."""
    optional: bool = False
    """Whether it is left out silently when the host's path does not exist."""

    def _problems(self) -> Iterator[Problem]:
        if str(self.container_path or self.host_path) == "/":
            yield Problem("a path below / in the container", "give containerPath", ("containerPath",))


class CdiFallback(Model, frozen=True):
    """What a container gets beside `nodes`, `env` and `mounts` while no file has a CDI device of `cdiDevices`."""

    nodes: tuple[NodeRule, ...] = ()
    """Device nodes in place of those of the CDI devices."""
    env: Mapping[VariableName, ContainerTemplate] = {}
    """Environment variables in place of those of the CDI devices."""
    mounts: tuple[MountRule, ...] = ()
    """Bind mounts in place of those of the CDI devices."""
    driver_files: Literal["nvidia"] | None = None
    """`nvidia`: the files of the loaded NVIDIA driver that `nvidia-ctk cdi generate` lists: libraries for 64 bits,
    programs, firmware, sockets. They are looked for by ld.so.cache, in the linker's folders, below
    `/run/nvidia/driver`, and where GKE, Talos, Flatcar, Bottlerocket and NixOS have them, or where `nvidia.driverRoot`
    says; files that come later count within seconds. The container has libraries in `/usr/lib64` and
    `/usr/lib/x86_64-linux-gnu` (or `aarch64`), programs in `/usr/bin`. While no library is found the device is
    unhealthy."""

    def _problems(self) -> Iterator[Problem]:
        yield from duplicate_targets(self.nodes, self.mounts)


class Group(Model, frozen=True):
    """Companions: other udev devices that belong to the same logical device.

    A companion whose node is given out with the device may itself be a device of a resource. Then only one of the two
    is given out at a time. A device with nodes `from: group` is unhealthy when no companion with a node is left.
    """

    scope: Literal["children", "siblings", "parent", "iommuGroup"] = field(default="children", name="with")
    """Where to look: below the device, below its parent, above it, or in its IOMMU group."""
    match: Match = ()
    """Which of the devices there are companions. When left out: all that have a node."""


class Hook(Model, frozen=True):
    """A command that the agent runs on the node, without a shell."""

    command: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1, max_length=COMMAND_MAX)]
    """Program and arguments. The device is described in the environment (DRABRIDGE_DEVICE, DRABRIDGE_NODES, ...)."""
    timeout_seconds: Annotated[int, Meta(ge=1, le=300)] = 20
    """After this time the hook is killed and has failed; also once the hooks of its claim have taken 40 s together.

    Kubelet waits 45 s for a claim that is prepared or unprepared (pkg/kubelet/cm/dra/plugin/dra_plugin.go).
    """

    def _problems(self) -> Iterator[Problem]:
        if not self.command[0].startswith("/"):
            yield Problem("an absolute path of a program", "no shell and no PATH are used", ("command", 0))


PRE_START_TIMEOUT_MAX = 25  # seconds; kubelet waits 30 for PreStartContainer (devicemanager endpoint.go)


class PreStart(Hook, frozen=True):
    """A reset hook before every start of a container that holds the device. Use the dra lane's `prepare` if you can."""

    timeout_seconds: Annotated[int, Meta(ge=1, le=PRE_START_TIMEOUT_MAX)] = 20
    """Kubelet itself gives up after 30 seconds."""


def duplicate_targets(nodes: tuple[NodeRule, ...], mounts: tuple[MountRule, ...]) -> Iterator[Problem]:
    """Refuse two nodes or mounts at one path of the container: the runtime would silently take one of them."""
    seen: dict[str, str] = {}
    places: list[tuple[str, str, tuple[str | int, ...]]] = []
    for index, node in enumerate(nodes):
        target = node.alias or node.path
        text = str(target) if target is not None else f"from: {node.source}"
        places.append((text, f"nodes[{index}]", ("nodes", index)))
    for index, mount in enumerate(mounts):
        places.append((str(mount.container_path or mount.host_path), f"mounts[{index}]", ("mounts", index)))
    for text, where, path in places:
        if text in seen:
            yield Problem("a path of its own inside the container", f"{seen[text]} is already at {text}", path, where)
        seen.setdefault(text, where)
