"""Every row of the comparison names the test that runs our column, or says that none does."""

from __future__ import annotations

import ast
import re

import pytest

from tests.agent import umockdev_gpus
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "comparison.md"
NOT_RUN = "not run"


def rows() -> list[tuple[str, str]]:
    """What each row of a table compares, and what its last cell says; the header included."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [(row[0], row[-1]) for row in cells if row[-1].strip("-")]


def is_test(name: str) -> bool:
    """Whether ``path::name`` is a function of that file, or a name without a file a case of the GPUs."""
    path, separator, function = name.rpartition("::")
    if not separator:
        return name in umockdev_gpus.CASES
    if not path.startswith("tests/") or not (ROOT / path).is_file():
        return False
    defined = ast.walk(ast.parse((ROOT / path).read_text()))
    return function in {node.name for node in defined if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_row_says_which_test_runs_it() -> None:
    wrong = []
    for compared, said in rows():
        if said in ("run by", NOT_RUN):
            continue
        names = re.findall(r"`([^`]+)`", said)
        if not names or not all(map(is_test, names)):
            wrong.append(f"{compared}: {said}")
    assert wrong == []


def test_every_case_of_the_gpus_is_in_a_row() -> None:
    named = {name for _, said in rows() for name in re.findall(r"`(\w+)`", said)}
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
