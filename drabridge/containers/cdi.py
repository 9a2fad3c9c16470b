"""CDI spec files: the one way in which a device enters a container.

One file for each legacy device that is held, one for each prepared claim. Container runtimes look a device up by its
qualified name (``vendor/class=name``) when they create a container; kubelet replays the name for as long as the pod
lives, over restarts and reboots. So a name never changes its meaning, and its file is there until nothing can refer
to it any more. The CDI directory is a tmpfs on most hosts: callers regenerate their files at start.

Facts about runtimes that shape this module (containerd 2.1, podman 4.3, cri-o; CDI specification, "Released versions"):
a file is rejected whole when its version is lower than one of its fields or names needs, or newer than the runtime;
a device or a file with empty edits is "unresolvable" to some runtimes.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field

from drabridge.errors import HostError
from drabridge.inventory.model import Device, DeviceNode, Mount, device_id_of
from drabridge.system.files import TEMPORARY_SUFFIX, Care, read_if_there, write_atomically
from drabridge.system.io_thread import IoThread

DEFAULT_DIRECTORY = Path("/var/run/cdi")  # the CDI specification's directory for files that programs generate

# CDI specification, SPEC.md section "Released versions": what each version brought of what is used here.
BASE_VERSION = "0.3.0"  # nodes, env, mounts, hooks
RENAMED_NODE_VERSION = "0.5.0"  # deviceNodes[].hostPath
DIGIT_NAME_VERSION = "0.5.0"  # device names that begin with a digit

_VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")  # a dot would need 0.6.0
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_OF_CLAIM = re.compile(r"=(?P<access>claim|admin)-(?P<uid>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})-")  # an API UID
_MOUNT_OPTIONS = {True: ("ro", "nosuid", "nodev", "bind"), False: ("rw", "nosuid", "nodev", "bind")}

_ADMIN = "admin"  # instead of Family.CLAIM, in the name of a device that a claim only looks at
PROBE_BYTES = 4096  # a block: a full file system may still make empty files

_NO_ENV: Mapping[str, str] = MappingProxyType({})


class Family(StrEnum):
    """Who a file belongs to; the part of its name that comes after the kind."""

    LEGACY = "legacy"
    CLAIM = "claim"


class Named(NamedTuple):
    """What the file of a claim says of one device: ``<request>-<device>[-<share>]``, and by which kind of access."""

    text: str
    admin: bool = False


class Edits(Struct, frozen=True):
    """What a container gets with a device; ``nodes`` as they are right now."""

    nodes: tuple[DeviceNode, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: _NO_ENV)
    mounts: tuple[Mount, ...] = ()

    @classmethod
    def of(cls, device: Device) -> Edits:
        """The edits that the inventory found for a device."""
        return cls(device.nodes, device.env, device.mounts)

    def __bool__(self) -> bool:
        return bool(self.nodes or self.env or self.mounts)

    def __or__(self, other: Edits) -> Edits:
        """Both; where the two set one variable or one container path, ``other`` wins."""
        nodes = {node.container_path: node for node in (*self.nodes, *other.nodes)}
        mounts = {mount.container_path: mount for mount in (*self.mounts, *other.mounts)}
        return Edits(tuple(nodes.values()), {**self.env, **other.env}, tuple(mounts.values()))


class CdiDevice(Struct, frozen=True):
    """One entry of a spec file. ``name`` is the part after the equals sign."""

    name: str
    edits: Edits


class Spec(Struct, frozen=True):
    """One spec file: ``file_name`` in the CDI directory, ``kind`` is ``vendor/class``."""

    file_name: str
    kind: str
    devices: tuple[CdiDevice, ...] = field(default=())

    @property
    def names(self) -> tuple[str, ...]:
        """Qualified names for kubelet, in order. A device without edits has none: there is nothing to inject."""
        return tuple(f"{self.kind}={device.name}" for device in self.devices if device.edits)

    def qualified(self, name: str) -> str | None:
        """The qualified name of the device ``name`` of this file; None when it has nothing to inject."""
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
        return max(needed)  # all are 0.x.0 with one digit: text order is version order

    def encode(self) -> bytes:
        """The file's content; the same spec gives the same bytes. Empty when there is nothing to inject.

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


