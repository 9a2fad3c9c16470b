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


@pytest.mark.parametrize("top", ["deviceplugin", "drabridge", "podresources", "tests", "deploy", "docs"])
def test_modules_that_prose_names_exist(top: str) -> None:
    wrong = []
    for path in FILES:
        if path.relative_to(ROOT).parts[0] != top:
            continue
        text = prose(path)
        modules = re.findall(r":mod:`~?((?:drabridge|deviceplugin|podresources|tests)[\w.]*)`", text)
        modules += re.findall(r"``((?:drabridge|deviceplugin|podresources|tests)(?:\.[a-z_]+)+)``", text)
        files = re.findall(r"``([a-z_]+(?:/[a-z_0-9]+)*\.py)``|(?<![\w./-])([a-z_]+(?:/[a-z_]+)+\.py)(?!\w)", text)
        for name in modules:
            base = ROOT / name.replace(".", "/")
            if not (base.is_dir() or base.with_suffix(".py").exists() or base.parent.with_suffix(".py").exists()):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
        wrong += [
            f"{path.relative_to(ROOT)}: {name}" for pair in files for name in pair if name and not is_there(name, path)
        ]
    assert sorted(set(wrong)) == []
