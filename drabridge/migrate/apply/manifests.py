"""Read and write the manifests of a plan: the workloads in them, their converted form, and the way back.

Objects of a Helm release get a folder instead: Kustomize patches Helm's output, as a post-renderer. The state file may
have come with the plan from somebody else. So it may name only two kinds of files: manifests that this plan names, and
files in these folders.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from drabridge import yaml_reader
from drabridge.errors import ConfigError, HostError
from drabridge.migrate.apply.state import FileBefore
from drabridge.migrate.configured import devices_of
from drabridge.migrate.convert import files
from drabridge.migrate.convert.conversion import Source, convert_group
from drabridge.migrate.convert.pods import ConvertedPod
from drabridge.migrate.convert.post_render import FOLDER_SUFFIX, KUSTOMIZATION, RENDERED_FILE, component, kustomization
from drabridge.migrate.convert.settings import Finding, Settings
from drabridge.migrate.convert.splice import applied
from drabridge.migrate.convert.templates import missing
from drabridge.migrate.convert.yaml_nodes import plain
from drabridge.migrate.installers import Key
from drabridge.migrate.plan.document import Plan
from drabridge.system.files import Care, write_atomically
from podresources.resolve.files import leads_out

Json = dict[str, Any]
DEFAULT_NAMESPACE = "default"  # of manifests that name none


class Converted(Struct):
    """One object that changes: the file that it is in, and its pods with their operations."""

    path: Path
    pods: list[ConvertedPod]

    @property
    def before(self) -> Any:
        """The manifest as it is."""
        return plain(self.pods[0].manifest.body)

    @property
    def after(self) -> Any:
        """The manifest as it becomes."""
        operations = [one for pod in self.pods for one in pod.operations]
        return plain(applied(self.pods[0].manifest.body, operations))

    @property
    def templates(self) -> list[Json]:
        """The manifests of the templates that it needs."""
        return [one.manifest() for one in missing(one for pod in self.pods for one in pod.templates)]


class Manifests(Struct):
    """What reading the manifests gave. ``texts``: changed file -> (text before, text after)."""

    objects: dict[Key, Converted] = field(default_factory=dict)
    texts: dict[Path, tuple[str, str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def of_plan(plan: Plan, folder: Path) -> Manifests:
    """Read the manifests that a plan names. ``folder``: where the plan is. Raises ConfigError."""
    config = folder / plan.config if plan.config else None
    return read_manifests([folder / one for one in plan.manifests], config, {plan.resource: plan.device_class})


def read_manifests(paths: Sequence[Path], config: Path | None, classes: Mapping[str, str]) -> Manifests:
    """Read and convert manifests, and write nothing. ``classes``: resource -> DeviceClass. Raises ConfigError."""
    settings = Settings(devices_of(config, classes))
    listed = files.find(paths, settings.devices)
    found = Manifests(findings=list(listed.findings))
    for group in listed.groups:
        sources = []
        for path in group:
            text = files.text_of(path)
            if isinstance(text, Finding):
                found.findings.append(text)
            else:
                sources.append(Source(str(path), text))
        for outcome in convert_group(sources, settings):
            found.findings += outcome.findings()
            if outcome.changed:
                path = Path(outcome.source.name)
                found.texts[path] = outcome.source.text, outcome.conversion.text
                found.objects.update(_objects(path, outcome.conversion.pods))
    return found


def _objects(path: Path, pods: Iterable[ConvertedPod]) -> Iterator[tuple[Key, Converted]]:
    """Yield the objects of one file that change, each with its pods. Values of a chart are no object."""
    by_place: dict[yaml_reader.Path, Converted] = {}
    for pod in pods:
        by_place.setdefault(pod.manifest.path, Converted(path, [])).pods.append(pod)
    for one in by_place.values():
        manifest = one.pods[0].manifest
        if manifest.kind:
            yield (manifest.namespace or DEFAULT_NAMESPACE, manifest.kind, manifest.name), one


# --- what is written ------------------------------------------------------------------------------------------------

FOLDER = f"for-owners{FOLDER_SUFFIX}"  # no manifests of the plan
_CLAIMS = "claims"


def folder_of(words: str) -> str:
    """Return the folder for an owner, beside the plan."""
    return f"{FOLDER}/{re.sub(r'[^a-z0-9]+', '-', words.lower()).strip('-') or 'release'}"


def files_for_helm(words: str, changed: Iterable[Converted]) -> dict[str, str]:
    """Return name -> text of the folder's files: a post-renderer that makes these changes in Helm's output."""
    head = (
        f"# Written by drabridge migrate apply for {words}, whose next upgrade would undo a change in the cluster.",
        "# Let this be the script of helm upgrade --post-renderer (Helm 4: of a post-renderer plugin):",
        f"#   cd {folder_of(words)} && cat > {RENDERED_FILE} && kubectl kustomize .",
        f"# A HelmRelease of Flux takes the patches of {_CLAIMS}/{KUSTOMIZATION} in "
        "spec.postRenderers[].kustomize.patches.",
    )
    files = {KUSTOMIZATION: kustomization(head, {"resources": [RENDERED_FILE], "components": [_CLAIMS]})}
    pods = [pod for one in changed for pod in one.pods]
    patches = component(pods, namespaced=False)  # templates of charts often leave the namespace to Helm
    return {**files, **{f"{_CLAIMS}/{name}": text for name, text in patches.items()}}


def remove(path: Path) -> None:
    """Remove a file of the folder, and the folder where it was the last one. Raises HostError."""
    try:
        path.unlink(missing_ok=True)
        for folder in list(path.parents)[:2]:
            if folder.name != FOLDER and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    except OSError as error:
        raise HostError(f"{path} cannot be removed: {error.strerror}") from error


Say = Callable[[str, str], None]


def restore(plan: Plan, folder: Path, written: Sequence[FileBefore], say: Say) -> None:
    """Write the files as they were before the step. ``folder``: where the plan is.

    Raises ConfigError if one is no file of this plan; HostError if one was changed since or cannot be written. All are
    checked before the first is written.
    """
    named = manifests_of(plan, folder) if any(one.before for one in written) else frozenset()
    for one in written:
        _check(one, folder, named)
    for one in written:
        path = folder / one.path
        if one.before:
            write(path, one.before)
            say(one.path, "as it was")
        else:
            remove(path)
            say(one.path, "removed")


def manifests_of(plan: Plan, folder: Path) -> frozenset[Path]:
    """Return every file of the plan's manifests, with symbolic links resolved. Raises ConfigError."""
    found = files.find([folder / one for one in plan.manifests], ())
    return frozenset(Path(os.path.realpath(path)) for group in found.groups for path in group)


def write(path: Path, text: str) -> None:
    """Overwrite a manifest, or write a new file of a folder. Raises HostError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        write_atomically(path, text.encode(), mode=mode, care=Care.WHOLE)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror}") from error


def _check(one: FileBefore, folder: Path, named: Collection[Path]) -> None:
    """Raise if a file is not the plan's, or has a text that the step neither found nor left there."""
    path = Path(os.path.normpath(folder / one.path))
    root = Path(os.path.realpath(folder)) / FOLDER
    mine = not leads_out(path, [root]) if not one.before else path in named or Path(os.path.realpath(path)) in named
    if not mine or path.is_symlink():
        raise ConfigError(
            f"{path} is no manifest of this plan, though its state says that a step wrote it",
            hint="Take the plan's state file from where you applied the plan: this one was changed",
        )
    if not one.before:
        return
    text = files.text_of(path)
    if isinstance(text, Finding):
        raise HostError(f"{path}: {text.message}")
    if text not in (one.before, one.after):
        raise HostError(
            f"{path} was changed since it was converted",
            hint="drabridge migrate convert --reverse, or your version control, gives you what it was",
        )
