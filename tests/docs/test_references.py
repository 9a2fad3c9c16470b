"""What docstrings and comments call by its place is there: modules, files of the repository."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

FILES = [
    path
    for top in ("deviceplugin", "drabridge", "podresources", "tests", "deploy", "docs")
    for path in sorted((ROOT / top).rglob("*.py"))
    if "_pb2" not in path.name
]
FOLDERS = ("", "drabridge/", "drabridge/sim/", "tests/")


def prose(path: Path) -> str:
    """Comments of a module and strings that stand for themselves: docstrings."""
    source = path.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    statements = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Expr))
    return "\n".join(comments + [str(one.value) for one in statements if isinstance(one, ast.Constant)])


def is_there(name: str, beside: Path) -> bool:
    places = [beside.parent, beside.parent.parent, *(ROOT / folder for folder in FOLDERS)]
    return any((place / name).exists() for place in places)


def missing(text: str, beside: Path) -> set[str]:
    """Modules and files that a text names and that are not there."""
    modules = re.findall(r":mod:`~?((?:drabridge|deviceplugin|podresources|tests)[\w.]*)`", text)
    modules += re.findall(r"``((?:drabridge|deviceplugin|podresources|tests)(?:\.[a-z_]+)+)``", text)
    files = re.findall(r"``([a-z_]+(?:/[a-z_0-9]+)*\.py)``|(?<![\w./-])([a-z_]+(?:/[a-z_]+)+\.py)(?!\w)", text)
    wrong = {name for pair in files for name in pair if name and not is_there(name, beside)}
    for name in modules:
        base = ROOT / name.replace(".", "/")
        if not (base.is_dir() or base.with_suffix(".py").exists() or base.parent.with_suffix(".py").exists()):
            wrong.add(name)
    return wrong


@pytest.mark.parametrize("top", ["deviceplugin", "drabridge", "podresources", "tests", "deploy", "docs"])
def test_modules_that_prose_names_exist(top: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        if path.relative_to(ROOT).parts[0] == top
        and missing(path.read_text(), path)  # to find out what is prose takes long
        for name in missing(prose(path), path)
    ]
    assert wrong == []


def test_a_module_or_file_that_is_not_there_is_missing() -> None:
    text = "``drabridge.nowhere.at_all``, :mod:`tests.docs.pages`, :mod:`tests.nowhere.else`, ``pages.py``, docs/no.py"
    assert missing(text, Path(__file__)) == {"drabridge.nowhere.at_all", "tests.nowhere.else", "docs/no.py"}
