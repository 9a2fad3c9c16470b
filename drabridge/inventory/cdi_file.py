"""Read which devices a CDI file of another program defines. No I/O.

Only the names matter here: the runtime reads from the file what a device brings into a container. Files are untrusted.
A file that runtimes refuse as a whole is refused here too, as far as the names show it, by the rules of
container-device-interface, pkg/cdi/spec.go (``validate``) and pkg/parser.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Collection, Iterator

import yaml
from msgspec import Struct

from drabridge.config.names import is_cdi_kind, is_cdi_name

FILE_BYTES_MAX = 4 * 1024 * 1024  # reading needs ten times as much memory; eight GPUs with MIG instances need 0.5 MB
DEPTH_MAX = 50  # a CDI file needs 6
EVENTS_MAX = 1_000_000  # YAML events of one file: half a second
NAMES_MAX = 16_384  # in one file
_BREATH = 2_000  # events (1 ms) after which the thread lets other threads run

_NO_LIST = "it is not a mapping with a list of devices, which are mappings"
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


def _events(data: bytes) -> Iterator[yaml.Event]:
    """Yield the events of the first document; runtimes read no other."""
    events = yaml.parse(io.BytesIO(data), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for number, event in enumerate(events):
        if isinstance(event, yaml.DocumentEndEvent):
            return
        if number >= EVENTS_MAX:
            raise SpecError(f"it has more than {EVENTS_MAX} values")
        if number % _BREATH == 0:
            time.sleep(0)
        if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            yield event


def _entries(events: Iterator[yaml.Event]) -> Iterator[tuple[str, yaml.Event]]:
    """Yield key and value of each entry of a mapping that was opened. The caller must take all events of a value."""
    for key in events:
        if isinstance(key, yaml.MappingEndEvent):
            return
        yield _text(key, "it has a list or a mapping as a key"), next(events)


def _text(event: yaml.Event, otherwise: str) -> str:
    if isinstance(event, yaml.AliasEvent):
        raise SpecError(f"it has the alias *{event.anchor} in place of a key, a kind, a device or its name")
    if not isinstance(event, yaml.ScalarEvent):
        raise SpecError(otherwise)
    return str(event.value)


def _pass_over(event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> bool:
    """Take all events of a value, and build no objects. Return whether the value is a mapping that is not empty.

    An alias is not followed, and counts as such a mapping.
    """
    if isinstance(event, yaml.CollectionStartEvent) and depth >= DEPTH_MAX:
        raise SpecError(f"it is nested more than {DEPTH_MAX} deep")
    if isinstance(event, yaml.SequenceStartEvent):
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            _pass_over(item, events, depth + 1)
    elif isinstance(event, yaml.MappingStartEvent):
        entries = [_pass_over(value, events, depth + 1) for _, value in _entries(events)]
        return bool(entries)
    return isinstance(event, yaml.AliasEvent)


def _once(key: str, keys: set[str]) -> None:
    if key in keys:
        raise SpecError(f"it has the key {key!r} twice in one place")
    keys.add(key)


def _names(events: Iterator[yaml.Event]) -> SpecNames:
    if not isinstance(root := next(events, None), yaml.MappingStartEvent | None):
        raise SpecError(_NO_LIST)
    keys: set[str] = set()
    fields: dict[str, str] = {}
    devices: list[tuple[str | None, bool]] = []
    for key, value in _entries(events) if root is not None else ():
        _once(key, keys)
        if key in ("cdiVersion", "kind"):
            fields[key] = _text(value, f"its {key} is no text")
        elif key == "devices":
            devices = list(_devices(value, events))
        else:
            _pass_over(value, events, 1)
    for _ in events:  # the rest of the document may not be YAML
        pass
    return _checked(fields.get("cdiVersion"), fields.get("kind"), devices)


def _devices(value: yaml.Event, events: Iterator[yaml.Event]) -> Iterator[tuple[str | None, bool]]:
    """Yield the name of each device of a list, and whether it has edits."""
    if not isinstance(value, yaml.SequenceStartEvent):
        _text(value, _NO_LIST)  # null, for example
        return
    count = 0
    while not isinstance(device := next(events), yaml.SequenceEndEvent):
        if not isinstance(device, yaml.MappingStartEvent):
            _text(device, _NO_LIST)
            raise SpecError(_NO_LIST)
        count += 1
        if count > NAMES_MAX:
            raise SpecError(f"it has more than {NAMES_MAX} devices")
        keys: set[str] = set()
        name, has_edits = None, False
        for key, value in _entries(events):
            _once(key, keys)
            if key == "name":
                name = _text(value, "a device has no name")
            elif _pass_over(value, events, 3) and key == "containerEdits":
                has_edits = True
        yield name, has_edits


def read_spec(data: bytes) -> SpecNames:
    """Return what a file defines. Any file is read as YAML, as runtimes do: JSON is YAML.

    Raises SpecError.
    """
    if len(data) > FILE_BYTES_MAX:
        raise SpecError(f"it has more than {FILE_BYTES_MAX >> 20} MiB")
    try:
        return _names(_events(data))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise SpecError(f"{where}{error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError, UnicodeError) as error:  # not UTF-8, or a character that YAML forbids
        raise SpecError(str(error).partition("\n")[0]) from error
