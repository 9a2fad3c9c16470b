"""Convert a configuration of generic-device-plugin to ours, with a comment wherever the meaning differs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

import yaml
from msgspec import Meta, Struct, field

from drabridge import yaml_reader
from drabridge.config import names
from drabridge.config.declaration import Model, Parse
from drabridge.config.field_types import AbsolutePath, text_of
from drabridge.config.imported import Json, Noted, written
from drabridge.config.loader import read, text_in
from drabridge.config.problems import Problem, Problems, problems_of, unmet
from drabridge.config.schema import API_VERSION, KIND, REPLICAS_MAX
from drabridge.config.yaml_tree import Bare

DEFAULT_DOMAIN = "squat.ai"  # generic-device-plugin's own default, config.go

_MAGIC = re.compile(r"[*?\[]")
_FOLDERS = {"/dev/dri": "renderD*", "/dev/snd": "controlC*"}  # folder -> the nodes of which each stands for one device
_FOLDERS_OF_MANY = frozenset({"/dev", "/dev/input", "/dev/serial", "/dev/bus/usb", "/dev/v4l", "/dev/infiniband"})
_UDEV_LINK = re.compile(r"/dev/(.+/)?by-[a-z-]+/.+")  # /dev/serial/by-id/..., /dev/v4l/by-path/...
_OF_THE_KERNEL = re.compile(  # names of its drivers, which no udev rule gives: Documentation/admin-guide/devices.txt
    r"/dev/(tty(USB|ACM|AMA|S|THS|mxc)?|video|media|fuse|kvm|vhost-|net/|snd/|input/|dri/|bus/|vfio/|infiniband/|nvidia|"
    r"kfd|accel|hidraw|usb|lp|i2c-|spidev|gpio|iio|rfcomm|loop|sd|sr|sg|st|nvme|mmcblk|mem|null|zero|u?random|full|"
    r"mtd|rtc|watchdog|uio|tpm|cu|ptp|pps|cec|dvb/|fb|ppp|uinput|uhid|vcs|hw)([0-9a-z*?\[].*)?"
)
_USB_ID = re.compile(r"(0[xX])?([0-9a-fA-F]{1,4})")


# --- their file ----------------------------------------------------------------------------------


class _UsbId(Struct, frozen=True):
    """Four hexadecimal digits, and a note on how they were written."""

    digits: str
    note: str = ""


def _usb_id(value: Any) -> _UsbId:
    text = text_of(value, "four hexadecimal digits").strip()
    bare_number = isinstance(value, Bare) and text.isascii() and text.isdecimal()
    if bare_number and len(text) == 5 and int(text) <= 0xFFFF:
        digits = f"{int(text):04x}"
        return _UsbId(digits, f"{text} is too long for a hexadecimal id: taken as decimal, {digits}.")
    found = _USB_ID.fullmatch(text)
    if not found:
        raise unmet("four hexadecimal digits")
    digits = found[2].lower().rjust(4, "0")
    if not bare_number:
        return _UsbId(digits)
    octal = text.startswith("0") and not set(text) & set("89")
    theirs = f"{int(text, 8 if octal else 10):04x}"
    if theirs == digits:
        return _UsbId(digits)
    note = (
        f"{text} stood without quotes: generic-device-plugin reads a number and looks for {theirs}. Taken as {digits}."
    )
    return _UsbId(digits, note)


class _Path(Model, frozen=True):
    path: AbsolutePath
    mount_path: AbsolutePath | None = None
    permissions: str = "mrw"
    read_only: bool = False
    type: Literal["Device", "Mount"] = "Device"
    limit: Annotated[int, Meta(ge=0)] = 1
    optional: bool = False

    @property
    def is_pattern(self) -> bool:
        return _MAGIC.search(self.path) is not None


def _stands_for_cards(path: str) -> bool:
    return path.rstrip("/") in _FOLDERS


def _is_folder(path: str) -> bool:
    return path.endswith("/") or path in _FOLDERS_OF_MANY or _stands_for_cards(path)


class _Usb(Model, frozen=True):
    vendor: Annotated[_UsbId, Parse(_usb_id)]
    product: Annotated[_UsbId, Parse(_usb_id)]
    serial: str | None = None


class _Group(Model, frozen=True):
    count: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)] = 1
    paths: tuple[_Path, ...] = ()
    usb: tuple[_Usb, ...] = ()

    def _problems(self) -> Iterator[Problem]:
        if bool(self.paths) == bool(self.usb):
            yield Problem("either paths or usb", "generic-device-plugin refuses this as well")
        elif self.paths and all(path.type == "Mount" for path in self.paths):
            yield Problem(
                "a device among the paths", "this agent offers hardware that udev knows, not files", ("paths",)
            )
        devices = [path for path in self.paths if path.type == "Device"]
        for index, path in enumerate(self.paths):
            if (
                path.type == "Device"
                and _is_folder(path.path)
                and (len(devices) > 1 or not _stands_for_cards(path.path))
            ):
                hint = f"a path that is a folder has no counterpart: write its nodes, such as {path.path.rstrip('/')}/*"
                yield Problem("a device node", hint, ("paths", index, "path"))
            if path.type == "Mount" and path.is_pattern:
                yield Problem("one path for a mount", "write an item for each file", ("paths", index, "path"))
            if set(path.permissions) - set("rwm"):
                yield Problem("some of r, w and m", path=("paths", index, "permissions"))


class _Device(Model, frozen=True):
    name: str
    groups: Annotated[tuple[_Group, ...], Meta(min_length=1)]


class _File(Model, frozen=True):
    """``devices`` and ``device`` are the same to generic-device-plugin; the rest are its flags, which are not ours."""

    raw_keys = frozenset({"usb"})  # ids stay as written: the note says what generic-device-plugin makes of them

    domain: str = DEFAULT_DOMAIN
    devices: tuple[_Device, ...] = ()
    device: tuple[_Device, ...] = ()
    listen: str | None = None
    log_level: str | None = field(default=None, name="log-level")
    plugin_directory: str | None = field(default=None, name="plugin-directory")

    def _problems(self) -> Iterator[Problem]:
        if not self.devices and not self.device:
            yield Problem("a device under devices:")
        for key, devices in (("devices", self.devices), ("device", self.device)):
            for index, device in enumerate(devices):
                name = f"{self.domain}/{device.name}"
                yield from problems_of(names.extended_resource_name, name, key, index, "name")


# --- the same as arguments in a DaemonSet -----------------------------------------------------------

DEPTH_MAX, VALUES_MAX = 50, 100_000  # with aliases written out
_CONTAINERS = ("containers", "initContainers")
_FLAG = re.compile(r"--(device|domain)(?:=(.*))?", re.DOTALL)


def _file_of_arguments(text: str) -> str | None:
    """Return the plugin's file for a manifest with ``--device`` arguments; None where there are none.

    Each argument is taken as it is written: whether an id is quoted in it matters.
    """
    if "--device" not in text:
        return None
    try:
        yaml_reader.read(text, DEPTH_MAX, VALUES_MAX, lambda found: None)  # else the loop below might not end
        found = [flag for document in yaml.safe_load_all(text) for flag in _flags(document)]
    except (yaml.YAMLError, yaml_reader.DocumentTooLargeError, ValueError, RecursionError):
        return None
    devices = [value for name, value in found if name == "device"]
    if not devices:
        return None
    domains = [f"domain: {value}\n" for name, value in found if name == "domain"][-1:]
    return "".join(domains) + "devices:\n" + "".join(f"-\n{textwrap.indent(one, '  ')}\n" for one in devices)


def _flags(node: Any) -> Iterator[tuple[str, str]]:
    """Yield the flags of every container in a manifest, in order: name and value."""
    if isinstance(node, list):
        for item in node:
            yield from _flags(item)
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key in _CONTAINERS and isinstance(value, list):
            for container in (one for one in value if isinstance(one, dict)):
                yield from _of_words([*_texts(container.get("command")), *_texts(container.get("args"))])
        else:
            yield from _flags(value)


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _of_words(words: list[str]) -> Iterator[tuple[str, str]]:
    for index, word in enumerate(words):
        if found := _FLAG.fullmatch(word):
            following = words[index + 1] if index + 1 < len(words) else ""
            yield found[1], following if found[2] is None else found[2]


# --- our file ------------------------------------------------------------------------------------


def convert(source: FilePath | str | bytes, *, name: str = "generic-device-plugin configuration") -> str:
    """Return our YAML for generic-device-plugin's file (YAML or JSON), or for a manifest with its arguments.

    Raises ConfigErrors with the places in that file when it is wrong, or when something has no counterpart here. Places
    in a manifest are those of the file that its ``--device`` arguments make.
    """
    text, name = text_in(source, name=name)
    if (of_arguments := _file_of_arguments(text)) is not None:
        text, name = of_arguments, f"the --device arguments of {name}"
    file = read(_File, text, name=name, hint="generic-device-plugin's file begins with devices:")
    head = [
        "# Made from a configuration of generic-device-plugin. What differs is said above each resource.",
        "# Device ids differ (generic-device-plugin's are hashes of paths): drain the node before changing over.",
        f"apiVersion: {API_VERSION}",
        f"kind: {KIND}",
    ]
    try:
        head.append(f"driver: {names.DRIVER_NAME.check(file.domain)}")
    except Problems:
        head.append(f"# The domain {file.domain} cannot be a DRA driver's name; add driver: with one that can.")
    resources = (
        entry
        for device in (*file.devices, *file.device)
        for entry in _resources(f"{file.domain}/{device.name}", device.groups)
    )
    return written(head, resources, name)


def _resources(name: str, groups: tuple[_Group, ...]) -> list[Noted]:
    """Return one resource if the groups of a device differ only in what they match, else one for each kind of group."""
    found: list[Noted] = []
    for group in groups:
        resource, notes = _of_usb(group) if group.usb else _of_paths(group)
        shape = _shape(resource)
        twin = next((known for known in found if _shape(known[0]) == shape), None)
        if twin is not None:
            twin[0]["match"] += resource["match"]
            twin[1].extend(notes)
            continue
        number = f"-{len(found) + 1}" if found else ""
        if found:
            notes.append(f"Another group of {name} with other nodes: it needs a name of its own, pods must use it.")
        found.append(({"name": name + number, **resource}, notes))
    return found


def _shape(resource: Json) -> Json:
    """Return all but the matcher: two groups with the same become one resource."""
    return {key: value for key, value in resource.items() if key not in ("name", "match")}


def _of_usb(group: _Group) -> Noted:
    match, notes = [], []
    for usb in group.usb:
        attributes = {"idVendor": usb.vendor.digits, "idProduct": usb.product.digits}
        if usb.serial:
            attributes["serial"] = re.sub(r"[*?\[\\]", r"\\\g<0>", usb.serial)  # exactly this text
        match.append({"subsystem": "usb", "devtype": "usb_device", "attr": attributes})
        notes += [note for note in (usb.vendor.note, usb.product.note) if note]
    notes.append("Each USB device counts for itself; generic-device-plugin bundles all matches of a group into one.")
    return {"match": match, "nodes": [{"from": "devnode"}], **_replicas(group)}, notes


def _of_paths(group: _Group) -> Noted:
    devices = [path for path in group.paths if path.type == "Device"]
    anchor = next((path for path in devices if path.is_pattern), devices[0])
    companions = [path for path in devices if path is not anchor and path.is_pattern]
    notes: list[str] = []
    more: Json = {}
    sought, folder = anchor.path, anchor.path.rstrip("/")
    if folder in _FOLDERS:
        sought = f"{folder}/{_FOLDERS[folder]}"
        notes.append(f"{folder} is a folder: each device in it counts for itself, with its nodes there.")
        more["group"] = {"with": "siblings", "match": [{"devnode": f"{folder}/*"}]}
    is_link = _UDEV_LINK.fullmatch(sought) is not None
    # Another name may be a driver's node, or a link of a rule on the host (SYMLINK+="zigbee").
    maybe_link = not is_link and folder not in _FOLDERS and _OF_THE_KERNEL.fullmatch(sought) is None
    keys = ("devlink",) if is_link else ("devnode", "devlink") if maybe_link else ("devnode",)
    alias = _alias_of(anchor, "{devname}")
    if alias is None and (is_link or maybe_link) and not anchor.is_pattern:
        alias = _literal(sought)
    nodes = [_node({"from": "devnode"}, alias, anchor, notes)]
    if folder in _FOLDERS:
        nodes.append({"from": "group", "optional": True})
    if anchor.is_pattern:
        notes.append("Each device that matches counts for itself, in the order of its identity, not of its path.")
        if anchor.mount_path and not anchor.mount_path.endswith("/"):
            notes.append(f"A container can hold one of these only: all of them appear at {anchor.mount_path}.")
    if anchor.optional:
        notes.append(f"optional was dropped from {anchor.path}: without it there is no device.")
    for path in devices:
        if path is not anchor and not path.is_pattern:
            name = _literal(path.path.rpartition("/")[2])
            nodes.append(_node({"path": _literal(path.path)}, _alias_of(path, name), path, notes, path.optional))
            if anchor.is_pattern and path.limit == 1:
                notes.append(f"Every device comes with {path.path}; generic-device-plugin stops after one (limit).")
    if companions:
        nodes.append(_node({"from": "group"}, None, companions[0], notes, any(one.optional for one in companions)))
        more["group"] = {"with": "siblings", "match": [{"devnode": one.path} for one in companions]}
        notes.append(
            "Companions are those of the same parent device; generic-device-plugin pairs them by sorted order."
        )
        if any(one.mount_path for one in companions):
            notes.append("mountPath was dropped from companions with wildcards: they keep their own names.")
    if mounts := [_mount(path) for path in group.paths if path.type == "Mount"]:
        more["mounts"] = mounts
    return {"match": [{key: sought} for key in keys], "nodes": nodes, **more, **_replicas(group)}, notes


def _alias_of(path: _Path, name: str) -> str | None:
    """Return the path in the container; a mountPath that ends with a slash is a folder, in which ``name`` is."""
    if path.mount_path is None:
        return None
    return _literal(path.mount_path) + (name if path.mount_path.endswith("/") else "")


def _node(what: Json, alias: str | None, path: _Path, notes: list[str], optional: bool = False) -> Json:
    if "m" in path.permissions:
        notes.append("permissions mrw became rw: m lets a container create any device node.")
    allowed = "".join(letter for letter in "rw" if letter in path.permissions) or "rw"
    more = {"as": alias, "permissions": allowed if allowed != "rw" else None, "optional": optional or None}
    return what | {key: value for key, value in more.items() if value is not None}


def _mount(path: _Path) -> Json:
    more = {"containerPath": _literal(path.mount_path)} if path.mount_path else {}
    optional = {"optional": True} if path.optional else {}
    return {"hostPath": _literal(path.path), **more, "readOnly": path.read_only, **optional}


def _replicas(group: _Group) -> Json:
    return {"replicas": {"count": group.count}} if group.count > 1 else {}


def _literal(path: str) -> str:
    """Return a template without fields."""
    return path.replace("{", "{{").replace("}", "}}")
