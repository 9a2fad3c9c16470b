"""Read which devices a CDI file of another program defines. No I/O.

Only the names matter here: the runtime reads from the file what a device brings into a container. Files are untrusted.
A file that runtimes refuse as a whole is refused here too, as far as the names show it, by the rules of
container-device-interface, pkg/cdi/spec.go (``validate``) and pkg/parser.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Collection

import yaml
from msgspec import Struct

from drabridge.config.names import is_cdi_kind, is_cdi_name

FILE_BYTES_MAX = 4 * 1024 * 1024  # reading needs ten times as much memory; eight GPUs with MIG instances need 0.5 MB
DEPTH_MAX = 50  # a CDI file needs 6
EVENTS_MAX = 1_000_000  # YAML events of one file: half a second
NAMES_MAX = 16_384  # of one file
_BREATH = 2_000  # after so many events (1 ms) the thread lets other threads run

_VERSION = re.compile(r"v?\d+\.\d+\.\d+", re.ASCII)


class SpecError(ValueError):
    """Runtimes refuse this file, or it is larger than the limits here."""


class SpecNames(Struct, frozen=True):
    """What one file defines: ``kind`` is ``vendor/class``, ``names`` are those after the equals sign.

    ``driver``: the version of NVIDIA's driver whose libraries it mounts; "" for other files.
    """

    kind: str
    names: tuple[str, ...]
    driver: str = ""


_LIBCUDA = re.compile(rb"/libcuda\.so\.(\d+(?:\.\d+)+)")


def driver_of(data: bytes) -> str:
    """Return the version of NVIDIA's driver whose libraries a file mounts; "" if it mounts none."""
    found = _LIBCUDA.search(data)
    return found[1].decode() if found else ""


def _checked(version: str | None, kind: str | None, devices: Collection[tuple[str | None, bool]]) -> SpecNames:
    """Return the names of a valid file. ``devices``: name, and whether it has edits. Raises SpecError."""
    if version is None or not _VERSION.fullmatch(version):
        raise SpecError("it has no cdiVersion" if version is None else f"cdiVersion {version!r} is no version")
    if kind is None or not is_cdi_kind(kind):
        raise SpecError("it has no kind" if kind is None else f"kind {kind!r} is not vendor/class")
    if not devices:
        raise SpecError("it has no devices")
    names: dict[str, None] = {}
    for name, has_edits in devices:
        if name is None or not is_cdi_name(name):
            raise SpecError("a device has no name" if name is None else f"{name!r} is not the name of a CDI device")
        if name in names:
            raise SpecError(f"it has the device {name!r} twice")
        if not has_edits:
            raise SpecError(f"its device {name!r} has no containerEdits")
        names[name] = None
    if len(names) > NAMES_MAX:
        raise SpecError(f"it has more than {NAMES_MAX} devices")
    return SpecNames(kind, tuple(names))


_ITEM = object()  # in place of a key, in a list
_KEY = object()  # the next scalar is a key


class _YamlReader:
    """Picks the names out of YAML's events. Makes no objects of the rest, and follows no alias.

    ``_path`` has one item for each open list or mapping: the key that waits for its value, ``_KEY`` or ``_ITEM``.
    """

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}  # of the top level
        self.devices: list[dict[str, str | None]] = []  # only the keys matter, and the name's value
        self._edits: list[bool] = []
        self._path: list[object] = []

    def names(self) -> SpecNames:
        devices = [(one.get("name"), edits) for one, edits in zip(self.devices, self._edits, strict=True)]
        return _checked(self.fields.get("cdiVersion"), self.fields.get("kind"), devices)

    def feed(self, event: yaml.Event) -> None:
        path = self._path
        if isinstance(event, yaml.ScalarEvent):
            if path and path[-1] is _KEY:
                self._key(event.value)
                return
            self._scalar(event.value)
        elif isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            self._open(event)
            return
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            path.pop()
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event.anchor)
        else:
            return
        if path and path[-1] is not _ITEM:
            path[-1] = _KEY

    def _alias(self, anchor: object) -> None:
        """Accept an alias in place of edits. Raises SpecError if it stands where a name is read."""
        path = self._path
        if self._in_device() and path[2] == "containerEdits":
            self._edits[-1] = True
        elif path in (["kind"], ["cdiVersion"], ["devices"], ["devices", _ITEM]) or (
            path[-1:] == [_KEY] or (self._in_device() and path[2] == "name")
        ):
            raise SpecError(f"it has the alias *{anchor} in place of a key, a kind, a device or its name")

    def _key(self, key: str) -> None:
        path = self._path
        if len(path) == 1:
            self._once(self.fields, key)
            self.fields[key] = ""
        elif self._in_device():
            self._once(self.devices[-1], key)
            self.devices[-1][key] = None
        elif len(path) == 4 and path[:3] == ["devices", _ITEM, "containerEdits"]:
            self._edits[-1] = True
        path[-1] = key

    def _in_device(self) -> bool:
        return len(self._path) == 3 and self._path[:2] == ["devices", _ITEM]

    @staticmethod
    def _once(keys: Collection[str], key: str) -> None:
        if key in keys:
            raise SpecError(f"it has the key {key!r} twice in one place")

    def _scalar(self, text: str) -> None:
        path = self._path
        if len(path) == 1 and isinstance(path[0], str):
            self.fields[path[0]] = text
        elif self._in_device() and path[2] == "name":
            self.devices[-1]["name"] = text
        elif not path or path == ["devices", _ITEM]:
            raise SpecError("it is not a mapping with a list of devices, which are mappings")

    def _open(self, event: yaml.Event) -> None:
        path, mapping = self._path, isinstance(event, yaml.MappingStartEvent)
        if len(path) >= DEPTH_MAX:
            raise SpecError(f"it is nested more than {DEPTH_MAX} deep")
        if path and path[-1] is _KEY:
            raise SpecError("it has a list or a mapping as a key")
        if mapping == (path == ["devices"]) and len(path) < 2 and (not path or path == ["devices"]):
            raise SpecError("it is not a mapping with a list of devices")
        if path == ["devices", _ITEM]:
            if not mapping:
                raise SpecError("a device is not a mapping")
            self.devices.append({})
            self._edits.append(False)
            if len(self.devices) > NAMES_MAX:
                raise SpecError(f"it has more than {NAMES_MAX} devices")
        path.append(_KEY if mapping else _ITEM)


def read_spec(data: bytes) -> SpecNames:
    """Return what a file defines. Any file is read as YAML, as runtimes do: JSON is YAML.

    Raises SpecError.
    """
    if len(data) > FILE_BYTES_MAX:
        raise SpecError(f"it has more than {FILE_BYTES_MAX >> 20} MiB")
    reader = _YamlReader()
    try:
        events = yaml.parse(io.BytesIO(data), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for number, event in enumerate(events):
            if isinstance(event, yaml.DocumentEndEvent):
                break  # runtimes read the first document
            if number >= EVENTS_MAX:
                raise SpecError(f"it has more than {EVENTS_MAX} values")
            if number % _BREATH == 0:
                time.sleep(0)
            reader.feed(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise SpecError(f"{where}{error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError, UnicodeError) as error:  # no UTF-8, or a character that YAML forbids
        raise SpecError(str(error).partition("\n")[0]) from error
    return reader.names()
