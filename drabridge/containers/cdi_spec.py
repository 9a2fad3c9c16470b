"""Build CDI spec files: what a container gets with a device, the names it goes by, the file's bytes.

No I/O.

A container runtime looks a device up by its qualified name (``vendor/class=name``) when it creates a container. Kubelet
repeats the name for the pod's whole life, over restarts and reboots. So a name must never change its meaning.

What runtimes demand (containerd 2.1, podman 4.3, cri-o; CDI specification, "Released versions"):

- A file is refused whole if its version is lower than one of its fields or names needs, or newer than the runtime.
- A device or a file with empty edits is "unresolvable" to some runtimes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field

from drabridge.errors import HostError
from drabridge.inventory.devices import Device, DeviceNode, Mount

# CDI specification, SPEC.md section "Released versions": what each version added that is used here.
BASE_VERSION = "0.3.0"  # nodes, env, mounts, hooks
RENAMED_NODE_VERSION = "0.5.0"  # deviceNodes[].hostPath
JOINED_GROUP_VERSION = "0.7.0"  # additionalGids
DIGIT_NAME_VERSION = "0.5.0"  # names that begin with a digit: those of claims' metadata begin with a UID

VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
DEVICE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")

CLAIM = "claim"
FALLBACK = ".fallback"
"""The end of the name of the entry for a device's fallback. The entry is always in the file: a container that was
started with it may be started again when the CDI devices are there. No device's own name has a dot."""
JOINED = ".joined"
"""The end of the name of an entry without variables. Such an entry is for a device that a pod's container got together
with others: their variables are combined and come with the answer to kubelet (:mod:`drabridge.containers.together`).
If a path contains the device's position, a number follows, from the second position on."""
ADMIN = "admin"  # instead of CLAIM, in the name of a device that a claim has with admin access
_OF_CLAIM = re.compile(  # a UID of the API server
    rf"=(?P<access>{CLAIM}|{ADMIN})-(?P<uid>[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})-"
)
_MOUNT_OPTIONS = {True: ("ro", "nosuid", "nodev", "bind"), False: ("rw", "nosuid", "nodev", "bind")}
_NO_ENV: Mapping[str, str] = MappingProxyType({})


class ContainerEdits(Struct, frozen=True):
    """What a container gets with a device; ``nodes`` as they are right now."""

    nodes: tuple[DeviceNode, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: _NO_ENV)
    mounts: tuple[Mount, ...] = ()
    hook: tuple[str, ...] = ()  # see :class:`~drabridge.inventory.devices.Fallback`

    @classmethod
    def of(cls, device: Device) -> ContainerEdits:
        """Return the edits that the inventory found for a device, those of its fallback aside."""
        return cls(device.nodes, device.env, device.mounts)

    @classmethod
    def of_fallback(cls, device: Device) -> ContainerEdits:
        """Return the edits that a container gets in place of the device's CDI devices."""
        fallback = device.fallback
        return cls() if fallback is None else cls(fallback.nodes, fallback.env, fallback.mounts, fallback.hook)

    @classmethod
    def given(cls, device: Device) -> ContainerEdits:
        """Return the edits that a container gets with the device now: those of its fallback while that is given."""
        return (cls.of_fallback(device) if device.cdi_missing else cls()) | cls.of(device)

    def __bool__(self) -> bool:
        return bool(self.nodes or self.env or self.mounts)

    def __or__(self, other: ContainerEdits) -> ContainerEdits:
        """Return the edits of both. If the two set the same variable or container path, ``other`` wins."""
        nodes = {node.container_path: node for node in (*self.nodes, *other.nodes)}
        mounts = {mount.container_path: mount for mount in (*self.mounts, *other.mounts)}
        env, hook = {**self.env, **other.env}, other.hook or self.hook
        return ContainerEdits(tuple(nodes.values()), env, tuple(mounts.values()), hook)


class CdiDevice(Struct, frozen=True):
    """One entry of a spec file. ``name`` is the part after the equals sign."""

    name: str
    edits: ContainerEdits


class CdiSpec(Struct, frozen=True):
    """One spec file: ``file_name`` in the CDI directory, ``kind`` is ``vendor/class``."""

    file_name: str
    kind: str
    devices: tuple[CdiDevice, ...] = field(default=())

    @property
    def names(self) -> tuple[str, ...]:
        """Qualified names for kubelet, in order. A device without edits has none: there is nothing to inject."""
        return tuple(f"{self.kind}={device.name}" for device in self.devices if device.edits)

    def qualified(self, name: str) -> str | None:
        """Return the qualified name of this file's device ``name``; None when it has nothing to inject."""
        return next((f"{self.kind}={d.name}" for d in self.devices if d.name == name and d.edits), None)

    @property
    def version(self) -> str:
        """The lowest cdiVersion that covers everything in the file, names included."""
        needed = [BASE_VERSION]
        for device in self.devices:
            if device.edits and device.name[:1].isdigit():
                needed.append(DIGIT_NAME_VERSION)
            if any(node.container_path not in ("", node.path) for node in device.edits.nodes):
                needed.append(RENAMED_NODE_VERSION)
            if _joined_groups(device.edits):
                needed.append(JOINED_GROUP_VERSION)
        return max(needed)  # all are 0.x.0 with one digit: text order is version order

    def encode(self) -> bytes:
        """Return the file's content, empty when there is nothing to inject.

        The same spec gives the same bytes.

        Raises HostError for a name, a path or a variable that no runtime would accept.
        """
        entries = [_entry(device) for device in self.devices if device.edits]
        if not entries:
            return b""
        names = [entry["name"] for entry in entries]
        if len(set(names)) != len(names):
            raise HostError(f"CDI file {self.file_name} would hold one device name twice: {sorted(names)}")
        document = {"cdiVersion": self.version, "kind": self.kind, "devices": entries}
        try:
            return msgspec.json.encode(document) + b"\n"
        except UnicodeEncodeError as error:
            raise HostError(f"CDI file {self.file_name} would hold text that is not UTF-8: {error.object!r}") from error


