"""The README is true: its generated parts are current, its links lead somewhere, its commands exist, its YAML loads."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from docs.generate import README, generate
from drabridge.cli import COMMANDS
from drabridge.config import load
from drabridge.kube.events import REASONS

ROOT = README.parent
TEXT = README.read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)


def test_generated_parts_are_current() -> None:
    assert generate(TEXT) == TEXT, "run: python -m docs.generate"


def test_nothing_is_left_to_be_filled_in() -> None:
    assert "<!-- include" not in TEXT


def test_links_within_the_repository_lead_somewhere() -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", TEXT)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_anchors_exist() -> None:
    titles = re.findall(r"^#+ (.+)$", TEXT, flags=re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}
    used = set(re.findall(r"\]\(#([^)]+)\)", TEXT))
    assert used - anchors == set()


@pytest.mark.parametrize("text", [block for block in blocks("yaml") if "kind: AgentConfig" in block])
def test_configurations_load(text: str) -> None:
    load(text)


def test_commands_exist() -> None:
    words = [shlex.split(line.split(" #")[0].lstrip("$ ")) for block in blocks("console") for line in block.splitlines()
             if line.startswith("$ drabridge ")]  # fmt: skip
    inline = [shlex.split(found) for found in re.findall(r"`(drabridge [a-z-]+[^`]*)`", TEXT)]
    assert len(words) >= 4
    assert {line[1] for line in [*words, *inline]} - COMMANDS.keys() == set()


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"(?:`|\$ )make ([a-z]+)", TEXT)) <= targets


def test_every_event_is_in_the_table() -> None:
    """The reasons that the ledger's code writes, found in its source, are those of the table."""
    written = set()
    for path in (ROOT / "drabridge").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Notify":
                reason = node.args[1]
                assert isinstance(reason, ast.Constant), f"{path}:{node.lineno}: a reason must be a literal"
                written.add(reason.value)
    assert written == REASONS.keys()


def test_no_module_is_two_ideas() -> None:
    """The house rule: a module of the product stays below 450 lines."""
    modules = [path for top in ("deviceplugin", "drabridge", "podresources") for path in Path(ROOT, top).rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules}
    assert {path: n for path, n in lines.items() if n > 450 and "_pb2" not in path} == {}
