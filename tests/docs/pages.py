"""The documents of the repository, and what of them the tests look at."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")],
    key=str,
)
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of one language, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def prose(path: Path) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """What a link can name after ``#``: one for each title, as GitHub and the site make it."""
    titles = re.findall(r"^#+ (.+)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}
