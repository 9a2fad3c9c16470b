"""The three distributions: what each depends on, what of this repository it has, and that they go together."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.helm import ROOT
from hatch_build import LIBRARIES, libraries

Json = dict[str, Any]


def pyproject(folder: str = ".") -> Json:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def dependencies(folder: str = ".") -> dict[str, str]:
    """Range by package."""
    found = map(Requirement, pyproject(folder)["project"]["dependencies"])
    return {canonicalize_name(one.name): str(one.specifier) for one in found}


def closure(names: set[str]) -> set[str]:
    """The packages that an installation of ``names`` brings, without extras."""
    found: set[str] = set()
    while names - found:
        name = (names - found).pop()
        found.add(name)
        wanted = map(Requirement, metadata.requires(name) or ())
        names |= {canonicalize_name(one.name) for one in wanted if not one.marker or one.marker.evaluate({"extra": ""})}
    return found


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_takes_the_versions_that_the_agent_takes(library: str) -> None:
    """Else no two of them could be installed together some day."""
    assert dependencies(library).items() <= dependencies().items()
    assert pyproject(library)["build-system"] == pyproject()["build-system"]
    assert pyproject(library)["project"]["requires-python"] == pyproject()["project"]["requires-python"]


def test_podresources_brings_seven_packages() -> None:
    """An exporter's image must not have a Kubernetes client and an HTTP library in it."""
    assert len(closure(set(dependencies("podresources")))) + 1 == 7


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_imports_only_what_it_depends_on(library: str) -> None:
    """Also where an import is inside a function: it would fail on the first call, at a user's."""
    graph = grimp.build_graph(library, include_external_packages=True, cache_dir=None)
    modules = {name for name in graph.modules if graph.is_module_squashed(name)} - sys.stdlib_module_names
    homes = metadata.packages_distributions()  # a module such as google is of several
    allowed = set(dependencies(library))
    assert "msgspec" in modules
    assert [name for name in modules if allowed.isdisjoint(map(canonicalize_name, homes[name]))] == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_has_the_version_of_the_agent_and_a_readme_of_its_own(library: str) -> None:
    told = pyproject(library)
    assert (ROOT / library / told["tool"]["hatch"]["version"]["path"]).resolve() == ROOT / "drabridge/__init__.py"
    assert (ROOT / library / told["project"]["readme"]).read_text().startswith(f"# {library}\n")
    assert (ROOT / library / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    urls = pyproject()["project"]["urls"]
    assert told["project"]["urls"] == urls | {
        "Documentation": urls["Documentation"].replace("index.md", f"{library}.md")
    }


def test_a_wheel_of_a_clone_takes_the_libraries_beside_it_and_one_of_the_sdist_their_versions(tmp_path: Path) -> None:
    """No index has them while nothing is published; and a published wheel must not name a folder of its builder."""
    assert libraries(tmp_path, "1.2") == [f"{name} @ {(tmp_path / name).as_uri()}" for name in LIBRARIES]
    (tmp_path / "PKG-INFO").touch()
    assert libraries(tmp_path, "1.2") == [f"{name}==1.2" for name in LIBRARIES]


def test_what_is_installed_for_developers_has_all_three() -> None:
    recipe = (ROOT / "Makefile").read_text()
    assert re.search(r"^LIBRARIES := podresources deviceplugin$", recipe, re.MULTILINE)
    assert recipe.count("$(addprefix -e ./,$(LIBRARIES))") == 1
