"""Say what installed a live object and would undo a change of it: Helm, Flux or Argo CD, by what they write into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Installer(Struct, frozen=True):
    """What installed an object. ``from_git``: it brings what is in a repository by itself. ``action``: what to do."""

    words: str
    from_git: bool
    action: str


_IN_GIT = "its manifest is converted in the folder: commit it, and what installed it brings it to the cluster"
_VALUES = (
    "convert the chart's values, or what Helm makes of them, with drabridge migrate convert; apply with --lanes-only"
)


def installer_of(metadata: Mapping[str, Any]) -> Installer | None:
    """Return what installed an object; None where nothing says so."""
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if name := labels.get("kustomize.toolkit.fluxcd.io/name"):
        return Installer(f"Flux's Kustomization {name}", True, _IN_GIT)
    if name := labels.get("helm.toolkit.fluxcd.io/name"):
        return Installer(f"Flux's HelmRelease {name}", False, _VALUES)
    if tracked := notes.get("argocd.argoproj.io/tracking-id"):
        return Installer(f"Argo CD's Application {str(tracked).partition(':')[0]}", True, _IN_GIT)
    if name := labels.get("argocd.argoproj.io/instance"):
        return Installer(f"Argo CD's Application {name}", True, _IN_GIT)
    if name := notes.get("meta.helm.sh/release-name"):
        return Installer(f"Helm's release {name}", False, _VALUES)
    if labels.get("app.kubernetes.io/managed-by") == "Helm":
        return Installer("a release of Helm", False, _VALUES)
    return None
