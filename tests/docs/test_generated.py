"""What is generated is current: reference pages, the table of Events, the demo's picture."""

from __future__ import annotations

import ast
import re

import pytest

from docs.generate import FOLDER, PAGES, generated
from drabridge.kube.events import REASONS
from tests.docs.pages import ROOT

PICTURE = ROOT / "docs/images/demo.svg"
STORY = ROOT / "drabridge/cli/demo/story.py"


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_current(name: str) -> None:
    assert (FOLDER / name).read_text() == generated(name), "run: python -m docs.generate"


def test_every_page_of_the_reference_is_generated() -> None:
    assert {path.name for path in FOLDER.glob("*.md")} == PAGES.keys()


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


def test_the_picture_shows_the_steps_of_the_demo() -> None:
    """Those from the first pod to ``drabridge status``, in the words of the demo."""
    calls = [node for node in ast.walk(ast.parse(STORY.read_text())) if isinstance(node, ast.Call)]
    titles = [
        call.args[0].value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "step" and isinstance(call.args[0], ast.Constant)
    ]
    shown = " ".join(re.sub(r"<[^>]+>", " ", PICTURE.read_text()).replace("&#160;", " ").replace("&#x27;", "'").split())
    assert len(titles) >= 8
    missing = [str(title) for title in titles if " ".join(str(title).split()) not in shown]
    left_out = ["a cluster with one node starts", "the agent starts", "the agent stops", "it stays"]
    assert [title for title in missing if not title.startswith(tuple(left_out))] == [], "run: make picture"


def test_the_picture_loads_nothing_from_elsewhere() -> None:
    assert set(re.findall(r"https?://[^\"' )]+", PICTURE.read_text())) == {"http://www.w3.org/2000/svg"}
