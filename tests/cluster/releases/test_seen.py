"""The table of what each release showed says what the kept outcomes say, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.releases import seen
from tests.cluster.releases.features import FEATURES, missing
from tests.cluster.releases.seen import FAILED, NOT_THERE, PASSED, ROWS, TOLD, Row, cell

ROW = Row("Leases", ("leases/",), "binding conditions")
TEST = "leases/test_leases.py::test_one[real]"
ABSENT = f"{NOT_THERE}binding conditions"


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ({TEST: PASSED}, "works (1 tests)"),
        ({TEST: PASSED, "leases/test_x.py::test_two[real]": FAILED}, "**fails**"),
        ({TEST: ABSENT}, "missing"),
        ({TEST: ABSENT, f"{TOLD}::test_it[binding conditions]": PASSED}, "missing, and told"),
        ({TEST: ABSENT, f"{TOLD}::test_it[binding conditions]": FAILED}, "missing"),
        ({TEST: "no podman here"}, "not run"),
        ({TEST: PASSED, "leases/test_x.py::test_two[real]": "no podman here"}, "in part (1 of 2 tests)"),
        ({"pods/test_pods.py::test_one[real]": PASSED}, "not run"),
    ],
)
def test_a_cell_says_what_its_tests_came_to(tests: dict[str, str], said: str) -> None:
    assert cell(ROW, tests) == said


def test_the_page_has_the_table_of_what_is_kept() -> None:
    text = seen.PAGE.read_text()
    assert f"{seen.BEGIN}\n\n{seen.table(seen.load())}\n\n{seen.END}" in text, (
        "python -m tests.cluster --keep writes it"
    )


def test_rows_name_tests_that_are_there() -> None:
    folder = Path(__file__).resolve().parents[1]
    for row in ROWS:
        assert row.feature in ("", *FEATURES)
        for name in row.tests:
            path, _, function = name.partition("::")
            found = [*folder.glob(f"{path}*.py" if path.endswith(("_", "r")) else path)] or [*folder.glob(f"{path}*")]
            assert found, name
            assert any(f"def {function}" in one.read_text() for one in found if one.is_file()) or not function, name


def test_outcomes_of_several_runs_of_a_version_are_kept_together(tmp_path: Path) -> None:
    path = tmp_path / "1.36.json"
    seen.keep(path, "1.36.3", {"tests/cluster/a.py::test_a": PASSED, "tests/cluster/b.py::test_b": FAILED})
    seen.keep(path, "1.36.3", {"tests/cluster/b.py::test_b": PASSED})
    assert seen.load(tmp_path) == {"1.36.3": {"a.py::test_a": PASSED, "b.py::test_b": PASSED}}
    seen.keep(path, "1.36.4", {"tests/cluster/b.py::test_b": PASSED})
    assert seen.load(tmp_path) == {"1.36.4": {"b.py::test_b": PASSED}}, "of another version nothing is believed"


GATES = 'kubernetes_feature_enabled{name="DRAExtendedResource",stage="%s"} %d\n'
SCHEMA = '{"properties": {"extendedResourceName": {}}}'


@pytest.mark.parametrize(
    ("metrics", "schema", "there"),
    [
        (GATES % ("BETA", 1), SCHEMA, True),
        (GATES % ("ALPHA", 0), SCHEMA, False),
        ("", SCHEMA, True),  # the gate was removed when it became general
        ("", "{}", False),  # not there yet
    ],
)
def test_a_feature_is_there_if_its_gate_is_on_or_its_field_outlived_the_gate(
    metrics: str, schema: str, there: bool
) -> None:
    pages = {"/metrics": metrics, "/openapi/v3/apis/resource.k8s.io/v1": schema}
    assert (missing(("extended resources",), pages.get) == []) is there
