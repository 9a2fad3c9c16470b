"""Write a folder for an Application of Argo CD whose chart needs a patch: Kustomize renders and patches the chart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from drabridge.migrate.convert.kinds import Manifest, at, text_at
from drabridge.migrate.convert.post_render import HEAD, KUSTOMIZATION, Patch, kustomization
from drabridge.migrate.convert.releases import ARGO, Release
from drabridge.migrate.convert.splice import flow_text, scalar
from drabridge.migrate.convert.templates import TEMPLATES_FILE, Template, missing, templates_file
from drabridge.migrate.convert.yaml_nodes import NotYaml, content_end, node_at, parse, same, value
from drabridge.yaml_reader import Node

VALUES_FILE = "values.yaml"
_HINT = (
    "drabridge migrate convert -o kustomize --to FOLDER writes a folder with the chart, its values and a patch, which "
    "its source can name instead"
)
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")  # of an Application that may name a folder


def hint(manifest: Manifest, release: Release) -> str:
    """Return what to do with an Application whose chart needs a patch."""
    return _HINT if text_at(at(manifest.body, release.source), "chart") else release.hint


class Patched(Struct, frozen=True):
    """One pod of a chart that an Application installs. ``root``: of its document in the text."""

    text: str
    root: Node
    manifest: Manifest
    release: Release
    patch: Patch
    templates: Sequence[Template]


class _Source(Struct, frozen=True):
    """A chart as Argo CD installs it: where it is, the name of its release, and its values as YAML."""

    chart: str
    repository: str
    version: str
    release: str
    namespace: str
    values: str


def _folder(source: _Source, patches: Sequence[Patch], templates: Sequence[Template]) -> dict[str, str]:
    head = (
        f"{HEAD} for the Application {source.release}: commit this folder, and let spec.source",
        "# name its path instead of the chart. Argo CD needs kustomize.buildOptions: --enable-helm in argocd-cm.",
    )
    named = (
        ("name", source.chart),
        ("repo", source.repository if "://" in source.repository else f"oci://{source.repository}"),
        ("version", source.version),
        ("releaseName", source.release),
        ("namespace", source.namespace),
        ("valuesFile", VALUES_FILE),
    )
    first, *others = [f"{key}: {scalar(text)}" for key, text in named if text]
    chart = ("helmCharts:", f"- {first}", *(f"  {line}" for line in others))
    return {
        KUSTOMIZATION: kustomization(head, (f"- {TEMPLATES_FILE}",), chart, patches),
        TEMPLATES_FILE: templates_file(templates),
        VALUES_FILE: source.values,
    }


def folders(found: Iterable[Patched]) -> dict[str, dict[str, str]]:
    """Return a folder for each Application that one can stand for: the name of its release -> its files."""
    by_source: dict[_Source, list[Patched]] = {}
    for one in found:
        if (source := _source(one)) is not None:
            by_source.setdefault(source, []).append(one)
    made: dict[str, dict[str, str]] = {}
    for source, some in by_source.items():
        templates = missing([template for one in some for template in one.templates], ())
        made.setdefault(source.release, _folder(source, [one.patch for one in some], templates))
    return made


def _source(one: Patched) -> _Source | None:
    """Return the chart of an Application; None where a folder cannot stand for it."""
    manifest, source = one.manifest, at(one.manifest.body, one.release.source)
    name = text_at(at(source, ("helm",)), "releaseName") or manifest.name
    values = node_at(one.root, (*manifest.path, *one.release.values))
    if manifest.kind != ARGO or not text_at(source, "chart") or not _NAME.fullmatch(name) or values is None:
        return None
    return _Source(
        text_at(source, "chart"),
        text_at(source, "repoURL"),
        text_at(source, "targetRevision"),
        name,
        manifest.pods_namespace,
        _text_alone(one.text, values),
    )


def _text_alone(text: str, node: Node) -> str:
    """Return what a node says as a text of its own, with its comments where they are in its lines."""
    start = text.rfind("\n", 0, node.start) + 1
    indent = node.start - start
    end = text.find("\n", content_end(node))
    lines = text[start : end if end >= 0 else len(text)].split("\n")
    alone = "\n".join(line[indent:] for line in lines) + "\n"
    try:
        says = [value(root) for root in parse(alone)]
    except NotYaml:
        says = []
    whole = len(says) == 1 and same(says[0], value(node))
    return alone if whole else f"{flow_text(value(node), json_style=True)}\n"
