"""docs/architecture.md draws the house that stands: its packages, their order, and the modules of its diagrams."""

from __future__ import annotations

import re
import tomllib

from docs.generate import house_page
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs/architecture.md"
TEXT = PAGE.read_text()
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def rows() -> list[set[str]]:
    """The packages of each row of the table, from the top."""
    table = TEXT.partition("| Package (")[2].partition("\n\n")[0]
    return [set(re.findall(r"`(\w+)`", line.split("|")[1])) for line in table.splitlines()[2:]]


def test_the_table_is_the_contract() -> None:
    (contract,) = (one for one in CONTRACTS if one["type"] == "layers")
    layers = [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]
    assert rows() == [layer for layer in layers if layer != {"__main__"}]


def test_the_picture_of_the_house_is_drawn_from_the_contract_and_the_imports() -> None:
    assert house_page() == TEXT, "run: python -m docs.generate"


def test_diagrams_have_no_sign_that_ends_a_message() -> None:
    """Mermaid reads a semicolon as the end of a line, and what follows # as an entity."""
    assert [line for diagram in blocks(PAGE, "mermaid") for line in diagram.splitlines() if set(line) & set(";#")] == []


def test_every_package_is_in_the_table() -> None:
    packages = {path.name for path in (ROOT / "drabridge").iterdir() if (path / "__init__.py").exists()}
    assert packages | {"errors"} == set().union(*rows())


def test_modules_in_diagrams_exist() -> None:
    named = {
        name
        for diagram in blocks(PAGE, "mermaid")
        for name in re.findall(r"(?:participant \w+ as |\()([a-z_]+(?:/[a-z_]+)+)", diagram)
    }
    assert len(named) >= 8
    places = ("", "drabridge/")
    assert [name for name in sorted(named) if not any((ROOT / f"{at}{name}.py").exists() for at in places)] == []


def test_foreign_packages_are_where_the_page_says() -> None:
    said = dict(re.findall(r"`(pyudev|kubernetes|watchdog)` to `([\w/]+)\.py`", TEXT))
    known = {
        one["forbidden_modules"][0]: one["ignore_imports"][0].split(" -> ")[0].replace(".", "/")
        for one in CONTRACTS
        if " is known to " in one["name"]
    }
    assert said == known
