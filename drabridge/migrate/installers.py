"""Say what owns a live object and would undo a change of it: Helm, Flux, Argo CD or an operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

Key = tuple[str, str, str]
"""(namespace, kind, name)."""


class Installer(Struct, frozen=True):
    """What owns an object. ``from_git``: it brings what is in a repository by itself.

    ``source``: the object that makes it, where that has a manifest: kind, name and namespace, "" where any will do.
    """

    words: str
    from_git: bool
    source: tuple[str, str, str] = ("", "", "")

    def manifest_in(self, keys: Iterable[Key]) -> Key | None:
        """Return which of these objects makes what it owns; None where none does."""
        kind, name, namespace = self.source
        found = (key for key in keys if kind and key[1:] == (kind, name) and namespace in ("", key[0]))
        return next(found, None)


IN_GIT = "its manifest is converted in the folder: commit or apply it, and what owns it does the rest"
IN_FOLDER = "apply writes a folder with a patch of what Helm makes, and waits until a helm upgrade has used it"


def installer_of(metadata: Mapping[str, Any]) -> Installer | None:
    """Return what installed an object, by what it wrote into it; None where nothing says so."""
    labels, notes = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if name := labels.get("kustomize.toolkit.fluxcd.io/name"):
        return Installer(f"Flux's Kustomization {name}", from_git=True)
    if name := labels.get("helm.toolkit.fluxcd.io/name"):
        source = ("HelmRelease", name, labels.get("helm.toolkit.fluxcd.io/namespace") or "")
        return Installer(f"Flux's HelmRelease {name}", from_git=False, source=source)
    if tracked := notes.get("argocd.argoproj.io/tracking-id"):
        return _argo(str(tracked).partition(":")[0])
    if name := labels.get("argocd.argoproj.io/instance"):
        return _argo(str(name))
    if name := notes.get("meta.helm.sh/release-name"):
        return Installer(f"Helm's release {name}", from_git=False)
    if labels.get("app.kubernetes.io/managed-by") == "Helm":
        return Installer("a release of Helm", from_git=False)
    return None


def operator_of(kind: str) -> Installer:
    """Return what owns what is made of a custom resource: only its own manifest can be changed."""
    return Installer(f"the operator of {kind}s", from_git=True)


def _argo(name: str) -> Installer:
    return Installer(
        f"Argo CD's Application {name}", from_git=True, source=("Application", name.rpartition("_")[2], "")
    )
