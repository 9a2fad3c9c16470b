"""The Kubernetes releases that nodes can be built of: one folder with ``go.mod`` and ``go.sum`` for each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.node.errors import NodeError

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "releases"
DEFAULT = "1.36"
_VERSION = re.compile(r"^(?:require )?\s*k8s\.io/kubernetes v(\S+)$", re.MULTILINE)


@dataclass(frozen=True, order=True)
class Release:
    """A release, as ``1.36``, and the version that its go.mod pins, as ``1.36.3``."""

    minor: int
    name: str
    version: str
    folder: Path


def releases() -> list[Release]:
    """Return all releases, the oldest first."""
    found = []
    for path in FOLDER.glob("1.*/go.mod"):
        name = path.parent.name
        version = _VERSION.search(path.read_text())
        assert version, f"{path} requires no k8s.io/kubernetes"
        found.append(Release(int(name.partition(".")[2]), name, version[1], path.parent))
    return sorted(found)


def release(name: str = DEFAULT) -> Release:
    """Return the release ``1.36`` (or ``1.36.3``, if that is what is pinned). Raises NodeError for any other text."""
    known = releases()
    for one in known:
        if name in (one.name, one.version):
            return one
    names = ", ".join(f"{one.name} ({one.version})" for one in known)
    raise NodeError(f"There is no node of Kubernetes {name!r}. Known releases: {names}.")