class CdiStore:
    """The spec files of one kind in one directory. Files of anybody else are never read, changed or removed."""

    def __init__(self, directory: Path, vendor: str, device_class: str = "device") -> None:
        """``vendor`` is a domain name, ``device_class`` a word; together the kind, ``vendor/device_class``."""
        if not _VENDOR.fullmatch(vendor) or not _CLASS.fullmatch(device_class):
            raise ValueError(f"{vendor}/{device_class} is not a CDI kind: letters, digits, '-', begin with a letter")
        self.directory = directory
        self.vendor = vendor
        self.kind = f"{vendor}/{device_class}"
        self._prefix = f"{vendor}-{device_class}-"
        self.error = ""  # why the last write failed, until :meth:`probe` finds that it would not fail now
        self._kept: set[str] = set()  # names of files that were written and not removed
        self.worker = IoThread("cdi")  # who must not wait for the directory's disk hands over to it

    def legacy_spec(self, device: Device, units: Collection[str] = ()) -> Spec:
        """The spec of a device that containers hold through the device plugin API.

        ``units`` are the ids that kubelet allocated (the device's own id, or some of its replicas): all of them are
        the same hardware, so all get one name, which stays the same for as long as the device exists.
        """
        foreign = [unit for unit in units if unit != device.id and device_id_of(unit) != device.id]
        if foreign:
            raise ValueError(f"{foreign} are not units of the device {device.name} ({device.id})")
        return self._spec(Family.LEGACY, device.name, [CdiDevice(f"{Family.LEGACY}-{device.name}", Edits.of(device))])

    def claim_spec(self, uid: str, devices: Iterable[CdiDevice]) -> Spec:
        """The spec of a prepared claim; the devices' names come from :meth:`claim_device_name`."""
        return self._spec(Family.CLAIM, uid, devices)

    @staticmethod
    def claim_device_name(uid: str, request: str, device: str, share_id: str = "", *, admin: bool = False) -> str:
        """A name that no other claim, request or share can have: runtimes cache specs by name.

        Begins with a letter whatever the claim's UID begins with, so that 0.3.0 is enough. Of admin access it tells,
        for kubelet and the file may be all that is left to know it by.
        """
        return "-".join(part for part in (_ADMIN if admin else Family.CLAIM, uid, request, device, share_id) if part)

    def _spec(self, family: Family, key: str, devices: Iterable[CdiDevice]) -> Spec:
        return Spec(self.file_name(family, key), self.kind, tuple(devices))

    def file_name(self, family: Family, key: str) -> str:
        """The name of the file of one legacy device or one claim UID. Raises HostError if ``key`` cannot be one."""
        if not _DEVICE.fullmatch(key) or len(key) > 128:
            raise HostError(
                f"{key!r} cannot be part of a CDI file name", hint="A device name or a claim UID was expected"
            )
        return f"{self._prefix}{family}-{key}.json"

    def write(self, spec: Spec) -> tuple[str, ...]:
        """Make the file say what ``spec`` says and return the names for kubelet.

        An identical file is left alone; a missing, edited or torn one is written. A spec with nothing to inject has
        no file and no names. Raises HostError when the directory cannot be written.
        """
        data = spec.encode()
        if not data:
            self.remove_file(spec.file_name)
            return ()
        path = os.path.join(self.directory, spec.file_name)
        try:
            with _host_errors(self.directory):
                if read_if_there(path) != data:
                    self._put(path, data)
        except HostError as error:
            self.error = str(error)
            raise
        self._kept.add(spec.file_name)
        return spec.names

    def says(self, spec: Spec) -> bool:
        """Whether there is such a file already."""
        with _host_errors(self.directory):
            return read_if_there(os.path.join(self.directory, spec.file_name)) == spec.encode()

    def _put(self, path: str, data: bytes) -> None:
        try:  # no fsync: what a power cut tears is written again at start; until then runtimes refuse it
            write_atomically(path, data, mode=0o644, care=Care.PROCESS)
        except FileNotFoundError:
            self.directory.mkdir(mode=0o755, exist_ok=True)
            write_atomically(path, data, mode=0o644, care=Care.PROCESS)

    def probe(self) -> bool:
        """After a failure: whether files can be written now. Nobody but us sees the file that this makes."""
        path = os.path.join(self.directory, f".{self._prefix}{Family.LEGACY}-probe{TEMPORARY_SUFFIX}")
        try:
            with _host_errors(self.directory):
                self._put(path, bytes(PROBE_BYTES))
                os.unlink(path)
        except HostError as error:
            self.error = str(error)
            return False
        self.error = ""
        return True

    def missing(self) -> tuple[str, ...]:
        """Names of files that were written and that somebody else removed since the last call, sorted. One listing.

        A directory that cannot be listed is a failure like that of a write: once it is over, all files are written.
        """
        try:
            there = set(os.listdir(self.directory))
        except FileNotFoundError:
            there = set()  # it is made again with the next file
        except OSError as error:
            self.error = f"cannot keep CDI files in {self.directory}: {error.strerror or error}"
            return ()
        gone = self._kept - there
        self._kept -= gone
        return tuple(sorted(gone))

    def remove(self, family: Family, key: str) -> bool:
        """Remove the file of one legacy device or one claim; false if there was none."""
        return self.remove_file(self.file_name(family, key))

    def remove_file(self, file_name: str) -> bool:
        """Remove a file by the name in its :class:`Spec`; false if there was none."""
        self._kept.discard(file_name)
        path = self.directory / file_name
        with _host_errors(self.directory):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                return False
            except OSError as error:  # a read-only file system says so before it looks (unlink(2))
                if error.errno != errno.EROFS or os.path.lexists(path):
                    raise
                return False
        return True

    def keys(self, family: Family) -> tuple[str, ...]:
        """The device names or claim UIDs that have a file of ours, sorted."""
        prefix = self.prefix(family)
        return tuple(sorted(path.name[len(prefix) : -len(".json")] for path in self._ours(prefix)))

    def prefix(self, family: Family) -> str:
        """What the names of a family's files begin with."""
        return f"{self._prefix}{family}-"

    def metadata_files(self) -> tuple[str, ...]:
        """Names of the files that mount claims' device metadata (:mod:`drabridge.dra.metadata`), sorted."""
        return tuple(path.name for path in self._list(f"{self.vendor}_metadata_*.json"))

    def claimed(self) -> dict[str, tuple[Named, ...]]:
        """Claim UID -> what its file says of each device; () for a torn file."""
        found = {}
        for uid in filter(_DEVICE.fullmatch, self.keys(Family.CLAIM)):  # else no file of ours: a copy by hand
            document = _document(self.directory / f"{self._prefix}{Family.CLAIM}-{uid}.json")
            entries = document.get("devices") if document else None
            entries = entries if isinstance(entries, list) else []
            names = [str(entry.get("name")) for entry in entries if isinstance(entry, dict)]
            kinds = {self.claim_device_name(uid, "", "", admin=admin) + "-": admin for admin in (False, True)}
            told = [(name, start) for name in names for start in kinds if name.startswith(start)]
            found[uid] = tuple(Named(name.removeprefix(start), kinds[start]) for name, start in told)
        return found

    @staticmethod
    def claim_uid(qualified: str) -> str:
        """The UID of the claim that a qualified name of ours was made for; "" for a name of anything else."""
        found = _OF_CLAIM.search(qualified)
        return found["uid"] if found else ""

    @staticmethod
    def only_admin(qualified: Iterable[str]) -> bool:
        """Whether the names by which a container has a device of a claim all tell of admin access."""
        found = [match["access"] for match in map(_OF_CLAIM.search, qualified) if match]
        return set(found) == {_ADMIN}

    def regenerate(self, family: Family, specs: Iterable[Spec], *, keep: Collection[str] = ()) -> tuple[str, ...]:
        """At start: write every spec that something may still refer to, remove the family's others.

        Files of the keys in ``keep`` stay as they are: something may refer to them, and nobody can say what they should
        hold. Returns the names of the files that were removed. What a crash left half written goes as well.
        """
        wanted = {spec.file_name: spec for spec in specs}
        kept = {f"{self._prefix}{family}-{key}.json" for key in keep}  # a key that is no name has no file
        for spec in wanted.values():
            self.write(spec)
        prefix = self.prefix(family)
        stale = [path.name for path in self._ours(prefix) if path.name not in wanted and path.name not in kept]
        for name in stale:
            self.remove_file(name)
        with _host_errors(self.directory):
            for leftover in self._list(f".{prefix}*{TEMPORARY_SUFFIX}"):
                leftover.unlink(missing_ok=True)
        return tuple(sorted(stale))

    def _ours(self, prefix: str) -> list[Path]:
        """Files with our prefix whose content does not claim another kind (a torn file of ours claims none)."""
        return [path for path in self._list(f"{prefix}*.json") if _kind(path) in (self.kind, None)]

    def _list(self, pattern: str) -> list[Path]:
        with _host_errors(self.directory):
            try:
                names = os.listdir(self.directory)
            except (FileNotFoundError, NotADirectoryError):
                return []
            return [self.directory / name for name in sorted(fnmatch.filter(names, pattern))]


