"""Each release is simulated as its real node was recorded (``python -m tests.sim.record``)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from drabridge.sim.releases import GATES, RELEASES, release_of
from tests.sim.record.simulated import differences, simulate, simulated_release

FIXTURES = Path(__file__).parent / "fixtures"
FOLDERS = sorted(path.name for path in FIXTURES.glob("kubernetes-*"))
DOCUMENTS = sorted({path.stem for path in FIXTURES.glob("kubernetes-*/*.json")})


@cache
def recorded(folder: str) -> Mapping[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in (FIXTURES / folder).glob("*.json")}


@pytest.fixture(scope="module", params=FOLDERS)
def both(request: pytest.FixtureRequest) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The recording of a real node, and that of the release as it is simulated."""
    return recorded(request.param), asyncio.run(simulate(simulated_release(request.param)))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_simulation_shows_what_was_recorded(both: tuple[Mapping[str, Any], Mapping[str, Any]], name: str) -> None:
    assert differences(*both, name) == []


def test_every_release_of_the_table_was_recorded() -> None:
    assert {simulated_release(folder) for folder in FOLDERS} == set(RELEASES)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_row_names_the_version_and_the_gates_that_were_recorded(folder: str) -> None:
    """A gate that a release knows, and that a simulated part looks at somewhere, is in its row, unless it is off."""
    row, gates = release_of(simulated_release(folder)), recorded(folder)["gates"]
    assert folder == f"kubernetes-{row.version.removeprefix('v')}"
    known = {**gates["apiserver"], **gates["kubelet"]}
    missing = {name for name in GATES & known.keys() if known[name]["enabled"]} - row.gates.keys()
    assert missing == set()


def test_a_difference_is_told_with_its_path_and_both_values() -> None:
    one, other = {"events": {"a": [{"b": 1}], "c": {}}}, {"events": {"a": [{"b": 2}], "c": {"d": ""}}}
    assert differences(one, other, "events") == [
        "/a/0/b: recorded 1, simulated 2",
        "/c: recorded {}, simulated nothing",
        "/c/d: recorded nothing, simulated ''",
    ]
