"""Survey manifests in folders: which could move to claims today, and what blocks the rest."""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from msgspec import Struct, field, structs, to_builtins

from drabridge.migrate.convert import files
from drabridge.migrate.convert.charts import speaks_of_gpus
from drabridge.migrate.convert.conversion import Conversion
from drabridge.migrate.convert.conversion import survey as survey_text
from drabridge.migrate.convert.default_classes import WORDS, default_devices, of_classes
from drabridge.migrate.convert.kinds import Manifest
from drabridge.migrate.convert.mentions import finder, may_name
from drabridge.migrate.convert.settings import Device, Finding, Level, Settings
from drabridge.migrate.report.page import MOST_ROWS, document, section, sentences
from drabridge.migrate.report.text import Layout, wrapped
from drabridge.status.markup import Html, tag
from podresources.table import render

_ALONE = 64  # up to so many files are read in this process: starting others takes half a second
_AT_ONCE = 32
_NONE: Mapping[str, str] = {}
_PLACES = 3  # of each block, in a table
_READ = 10  # of what was not read
_TOOLS = {
    "": "Kubernetes",
    "apps": "Kubernetes",
    "batch": "Kubernetes",
    "helm.toolkit.fluxcd.io": "Flux",
    "serving.kserve.io": "KServe",
    "ray.io": "KubeRay",
    "kubeflow.org": "Kubeflow",
    "trainer.kubeflow.org": "Kubeflow",
    "batch.volcano.sh": "Volcano",
    "jobset.x-k8s.io": "JobSet",
    "leaderworkerset.x-k8s.io": "LeaderWorkerSet",
    "kubevirt.io": "KubeVirt",
    "apps.nvidia.com": "NIM operator",
    "sparkoperator.k8s.io": "Spark operator",
}

Progress = Callable[[str, int], None]


class Subject(Struct, frozen=True):
    """One part of a file that asks for devices: an object, or values of a chart (no kind).

    ``devices``: resource -> devices of all its pods; {} if it is blocked. ``blocked``: why it stays on limits, "" if it
    moves. ``action``: what to do if it is blocked.
    """

    file: str
    line: int
    owner: str
    tool: str
    name: str
    devices: dict[str, int] = field(default_factory=dict)
    blocked: str = ""
    action: str = ""


class Share(Struct, frozen=True):
    """How many subjects of one owner or tool can move."""

    name: str
    moves: int
    blocked: int
    devices: int


class Block(Struct, frozen=True):
    """What blocks several subjects in the same way: what to do, and where."""

    action: str
    count: int
    example: str
    places: list[str]


class Survey(Struct, frozen=True):
    """The whole result. ``speaking``: how many files name a device."""

    files: int
    speaking: int
    subjects: list[Subject]
    unread: list[str]

    @property
    def moves(self) -> int:
        """Return how many subjects could move today."""
        return sum(not one.blocked for one in self.subjects)

    @property
    def devices(self) -> dict[str, int]:
        """Return resource -> devices, of the subjects that could move."""
        found: Counter[str] = Counter()
        for one in self.subjects:
            found.update(one.devices)
        return dict(sorted(found.items()))

    @property
    def owners(self) -> list[Share]:
        """Return the shares by owner."""
        return _shares(self.subjects, lambda one: one.owner)

    @property
    def tools(self) -> list[Share]:
        """Return the shares by the tool that makes the pods."""
        return _shares(self.subjects, lambda one: one.tool)

    @property
    def blocks(self) -> list[Block]:
        """Return the blocks, most frequent first."""
        groups: dict[str, list[Subject]] = {}
        for one in self.subjects:
            if one.blocked:
                groups.setdefault(one.action or one.blocked, []).append(one)
        found = [
            Block(action, len(some), some[0].blocked, [f"{one.file}:{one.line}" for one in some])
            for action, some in groups.items()
        ]
        return sorted(found, key=lambda one: (-one.count, one.action))


def _shares(subjects: Iterable[Subject], of: Callable[[Subject], str]) -> list[Share]:
    """Return the shares by what ``of`` says, the largest first."""
    groups: dict[str, list[Subject]] = {}
    for one in subjects:
        groups.setdefault(of(one), []).append(one)
    found = []
    for name, some in groups.items():
        blocked = sum(bool(one.blocked) for one in some)
        found.append(Share(name, len(some) - blocked, blocked, sum(sum(one.devices.values()) for one in some)))
    return sorted(found, key=lambda one: (-one.moves - one.blocked, one.name))


