"""Build hook: generates the gRPC stubs from ``proto/`` into the packages, next to the code that uses them.

The path of a file under ``proto/`` equals the Python package of the generated module, so the generator's absolute
imports are right as they are. Run by ``pip install`` and ``python -m build``; by hand with ``python hatch_build.py``.
A wheel also gets the profiles that ``drabridge check-config --from nvidia-device-plugin`` begins with.

The repository has three distributions, ``drabridge`` and its two libraries, each with a pyproject.toml. A wheel of
``drabridge`` that is built from a clone depends on the two folders beside it, so that ``pip install .`` needs no index
that has them; one that is built from the sdist, as for a release, depends on their published versions.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
LIBRARIES = ("deviceplugin", "podresources")
PROFILES = {  # in the sources, in the wheel
    f"deploy/examples/{name}": f"drabridge/config/{name}" for name in ("nvidia-gpu.yaml", "nvidia-mig.yaml")
}

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # `python hatch_build.py` in an environment without hatchling
    BuildHookInterface = object  # type: ignore[assignment,misc]


def generate(root: Path = ROOT) -> list[Path]:
    """Compile every contract under ``root/proto``; returns the sources. Raises RuntimeError if protoc refuses one."""
    from importlib.resources import files

    from grpc_tools import protoc

    sources = sorted((root / "proto").rglob("*.proto"))
    scripts = Path(sysconfig.get_path("scripts"))  # they are beside this Python, or on the PATH of an isolated build
    plugins = [f"--plugin={one}" for name in ("mypy", "mypy_grpc") if (one := scripts / f"protoc-gen-{name}").exists()]
    outputs = [f"--{kind}_out={root}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    include = str(files("grpc_tools") / "_proto")
    code = protoc.main(["protoc", f"-I{root / 'proto'}", f"-I{include}", *plugins, *outputs, *map(str, sources)])
    if code != 0:
        raise RuntimeError(f"protoc exited with {code} for {[str(s) for s in sources]}")
    return sources


def libraries(root: Path, version: str) -> list[str]:
    """Name what a wheel of ``root`` depends on: the libraries of the same version, in a clone those of the clone."""
    if (root / "PKG-INFO").exists():  # an sdist
        return [f"{name}=={version}" for name in LIBRARIES]
    return [f"{name} @ {(root / name).as_uri()}" for name in LIBRARIES]


class ProtoHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling before it collects the files of a wheel, an sdist or an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generate()
        if Path(self.root).resolve() != ROOT:  # one of the libraries
            return
        if self.target_name == "wheel" and version != "editable":  # whose path has the libraries' folders, too
            build_data["dependencies"] += libraries(Path(self.root), self.metadata.version)
            for source, target in PROFILES.items():
                build_data["force_include"][str(Path(self.root) / source)] = target


if __name__ == "__main__":
    print(f"generated stubs for {len(generate())} contracts", file=sys.stderr)
