"""Find the manifests that paths stand for, and which of them are deployed together.

Files that are deployed together share their ResourceClaimTemplates: those of one folder, or those that one
kustomization names, because Kustomize takes no object twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct, field

from drabridge.migrate.convert.json_nodes import documents
from drabridge.migrate.convert.left_over import HELM_HINT
from drabridge.migrate.convert.post_render import FOLDER_SUFFIX, HEAD
from drabridge.migrate.convert.settings import Finding, Level
from drabridge.migrate.convert.yaml_nodes import NotYaml

SUFFIXES = (".yaml", ".yml", ".json")
KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_RENDER_HINT = "convert what Kustomize makes of it: kubectl kustomize ... | drabridge migrate convert --post-renderer"


class Group(Struct):
    """Files that are deployed together, in the order in which they were found."""

    files: list[Path] = field(default_factory=list)


class Found(Struct):
    """What paths stand for."""

    groups: list[Group] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def find(paths: Iterable[Path], resources: Iterable[str]) -> Found:
    """Return the files of all paths, each once.

    A file stands for itself. A folder with a kustomization stands for the files that it names, and so do folders and
    kustomizations that it names; any other folder for every ``*.yaml``, ``*.yml`` and ``*.json`` below it. Charts,
    hidden folders and what a conversion wrote beside a file of values are left out.
    """
    walk = _Walk(tuple(resources))
    for path in paths:
        if path.is_dir():
            walk.folder(path)
        elif path.name in KUSTOMIZATIONS:
            walk.kustomization(path)
        elif path.exists():
            walk.file(path)
        else:
            walk.error(path, "there is no such file or folder", "")
    return Found([group for group in walk.groups if group.files], walk.findings)


class _Walk:
    def __init__(self, resources: tuple[str, ...]) -> None:
        self._resources = resources
        self._seen: set[str] = set()
        self._by_folder: dict[Path, Group] = {}
        self.groups: list[Group] = []
        self.findings: list[Finding] = []

    def folder(self, folder: Path) -> None:
        if (folder / "Chart.yaml").exists():
            if any(self._speaks_of_resources(path) for path in sorted(folder.rglob("*")) if path.is_file()):
                self._find(Level.LEFT, folder, "a Helm chart", HELM_HINT)
            return
        for name in KUSTOMIZATIONS:
            if (folder / name).is_file():
                self.kustomization(folder / name)
                return
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".") or path.name.endswith(FOLDER_SUFFIX):
                continue
            if path.is_dir():
                self.folder(path)
            elif path.suffix in SUFFIXES:
                self.file(path)

    def file(self, path: Path, group: Group | None = None) -> None:
        if self._is_new(path):
            if group is None:
                group = self._by_folder.get(path.parent)
            if group is None:
                group = self._by_folder[path.parent] = Group()
                self.groups.append(group)
            group.files.append(path)

    def kustomization(self, path: Path, group: Group | None = None) -> None:
        """Follow what a kustomization names; its own patches are not converted, and said."""
        if not self._is_new(path):
            return
        if group is None:
            group = Group()
            self.groups.append(group)
        try:
            text = path.read_text(encoding="utf-8")
            document = next(documents(text), None)
        except (OSError, ValueError, NotYaml) as error:
            self.error(path, f"the kustomization cannot be read: {' '.join(str(error).split())}", "")
            return
        document = document if isinstance(document, dict) else {}
        for key in ("resources", "bases", "components"):
            for name in _strings(document.get(key)):
                self._resource(path, name, group)
        for name in _patches(document):
            if self._speaks_of_resources(path.parent / name):
                self._find(Level.LEFT, path.parent / name, "a patch that speaks of the resource", _RENDER_HINT)
        if not text.startswith(HEAD) and self._speaks_of_resources(path):
            self._find(Level.LEFT, path, "a patch or chart in it speaks of the resource", _RENDER_HINT)
        if document.get("namePrefix") or document.get("nameSuffix"):
            message = "namePrefix and nameSuffix rename templates, but not where pods name them"
            self._find(Level.LEFT, path, message, _RENDER_HINT)

    def _resource(self, kustomization: Path, name: str, group: Group) -> None:
        path = Path(os.path.normpath(kustomization.parent / name))
        if path.is_file():
            self.file(path, group)
        elif path.is_dir():
            inner = next((path / one for one in KUSTOMIZATIONS if (path / one).is_file()), None)
            if inner is None:
                self.error(path, f"{kustomization} names this folder, which has no kustomization", "")
            else:
                self.kustomization(inner, group)
        elif "://" in name or "?" in name or ":" in name or "//" in name:
            self._find(Level.NOTE, kustomization, f"{name} is somewhere else and is not read", _RENDER_HINT)
        else:
            self.error(path, f"{kustomization} names it, and it is not there", "")

    def _is_new(self, path: Path) -> bool:
        real = os.path.realpath(path)
        new = real not in self._seen
        self._seen.add(real)
        return new

    def _speaks_of_resources(self, path: Path) -> bool:
        try:
            text = path.read_bytes()
        except OSError:
            return False
        return any(name.encode() in text or name.replace("/", "~1").encode() in text for name in self._resources)

    def error(self, path: Path, message: str, hint: str) -> None:
        self._find(Level.ERROR, path, message, hint)

    def _find(self, level: Level, path: Path, message: str, hint: str) -> None:
        self.findings.append(Finding(level, 0, "", message, hint, str(path)))


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
