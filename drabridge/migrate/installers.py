"""Find what is behind a live object: what installed it and would undo a change, and which operators count limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct


class CountingOperator(Struct, frozen=True):
    """Custom resources whose operator reads limits, or cannot use claims. ``kinds``: prefix of their kinds.

    ``seen``: what the operator does with limits. ``after``: what to configure once they are claims; "" if nothing.
    """

    group: str
    kinds: str
    seen: str
    after: str = ""


_TRAINING = "the training operator counts GPUs in limits (kubeflow/trainer#3540)"
_OPERATORS = (  # the first row that fits
    CountingOperator(
        "kubeflow.org",
        "MPIJob",
        _TRAINING,
        "mpi-operator sets slots from slotsPerWorker, not from claims: see that it says the number of devices",
    ),
    CountingOperator("kubeflow.org", "", _TRAINING),
    CountingOperator("trainer.kubeflow.org", "", "the trainer counts GPUs in limits (kubeflow/trainer#3540)"),
    CountingOperator("nvidia.com", "Dynamo", "Dynamo's operator counts GPUs in limits (ai-dynamo/dynamo#12164)"),
    CountingOperator(
        "ray.io",
        "Ray",
        "KubeRay makes num-gpus of limits",
        "KubeRay counts GPUs from limits: set num-gpus in rayStartParams of this group",
    ),
    CountingOperator("serving.kserve.io", "", "KServe's model servers have limits, and no claims (kserve#5294)"),
    CountingOperator("serving.knative.dev", "", "Knative's services take no claims (knative/serving#15332)"),
)


def counting_operator(group: str, kind: str) -> CountingOperator | None:
    """Return the row of a custom resource; None if its operator ignores limits."""
    return next((one for one in _OPERATORS if one.group == group and kind.startswith(one.kinds)), None)


# --- what installed it ----------------------------------------------------------------------------------------------

Key = tuple[str, str, str]
"""(namespace, kind, name)."""


class Installer(Struct, frozen=True):
    """What owns an object. ``from_git``: it installs what is in a repository by itself.

    ``source``: (kind, name, namespace) of the object that makes it, if that has a manifest; namespace "": any.
    """

    words: str
    from_git: bool
    source: tuple[str, str, str] = ("", "", "")

    def manifest_in(self, keys: Iterable[Key]) -> Key | None:
        """Return the one of these objects that is ``source``; None if there is none."""
        kind, name, namespace = self.source
        found = (key for key in keys if kind and key[1:] == (kind, name) and namespace in ("", key[0]))
        return next(found, None)


IN_GIT = "its manifest is converted in the folder: commit or apply it, and what owns it does the rest"
IN_FOLDER = "apply writes a folder with a patch of what Helm makes, and waits until a helm upgrade has used it"


def installer_of(metadata: Mapping[str, Any]) -> Installer | None:
    """Return what installed an object, by the labels and annotations that it wrote; None if unknown."""
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
    """Return the owner of objects that a custom resource's operator makes: change the custom resource itself."""
    return Installer(f"the operator of {kind}s", from_git=True)


def _argo(name: str) -> Installer:
    return Installer(
        f"Argo CD's Application {name}", from_git=True, source=("Application", name.rpartition("_")[2], "")
    )
