"""Write a conversion as Kustomize patches: of objects, or of the output that Helm makes from a chart.

A patch tests each limit before it removes the limit. So if the limits are not those of the values, the patch fails and
nothing changes: other values were merged over these, or the chart has changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from drabridge.migrate.convert.charts import ARGO, Release
from drabridge.migrate.convert.kinds import Manifest, Rendered
from drabridge.migrate.convert.pods import ConvertedPod
from drabridge.migrate.convert.settings import Finding, Level
from drabridge.migrate.convert.splice import Add, Append, Operation, block_lines, flow_text, in_order, json_patch
from drabridge.migrate.convert.templates import TEMPLATES_FILE, Template, missing, templates_file
from drabridge.migrate.convert.yaml_nodes import (
    NotYamlError,
    Value,
    at,
    content_end,
    matching,
    parse,
    same,
    text_at,
    value,
)
from drabridge.yaml_reader import Node, Path, node_at

KUSTOMIZATION = "kustomization.yaml"
RENDERED_FILE = "rendered.yaml"
FOLDER_SUFFIX = ".claims"  # of the folder beside a file of values
HEAD = "# Written by drabridge migrate convert"
_POD = ("spec", "template", "spec")
_RENDERERS = ("spec", "postRenderers")
_CLAIMS = "resourceClaims"
_BETWEEN = "---\n"


class Patch(Struct, frozen=True):
    """A patch of one object, as RFC 6902 has it: the object's kind, its labels, and the patch as YAML."""

    kind: str
    selector: str
    text: str

    def value(self) -> Value:
        """Return the patch as a kustomization has it in ``patches``."""
        return {"target": {"kind": self.kind, "labelSelector": self.selector}, "patch": self.text}


def patch_of(rendered: Rendered, operations: Iterable[Operation]) -> Patch:
    """Return the patch that makes the operations on ``rendered`` in the pod that the chart makes."""
    return Patch(rendered.kind, rendered.selector, _patch_text(in_order(operations), rendered.body, _POD))


def _patch_text(operations: Iterable[Operation], body: Value, start: Path = ()) -> str:
    return "".join(f"- {line}\n" for line in json_patch(operations, body, start))


def in_release(body: Value, patches: Sequence[Patch]) -> Operation:
    """Return the operation that brings patches into a HelmRelease; paths begin at the object."""
    new: Value = {"kustomize": {"patches": [one.value() for one in patches]}}
    return Add(_RENDERERS[:-1], _RENDERERS[-1], [new]) if at(body, _RENDERERS) is None else Append(_RENDERERS, new)


def is_there(body: Value, patch: Patch) -> bool:
    """Return whether a HelmRelease has the patch already."""
    patches = [at(body, path) for path in matching(body, (*_RENDERERS, "*", "kustomize", "patches", "*"))]
    mine = [one for one in patches if text_at(at(one, ("target",)), "labelSelector") == patch.selector]
    return any(text_at(one, "patch") == patch.text for one in mine)


def other_claims(body: Value) -> bool:
    """Return whether the post-renderers of a HelmRelease mention claims: another patch could remove those."""
    return _CLAIMS in flow_text(at(body, _RENDERERS) or "", json_style=True)


def folder(file: str, chart: str, patches: Sequence[Patch], templates: Sequence[Template]) -> dict[str, str]:
    """Return the files beside a file of values: the templates, and a kustomization where a patch is needed."""
    if not templates:
        return {}
    file = "".join(sign if sign.isprintable() else "?" for sign in file)  # the name is written in comments
    head_of_templates = f"{HEAD} for {file}: apply it in the namespace of the release.\n"
    found = {TEMPLATES_FILE: head_of_templates + templates_file(templates)}
    if patches:
        head = (
            f"{HEAD} for {file} of the chart {chart}. What Helm makes of it goes through this folder:",
            f"#   helm template RELEASE CHART -n NAMESPACE -f {file} > {file}{FOLDER_SUFFIX}/{RENDERED_FILE}",
            f"#   kubectl kustomize {file}{FOLDER_SUFFIX} | kubectl apply -n NAMESPACE -f -",
            "# or in a script for helm upgrade --post-renderer: cat > rendered.yaml && kubectl kustomize .",
        )
        found[KUSTOMIZATION] = kustomization(
            head, {"resources": [RENDERED_FILE, TEMPLATES_FILE], "patches": [one.value() for one in patches]}
        )
    return found


def joined(old: str, new: str) -> str:
    """Return the templates of two texts that :func:`folder` made, each once."""
    head, _, rest = old.partition("\n")
    documents = [*rest.split(_BETWEEN), *new.partition("\n")[2].split(_BETWEEN)]
    return f"{head}\n{_BETWEEN.join(dict.fromkeys(documents))}"


def kustomization(head: Iterable[str], said: dict[str, Value]) -> str:
    """Return a kustomization, or a component, with comments above it."""
    kind: dict[str, Value] = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    return "\n".join([*head, *block_lines({**kind, **said})]) + "\n"


# --- a component ----------------------------------------------------------------------------------------------------


