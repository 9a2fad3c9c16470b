"""Read the manifests of folders and say of each object with devices whether it moves: several files at once."""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from msgspec import Struct

from drabridge.migrate.convert import files
from drabridge.migrate.convert.charts import speaks_of_gpus
from drabridge.migrate.convert.conversion import Surveyed, survey
from drabridge.migrate.convert.default_classes import WORDS, default_devices, of_classes
from drabridge.migrate.convert.mentions import finder, may_name
from drabridge.migrate.convert.settings import Device, Finding, Level, Settings
from drabridge.migrate.survey.tally import CHART, Subject, Survey, tool_of

_ALONE = 64  # files that are read without other processes: to start these takes half a second
_AT_ONCE = 32
_NONE: Mapping[str, str] = {}

Progress = Callable[[str, int], None]


class _File(Struct, frozen=True):
    """What one file has."""

    speaks: bool
    subjects: tuple[Subject, ...] = ()
    unread: str = ""


def survey_folders(
    paths: Sequence[Path], devices: Mapping[str, Device], progress: Progress, classes: Mapping[str, str] = _NONE
) -> Survey:
    """Return the survey of all manifests below the paths.

    ``devices``: none means what a cluster's ``classes`` (DeviceClass -> its extendedResourceName) are for, and the
    vendors' DeviceClasses for the others.
    """
    found = files.find(paths, devices or WORDS)
    listed = [path for group in found.groups for path in group.files]
    roots = [path if path.is_dir() else path.parent for path in paths]
    subjects: list[Subject] = []
    unread: list[str] = []
    for one in found.findings:
        if one.level is Level.LEFT:
            owner = _folder(Path(one.file), roots)
            subjects.append(Subject(one.file, one.line, owner, CHART, "", {}, one.message, one.hint))
        elif one.level is Level.ERROR:
            unread.append(str(one))
    speaking = 0
    for number, (path, file) in enumerate(zip(listed, _each(listed, devices, classes), strict=True), 1):
        progress("files", number)
        speaking += file.speaks
        unread += [file.unread] if file.unread else []
        folder = _folder(path, roots)
        subjects += [one if one.owner else _owned(one, folder) for one in file.subjects]
    return Survey(len(listed), speaking, tuple(subjects), tuple(unread))


def _each(paths: Sequence[Path], devices: Mapping[str, Device], classes: Mapping[str, str]) -> Iterator[_File]:
    read = functools.partial(read_file, devices=dict(devices), classes=dict(classes))
    if len(paths) <= _ALONE or (os.cpu_count() or 1) == 1:
        yield from map(read, paths)
        return
    context = multiprocessing.get_context("spawn")  # fork would copy threads that hold locks
    with ProcessPoolExecutor(mp_context=context) as pool:
        yield from pool.map(read, paths, chunksize=_AT_ONCE)


def read_file(path: Path, devices: Mapping[str, Device], classes: Mapping[str, str] = _NONE) -> _File:
    """Read one file."""
    text = files.text_of(path)
    if isinstance(text, Finding):
        return _File(False, unread=f"{path}: {text.message}")
    ours = tuple(devices or filter(None, classes.values()))
    named = may_name(text, ours) and _pattern_of(ours).search(text) is not None
    if not (named or speaks_of_gpus(text)):
        return _File(False)
    found = survey(text, Settings(devices or {**default_devices([text]), **of_classes(classes, [text])[0]}))
    broken = next((one for one in found.findings if one.level is Level.ERROR), None)
    if broken is not None:
        return _File(True, unread=f"{path}:{broken.line}: {broken.message}")
    return _File(True, tuple(_subjects(str(path), found)))


@functools.cache
def _pattern_of(resources: tuple[str, ...]) -> re.Pattern[str]:
    return finder(resources)


def _subjects(path: str, found: Surveyed) -> Iterator[Subject]:
    for one in found.moving:
        yield Subject(path, one.line, one.namespace, tool_of(one.group, one.kind), one.name, one.devices)
    seen: set[str] = set()
    for finding, of in found.left():
        if finding.subject not in seen:
            seen.add(finding.subject)
            group, kind, namespace = of
            tool = tool_of(group, kind)
            yield Subject(path, finding.line, namespace, tool, finding.subject, {}, finding.message, finding.hint)


def _owned(one: Subject, owner: str) -> Subject:
    return Subject(one.file, one.line, owner, one.tool, one.name, one.devices, one.blocked, one.action)


def _folder(path: Path, roots: Iterable[Path]) -> str:
    """Return the folder below a root that a file is in: whose it is where no namespace says it."""
    for root in roots:
        if path.is_relative_to(root):
            parts = path.relative_to(root).parts
            return f"{parts[0]}/" if len(parts) > 1 else "./"
    return "./"