def entries_of(name: str, device: Device, edits: ContainerEdits) -> tuple[CdiDevice, ...]:
    """Return a file's entries for one device: for ``edits``, which it always gets, and for its fallback, if any."""
    own = CdiDevice(name, edits)
    fallback = ContainerEdits.of_fallback(device)
    return (own, CdiDevice(name + FALLBACK, fallback)) if fallback else (own,)


def names_given(spec: CdiSpec, name: str, device: Device, index: int | None = None) -> tuple[str, ...]:
    """Return the qualified names by which a container gets a device that is ``name`` in ``spec``, for kubelet.

    Our own name comes last: if two entries set one variable, runtimes take the last. ``index``: the device's position
    among those that the container gets together; their entries have no variables.
    """
    have = {entry.name for entry in spec.devices}

    def qualified(one: str) -> str | None:
        joined = (f"{one}{JOINED}{index}", one + JOINED) if index is not None else ()
        return spec.qualified(next((other for other in joined if other in have), one))

    others = (qualified(name + FALLBACK),) if device.cdi_missing else device.cdi_devices
    return tuple(one for one in (*others, qualified(name)) if one)


class ClaimDeviceName(NamedTuple):
    """A device in a claim's file. ``text``: ``<request>-<device>[-<share>]``; ``admin``: with admin access."""

    text: str
    admin: bool = False


def claim_device_name(uid: str, request: str, device: str, share_id: str = "", *, admin: bool = False) -> str:
    """Return the CDI name of a claim's device; no other claim, request or share has it.

    Runtimes cache specs by name. The name begins with a letter whatever the claim's UID begins with, so version 0.3.0
    is enough. It says whether there is admin access: if the claim's record is lost, only kubelet and the file can tell.
    """
    return "-".join(part for part in (ADMIN if admin else CLAIM, uid, request, device, share_id) if part)


def claim_device_names(uid: str, names: Iterable[str]) -> tuple[ClaimDeviceName, ...]:
    """Take the CDI names of a claim's file apart; names of anything else are left out."""
    prefixes = {claim_device_name(uid, "", "", admin=admin) + "-": admin for admin in (False, True)}
    found = {
        ClaimDeviceName(name.removeprefix(prefix).removesuffix(FALLBACK), admin): None
        for name in names
        for prefix, admin in prefixes.items()
        if name.startswith(prefix)
    }
    return tuple(found)


def claim_uid_of(qualified: str) -> str:
    """Return the UID of the claim that a qualified name of ours was made for.

    "" for a name of anything else.
    """
    found = _OF_CLAIM.search(qualified)
    return found["uid"] if found else ""


def is_admin_only(qualified: Iterable[str]) -> bool:
    """Tell whether all names that a container has of a claim's device are for admin access."""
    found = [match["access"] for match in map(_OF_CLAIM.search, qualified) if match]
    return set(found) == {ADMIN}


def _entry(device: CdiDevice) -> dict[str, Any]:
    if not DEVICE_NAME.fullmatch(device.name):
        raise HostError(f"{device.name!r} is not a CDI device name: letters, digits and any of '_-.:' inside")
    edits: dict[str, Any] = {}
    if device.edits.nodes:
        edits["deviceNodes"] = [_node(node) for node in device.edits.nodes]
    if groups := _joined_groups(device.edits):
        edits["additionalGids"] = groups
    if device.edits.env:
        edits["env"] = [_variable(device, name, value) for name, value in sorted(device.edits.env.items())]
    if device.edits.mounts:
        edits["mounts"] = [_mount(mount) for mount in device.edits.mounts]
    if hook := device.edits.hook:
        edits["hooks"] = [{"hookName": "createContainer", "path": _absolute(hook[0]), "args": list(hook[1:])}]
    return {"name": device.name, "containerEdits": edits}


def _node(node: DeviceNode) -> dict[str, Any]:
    """Return a node's entry.

    It has the node's numbers if they are known: another device that took over the path is not given then.
    """
    inside = node.container_path or node.path
    entry: dict[str, Any] = {"path": _absolute(inside)}
    if inside != node.path:
        entry["hostPath"] = _absolute(node.path)
    if node.major:
        entry |= {"type": node.kind, "major": node.major, "minor": node.minor}
    owner = {"fileMode": node.file_mode, "uid": node.uid, "gid": node.gid}
    entry |= {key: number for key, number in owner.items() if number is not None}
    return entry | {"permissions": node.permissions}


def _joined_groups(edits: ContainerEdits) -> list[int]:
    """Return the groups that the process joins. Root's group is left out, as in CDI: it may open more than the node."""
    return sorted({node.joined_gid for node in edits.nodes if node.joined_gid})


def _mount(mount: Mount) -> dict[str, Any]:
    return {
        "hostPath": _absolute(mount.host_path),
        "containerPath": _absolute(mount.container_path),
        "options": list(_MOUNT_OPTIONS[mount.read_only]),
    }


def _variable(device: CdiDevice, name: str, value: str) -> str:
    if not name or "=" in name or "\0" in name + value:
        raise HostError(f"device {device.name}: {name!r} cannot be an environment variable with the value {value!r}")
    return f"{name}={value}"


def _absolute(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise HostError(f"{path!r} cannot be in a CDI file: an absolute path was expected")
    return path
