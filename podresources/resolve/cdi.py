"""Read which nodes and variables a claim's CDI file gives a container, whichever driver wrote the file.

Kubelet shows the CDI names of a claim's device; the file that defines a name says its nodes. drabridge, NVIDIA's driver
(``k8s.gpu.nvidia.com-claim_<uid>.yaml``) and most others write one file for each claim. With NVIDIA's the variable
NVIDIA_VISIBLE_DEVICES is ``void``, and the node is ``/dev/nvidia<minor>`` (kubernetes-sigs/dra-driver-nvidia-gpu,
cmd/gpu-kubelet-plugin/cdi.go).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from podresources.model import PodAllocation
from podresources.resolve.facts import NOTHING, DeviceFacts, text
from podresources.resolve.files import ReadFiles, UnreadableFileError, names, read
from podresources.resolve.hardware import Hardware

FOLDERS = (Path("/var/run/cdi"), Path("/run/cdi"), Path("/etc/cdi"))
"""Where runtimes look (CDI specification, "Overview"); ``/var/run`` is a link to ``/run`` on most hosts."""

MOST_EDITS = 4096  # nodes and variables of one device
_DEVICE_NUMBER = re.compile(r"\d{1,10}", re.ASCII)
_UUID_VARIABLES = ("NVIDIA_VISIBLE_DEVICES",)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f-]{8,}", re.IGNORECASE)

ClaimDeviceKey = tuple[str, str, str, str, str, str]
"""(claim's namespace, claim's name, driver, pool, device, share)."""


class Node(Struct, frozen=True):
    """A device node of a CDI file; numbers are 0 where the file has none."""

    path: str
    kind: str = "c"
    major: int = 0
    minor: int = 0


class Edits(Struct, frozen=True):
    """What a CDI name gives a container, as far as it tells which hardware it is."""

    nodes: tuple[Node, ...] = ()
    uuids: tuple[str, ...] = ()


class CdiFiles:
    """The CDI files in ``folders`` below ``root``, each read again only when it changed."""

    def __init__(self, root: Path, folders: Sequence[Path] = FOLDERS) -> None:
        self._folders = [root / str(folder).lstrip("/") for folder in folders]
        self._files = ReadFiles(lambda path: dict(_devices(path)), "CDI file")  # by qualified name: vendor/class=device

    def refresh(self) -> list[str]:
        """Read what is new or changed; return a sentence for each file that cannot be read."""
        return self._files.refresh(self._paths())

    def edits(self, name: str) -> Edits:
        """Return what a qualified CDI name gives; nothing for a name that no file defines."""
        return next((devices[name] for devices in self._files.contents.values() if name in devices), Edits())

    def of_vendor(self, device_id: str) -> Edits:
        """Return what a vendor's file gives with the device that it names by kubelet's id; nothing without one."""
        names = (name for devices in self._files.contents.values() for name in devices)
        name = next((name for name in names if name.partition("=")[2] == device_id), "")
        return self.edits(name)

    def _paths(self) -> Iterator[Path]:
        seen: set[Path] = set()
        for folder in self._folders:
            directory = folder.resolve()
            if directory in seen:
                continue
            seen.add(directory)
            yield from (
                directory / name
                for name in names(directory)
                if name.endswith((".json", ".yaml")) and not name.startswith(".")
            )


def own_names(allocations: Iterable[PodAllocation]) -> dict[ClaimDeviceKey, tuple[str, ...]]:
    """Return the CDI names of each claim's device alone.

    Kubelet 1.34 to 1.36 repeats the names of a claim's earlier devices with each later one: so a name that is in a
    shorter list of the same claim and driver is not the later device's own.
    """
    lists: dict[tuple[str, ...], dict[ClaimDeviceKey, tuple[str, ...]]] = {}
    for held in allocations:
        if held.claim is not None:
            key = claim_device_key(held)
            lists.setdefault(key[:3], {})[key] = held.cdi_ids
    found = {}
    for of_claim in lists.values():
        shorter: set[str] = set()
        for _, same_length in groupby(sorted(of_claim.items(), key=_length), key=_length):
            alike = list(same_length)
            found.update({key: tuple(name for name in ids if name not in shorter) for key, ids in alike})
            shorter.update(name for _, ids in alike for name in ids)
    return found


def claim_device_key(held: PodAllocation) -> ClaimDeviceKey:
    """Return the device and its claim, without the container that uses them."""
    return (
        held.claim_namespace or "",
        held.claim or "",
        held.driver or "",
        held.pool or "",
        held.device or "",
        held.share_id or "",
    )


def facts(edits: Collection[Edits], hardware: Hardware) -> DeviceFacts:
    """Return what is known of the one device behind the edits; nothing if they are of several devices, or of none."""
    nodes = [node for edit in edits for node in edit.nodes]
    behind = {hardware.of_node(node.path, node.kind, node.major, node.minor) for node in nodes} - {NOTHING}
    uuids = {uuid for edit in edits for uuid in edit.uuids}
    if len(behind) > 1 or len(uuids) > 1:
        return NOTHING
    device = behind.pop() if behind else NOTHING
    uuid = uuids.pop() if uuids else ""
    instances = {found for node in nodes if (found := hardware.gpu_instance(node.path)) is not None}
    if uuid.startswith("MIG-") or instances:
        instance = instances.pop() if len(instances) == 1 else ""
        return DeviceFacts(uuid, device.pci_bus_id, device.uuid, instance, device.model)
    if uuid and device.uuid and uuid != device.uuid:
        return NOTHING
    return replace(device, uuid=uuid or device.uuid)


def _length(item: tuple[ClaimDeviceKey, tuple[str, ...]]) -> int:
    return len(item[1])


def _devices(path: Path) -> Iterator[tuple[str, Edits]]:
    """Yield each device of a file with its edits. Raises UnreadableFileError."""
    data = read(path)
    if data is None:
        return
    try:
        document = _decode(data, yaml=path.suffix == ".yaml")
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise UnreadableFileError(path, str(error).splitlines()[0] if str(error) else "not readable") from error
    if not isinstance(document, dict) or not isinstance(document.get("devices"), list):
        return
    kind = text(document.get("kind"))
    for device in document["devices"]:
        if isinstance(device, dict) and (name := text(device.get("name"))):
            yield f"{kind}={name}", _edits(device.get("containerEdits"))


def _decode(data: bytes, *, yaml: bool) -> Any:
    if not yaml:
        return msgspec.json.decode(data)
    from yaml import YAMLError, load

    # The base loader makes texts of all scalars. The safe loaders convert, and may raise any exception, as for `!!bool
    # x`.
    try:
        from yaml import CBaseLoader as Loader
    except ImportError:  # PyYAML without libyaml: a hundred times slower, and right
        from yaml import BaseLoader as Loader  # type: ignore[assignment]
    try:
        return load(data, Loader)  # noqa: S506 # it makes texts alone
    except YAMLError as error:
        raise ValueError(f"no YAML: {error}") from error


def _edits(edits: Any) -> Edits:
    if not isinstance(edits, dict):
        return Edits()
    nodes = [_node(node) for node in _list(edits.get("deviceNodes")) if isinstance(node, dict)]
    pairs = (entry.partition("=") for entry in _list(edits.get("env")) if isinstance(entry, str))
    values = [value for name, _, value in pairs if name in _UUID_VARIABLES]
    uuids = tuple(uuid for value in values for uuid in value.split(",") if _UUID.fullmatch(uuid) and text(uuid))
    return Edits(tuple(node for node in nodes if node.path), uuids)


def _node(node: dict[str, Any]) -> Node:
    kind = "b" if node.get("type") == "b" else "c"
    return Node(
        text(node.get("hostPath")) or text(node.get("path")),
        kind,
        _number(node.get("major")),
        _number(node.get("minor")),
    )


def _number(value: Any) -> int:
    """Return a number of JSON or the text of one in YAML; 0 for anything else."""
    written = str(value) if isinstance(value, int | str) else ""
    return int(written) if _DEVICE_NUMBER.fullmatch(written) else 0


def _list(value: Any) -> list[Any]:
    return value[:MOST_EDITS] if isinstance(value, list) else []