# --- what is read ---------------------------------------------------------------------------------------------------


class _File(Struct, frozen=True):
    """What one file has."""

    speaks: bool
    subjects: list[Subject] = field(default_factory=list)
    unread: str = ""


def survey_folders(
    paths: Sequence[Path], devices: Mapping[str, Device], progress: Progress, classes: Mapping[str, str] = _NONE
) -> Survey:
    """Return the survey of all manifests below the paths.

    ``devices``: resource -> how it is claimed. If empty, a cluster's ``classes`` (DeviceClass -> extendedResourceName)
    decide, and the vendors' DeviceClasses for all other resources.
    """
    found = files.find(paths, devices or WORDS)
    listed = [path for group in found.groups for path in group]
    roots = [path if path.is_dir() else path.parent for path in paths]
    survey = Survey(len(listed), 0, [], [str(one) for one in found.findings if one.level is Level.ERROR])
    for one in found.findings:
        if one.level is Level.LEFT:
            owner = _folder(Path(one.file), roots)
            survey.subjects.append(Subject(one.file, one.line, owner, "Helm chart", "", {}, one.message, one.hint))
    speaking = 0
    for number, (path, file) in enumerate(zip(listed, _each(listed, devices, classes), strict=True), 1):
        progress("files", number)
        speaking += file.speaks
        survey.unread.extend([file.unread] if file.unread else [])
        for subject in file.subjects:
            survey.subjects.append(structs.replace(subject, owner=subject.owner or _folder(path, roots)))
    return structs.replace(survey, speaking=speaking)


def _each(paths: Sequence[Path], devices: Mapping[str, Device], classes: Mapping[str, str]) -> Iterator[_File]:
    """Read files, several at once."""
    read = functools.partial(_read, devices=dict(devices), classes=dict(classes))
    if len(paths) <= _ALONE or (os.cpu_count() or 1) == 1:
        yield from map(read, paths)
        return
    context = multiprocessing.get_context("spawn")  # fork would copy threads that hold locks
    with ProcessPoolExecutor(mp_context=context) as pool:
        yield from pool.map(read, paths, chunksize=_AT_ONCE)


def _read(path: Path, devices: Mapping[str, Device], classes: Mapping[str, str]) -> _File:
    text = files.text_of(path)
    if isinstance(text, Finding):
        return _File(False, unread=f"{path}: {text.message}")
    ours = tuple(devices or filter(None, classes.values()))
    named = may_name(text, ours) and finder(ours).search(text) is not None
    if not (named or speaks_of_gpus(text)):
        return _File(False)
    found = survey_text(text, Settings(devices or {**default_devices([text]), **of_classes(classes, [text])[0]}))
    broken = next((one for one in found.findings if one.level is Level.ERROR), None)
    if broken is not None:
        return _File(True, unread=f"{path}:{broken.line}: {broken.message}")
    return _File(True, [*_moving(str(path), found), *_left(str(path), found)])


def _moving(path: str, found: Conversion) -> Iterable[Subject]:
    """Return the objects whose pods can move to claims, each once."""
    subjects: dict[tuple[int, str], Subject] = {}
    for pod in found.pods:
        one = pod.manifest
        new = Subject(path, pod.line, one.pods_namespace, _tool_of(one), str(one))
        devices = subjects.setdefault((pod.line, str(one)), new).devices
        for template in pod.templates:
            devices[template.resource] = devices.get(template.resource, 0) + template.count * pod.copies
    return subjects.values()


def _left(path: str, found: Conversion) -> Iterable[Subject]:
    """Return what stays on limits, each once, with the first reason."""
    subjects: dict[str, Subject] = {}
    for one in found.findings:
        if one.level is Level.LEFT:
            manifest = found.manifests.get(one.subject)
            owner = manifest.pods_namespace if manifest else ""
            new = Subject(path, one.line, owner, _tool_of(manifest), one.subject, {}, one.message, one.hint)
            subjects.setdefault(one.subject, new)
    return subjects.values()


def _tool_of(manifest: Manifest | None) -> str:
    """Return who makes pods of an object."""
    if manifest is None or not manifest.kind:
        return "Helm values"
    if manifest.group == "argoproj.io":
        return "Argo CD" if manifest.kind.startswith("Application") else "Argo"
    return _TOOLS.get(manifest.group, manifest.group)


