"""Write a change for a release of Helm as a folder: Kustomize patches what Helm makes, as a post-renderer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from drabridge.errors import HostError
from drabridge.migrate.apply.manifests import Converted
from drabridge.migrate.convert.kustomize import component
from drabridge.migrate.convert.post_render import FOLDER_SUFFIX
from drabridge.system.files import Care, write_atomically

FOLDER = f"for-owners{FOLDER_SUFFIX}"  # no manifests of the plan
_CLAIMS = "claims"
_KUSTOMIZATION = """\
# Written by drabridge migrate apply for {words}, whose next upgrade would undo a change in the cluster.
# Let this be the script of helm upgrade --post-renderer (Helm 4: of a post-renderer plugin):
#   cd {folder} && cat > rendered.yaml && kubectl kustomize .
# A HelmRelease of Flux takes the patches of claims/kustomization.yaml in spec.postRenderers[].kustomize.patches.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources:
- rendered.yaml
components:
- claims
"""


def folder_of(words: str) -> str:
    """Return the folder for an owner, beside the plan."""
    return f"{FOLDER}/{re.sub(r'[^a-z0-9]+', '-', words.lower()).strip('-') or 'release'}"


def files_for_helm(words: str, changed: Iterable[Converted]) -> dict[str, str]:
    """Return the files of the folder by name: what Helm makes goes in, and comes out with these changes."""
    files = {"kustomization.yaml": _KUSTOMIZATION.format(words=words, folder=folder_of(words))}
    pods = [pod for one in changed for pod in one.pods]
    patches = component(pods, namespaced=False)  # templates of charts often leave the namespace to Helm
    return {**files, **{f"{_CLAIMS}/{name}": text for name, text in patches.items()}}


def write_new(path: Path, text: str) -> None:
    """Write a file of the folder. Raises HostError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode(), mode=0o644, care=Care.WHOLE)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror}") from error


def remove(path: Path) -> None:
    """Remove a file of the folder, and the folder where it was the last one. Raises HostError."""
    try:
        path.unlink(missing_ok=True)
        for folder in list(path.parents)[:2]:
            if folder.name != FOLDER and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
    except OSError as error:
        raise HostError(f"{path} cannot be removed: {error.strerror}") from error
