"""Say the claims of a chart's pod in a patch of what Helm makes: within a HelmRelease of Flux, or as a folder.

A patch tests each limit before it takes it out. So it fails, and nothing changes, where the limits are not what the
values said: other values come on top, or the chart has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from drabridge.migrate.convert.json_patch import json_patch
from drabridge.migrate.convert.kinds import Rendered, at, matching, text_at
from drabridge.migrate.convert.splice import Add, Append, Operation, flow_text, in_order, scalar
from drabridge.migrate.convert.templates import TEMPLATES_FILE, Template, templates_file
from drabridge.migrate.convert.yaml_nodes import Leaf, Value, leaf_text
from drabridge.yaml_reader import Path

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
    """Return the patch that does with the pod that a chart makes what operations do with the rendered one."""
    lines = json_patch(in_order(operations), rendered.body, _POD)
    return Patch(rendered.kind, rendered.selector, "".join(f"- {line}\n" for line in lines))


def in_release(body: Value, patches: Sequence[Patch]) -> Operation:
    """Return the operation that brings patches into a HelmRelease; paths begin at the object."""
    new: Value = {"kustomize": {"patches": [one.value() for one in patches]}}
    return Add(_RENDERERS[:-1], _RENDERERS[-1], [new]) if at(body, _RENDERERS) is None else Append(_RENDERERS, new)


def is_there(body: Value, patch: Patch) -> bool:
    """Return whether a HelmRelease has the patch already."""
    return any(_text(at(body, path)) == patch.text for path in _patches(body, patch.selector))


def other_claims(body: Value) -> bool:
    """Return whether the post-renderers of a HelmRelease speak of claims: one more patch could take these away."""
    return _CLAIMS in flow_text(at(body, _RENDERERS) or "", json_style=True)


def _patches(body: Value, selector: str) -> Iterable[Path]:
    for path in matching(body, (*_RENDERERS, "*", "kustomize", "patches", "*")):
        if text_at(at(body, (*path, "target")), "labelSelector") == selector:
            yield (*path, "patch")


def _text(found: Value | None) -> str:
    return leaf_text(found) if isinstance(found, str | Leaf) else ""


def folder(file: str, chart: str, patches: Sequence[Patch], templates: Sequence[Template]) -> dict[str, str]:
    """Return the files beside a file of values: the templates, and a kustomization where a patch is needed."""
    if not templates:
        return {}
    file = "".join(sign if sign.isprintable() else "?" for sign in file)  # it stands in comments
    head_of_templates = f"{HEAD} for {file}: apply it in the namespace of the release.\n"
    found = {TEMPLATES_FILE: head_of_templates + templates_file(templates)}
    if patches:
        head = (
            f"{HEAD} for {file} of the chart {chart}. What Helm makes of it goes through this folder:",
            f"#   helm template RELEASE CHART -n NAMESPACE -f {file} > {file}{FOLDER_SUFFIX}/{RENDERED_FILE}",
            f"#   kubectl kustomize {file}{FOLDER_SUFFIX} | kubectl apply -n NAMESPACE -f -",
            "# or in a script for helm upgrade --post-renderer: cat > rendered.yaml && kubectl kustomize .",
        )
        found[KUSTOMIZATION] = kustomization(head, (f"- {RENDERED_FILE}", f"- {TEMPLATES_FILE}"), (), patches)
    return found


def joined(old: str, new: str) -> str:
    """Return the templates of two texts that :func:`folder` made, each once."""
    head, _, rest = old.partition("\n")
    documents = [*rest.split(_BETWEEN), *new.partition("\n")[2].split(_BETWEEN)]
    return f"{head}\n{_BETWEEN.join(dict.fromkeys(documents))}"


def kustomization(head: Sequence[str], resources: Sequence[str], more: Sequence[str], patches: Sequence[Patch]) -> str:
    """Return a kustomization with patches; ``more``: its other lines."""
    lines = [*head, "apiVersion: kustomize.config.k8s.io/v1beta1", "kind: Kustomization", *more]
    lines += ["resources:", *resources, "patches:"]
    for one in patches:
        lines += ["- target:", f"    kind: {scalar(one.kind)}", f"    labelSelector: {scalar(one.selector)}"]
        lines += ["  patch: |", *(f"    {line}" for line in one.text.splitlines())]
    return "\n".join(lines) + "\n"
