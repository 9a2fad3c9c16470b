"""Read the manifests of a plan: which workloads they make, and what each becomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from drabridge.migrate.configured import devices_of
from drabridge.migrate.convert import files
from drabridge.migrate.convert.batch import Outcome, Source, convert_group
from drabridge.migrate.convert.converter import ConvertedPod
from drabridge.migrate.convert.json_nodes import documents
from drabridge.migrate.convert.settings import Finding, Level, Settings
from drabridge.migrate.convert.templates import KIND
from drabridge.migrate.plan.document import Plan

Json = dict[str, Any]
DEFAULT_NAMESPACE = "default"  # of manifests that name none

ObjectKey = tuple[str, str, str]
"""(namespace, kind, name)."""


class Converted(Struct):
    """One object: its manifest before and after, its file, the templates that it needs, as manifests, and the pods."""

    path: Path
    before: Json
    after: Json
    templates: list[Json]
    pods: list[ConvertedPod]


class Manifests(Struct):
    """All that was found. ``texts``: file -> (text before, text after), of those that change."""

    objects: dict[ObjectKey, Converted] = field(default_factory=dict)
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
        for path in group.files:
            text = files.text_of(path)
            if isinstance(text, Finding):
                found.findings.append(text)
            else:
                sources.append(Source(str(path), text))
        outcomes = convert_group(sources, settings)
        readable = [one for one in outcomes if all(said.level is not Level.ERROR for said in one.findings())]
        templates = [one for outcome in readable for one in _documents(outcome.conversion.text) if one["kind"] == KIND]
        for outcome in outcomes:
            found.findings += outcome.findings()
            if outcome.changed:
                path = Path(outcome.source.name)
                found.texts[path] = outcome.source.text, outcome.conversion.text
                found.objects.update(_objects(path, outcome, templates))
    return found


def _objects(path: Path, outcome: Outcome, templates: Sequence[Json]) -> Iterator[tuple[ObjectKey, Converted]]:
    """Yield the objects of one file that change."""
    before = {key_of(one): one for one in _documents(outcome.source.text)}
    for after in _documents(outcome.conversion.text):
        key = key_of(after)
        if after["kind"] != KIND and key in before and before[key] != after:
            wanted = set(_template_names(after))
            mine = [one for one in templates if key_of(one)[0] == key[0] and key_of(one)[2] in wanted]
            pods = [one for one in outcome.conversion.pods if _key_of_pod(one) == key]
            yield key, Converted(path, before[key], after, mine, pods)


def key_of(manifest: Json) -> ObjectKey:
    """Return which object a manifest is about."""
    metadata = manifest.get("metadata") or {}
    return metadata.get("namespace") or DEFAULT_NAMESPACE, manifest["kind"], str(metadata.get("name") or "")


def _key_of_pod(pod: ConvertedPod) -> ObjectKey:
    return pod.manifest.namespace or DEFAULT_NAMESPACE, pod.manifest.kind, pod.manifest.name


def _documents(text: str) -> Iterator[Json]:
    """Yield the objects of a text, those in lists, too."""
    for document in documents(text):
        yield from _in(document)


def _in(document: object) -> Iterator[Json]:
    if isinstance(document, dict) and isinstance(document.get("kind"), str):
        if document["kind"].endswith("List") and isinstance(document.get("items"), list):
            for one in document["items"]:
                yield from _in(one)
        else:
            yield document


def _template_names(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        name = value.get("resourceClaimTemplateName")
        if isinstance(name, str):
            yield name
        for one in value.values():
            yield from _template_names(one)
    elif isinstance(value, list):
        for one in value:
            yield from _template_names(one)