def _folder(path: Path, roots: Iterable[Path]) -> str:
    """Return the folder below a root that a file is in: it names the owner if no namespace does."""
    for root in roots:
        if path.is_relative_to(root):
            parts = path.relative_to(root).parts
            return f"{parts[0]}/" if len(parts) > 1 else "./"
    return "./"


# --- what is shown --------------------------------------------------------------------------------------------------


def as_data(survey: Survey) -> dict[str, object]:
    """Return the survey as JSON has it."""
    workloads = to_builtins(survey.subjects)
    for one in workloads:
        del one["action"]
    return {
        "files": survey.files,
        "filesWithDevices": survey.speaking,
        "moves": survey.moves,
        "blocked": len(survey.subjects) - survey.moves,
        "devices": survey.devices,
        "owners": to_builtins(survey.owners),
        "tools": to_builtins(survey.tools),
        "blocks": to_builtins(survey.blocks),
        "workloads": workloads,
        "unread": survey.unread,
    }


def headline(survey: Survey) -> str:
    """Return the result in one sentence."""
    devices = ", ".join(f"{count} {name}" for name, count in survey.devices.items()) or "no devices"
    blocked = len(survey.subjects) - survey.moves
    return (
        f"{survey.files:,} files read, {survey.speaking:,} with devices: "
        f"{survey.moves:,} move to claims today ({devices}), {blocked:,} blocked"
    )


def text(survey: Survey, width: int | None) -> str:
    """Return the survey as tables. Lines that can be broken are at most as wide as the terminal."""
    layout = Layout(width, wide=False)
    lines = [headline(survey)]
    for title, shares in (("OWNER", survey.owners), ("TOOL", survey.tools)):
        if shares:
            rows = [[one.name, str(one.moves), str(one.blocked), str(one.devices)] for one in shares]
            lines += ["", render((title, "MOVES", "BLOCKED", "DEVICES"), rows, width, drop_empty=False)]
    if survey.blocks:
        lines += ["", "BLOCKED"]
    for block in survey.blocks:
        where = ", ".join(block.places[:_PLACES])
        more = f" and {block.count - _PLACES} more" if block.count > _PLACES else ""
        lines += wrapped(f"{block.count}: {block.action}", layout, "  ", hanging=2)
        lines += wrapped(f"- {where}{more}", layout, "    ", hanging=2)
    if survey.unread:
        lines += ["", "NOT READ", *(f"  {one}" for one in survey.unread[:_READ])]
        if len(survey.unread) > _READ:
            lines.append(f"  and {len(survey.unread) - _READ} more: -o json has all")
    return "\n".join(lines)


def page(survey: Survey, at: str) -> str:
    """Return the survey as one HTML page in the style of the report. ``at``: when the files were read, RFC 3339."""
    return document(
        "What moves to claims", [headline(survey)], at, list(_sections(survey)), ["drabridge migrate report FOLDER"]
    )


def _sections(survey: Survey) -> Iterable[Html]:
    for title, shares in (("Owner", survey.owners), ("Tool", survey.tools)):
        rows: list[Sequence[object]] = [
            (one.name or "-", one.moves, one.blocked, one.devices, f"{100 * one.moves // (one.moves + one.blocked)} %")
            for one in shares
        ]
        yield from section(f"{title}s", (title, "Moves", "Blocked", "Devices", "Share"), rows)
    if survey.blocks:
        yield tag("section", tag("h2", "Blocked"), *map(_block, survey.blocks), class_="blocker")
    rows = [
        (
            tag("code", f"{one.file}:{one.line}"),
            one.name or one.tool,
            one.owner,
            ", ".join(f"{count} {name}" for name, count in one.devices.items()) or "-",
            one.blocked or "moves",
        )
        for one in survey.subjects
    ]
    yield from section("Workloads", ("Place", "Workload", "Owner", "Devices", "State"), rows)
    if survey.unread:
        yield sentences("Not read", survey.unread)


def _block(block: Block) -> Html:
    items = [tag("li", tag("code", place)) for place in block.places[:MOST_ROWS]]
    return tag(
        "details",
        tag("summary", tag("strong", str(block.count)), f" {block.example}"),
        tag("p", f"What to do: {block.action}."),
        tag("ul", *items),
    )