def component(pods: Iterable[ConvertedPod], *, namespaced: bool = True) -> dict[str, str]:
    """Return the component's files by name: add its folder to ``components:`` of a kustomization.

    A patch is written for each object with a name, as RFC 6902 has it, and fails if the object is not as it was read.
    ``namespaced``: it is for the object in its namespace alone.
    """
    pods = [pod for pod in pods if _named(pod)]
    templates = missing([template for pod in pods for template in pod.templates])
    patches: list[Value] = []
    for pod in pods:
        target: dict[str, Value] = {"group": pod.manifest.group, "version": pod.manifest.version}
        target |= {"kind": pod.manifest.kind, "name": pod.manifest.name}
        target |= {"namespace": pod.manifest.namespace} if namespaced else {}
        text = _patch_text(pod.operations, pod.manifest.body)
        patches.append({"target": {key: one for key, one in target.items() if one}, "patch": text})
    head = [f"{HEAD}: name this folder under components: of your kustomization."]
    said: dict[str, Value] = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component"}
    said |= {"resources": [TEMPLATES_FILE], "patches": patches}
    return {KUSTOMIZATION: kustomization(head, said), TEMPLATES_FILE: templates_file(templates)}


def nameless(pods: Iterable[ConvertedPod]) -> list[Finding]:
    """Return a finding for each object without a name: a Kustomize patch needs a target."""
    message = "it has generateName only, and a patch of Kustomize needs the object's name"
    hint = "convert the file itself with --in-place, or what Kustomize makes of it with --post-renderer"
    values = "values of a chart are no object, so no patch of Kustomize changes them"
    found = [
        Finding(Level.LEFT, pod.line, str(pod.manifest), message if pod.manifest.kind else values, hint)
        for pod in pods
        if not _named(pod)
    ]
    return list(dict.fromkeys(found))


def _named(pod: ConvertedPod) -> bool:
    return bool(text_at(at(pod.manifest.body, ("metadata",)), "name"))


# --- a folder for an Application of Argo CD -------------------------------------------------------------------------

VALUES_FILE = "values.yaml"
_HINT = (
    "drabridge migrate convert -o kustomize --to FOLDER writes a folder with the chart, its values and a patch, which "
    "its source can name instead"
)
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")  # names of Applications that are allowed as a folder's name


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


def folders(found: Iterable[Patched]) -> list[tuple[str, dict[str, str]]]:
    """Return release name and files of a folder, for each Application whose chart a folder can replace.

    Several have one release name when they install it in several namespaces or clusters.
    """
    by_chart: dict[tuple[str, ...], list[Patched]] = {}
    for one in found:
        if key := _chart(one):
            by_chart.setdefault(key, []).append(one)
    made: list[tuple[str, dict[str, str]]] = []
    for (name, repository, version, release, namespace, values), some in by_chart.items():
        head = (
            f"{HEAD} for the Application {release}: commit this folder, and let spec.source",
            "# name its path instead of the chart. Argo CD needs kustomize.buildOptions: --enable-helm in argocd-cm.",
        )
        chart: dict[str, Value] = {
            "name": name,
            "repo": repository if "://" in repository else f"oci://{repository}",
            "version": version,
            "releaseName": release,
            "namespace": namespace,
            "valuesFile": VALUES_FILE,
        }
        charts: list[Value] = [{key: one for key, one in chart.items() if one}]
        patches = [one.patch.value() for one in some]
        said: dict[str, Value] = {"helmCharts": charts, "resources": [TEMPLATES_FILE], "patches": patches}
        templates = missing([template for one in some for template in one.templates])
        files = {
            KUSTOMIZATION: kustomization(head, said),
            TEMPLATES_FILE: templates_file(templates),
            VALUES_FILE: values,
        }
        made.append((release, files))
    return made


def _chart(one: Patched) -> tuple[str, ...]:
    """Return (chart, repository, version, release, namespace, values) of an Application; () where no folder can be."""
    manifest, source = one.manifest, at(one.manifest.body, one.release.source)
    name = text_at(at(source, ("helm",)), "releaseName") or manifest.name
    values = node_at(one.root, (*manifest.path, *one.release.values))
    chart, repository, version = (text_at(source, key) for key in ("chart", "repoURL", "targetRevision"))
    if manifest.kind != ARGO or not chart or not _NAME.fullmatch(name) or values is None:
        return ()
    return chart, repository, version, name, manifest.pods_namespace, _text_alone(one.text, values)


def _text_alone(text: str, node: Node) -> str:
    """Return a node as a separate text, with the comments in its lines."""
    start = text.rfind("\n", 0, node.start) + 1
    indent = node.start - start
    end = text.find("\n", content_end(node))
    lines = text[start : end if end >= 0 else len(text)].split("\n")
    alone = "\n".join(line[indent:] for line in lines) + "\n"
    try:
        says = [value(root) for root in parse(alone)]
    except NotYamlError:
        says = []
    whole = len(says) == 1 and same(says[0], value(node))
    return alone if whole else f"{flow_text(value(node), json_style=True)}\n"
