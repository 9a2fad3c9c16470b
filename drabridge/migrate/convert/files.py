"""Find the manifests that paths mean, and which of them are deployed together.

Files that are deployed together share their ResourceClaimTemplates: those of one folder, or those that one
kustomization names, because Kustomize takes no object twice.

The folder may come from somebody else. So a file must be below the named folder or in the same git work tree, even if a
symbolic link or a kustomization leads to it. Each folder is read once. The number of files, their depth and the size of
each are limited.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct, field, structs

from drabridge.migrate.convert import conversion
from drabridge.migrate.convert.left_over import HELM_HINT
from drabridge.migrate.convert.post_render import FOLDER_SUFFIX, HEAD
from drabridge.migrate.convert.settings import Finding, Level
from drabridge.migrate.convert.yaml_nodes import NotYamlError, documents
from podresources.resolve.files import UnreadableFileError, leads_out, read_named

MOST_BYTES = 16 << 20  # of one file: a rendered chart with its CustomResourceDefinitions has 4 MiB
MOST_FILES = 100_000
MOST_DEPTH = 50  # folders in folders, and kustomizations that name others
_TOO_DEEP = f"folders or kustomizations are nested deeper than {MOST_DEPTH}"

SUFFIXES = (".yaml", ".yml", ".json")
KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_RENDER_HINT = "convert what Kustomize makes of it: kubectl kustomize ... | drabridge migrate convert --post-renderer"


class Found(Struct):
    """What paths stand for. ``groups``: files that are deployed together, in the order in which they were found."""

    groups: list[list[Path]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def find(paths: Iterable[Path], resources: Iterable[str]) -> Found:
    """Return the files of all paths, each once.

    A file stands for itself. A folder with a kustomization stands for the files that it names, and so do folders and
    kustomizations that it names; any other folder for every ``*.yaml``, ``*.yml`` and ``*.json`` below it. Charts,
    hidden folders and what a conversion wrote beside a file of values are left out.
    """
    paths = list(paths)
    walk = _Walk(tuple(resources), [root_of(path) for path in paths])
    for path in paths:
        kind = _kind(path)
        if kind == "folder":
            walk.folder(path)
        elif kind and path.name in KUSTOMIZATIONS:
            walk.kustomization(path)
        elif kind:
            walk.file(path)
        else:
            walk.error(path, "there is no such file or folder", "")
    return Found(list(filter(None, walk.groups)), walk.findings)


def root_of(path: Path) -> Path:
    """Return the folder in which everything found from here must be: git's work tree, else the folder itself."""
    real = Path(os.path.realpath(path))
    folder = real if _kind(real) == "folder" else real.parent
    return next((one for one in (folder, *folder.parents) if os.path.lexists(one / ".git")), folder)


def text_of(path: Path) -> str | Finding:
    """Return a file's text, or a finding if it is unreadable or not text."""
    try:
        data = read_named(path, MOST_BYTES)
    except UnreadableFileError as error:
        return Finding(Level.ERROR, 0, "", f"it cannot be read: {error.reason}", "", str(path))
    if data is None:
        return Finding(Level.ERROR, 0, "", "it cannot be read: it is gone", "", str(path))
    found = conversion.text_of(data)
    return found if isinstance(found, str) else structs.replace(found, file=str(path))