def _entry(device: CdiDevice) -> dict[str, Any]:
    if not _DEVICE.fullmatch(device.name):
        raise HostError(f"{device.name!r} is not a CDI device name: letters, digits and any of '_-.:' inside")
    edits: dict[str, Any] = {}
    if device.edits.nodes:
        edits["deviceNodes"] = [_node(node) for node in device.edits.nodes]
    if device.edits.env:
        edits["env"] = [_variable(device, name, value) for name, value in sorted(device.edits.env.items())]
    if device.edits.mounts:
        edits["mounts"] = [_mount(mount) for mount in device.edits.mounts]
    return {"name": device.name, "containerEdits": edits}


def _node(node: DeviceNode) -> dict[str, Any]:
    """Numbers are written when known: a path that another device took over then gives nothing away."""
    inside = node.container_path or node.path
    entry: dict[str, Any] = {"path": _absolute(inside)}
    if inside != node.path:
        entry["hostPath"] = _absolute(node.path)
    if node.major:
        entry |= {"type": node.kind, "major": node.major, "minor": node.minor}
    return entry | {"permissions": node.permissions}


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


def _kind(path: Path) -> str | None:
    kind = (_document(path) or {}).get("kind")
    return kind if isinstance(kind, str) else None


def _document(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


@contextlib.contextmanager
def _host_errors(directory: Path) -> Iterator[None]:
    """Every OSError of the CDI directory, once, with what to do about it."""
    try:
        yield
    except OSError as error:
        raise HostError(
            f"cannot keep CDI files in {directory}: {error.strerror or error}",
            hint="The directory must exist on the host, be mounted read-write at the same path, "
            "and be one that the container runtime reads (/var/run/cdi or /etc/cdi)",
        ) from error
