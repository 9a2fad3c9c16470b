"""Write a conversion as a Kustomize component: patches of the objects, beside their templates."""

from __future__ import annotations

from collections.abc import Iterable

from drabridge.migrate.convert.converter import ConvertedPod
from drabridge.migrate.convert.json_patch import json_patch
from drabridge.migrate.convert.kinds import at, text_at
from drabridge.migrate.convert.settings import Finding, Level
from drabridge.migrate.convert.splice import scalar
from drabridge.migrate.convert.templates import TEMPLATES_FILE, missing, templates_file

COMPONENT_FILE = "kustomization.yaml"


def component(pods: Iterable[ConvertedPod], *, namespaced: bool = True) -> dict[str, str]:
    """Return the component's files by name: add its folder to ``components:`` of a kustomization.

    A patch is written for each object with a name, as RFC 6902 has it, and fails if the object is not as it was read.
    ``namespaced``: it is for the object in its namespace alone.
    """
    pods = [pod for pod in pods if _named(pod)]
    templates = missing([template for pod in pods for template in pod.templates], ())
    lines = [
        "# Written by drabridge migrate convert: name this folder under components: of your kustomization.",
        "apiVersion: kustomize.config.k8s.io/v1alpha1",
        "kind: Component",
        "resources:",
        f"- {TEMPLATES_FILE}",
        "patches:",
    ]
    for pod in pods:
        group, _, version = text_at(pod.manifest.body, "apiVersion").rpartition("/")
        target = {"group": group, "version": version, "kind": pod.manifest.kind, "name": pod.manifest.name}
        if pod.manifest.namespace and namespaced:
            target["namespace"] = pod.manifest.namespace
        lines += ["- target:"]
        lines += [f"    {key}: {scalar(text)}" for key, text in target.items() if text]
        lines += ["  patch: |-", *(f"    - {line}" for line in json_patch(pod.operations, pod.manifest.body))]
    return {COMPONENT_FILE: "\n".join(lines) + "\n", TEMPLATES_FILE: templates_file(templates)}


def nameless(pods: Iterable[ConvertedPod]) -> list[Finding]:
    """Return a finding for each object without a name of its own: a patch of Kustomize has nothing to aim at."""
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