class _Walk:
    def __init__(self, resources: tuple[str, ...], roots: list[Path]) -> None:
        self._resources = resources
        self._roots = roots
        self._count = 0
        self._seen: set[str] = set()
        self._by_folder: dict[Path, list[Path]] = {}
        self.groups: list[list[Path]] = []
        self.findings: list[Finding] = []

    def folder(self, folder: Path, depth: int = 0) -> None:
        if not self._is_new(folder):
            return
        if _kind(folder / "Chart.yaml"):
            if any(self._speaks_of_resources(path) for path in sorted(folder.rglob("*")) if _kind(path) == "file"):
                self._find(Level.LEFT, folder, "a Helm chart", HELM_HINT)
            return
        for name in KUSTOMIZATIONS:
            if _kind(folder / name) == "file":
                self.kustomization(folder / name, depth=depth)
                return
        try:
            inside = sorted(folder.iterdir())
        except OSError as error:
            self.error(folder, f"it cannot be read: {error.strerror}", "")
            return
        for path in inside:
            if path.name.startswith(".") or path.name.endswith(FOLDER_SUFFIX):
                continue
            kind = _kind(path)
            if (kind == "folder" or path.suffix in SUFFIXES) and self._is_inside(path):
                if kind != "folder":
                    self.file(path)
                elif self._is_allowed(path, depth):
                    self.folder(path, depth + 1)

    def file(self, path: Path, group: list[Path] | None = None) -> None:
        if not self._is_new(path):
            return
        self._count += 1
        if self._count > MOST_FILES:
            if self._count == MOST_FILES + 1:
                self.error(path, f"it and what follows is left out: there are more than {MOST_FILES} files", "")
            return
        if group is None:
            if path.parent not in self._by_folder:
                self._by_folder[path.parent] = []
                self.groups.append(self._by_folder[path.parent])
            group = self._by_folder[path.parent]
        group.append(path)

    def kustomization(self, path: Path, group: list[Path] | None = None, depth: int = 0) -> None:
        """Follow the files that a kustomization names. Its own patches are not converted; a finding says so."""
        if not self._is_new(path):
            return
        if group is None:
            group = []
            self.groups.append(group)
        text = text_of(path)
        if isinstance(text, Finding):
            self.findings.append(text)
            return
        try:
            document = next(documents(text), None)
        except (ValueError, NotYamlError) as error:
            self.error(path, f"the kustomization cannot be read: {' '.join(str(error).split())}", "")
            return
        document = document if isinstance(document, dict) else {}
        for key in ("resources", "bases", "components"):
            for name in _strings(document.get(key)):
                if self._is_allowed(path, depth):
                    self._resource(path, name, group, depth + 1)
        for name in _patches(document):
            if self._speaks_of_resources(path.parent / name):
                self._find(Level.LEFT, path.parent / name, "a patch that speaks of the resource", _RENDER_HINT)
        if not text.startswith(HEAD) and self._speaks_of_resources(path):
            self._find(Level.LEFT, path, "a patch or chart in it speaks of the resource", _RENDER_HINT)
        if document.get("namePrefix") or document.get("nameSuffix"):
            message = "namePrefix and nameSuffix rename templates, but not where pods name them"
            self._find(Level.LEFT, path, message, _RENDER_HINT)

    def _resource(self, kustomization: Path, name: str, group: list[Path], depth: int) -> None:
        path = Path(os.path.normpath(kustomization.parent / name))
        kind = _kind(path)
        if kind and not self._is_inside(path):
            return
        if kind == "folder":
            inner = next((path / one for one in KUSTOMIZATIONS if _kind(path / one) == "file"), None)
            if inner is None:
                self.error(path, f"{kustomization} names this folder, which has no kustomization", "")
            else:
                self.kustomization(inner, group, depth)
        elif kind:
            self.file(path, group)
        elif "://" in name or "?" in name or ":" in name or "//" in name:
            self._find(Level.NOTE, kustomization, f"{name} is somewhere else and is not read", _RENDER_HINT)
        else:
            self.error(path, f"{kustomization} names it, and it is not there", "")

    def _is_inside(self, path: Path) -> bool:
        """Whether a path is in the allowed folder; if not, add a finding."""
        inside = not leads_out(path, self._roots)
        if not inside:
            roots = " and ".join(map(str, self._roots[:3]))
            self.error(path, f"it leads out of {roots} and is not read", "name the folder that has both")
        return inside

    def _is_allowed(self, path: Path, depth: int) -> bool:
        """Whether one more level may be read; if it is too deep, add a finding."""
        if depth >= MOST_DEPTH:
            self.error(path, _TOO_DEEP, "")
        return depth < MOST_DEPTH

    def _is_new(self, path: Path) -> bool:
        real = os.path.realpath(path)
        new = real not in self._seen
        self._seen.add(real)
        return new

    def _speaks_of_resources(self, path: Path) -> bool:
        try:
            text = b"" if leads_out(path, self._roots) else read_named(path, MOST_BYTES) or b""
        except ValueError:
            return False
        return any(name.encode() in text or name.replace("/", "~1").encode() in text for name in self._resources)

    def error(self, path: Path, message: str, hint: str) -> None:
        self._find(Level.ERROR, path, message, hint)

    def _find(self, level: Level, path: Path, message: str, hint: str) -> None:
        self.findings.append(Finding(level, 0, "", message, hint, str(path)))


def _kind(path: Path) -> str:
    """Return the kind of a path: a file, a folder or something else; "" if there is nothing, or it is unreadable."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return ""
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def _strings(found: object) -> Iterator[str]:
    yield from (one for one in (found if isinstance(found, list) else []) if isinstance(one, str))


def _patches(document: dict[str, object]) -> Iterator[str]:
    """Yield the names of files with patches."""
    yield from (one for one in _strings(document.get("patchesStrategicMerge")) if "\n" not in one)
    for key in ("patches", "patchesJson6902"):
        listed = document.get(key)
        for one in listed if isinstance(listed, list) else []:
            if isinstance(one, dict) and isinstance(one.get("path"), str):
                yield one["path"]
