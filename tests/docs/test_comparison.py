"""Each row of the comparison has a test that runs our column, or says that none does."""

from __future__ import annotations

import ast
import tomllib

import pytest

from tests.agent import umockdev_gpus
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "comparison.md"
RUN_BY: dict[str, dict[str, list[str]]] = tomllib.loads((ROOT / "tests/docs/comparison.toml").read_text())


def rows() -> dict[str, dict[str, str]]:
    """Our cell by what each row compares, by section."""
    found: dict[str, dict[str, str]] = {}
    ours, section = 0, ""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith("|") and "drabridge" in cells:
            ours = cells.index("drabridge")
        elif line.startswith("|") and cells[0].strip("-"):
            found.setdefault(section, {})[cells[0]] = cells[ours]
    return found


def is_test(name: str) -> bool:
    """Whether ``path::name`` is a function of that file, or a name without a file a case of the GPUs."""
    path, separator, function = name.rpartition("::")
    if not separator:
        return name in umockdev_gpus.CASES
    if not path.startswith("tests/") or not (ROOT / path).is_file():
        return False
    defined = ast.walk(ast.parse((ROOT / path).read_text()))
    return function in {node.name for node in defined if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_row_has_tests_that_are_there_or_says_that_it_has_none() -> None:
    """A reader who decides by a row finds out that nobody tried it only on their own cluster."""
    compared = rows()
    assert {section: set(row) for section, row in compared.items()} == {one: set(row) for one, row in RUN_BY.items()}
    for section, tests in RUN_BY.items():
        for row, names in tests.items():
            said = compared[section][row]
            assert [name for name in names if not is_test(name)] == [], (section, row)
            assert said.endswith("(no test)") is (not names and said != "no"), (section, row, said)


def test_every_case_of_the_gpus_is_in_a_row() -> None:
    named = {name for row in RUN_BY.values() for names in row.values() for name in names}
    assert umockdev_gpus.CASES.keys() <= named


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("amd_ids_and_nodes_are_those_of_its_plugin", True),
        ("amd_ids", False),
        ("tests/docs/test_comparison.py::is_test", True),
        ("tests/docs/test_comparison.py::is_no_test", False),
        ("tests/docs/none.py::is_test", False),
        ("drabridge/cli/record.py::run", False),
    ],
)
def test_names_are_looked_up(name: str, found: bool) -> None:
    assert is_test(name) is found
