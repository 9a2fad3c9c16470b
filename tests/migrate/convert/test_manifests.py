"""Manifests in the shapes of charts and operators that people use: each is converted, checked, and goes back.

A file's first line says what is expected: pod templates that are converted, templates that are written, what is left.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drabridge.migrate.convert.settings import Level
from drabridge.sim.apiserver.objects import Objects, Writer
from drabridge.sim.apiserver.store import Store
from drabridge.sim.releases import DEFAULT, RELEASES
from tests.migrate.convert.checks import check, pods_of, templates_of
from tests.support.api_schemas import validate

FILES = sorted((Path(__file__).parents[1] / "manifests").glob("*.yaml"))
EXPECT = re.compile(r"# expect: pods=(\d+) templates=(\S*) left=(\d+)")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_manifest_is_converted_as_it_says(path: Path) -> None:
    text = path.read_bytes().decode()
    expected = EXPECT.search(text)
    assert expected is not None
    found = check(text)
    left = [one for one in found.findings if one.level is not Level.NOTE]
    said = len(found.pods), ",".join(one.name for one in found.templates), len(left)
    assert said == (int(expected[1]), expected[2], int(expected[3])), found.findings
    for finding in left:
        assert finding.hint
        assert finding.line


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_api_takes_what_it_became(path: Path) -> None:
    text = check(path.read_bytes().decode()).text
    for template in templates_of(text):
        for release in RELEASES:
            validate(template, release)
        namespace = template["metadata"].get("namespace", "default")
        server = Objects(Store(), RELEASES[DEFAULT].gates_with())
        if namespace != "default":
            server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        server.create(template, by=Writer(strict=True, dry_run=True))
    for pod in pods_of(text):
        if all("image" in container for container in pod["spec"]["containers"]):
            for release in RELEASES:
                validate(pod, release)
        names = {claim["name"] for claim in pod["spec"].get("resourceClaims", ())}
        for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
            assert {claim["name"] for claim in container.get("resources", {}).get("claims", ())} <= names
