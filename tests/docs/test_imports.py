"""Test modules and conftests are imported by pytest alone; what tests share stands in modules of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for folder in ("tests", "deploy", "docs") for path in (ROOT / folder).rglob("*.py"))
IMPORT = re.compile(r"^\s*(?:from|import)\s[^\n(]*(?:\([^)]*\))?", re.MULTILINE)


def imported(path: Path) -> Iterator[str]:
    """Every module of the tests that a file imports, and every name that it takes from one."""
    text = path.read_text()
    if not any(re.search(r"\btests\b", one) and re.search(r"\b(conftest|test_)", one) for one in IMPORT.findall(text)):
        return  # to parse all files takes long
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_test_module_is_imported() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}: move what both need to tests/support"
        for path in FILES
        for name in imported(path)
        if name.startswith("tests.") and any(part == "conftest" or part.startswith("test_") for part in name.split("."))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_folder_of_tests_is_a_package() -> None:
    """Two test modules of one name in two folders are two modules only if both folders are packages."""
    folders = {path.parent for path in FILES if path.is_relative_to(ROOT / "tests")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]
